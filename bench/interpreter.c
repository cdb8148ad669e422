/* The same work without an interpreter: all-reduce of two ranks, float32 sum, written by hand.
 *
 * one_shot and two_shot do what the Programs of those algorithms do, over the same kind of shared
 * slots. limit moves only the bytes that any all-reduce must move: each rank reads one half of
 * both inputs and writes that half of both outputs. bench/interpreter.py compiles and loads this
 * file and checks every result. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { LINE = 64, SPINS = 4000, CONTROL = 4096, INLINE = 56 };

struct line { /* a count and what fits beside it */
    _Atomic uint64_t count;
    char data[INLINE];
};

struct control { /* what one rank waits on; lies in that rank's half of the memory */
    struct line filled, consumed, barrier;
    struct line small[2];
};

struct twin {
    int rank;
    uint32_t slots;
    size_t slot_bytes;
    char *base[2];
    uint64_t sent, received, small, barriers;
    size_t nbytes; /* of the whole memory */
};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline struct control *control(struct twin *t, int rank)
{
    return (struct control *)t->base[rank];
}

static inline void reach(_Atomic uint64_t *count, uint64_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(count, memory_order_acquire) < value; spins++) {
        if (spins >= SPINS)
            sched_yield();
#ifdef __x86_64__
        else
            _mm_pause();
#endif
    }
}

static inline void raise_to(_Atomic uint64_t *count, uint64_t value)
{
    atomic_store_explicit(count, value, memory_order_release);
}

static void add_two(float *restrict out, float *restrict also, const float *restrict a,
                    const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = also[i] = a[i] + b[i];
}

/* Stores past the cache. `also` may be NULL; `b` may be NULL (a copy). Only `out` is aligned; the
 * slots stay in the cache, because the peer reads them at once. */
static void stream(float *out, float *also, int also_past, const float *a, const float *b, size_t n)
{
    size_t i = 0;
#ifdef __AVX__
    for (; i < n && ((uintptr_t)(out + i) & 31); i++) {
        float v = b ? a[i] + b[i] : a[i];
        out[i] = v;
        if (also)
            also[i] = v;
    }
    int aligned = also && !((uintptr_t)(also + i) & 31);
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(a + i);
        if (b)
            v = _mm256_add_ps(v, _mm256_loadu_ps(b + i));
        _mm256_stream_ps(out + i, v);
        if (also) {
            if (also_past && aligned)
                _mm256_stream_ps(also + i, v);
            else
                _mm256_storeu_ps(also + i, v);
        }
    }
#else
    (void)also_past;
#endif
    for (; i < n; i++) {
        float v = b ? a[i] + b[i] : a[i];
        out[i] = v;
        if (also)
            also[i] = v;
    }
#ifdef __AVX__
    _mm_sfence();
#endif
}

struct twin *twin_open(int fd, size_t nbytes, int rank, uint32_t slots, size_t slot_bytes)
{
    struct twin *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    char *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) {
        free(t);
        return NULL;
    }
    t->rank = rank, t->slots = slots, t->slot_bytes = slot_bytes, t->nbytes = nbytes;
    t->base[0] = memory, t->base[1] = memory + nbytes / 2;
    return t;
}

void twin_close(struct twin *t)
{
    munmap(t->base[0], t->nbytes);
    free(t);
}

/* In one half: the control page, the slots, then the input and the output of `limit`. */
size_t twin_arrays(uint32_t slots, size_t slot_bytes)
{
    return CONTROL + slots * slot_bytes;
}

static inline float *slot(struct twin *t, int rank, uint64_t n)
{
    return (float *)(t->base[rank] + CONTROL + (n % t->slots) * t->slot_bytes);
}

/* A small message is one cache line; two lines take turns, so no credit is needed: a rank sends
 * message n + 2 only after message n + 1 has come, which was sent after n had been read. */
static void one_shot(struct twin *t, const float *x, float *out, size_t count)
{
    float got[INLINE / sizeof(float)];
    uint64_t n = ++t->small;
    struct line *there = &control(t, !t->rank)->small[n & 1];
    struct line *here = &control(t, t->rank)->small[n & 1];
    memcpy(there->data, x, count * sizeof *x);
    raise_to(&there->count, n);
    reach(&here->count, n);
    memcpy(got, here->data, count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        out[i] = t->rank ? got[i] + x[i] : x[i] + got[i];
}

/* Tile by tile: send the peer its half, fold one's own half and send the result, receive the rest.
 */
static void two_shot(struct twin *t, const float *x, float *out, size_t count, int past)
{
    struct control *here = control(t, t->rank), *there = control(t, !t->rank);
    const size_t lines = (count + 15) / 16, tile = t->slot_bytes / sizeof(float);
    const size_t cut = lines / 2 * 16 < count ? lines / 2 * 16 : count;
    const size_t first[2] = {0, cut}, last[2] = {cut, count};
    const size_t mine = first[t->rank], mine_end = last[t->rank];
    const size_t yours = first[!t->rank], yours_end = last[!t->rank];
    const size_t longest = count - cut > cut ? count - cut : cut;
    for (size_t at = 0; at < longest; at += tile) {
        size_t n = yours + at < yours_end ? yours_end - yours - at : 0;
        n = n < tile ? n : tile;
        size_t m = mine + at < mine_end ? mine_end - mine - at : 0;
        m = m < tile ? m : tile;
        if (t->sent >= t->slots)
            reach(&here->consumed.count, t->sent + 1 - t->slots);
        memcpy(slot(t, !t->rank, t->sent), x + yours + at, n * sizeof *x);
        raise_to(&there->filled.count, ++t->sent);

        reach(&here->filled.count, t->received + 1);
        if (t->sent >= t->slots)
            reach(&here->consumed.count, t->sent + 1 - t->slots);
        const float *got = slot(t, t->rank, t->received), *own = x + mine + at;
        const float *a = t->rank ? got : own, *b = t->rank ? own : got;
        float *next = slot(t, !t->rank, t->sent);
        if (past)
            stream(out + mine + at, next, 0, a, b, m);
        else
            add_two(out + mine + at, next, a, b, m);
        raise_to(&there->filled.count, ++t->sent);
        raise_to(&there->consumed.count, ++t->received);

        reach(&here->filled.count, t->received + 1);
        got = slot(t, t->rank, t->received);
        if (past)
            stream(out + yours + at, NULL, 0, got, NULL, n);
        else
            memcpy(out + yours + at, got, n * sizeof *out);
        raise_to(&there->consumed.count, ++t->received);
    }
}

static void barrier(struct twin *t)
{
    raise_to(&control(t, !t->rank)->barrier.count, ++t->barriers);
    reach(&control(t, t->rank)->barrier.count, t->barriers);
}

static void limit(struct twin *t, size_t count, size_t offset, size_t array_bytes, int past)
{
    const size_t from = t->rank ? count / 2 : 0, n = t->rank ? count - count / 2 : count / 2;
    float *x[2], *out[2];
    for (int r = 0; r < 2; r++) {
        x[r] = (float *)(t->base[r] + offset) + from;
        out[r] = (float *)(t->base[r] + offset + array_bytes) + from;
    }
    barrier(t); /* both inputs are there, both outputs may be written */
    if (past)
        stream(out[0], out[1], 1, x[0], x[1], n);
    else
        add_two(out[0], out[1], x[0], x[1], n);
    barrier(t);
}

double twin_one_shot(struct twin *t, const float *x, float *out, size_t count, long calls)
{
    double start = now();
    for (long i = 0; i < calls; i++)
        one_shot(t, x, out, count);
    return now() - start;
}

double twin_two_shot(struct twin *t, const float *x, float *out, size_t count, int past, long calls)
{
    double start = now();
    for (long i = 0; i < calls; i++)
        two_shot(t, x, out, count, past);
    return now() - start;
}

double twin_limit(struct twin *t, size_t count, size_t offset, size_t array_bytes, int past,
                  long calls)
{
    double start = now();
    for (long i = 0; i < calls; i++)
        limit(t, count, offset, array_bytes, past);
    return now() - start;
}

/* pycoll's engine in the same kind of loop: pc_run and, when it says AGAIN, pc_resume. */
typedef int run_function(void *comm, void *plan, const void *in, void *out, double timeout);
typedef int resume_function(void *comm, double seconds);

double twin_engine(run_function *run, resume_function *resume, void *comm, void *plan,
                   const void *in, void *out, long calls)
{
    double start = now();
    for (long i = 0; i < calls; i++) {
        int code = run(comm, plan, in, out, 60.0);
        while (code == -1)
            code = resume(comm, 0.1);
        if (code < 0)
            return -1.0;
    }
    return now() - start;
}
