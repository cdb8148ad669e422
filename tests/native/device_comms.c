/* Calls on GPUs, played by the stand-in for libcuda: ranks as threads of one process, so that
 * ThreadSanitizer and AddressSanitizer see every access of kernels, proxies and transports.
 *
 *   device_comms PATH FOLDER SIZE ITERATIONS ALGORITHM...
 *
 * PATH is as in rank_threads.h, but that of ranks that map each other: `direct` (each other's GPU
 * memory), `switch` (the same, of a GPU for each rank, with a multicast address) or `staged`
 * (memory of the host that both map). Calls follow each other on two streams, mix algorithms,
 * sizes, lanes, packets, in place and out of place, with several in flight; every element is
 * checked. */
#include "collective_calls.h"
#include <dlfcn.h>
#include "core/internal.h"

#define DEPTH 4       /* calls in flight */
#define CONNECTIONS 2 /* between two ranks */

static bool staged, switched;
static __thread int gpu; /* of this rank */
static int32_t descriptors[MAX_RANKS], object;
static _Atomic uint64_t carried;

static void cuda(int rc, const struct pc_error *error)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s\n", pc_code_name(rc), error->text);
    exit(1);
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

static void finish(struct pc_device_comm *device_comm, struct slot *s)
{
    struct pc_error error;
    if (s->plan == NULL)
        return;
    int rc = pc_device_comm_check(device_comm);
    if (rc == PC_OK)
        cuda(pc_cuda_stream_wait(gpu, s->stream, &error), &error);
    check(s->host + MAX_COUNT, s->call, s->count);
    pc_device_plan_free(s->plan);
    s->plan = NULL;
}

static void run_call(struct pc_comm *comm, struct pc_device_comm *device_comm, struct slot *s,
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
        rc = pc_device_plan_create(device_comm, plan, options, &s->plan);
    if (rc != PC_OK)
        die(comm, "plan", rc);
    if (nbytes != 0)
        cuda(pc_cuda_copy(gpu, in, s->host_device, nbytes, s->stream, &error), &error);
    const char *seconds = getenv("CALL_SECONDS"); /* for calls that are to fail */
    rc = pc_device_comm_launch(device_comm, s->plan, in, out, s->stream,
                               seconds ? atof(seconds) : 100);
    if (rc != PC_OK)
        die(comm, "launch", rc);
    if (nbytes != 0)
        cuda(pc_cuda_copy(gpu, s->host_device + MAX_COUNT * 4, out, nbytes, s->stream, &error),
             &error);
}

static void run_calls(struct pc_comm *comm, struct pc_device_comm *device_comm, uint32_t rank)
{
    struct pc_program *programs[MAX_ALGORITHMS][2];
    struct slot slots[DEPTH] = {{0}};
    struct pc_error error;
    uintptr_t streams[2], module, function;
    cuda(pc_cuda_module(gpu, "any", &error, &module), &error);
    cuda(pc_cuda_function(gpu, module, "pc_int32_sum", &error, &function), &error);
    for (int i = 0; i < 2; i++)
        cuda(pc_cuda_stream(gpu, 0, &error, &streams[i]), &error);
    for (int i = 0; i < DEPTH; i++) {
        void *host;
        slots[i].in = pc_device_comm_alloc(device_comm, MAX_COUNT * 4 + 64);
        slots[i].out = pc_device_comm_alloc(device_comm, MAX_COUNT * 4 + 64);
        cuda(pc_cuda_alloc(gpu, MAX_COUNT * 4 + 64, &error, &slots[i].plain_in), &error);
        cuda(pc_cuda_alloc(gpu, MAX_COUNT * 4 + 64, &error, &slots[i].plain_out), &error);
        cuda(pc_cuda_host_alloc(gpu, 2 * MAX_COUNT * 4, &error, &host, &slots[i].host_device),
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
        finish(device_comm, s);
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
                                                 .blocks = 4u << draw(&state) % 4,
                                                 .packets = draw(&state) % 2 ? -1 : 0};
        run_call(comm, device_comm, s, rank, &spec, programs[a], &options, draw(&state) % 5,
                 in_place, registered);
    }
    for (int i = 0; i < DEPTH; i++)
        finish(device_comm, &slots[i]);
    int rc = pc_device_comm_wait(device_comm, 100);
    if (rc != PC_OK)
        die(comm, "wait", rc);
    for (int i = 0; i < DEPTH; i++) {
        pc_device_comm_free(device_comm, slots[i].in);
        pc_device_comm_free(device_comm, slots[i].out);
        cuda(pc_cuda_free(gpu, slots[i].plain_in, &error), &error);
        cuda(pc_cuda_free(gpu, slots[i].plain_out, &error), &error);
        cuda(pc_cuda_host_free(gpu, slots[i].host, &error), &error);
    }
    for (int i = 0; i < 2; i++)
        cuda(pc_cuda_stream_free(gpu, streams[i], &error), &error);
    for (uint32_t a = 0; a < nalgorithms; a++) {
        pc_program_free(programs[a][0]);
        pc_program_free(programs[a][1]);
    }
}

static void step(struct pc_comm *comm, int rc, const char *what)
{
    if (rc != PC_OK)
        die(comm, what, rc);
    pthread_barrier_wait(&barrier);
}

static void open_multicast(struct pc_comm *comm, struct pc_device_comm *device_comm, uint32_t rank)
{
    if (rank == 0 && pc_device_comm_multicast_create(device_comm, &object) != PC_OK)
        die(comm, "a multicast object", PC_SYSTEM);
    step(comm, pc_device_comm_multicast_export(device_comm, &descriptors[rank]), "a heap");
    step(comm, pc_device_comm_multicast_join(device_comm, rank == 0 ? -1 : object), "its GPUs");
    for (uint32_t p = 0; p < size; p++)
        if (p != rank && pc_device_comm_multicast_reach(device_comm, p, descriptors[p]) != PC_OK)
            die(comm, "a peer's heap", PC_SYSTEM);
    step(comm, pc_device_comm_multicast_bind(device_comm), "its memory");
    step(comm, pc_device_comm_multicast_map(device_comm, 0), "its address");
    close(descriptors[rank]);
    if (rank == 0)
        close(object);
}

static struct pc_device_comm *open_device_comm(struct pc_comm *comm, uint32_t rank)
{
    uint32_t locals[MAX_RANKS], n = 0;
    uint8_t reached[MAX_RANKS] = {0};
    struct pc_device_comm *device_comm;
    for (uint32_t p = 0; p < size; p++)
        if (!is_remote(rank, p))
            locals[n++] = p;
    struct pc_device_comm_options options = {.device = gpu,
                                             .nlocals = n,
                                             .locals = locals,
                                             .heap_bytes = 1 << 20,
                                             .multicast = switched};
    int rc = pc_device_comm_open(comm, &options, &device_comm);
    if (rc != PC_OK)
        die(comm, "a device communicator", rc);
    blob_bytes[rank] = pc_device_comm_address(device_comm, blobs[rank], sizeof blobs[rank]);
    pthread_barrier_wait(&barrier);
    for (uint32_t p = 0; p < size; p++) {
        if (p == rank)
            continue;
        rc = pc_device_comm_connect(device_comm, p, blobs[p], (size_t)blob_bytes[p]);
        if (rc != (is_remote(rank, p) ? PC_UNMAPPABLE : PC_OK))
            die(comm, "a peer's device communicator", rc);
        reached[p] = rc == PC_OK && !staged;
    }
    if (switched)
        open_multicast(comm, device_comm, rank);
    if (by_gpu && (rc = pc_device_comm_gpudirect(device_comm, PC_MEM_WAYS)) != PC_OK)
        die(comm, "GPUDirect RDMA", rc);
    rc = pc_device_comm_seal(device_comm, reached, !any_remote && !staged, 0);
    if (rc != PC_OK)
        die(comm, "the edges", rc);
    return device_comm;
}

/* With GPUDirect RDMA no byte of data is in memory of the host, at either end. */
static void check_unstaged(struct pc_comm *comm, uint32_t rank)
{
    const struct pc_layout *l = &comm->layout;
    struct pc_net_state state;
    pc_comm_net_state(comm, &state);
    uint64_t sent = 0;
    for (uint32_t i = 0; i < PC_MAX_RAILS; i++)
        sent += state.bytes[i];
    /* Over libfabric the rest is headers, in packets of their own. */
    uint64_t beside = by_fabric ? 2 * PC_LINE_BYTES : PC_INLINE_BYTES;
    if (state.gpu_bytes == 0 || sent - state.gpu_bytes > state.requests * beside) {
        fprintf(stderr, "rank %u: %llu of %llu bytes were sent from the GPU\n", rank,
                (unsigned long long)state.gpu_bytes, (unsigned long long)sent);
        exit(1);
    }
    if (state.gpu_flush != PC_FLUSH_NONE && (state.gpu_flushes == 0 || state.gpu_flushed == 0)) {
        fprintf(stderr, "rank %u: %llu flushes\n", rank, (unsigned long long)state.gpu_flushes);
        exit(1);
    }
    for (uint32_t p = 0; p < size; p++) {
        const char *data[] = {pc__slot_data(pc__record(comm->arena, l, p), l, 0),
                              pc__slot_data(comm->net->shadows + p * l->record, l, 0)};
        for (size_t k = 0; p != rank && k < 2 * PC_MAX_CHANNELS * l->channel; k++)
            if (data[k & 1][k >> 1] != 0) {
                fprintf(stderr, "rank %u: staged bytes of rank %u\n", rank, p);
                exit(1);
            }
    }
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    gpu = switched ? (int)rank : 0;
    struct pc_options options = {
        .rank = rank, .size = size, .slots = 2, .slot_bytes = 1 << 16, .heap_bytes = 0, .spin = 0};
    struct pc_comm *comm = open_comm(&options);
    int rc = pc_comm_sealed(comm);
    if (rc != PC_OK)
        die(comm, "sealed", rc);
    pthread_barrier_wait(&barrier);
    struct pc_device_comm *device_comm = open_device_comm(comm, rank);
    struct pc_device_comm_state state;
    pthread_barrier_wait(&joined);
    run_calls(comm, device_comm, rank);
    pc_device_comm_state(device_comm, &state);
    atomic_fetch_add(&carried, state.handed_over);
    if (by_gpu)
        check_unstaged(comm, rank);
    pthread_barrier_wait(&joined);
    pc_device_comm_detach(device_comm, 10);
    pthread_barrier_wait(&barrier);
    pc_device_comm_close(device_comm);
    pthread_barrier_wait(&barrier); /* the arenas are shared: nobody unmaps before all are done */
    pc_comm_close(comm);
    return NULL;
}

/* Whether the stand-in's switch has folded and stored. */
static bool went_by_switch(void)
{
    uint64_t counts[2] = {0, 0};
    void (*ask)(uint64_t *);
    *(void **)&ask = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fakecuda_switched");
    if (ask != NULL)
        ask(counts);
    return counts[0] != 0 && counts[1] != 0;
}

int main(int argc, char **argv)
{
    read_arguments(argc, argv);
    staged = strcmp(argv[1], "staged") == 0;
    switched = strcmp(argv[1], "switch") == 0;
    run_ranks(rank_main, CONNECTIONS);
    printf("%d calls on %u ranks\n", iterations, size);
    if (went_by_switch() != switched) {
        fprintf(stderr, "%s by a multicast address\n", switched ? "nothing went" : "calls went");
        return 1;
    }
    /* so many that each ring was filled and begun again */
    if (atomic_load(&carried) < (any_remote ? 1024u * size : 0) || (!any_remote && carried > 0)) {
        fprintf(stderr, "%llu messages and credits by the proxies\n",
                (unsigned long long)atomic_load(&carried));
        return 1;
    }
    return 0;
}
