/* What a slot costs that one core writes and another reads: stored through the cache and past it.
 *
 * Two threads on the first two cores hand each other tiles as the engine does. Prints one JSON
 * object a line: what one exchange took in all, and what its halves took. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGEST = 1 << 20, WARM = 5 };

static struct {
    _Alignas(64) _Atomic uint64_t count;
} filled[2];
static char *slots[2], *in[2], *out[2];

struct exchange {
    int rank, past;
    size_t nbytes;
    int calls;
    double whole, store, fold; /* seconds per exchange */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void store(char *to, const char *from, size_t n, int past)
{
    for (size_t i = 0; i < n; i += 32) {
        __m256i v = _mm256_loadu_si256((const void *)(from + i));
        if (past)
            _mm256_stream_si256((void *)(to + i), v);
        else
            _mm256_store_si256((void *)(to + i), v);
    }
    if (past)
        _mm_sfence();
}

static void fold(char *to, const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i += 32)
        _mm256_store_ps((void *)(to + i), _mm256_add_ps(_mm256_loadu_ps((const void *)(a + i)),
                                                        _mm256_loadu_ps((const void *)(b + i))));
}

static void *run(void *argument)
{
    struct exchange *e = argument;
    int me = e->rank;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    sched_setaffinity(0, sizeof core, &core);
    double start = 0;
    for (int i = 0; i < e->calls + WARM; i++) {
        if (i == WARM) {
            start = now();
            e->store = e->fold = 0;
        }
        size_t at = (i & 1) * e->nbytes;
        double a = now();
        store(slots[me] + at, in[me], e->nbytes, e->past);
        e->store += now() - a;
        atomic_store(&filled[me].count, (uint64_t)i + 1);
        while (atomic_load(&filled[!me].count) < (uint64_t)i + 1)
            _mm_pause();
        a = now();
        fold(out[me], in[me], slots[!me] + at, e->nbytes);
        e->fold += now() - a;
    }
    e->whole = (now() - start) / e->calls;
    e->store /= e->calls;
    e->fold /= e->calls;
    return NULL;
}

int main(void)
{
    for (int r = 0; r < 2; r++) {
        slots[r] = aligned_alloc(4096, 2 * LARGEST);
        in[r] = aligned_alloc(4096, LARGEST);
        out[r] = aligned_alloc(4096, LARGEST);
        memset(slots[r], 0, 2 * LARGEST);
        memset(in[r], 0, LARGEST);
        memset(out[r], 0, LARGEST);
    }
    for (int round = 0; round < 5; round++)
        for (size_t n = 4096; n <= LARGEST; n *= 4)
            for (int past = 0; past < 2; past++) {
                struct exchange e[2];
                pthread_t threads[2];
                atomic_store(&filled[0].count, 0);
                atomic_store(&filled[1].count, 0);
                for (int r = 0; r < 2; r++) {
                    e[r] = (struct exchange){.rank = r, .past = past, .nbytes = n};
                    e[r].calls = n > 65536 ? 100 : 1000;
                    pthread_create(&threads[r], NULL, run, &e[r]);
                }
                for (int r = 0; r < 2; r++)
                    pthread_join(threads[r], NULL);
                printf(
                    "{\"round\": %d, \"nbytes\": %zu, \"past_the_cache\": %s, \"whole_us\": %.3f,"
                    " \"store_us\": %.3f, \"fold_us\": %.3f}\n",
                    round, n, past ? "true" : "false", e[0].whole * 1e6, e[0].store * 1e6,
                    e[0].fold * 1e6);
            }
    return 0;
}
