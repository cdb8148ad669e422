/* Calls on GPUs, played by the stand-in for libcuda: ranks as threads of one process, so that
 * ThreadSanitizer and AddressSanitizer see every access of kernels, proxies and transports.
 *
 *   planes PATH FOLDER SIZE ITERATIONS ALGORITHM...
 *
 * PATH is how ranks reach each other: `direct` (each other's GPU memory), `staged` (memory of the
 * host that both map), `remote` (by sockets), `rails` (by RDMA, with the stand-in for libibverbs),
 * `both` (ranks 0 and 1, 2 and 3 directly, all others by sockets). FOLDER is as for ranks.c. Calls
 * follow each other on two streams, mix algorithms, sizes, lanes, packets, in place and out of
 * place, with several in flight; every element is checked. */
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
#define DEPTH 4 /* calls in flight */
#define LINKS 2 /* sockets between two ranks */
#define RAILS 2 /* of a rank */

static bool any_direct, any_remote, by_rails, staged;
static struct pc_comm *comms[MAX_RANKS];
static pthread_barrier_t joined; /* with the thread that links */
static const char *folder;
static char *const *algorithms;
static uint32_t size, nalgorithms;
static int iterations;
static pthread_barrier_t barrier;
static char blobs[MAX_RANKS][1024];
static int blob_bytes[MAX_RANKS];
static _Atomic uint32_t connected;
static _Atomic uint64_t carried;

static void die(struct pc_comm *comm, const char *what, int rc)
{
    fprintf(stderr, "%s: %s: %s\n", what, pc_code_name(rc), pc_comm_error(comm)->text);
    exit(1);
}

static void cuda(int rc, const struct pc_error *error)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s\n", pc_code_name(rc), error->text);
    exit(1);
}

static struct pc_program *load(struct pc_comm *comm, const char *algorithm, uint32_t rank,
                               const char *suffix)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%u%s", folder, algorithm, rank, suffix);
    FILE *file = fopen(path, "rb");
    if (file == NULL && *suffix != 0)
        return NULL;
    static _Thread_local char bytes[1 << 20];
    size_t n = file == NULL ? 0 : fread(bytes, 1, sizeof bytes, file);
    if (file != NULL)
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
    struct pc_device_plan *plan;
    uint64_t in, out;             /* on the device, in the heap */
    uint64_t plain_in, plain_out; /* elsewhere there */
    int32_t *host;                /* pinned: the input, then the output */
    uint64_t host_device;
    uintptr_t stream;
    uint32_t count;
    int call;
};

static void finish(struct pc_device_comm *plane, struct slot *s)
{
    struct pc_error error;
    if (s->plan == NULL)
        return;
    int rc = pc_device_comm_check(plane);
    if (rc == PC_OK)
        cuda(pc_cuda_stream_wait(0, s->stream, &error), &error);
    for (uint32_t i = 0; i < s->count; i++) {
        int32_t want = 0;
        for (uint32_t r = 0; r < size; r++)
            want = (int32_t)((uint32_t)want + (uint32_t)value(r, s->call, i));
        if (s->host[MAX_COUNT + i] != want) {
            fprintf(stderr, "call %d element %u of %u: got %d, want %d\n", s->call, i, s->count,
                    s->host[MAX_COUNT + i], want);
            exit(1);
        }
    }
    pc_device_plan_free(s->plan);
    s->plan = NULL;
}

static void run_call(struct pc_comm *comm, struct pc_device_comm *plane, struct slot *s,
                     uint32_t rank, const struct pc_plan_spec *spec,
                     struct pc_program *const programs[2],
                     const struct pc_device_plan_options *options, uint32_t offset, bool in_place,
                     bool registered)
{
    struct pc_error error;
    struct pc_plan *plan;
    uint64_t in = (registered ? s->in : s->plain_in) + 4 * offset;
    uint64_t out = in_place ? in : (registered ? s->out : s->plain_out) + 4 * offset;
    size_t nbytes = s->count * 4u;
    for (uint32_t i = 0; i < s->count; i++)
        s->host[i] = value(rank, s->call, i);
    memset(s->host + MAX_COUNT, 0x55, nbytes);
    int rc = pc_plan_create(comm, spec, programs[0], programs[1], &plan);
    if (rc == PC_OK)
        rc = pc_device_plan_create(plane, plan, options, &s->plan);
    if (rc != PC_OK)
        die(comm, "plan", rc);
    if (nbytes != 0)
        cuda(pc_cuda_copy(0, in, s->host_device, nbytes, s->stream, &error), &error);
    rc = pc_device_comm_launch(plane, s->plan, in, out, s->stream, 100);
    if (rc != PC_OK)
        die(comm, "launch", rc);
    if (nbytes != 0)
        cuda(pc_cuda_copy(0, s->host_device + MAX_COUNT * 4, out, nbytes, s->stream, &error),
             &error);
}

static void run_calls(struct pc_comm *comm, struct pc_device_comm *plane, uint32_t rank)
{
    struct pc_program *programs[MAX_ALGORITHMS][2];
    struct slot slots[DEPTH] = {{0}};
    struct pc_error error;
    uintptr_t streams[2], module, function;
    cuda(pc_cuda_module(0, "any", &error, &module), &error);
    cuda(pc_cuda_function(0, module, "pc_int32_sum", &error, &function), &error);
    for (int i = 0; i < 2; i++)
        cuda(pc_cuda_stream(0, 0, &error, &streams[i]), &error);
    for (int i = 0; i < DEPTH; i++) {
        void *host;
        slots[i].in = pc_device_comm_alloc(plane, MAX_COUNT * 4 + 64);
        slots[i].out = pc_device_comm_alloc(plane, MAX_COUNT * 4 + 64);
        cuda(pc_cuda_alloc(0, MAX_COUNT * 4 + 64, &error, &slots[i].plain_in), &error);
        cuda(pc_cuda_alloc(0, MAX_COUNT * 4 + 64, &error, &slots[i].plain_out), &error);
        cuda(pc_cuda_host_alloc(0, 2 * MAX_COUNT * 4, &error, &host, &slots[i].host_device),
             &error);
        slots[i].host = host;
    }
    for (uint32_t a = 0; a < nalgorithms; a++) {
        programs[a][0] = load(comm, algorithms[a], rank, "");
        programs[a][1] = any_remote ? NULL : load(comm, algorithms[a], rank, ".direct");
    }
    /* Loading and allocating wait for kernels that run, and those might wait for this rank. */
    pthread_barrier_wait(&barrier);
    uint64_t state = 42;
    for (int call = 0; call < iterations; call++) {
        uint32_t a = draw(&state) % nalgorithms, count = draw(&state) % MAX_COUNT;
        if (draw(&state) % 3 == 0)
            count %= 12; /* as many small ones, whose bytes lie in the count's line */
        bool in_place = draw(&state) % 2, registered = draw(&state) % 3 != 0;
        /* sometimes not all ranks' arrays lie in their heaps: then nobody takes the direct form */
        registered = registered && (draw(&state) % 4 != 0 || rank % 2 == 0);
        struct slot *s = &slots[call % DEPTH];
        finish(plane, s);
        s->stream = streams[draw(&state) % 2];
        s->count = count;
        s->call = call;
        uint64_t nbytes = count * 4u;
        struct pc_plan_spec spec = {.signature = (uint64_t)call + 1,
                                    .nblocks = 1,
                                    .blocks = &nbytes,
                                    .input = {0, 1},
                                    .output = {0, 1},
                                    .dtype = PC_DTYPE_INT32,
                                    .op = PC_REDUCE_SUM,
                                    .tile = 64u << draw(&state) % 4};
        struct pc_device_plan_options options = {.function = function,
                                                 .instances = 1u << draw(&state) % 3,
                                                 .packets = draw(&state) % 2 ? -1 : 0};
        run_call(comm, plane, s, rank, &spec, programs[a], &options, draw(&state) % 5, in_place,
                 registered);
    }
    for (int i = 0; i < DEPTH; i++)
        finish(plane, &slots[i]);
    int rc = pc_device_comm_wait(plane, 100);
    if (rc != PC_OK)
        die(comm, "wait", rc);
    for (int i = 0; i < DEPTH; i++) {
        pc_device_comm_free(plane, slots[i].in);
        pc_device_comm_free(plane, slots[i].out);
        cuda(pc_cuda_free(0, slots[i].plain_in, &error), &error);
        cuda(pc_cuda_free(0, slots[i].plain_out, &error), &error);
        cuda(pc_cuda_host_free(0, slots[i].host, &error), &error);
    }
    for (int i = 0; i < 2; i++)
        cuda(pc_cuda_stream_free(0, streams[i], &error), &error);
    for (uint32_t a = 0; a < nalgorithms; a++) {
        pc_program_free(programs[a][0]);
        pc_program_free(programs[a][1]);
    }
}

static bool is_remote(uint32_t a, uint32_t b)
{
    return a != b && any_remote && !(any_direct && a / 2 == b / 2);
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
                if (rc != PC_OK) {
                    fprintf(stderr, "adopt: %s\n", pc_code_name(rc));
                    exit(1);
                }
            }
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

static struct pc_comm *open_comm(uint32_t rank)
{
    struct pc_options options = {
        .rank = rank, .size = size, .slots = 2, .slot_bytes = 1 << 16, .heap_bytes = 0, .spin = 0};
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
    if ((rc = pc_comm_sealed(comm)) != PC_OK)
        die(comm, "sealed", rc);
    pthread_barrier_wait(&barrier);
    return comm;
}

static struct pc_device_comm *open_plane(struct pc_comm *comm, uint32_t rank)
{
    uint32_t locals[MAX_RANKS], n = 0;
    uint8_t reached[MAX_RANKS] = {0};
    struct pc_device_comm *plane;
    for (uint32_t p = 0; p < size; p++)
        if (!is_remote(rank, p))
            locals[n++] = p;
    struct pc_device_comm_options options
        = {.device = 0, .nlocals = n, .locals = locals, .heap_bytes = 1 << 20};
    int rc = pc_device_comm_open(comm, &options, &plane);
    if (rc != PC_OK)
        die(comm, "a plane", rc);
    blob_bytes[rank] = pc_device_comm_address(plane, blobs[rank], sizeof blobs[rank]);
    pthread_barrier_wait(&barrier);
    for (uint32_t p = 0; p < size; p++) {
        if (p == rank)
            continue;
        rc = pc_device_comm_connect(plane, p, blobs[p], (size_t)blob_bytes[p]);
        if (rc != (is_remote(rank, p) ? PC_UNMAPPABLE : PC_OK))
            die(comm, "a peer's plane", rc);
        reached[p] = rc == PC_OK && !staged;
    }
    rc = pc_device_comm_seal(plane, reached, !any_remote && !staged);
    if (rc != PC_OK)
        die(comm, "the edges", rc);
    return plane;
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    struct pc_comm *comm = open_comm(rank);
    struct pc_device_comm *plane = open_plane(comm, rank);
    struct pc_device_comm_state state;
    pthread_barrier_wait(&joined);
    run_calls(comm, plane, rank);
    pc_device_comm_state(plane, &state);
    atomic_fetch_add(&carried, state.handed_over);
    pthread_barrier_wait(&joined);
    pc_device_comm_detach(plane, 10);
    pthread_barrier_wait(&barrier);
    pc_device_comm_close(plane);
    pthread_barrier_wait(&barrier); /* the arenas are shared: nobody unmaps before all are done */
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
    staged = strcmp(argv[1], "staged") == 0;
    any_direct = strcmp(argv[1], "direct") == 0 || strcmp(argv[1], "both") == 0;
    any_remote = !staged && strcmp(argv[1], "direct") != 0;
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
    pthread_barrier_wait(&joined);
    for (uint32_t r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    printf("%d calls on %u ranks\n", iterations, size);
    /* so many that each ring was filled and begun again */
    if (atomic_load(&carried) < (any_remote ? 1024u * size : 0) || (!any_remote && carried > 0)) {
        fprintf(stderr, "%llu messages and credits by the proxies\n",
                (unsigned long long)atomic_load(&carried));
        return 1;
    }
    return 0;
}
