/* A communicator: this rank's arena, the peers' arenas, and the edges between them. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "core/trace.h"

/* How long pc_comm_close waits for the last messages to arrive. */
#define PC_LINGER_NS UINT64_C(2000000000)

static int check_options(const struct pc_options *o)
{
    if (o->size == 0 || o->size > PC_MAX_RANKS || o->rank >= o->size)
        return PC_INVALID;
    if (o->slots < 2 || (o->slots & (o->slots - 1)) != 0 || o->slots > PC_LINES)
        return PC_INVALID;
    if (o->slot_bytes == 0 || o->slot_bytes % PC_PAGE != 0 || o->slot_bytes > (1u << 30))
        return PC_INVALID;
    if (o->small_bytes % PC_LINE_BYTES != 0 || o->small_bytes > o->slot_bytes)
        return PC_INVALID;
    if (o->ring_bytes % PC_PAGE != 0 || o->ring_bytes > (uint64_t)o->slots * o->slot_bytes)
        return PC_INVALID;
    if (o->windows > 1)
        return PC_INVALID;
    if (o->heap_bytes % PC_PAGE != 0 || o->heap_bytes > (UINT64_C(1) << 46))
        return PC_INVALID;
    return PC_OK;
}

static void set_mapped(struct pc_comm *comm, uint32_t peer, bool mapped)
{
    if (comm->peers[peer].mapped == mapped)
        return;
    comm->peers[peer].mapped = mapped;
    comm->nmapped += mapped ? 1 : -1u;
}

/* Sets up the edges to a peer, which is mapped or reached `by_net`. */
static void resolve(struct pc_comm *comm, uint32_t peer, char *theirs, struct pc_net_peer *by_net)
{
    const struct pc_layout *l = &comm->layout;
    uint32_t me = comm->options.rank;
    char *mine = pc__record(comm->arena, l, peer);
    comm->peers[peer].record = theirs;
    set_mapped(comm, peer, by_net == NULL);
    comm->dones[peer].peer = peer;
    comm->dones[peer].out = pc__done_line(theirs, me);
    comm->dones[peer].in = pc__done_line(mine, peer);
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + c] = (struct pc_fifo){
            .out_lines = pc__slot_lines(theirs, me, c),
            .out_data = pc__slot_data(theirs, l, c),
            .out_credit = pc__credit_line(mine, peer, c),
            .in_lines = pc__slot_lines(mine, peer, c),
            .in_data = pc__slot_data(mine, l, c),
            .in_credit = pc__credit_line(theirs, me, c),
            .peer = peer,
            .small_bytes = by_net == NULL ? PC_INLINE_BYTES : pc__net_small(&comm->options),
            .channel = (uint8_t)c,
            .edge = by_net == NULL ? NULL : &by_net->edges[c],
        };
    atomic_store(&comm->peers[peer].ready, by_net == NULL);
}

static void resolve_mapped(struct pc_comm *comm, uint32_t peer, const struct pc_shm_map *at)
{
    comm->peers[peer].rndv = &pc__cma_rndv;
    resolve(comm, peer, at->record, NULL);
    atomic_store(&comm->peers[peer].arena, at->arena);
}

void pc__comm_resolve_remote(struct pc_comm *comm, uint32_t peer, char *shadow,
                             struct pc_net_peer *by_net, const struct pc_rndv_ops *rndv)
{
    atomic_store(&comm->peers[peer].arena, NULL);
    comm->peers[peer].rndv = rndv;
    resolve(comm, peer, shadow, by_net);
}

static void write_header(struct pc_comm *comm)
{
    struct pc_arena *a = (struct pc_arena *)comm->arena;
    a->version = PC_VERSION;
    a->rank = comm->options.rank;
    a->size = comm->options.size;
    a->slots = comm->options.slots;
    a->slot_bytes = comm->options.slot_bytes;
    a->small_bytes = comm->options.small_bytes;
    a->ring_bytes = comm->options.ring_bytes;
    a->heap_bytes = comm->options.heap_bytes;
    a->trace = comm->layout.trace;
    a->pid = (int32_t)getpid();
    a->address = (uint64_t)(uintptr_t)a;
    if (getrandom(&a->token, sizeof a->token, 0) != sizeof a->token)
        a->pid = 0; /* no process: peers do not use CMA */
    a->magic = PC_ARENA_MAGIC;
}

static int check_header(struct pc_comm *comm, uint32_t peer, const char *arena)
{
    const struct pc_arena *a = (const struct pc_arena *)arena;
    const struct pc_options *o = &comm->options;
    if (a->magic != PC_ARENA_MAGIC || a->version != PC_VERSION)
        return pc__fail(&comm->error, PC_INVALID, (int)peer,
                        "memory of rank %u has magic %#x version %u, want %#x version %u", peer,
                        a->magic, a->version, PC_ARENA_MAGIC, PC_VERSION);
    if (a->rank != peer || a->size != o->size || a->slots != o->slots
        || a->slot_bytes != o->slot_bytes || a->small_bytes != o->small_bytes
        || a->ring_bytes != o->ring_bytes || a->heap_bytes != o->heap_bytes)
        return pc__fail(&comm->error, PC_INVALID, (int)peer,
                        "rank %u of %u has %u slots of %u bytes (small ones: %u; ring: %u; heap: "
                        "%llu), want rank %u of %u with %u of %u (%u; %u; %llu)",
                        a->rank, a->size, a->slots, a->slot_bytes, a->small_bytes, a->ring_bytes,
                        (unsigned long long)a->heap_bytes, peer, o->size, o->slots, o->slot_bytes,
                        o->small_bytes, o->ring_bytes, (unsigned long long)o->heap_bytes);
    return PC_OK;
}

int pc_comm_open(const struct pc_options *options, struct pc_comm **out)
{
    *out = NULL;
    struct pc_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return PC_NOMEM;
    *out = comm; /* set on failure too: it has the error */
    comm->options = *options;
    comm->call.comm = comm;
    comm->wakeup_fd = -1;
    comm->slow_yield_ns = PC_SLOW_YIELD_NS;
    atomic_init(&comm->signal_fd, -1);
    if (check_options(options) != PC_OK)
        return pc__fail(&comm->error, PC_INVALID, -1,
                        "rank %u of %u, %u slots of %u bytes, heap of %llu bytes: out of range",
                        options->rank, options->size, options->slots, options->slot_bytes,
                        (unsigned long long)options->heap_bytes);
    for (uint32_t k = 0; k < PC_MAX_CHANNELS * PC_MAX_CHANNELS; k++)
        comm->locals[k / PC_MAX_CHANNELS][k % PC_MAX_CHANNELS].peer = k;
    comm->layout = pc__layout(options);
    comm->heap.bytes = options->heap_bytes;
    pthread_mutex_init(&comm->queue_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->queue_moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    comm->peers = calloc(options->size, sizeof *comm->peers);
    comm->neighbours = calloc(options->size, sizeof *comm->neighbours);
    comm->dones = calloc(options->size, sizeof *comm->dones);
    comm->fifos = calloc((size_t)options->size * PC_EDGE_CHANNELS, sizeof *comm->fifos);
    if (!comm->peers || !comm->neighbours || !comm->dones || !comm->fifos)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u peers", options->size);
    int rc = pc__shm_ops.open(&comm->layout, options->rank, &comm->error, &comm->device);
    if (rc != PC_OK)
        return rc;
    comm->arena = pc__shm_ops.arena(comm->device);
    pc__trace_begin(comm);
    write_header(comm);
    const struct pc_shm_map mine
        = {comm->arena, pc__record(comm->arena, &comm->layout, options->rank)};
    resolve_mapped(comm, options->rank, &mine);
    return pc__p2p_open(comm);
}

int pc_comm_address(struct pc_comm *comm, void *blob, size_t capacity)
{
    return pc__shm_ops.address(comm->device, blob, capacity);
}

static int check_peer(struct pc_comm *comm, uint32_t peer)
{
    if (peer >= comm->options.size)
        return pc__fail(&comm->error, PC_INVALID, (int)peer, "rank %u of %u", peer,
                        comm->options.size);
    return PC_OK;
}

int pc_comm_connect(struct pc_comm *comm, uint32_t peer, const void *blob, size_t nbytes)
{
    struct pc_shm_map at;
    int rc = check_peer(comm, peer);
    if (rc != PC_OK || pc__resolved(comm, peer))
        return rc;
    rc = pc__shm_ops.connect(comm->device, peer, blob, nbytes, &at);
    if (rc == PC_OK)
        rc = check_header(comm, peer, at.arena);
    if (rc == PC_OK)
        resolve_mapped(comm, peer, &at);
    return rc;
}

static void add_neighbour(struct pc_comm *comm, uint32_t peer)
{
    uint32_t n = atomic_load_explicit(&comm->nneighbours, memory_order_relaxed);
    comm->neighbours[n] = peer;
    atomic_store_explicit(&comm->nneighbours, n + 1, memory_order_release);
}

int pc_comm_map(struct pc_comm *comm, uint32_t peer, const void *blob, size_t nbytes)
{
    struct pc_shm_map at;
    int rc = check_peer(comm, peer);
    if (rc != PC_OK || pc__resolved(comm, peer))
        return rc;
    if (comm->sealed && !pc__mapped(comm, peer))
        return pc__fail(&comm->error, PC_INVALID, (int)peer, "rank %u is not near", peer);
    rc = pc__shm_ops.map(comm->device, peer, blob, nbytes, &at);
    if (rc == PC_OK)
        rc = check_header(comm, peer, at.arena);
    if (rc == PC_LOST && comm->sealed) {
        /* What it has sent lies in this rank's arena, and waits for it end as for any lost rank. */
        rc = pc__shm_ops.stand_in(comm->device, peer, &at);
        comm->peers[peer].stands_in = true;
    }
    if (rc != PC_OK)
        return rc;
    resolve_mapped(comm, peer, &at);
    if (comm->sealed && !comm->peers[peer].stands_in)
        add_neighbour(comm, peer);
    return PC_OK;
}

int pc_comm_near(struct pc_comm *comm, uint32_t peer)
{
    int rc = check_peer(comm, peer);
    if (rc == PC_OK && comm->sealed)
        rc = pc__fail(&comm->error, PC_INVALID, (int)peer, "rank %u comes too late", peer);
    if (rc == PC_OK)
        set_mapped(comm, peer, true);
    return rc;
}

int pc_comm_accept(struct pc_comm *comm)
{
    return pc__shm_ops.poll(comm->device);
}

int pc_comm_connect_fd(struct pc_comm *comm)
{
    return pc__shm_ops.wakeup(comm->device);
}

int pc_comm_sealed(struct pc_comm *comm)
{
    uint32_t size = comm->options.size, there = 0;
    for (uint32_t p = 0; p < size; p++)
        there += pc__mapped(comm, p) || pc__resolved(comm, p);
    if (there != size)
        return pc__fail(&comm->error, PC_INVALID, -1, "%u of %u ranks are connected", there, size);
    pc__shm_ops.seal(comm->device);
    comm->sealed = true;
    for (uint32_t p = 0; p < size; p++)
        if (p != comm->options.rank && pc__mapped(comm, p) && pc__resolved(comm, p))
            add_neighbour(comm, p);
    return PC_OK;
}

void pc_comm_close(struct pc_comm *comm)
{
    if (comm == NULL)
        return;
    pc__progress_thread_stop(comm);
    pc__p2p_close(comm);
    if (comm->arena != NULL)
        atomic_store(&((struct pc_arena *)comm->arena)->state, PC_STATUS_CLOSED);
    /* A broken communicator, or a child of fork, does not wait for what was sent. */
    pc__net_close(comm->net, atomic_load(&comm->broken) ? 0 : PC_LINGER_NS);
    pc__wakeup_close(comm);
    if (comm->device != NULL)
        pc__shm_ops.close(comm->device);
    pthread_cond_destroy(&comm->queue_moved);
    pthread_mutex_destroy(&comm->queue_lock);
    pc__heap_drop(&comm->heap);
    free(comm->peers);
    free(comm->neighbours);
    free(comm->dones);
    free(comm->fifos);
    pc__scratch_drop(comm);
    pc__partition_drop(comm);
    free(comm);
}

const struct pc_error *pc_comm_error(struct pc_comm *comm)
{
    const struct pc_error *failure = atomic_load(&comm->failure);
    return failure ? failure : &comm->error;
}

/* The child has no progress thread and must not touch the counts that its parent owns. */
int pc_comm_forked(struct pc_comm *comm)
{
    comm->threaded = false;
    comm->arena = NULL;
    atomic_store(&comm->broken, PC_BROKEN);
    return PC_OK;
}
