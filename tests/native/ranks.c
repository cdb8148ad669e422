/* Ranks as threads of one process, so that ThreadSanitizer and AddressSanitizer see every access.
 *
 *   ranks PATH FOLDER SIZE ITERATIONS ALGORITHM...
 *
 * PATH is how ranks reach each other: `mapped`, `remote` (by sockets, which another thread hands
 * over while calls run), `both` (ranks 0 and 1, 2 and 3 are mapped), or `rails` (by RDMA, with the
 * stand-in for libibverbs). FOLDER holds ALGORITHM.RANK
 * (staged) and, where the algorithm has one, ALGORITHM.RANK.direct, for SIZE ranks. Calls follow
 * each other without a pause and mix algorithms, sizes, in place and out of place, registered
 * arrays, blocking and queued; every element is checked. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "pycoll.h"

#define MAX_RANKS 8
#define MAX_ALGORITHMS 16
#define MAX_COUNT 3000
#define DEPTH 8 /* calls queued at once */

#define LINKS 3 /* sockets between two ranks */
#define RAILS 2 /* of a rank */

static bool any_mapped, any_remote, by_rails;
static struct pc_comm *comms[MAX_RANKS];
static pthread_barrier_t joined; /* with the thread that links */
static _Atomic bool linked;
static const char *folder;
static char *const *algorithms;
static uint32_t size, nalgorithms;
static int iterations;
static pthread_barrier_t barrier;
static char blobs[MAX_RANKS][256];
static int blob_bytes[MAX_RANKS];
static _Atomic uint32_t connected;

static void die(struct pc_comm *comm, const char *what, int rc)
{
    fprintf(stderr, "%s: %s: %s\n", what, pc_code_name(rc), pc_comm_error(comm)->text);
    exit(1);
}

static struct pc_program *load(struct pc_comm *comm, const char *algorithm, uint32_t rank,
                               const char *suffix)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%u%s", folder, algorithm, rank, suffix);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    static _Thread_local char bytes[1 << 20];
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    struct pc_program *program;
    int rc = pc_program_load(comm, bytes, n, 0, &program);
    if (rc != PC_OK)
        die(comm, path, rc);
    return program;
}

static int32_t value(uint32_t rank, int call, uint32_t i)
{
    return (int32_t)((rank + 1) * 1000003u + (uint32_t)call * 7919u + i * 31u);
}

/* All ranks draw the same numbers, so they agree on every call. */
static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

struct slot {
    struct pc_plan *plan;
    struct pc_work *work;
    int32_t *in, *out;
    uint32_t count;
    int call;
};

static void check(const struct slot *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        int32_t want = 0;
        for (uint32_t r = 0; r < size; r++)
            want = (int32_t)((uint32_t)want + (uint32_t)value(r, s->call, i));
        if (s->out[i] != want) {
            fprintf(stderr, "call %d element %u of %u: got %d, want %d\n", s->call, i, s->count,
                    s->out[i], want);
            exit(1);
        }
    }
}

static void finish(struct pc_comm *comm, struct slot *s)
{
    int rc = PC_OK;
    if (s->work != NULL) {
        while ((rc = pc_work_wait(s->work, 1.0)) == PC_AGAIN) {
        }
        pc_work_free(s->work);
        s->work = NULL;
    }
    if (rc != PC_OK)
        die(comm, "work", rc);
    if (s->plan != NULL)
        check(s);
    pc_plan_free(s->plan);
    s->plan = NULL;
}

static void run_calls(struct pc_comm *comm, uint32_t rank)
{
    struct pc_program *staged[MAX_ALGORITHMS], *direct[MAX_ALGORITHMS];
    struct slot slots[DEPTH] = {{0}};
    int32_t *heap[2 * DEPTH], *plain[2 * DEPTH];
    for (int i = 0; i < 2 * DEPTH; i++) {
        heap[i] = pc_heap_alloc(comm, MAX_COUNT * sizeof(int32_t));
        plain[i] = malloc((MAX_COUNT + 1) * sizeof(int32_t));
    }
    for (uint32_t a = 0; a < nalgorithms; a++) {
        staged[a] = load(comm, algorithms[a], rank, "");
        direct[a] = any_remote ? NULL : load(comm, algorithms[a], rank, ".direct");
    }
    uint64_t state = 42;
    for (int call = 0; call < iterations; call++) {
        uint32_t a = draw(&state) % nalgorithms, count = draw(&state) % MAX_COUNT;
        if (draw(&state) % 3 == 0)
            count %= 12; /* as many small ones, whose bytes lie in the count's line */
        bool in_place = draw(&state) % 2, queued = draw(&state) % 2;
        bool registered = draw(&state) % 3 != 0, offset = draw(&state) % 2;
        uint32_t tile = 64u << draw(&state) % 4;
        struct slot *s = &slots[call % DEPTH];
        finish(comm, s);
        /* sometimes only some ranks use registered memory: then nobody may take the direct form */
        bool mine = registered && (draw(&state) % 4 != 0 || rank % 2 == 0);
        int32_t **arrays = mine ? heap : plain;
        s->in = arrays[2 * (call % DEPTH)] + (mine ? 0 : offset);
        s->out = in_place ? s->in : arrays[2 * (call % DEPTH) + 1] + (mine ? 0 : offset);
        s->count = count;
        s->call = call;
        memset(s->out, 0x55, count * sizeof(int32_t));
        for (uint32_t i = 0; i < count; i++)
            s->in[i] = value(rank, call, i);
        uint64_t nbytes = count * 4u;
        struct pc_plan_spec spec = {.signature = (uint64_t)call + 1,
                                    .nblocks = 1,
                                    .blocks = &nbytes,
                                    .input = {0, 1},
                                    .output = {0, 1},
                                    .dtype = PC_DTYPE_INT32,
                                    .op = PC_REDUCE_SUM,
                                    .tile = tile};
        int rc = pc_plan_create(comm, &spec, staged[a], direct[a], &s->plan);
        if (rc == PC_OK && queued) {
            rc = pc_submit(comm, s->plan, s->in, s->out, 100, "queued", &s->work);
        } else if (rc == PC_OK) {
            rc = pc_run(comm, s->plan, s->in, s->out, 100);
            while (rc == PC_AGAIN)
                rc = pc_resume(comm, 1.0);
        }
        if (rc != PC_OK)
            die(comm, algorithms[a], rc);
    }
    for (int i = 0; i < DEPTH; i++)
        finish(comm, &slots[i]);
    for (uint32_t a = 0; a < nalgorithms; a++) {
        pc_program_free(staged[a]);
        pc_program_free(direct[a]);
    }
    for (int i = 0; i < 2 * DEPTH; i++) {
        pc_heap_free(comm, heap[i]);
        free(plain[i]);
    }
}

static bool is_remote(uint32_t a, uint32_t b)
{
    return a != b && any_remote && !(any_mapped && a / 2 == b / 2);
}

/* Hands over sockets with small buffers, so that frames leave in pieces. */
static void link_ranks(void)
{
    for (uint32_t k = 0; k < (by_rails ? 1 : LINKS); k++)
        for (uint32_t a = 0; a < size; a++)
            for (uint32_t b = 0; b < a; b++) {
                int ends[2], bytes = 16384;
                if (!is_remote(a, b))
                    continue;
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
                    perror("socketpair");
                    exit(1);
                }
                for (int i = 0; i < 2; i++)
                    setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
                int rc = pc_comm_adopt(comms[a], b, ends[0]);
                rc = rc == PC_OK ? pc_comm_adopt(comms[b], a, ends[1]) : rc;
                if (rc != PC_OK || pc_comm_connections(comms[b], a) != (int)k + 1) {
                    fprintf(stderr, "adopt: %s\n", pc_code_name(rc));
                    exit(1);
                }
            }
    atomic_store(&linked, true);
}

/* By RDMA: the rank has the ports of the stand-in for libibverbs from its number times RAILS on. */
static int open_rails(struct pc_comm *comm, uint32_t rank)
{
    const struct pc_verbs_options verbs = {.queue_pairs = 1, .timeout = 14, .retry_count = 7};
    struct pc_rail_spec specs[RAILS];
    for (uint32_t i = 0; i < RAILS; i++) {
        specs[i] = (struct pc_rail_spec){.port = 1, .gid_index = -1};
        snprintf(specs[i].device, sizeof specs[i].device, "fake%u", rank * RAILS + i);
    }
    return pc_comm_rails(comm, &verbs, specs, RAILS);
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    struct pc_options options = {.rank = rank,
                                 .size = size,
                                 .slots = 2,
                                 .slot_bytes = 1 << 16,
                                 .heap_bytes = 1 << 20,
                                 .spin = 0};
    struct pc_comm *comm;
    int rc = pc_comm_open(&options, &comm);
    if (rc == PC_OK && by_rails)
        rc = open_rails(comm, rank);
    if (rc != PC_OK)
        die(comm, "open", rc);
    comms[rank] = comm;
    blob_bytes[rank] = pc_comm_address(comm, blobs[rank], sizeof blobs[rank]);
    pthread_barrier_wait(&barrier);
    for (uint32_t peer = 0; peer < size;) {
        rc = is_remote(rank, peer)
                 ? pc_comm_remote(comm, peer)
                 : pc_comm_connect(comm, peer, blobs[peer], (size_t)blob_bytes[peer]);
        if (rc != PC_OK && rc != PC_AGAIN)
            die(comm, "connect", rc);
        pc_comm_accept(comm);
        peer += rc == PC_OK;
    }
    atomic_fetch_add(&connected, 1);
    while (atomic_load(&connected) < size) /* the others need an answer from this one */
        pc_comm_accept(comm);
    pthread_barrier_wait(&joined);
    run_calls(comm, rank);
    while (!atomic_load(&linked))
        sched_yield();
    if (any_mapped) /* the arenas are shared: nobody unmaps before all are done */
        pthread_barrier_wait(&barrier);
    pc_comm_close(comm);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s PATH FOLDER SIZE ITERATIONS ALGORITHM...\n", argv[0]);
        return 2;
    }
    by_rails = strcmp(argv[1], "rails") == 0;
    any_mapped = !by_rails && strcmp(argv[1], "remote") != 0;
    any_remote = strcmp(argv[1], "mapped") != 0;
    folder = argv[2];
    size = (uint32_t)atoi(argv[3]);
    iterations = atoi(argv[4]);
    algorithms = argv + 5;
    nalgorithms = (uint32_t)(argc - 5);
    pthread_t threads[MAX_RANKS];
    pthread_barrier_init(&barrier, NULL, size);
    pthread_barrier_init(&joined, NULL, size + 1);
    for (uint32_t r = 0; r < size; r++)
        pthread_create(&threads[r], NULL, rank_main, (void *)(uintptr_t)r);
    pthread_barrier_wait(&joined);
    link_ranks();
    for (uint32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    printf("%d calls on %u ranks\n", iterations, size);
    return 0;
}
