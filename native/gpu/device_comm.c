/* Opens and closes a device communicator: its memory on device and host, and its failure. */
#include "gpu/device_comm.h"
#include "gpu/timeline.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gpu/driver/cuda.h"

/* How long closing waits for kernels after the abort. */
#define PC_END_NS UINT64_C(5000000000)
#define PC_STAGING_BYTES ((size_t)64 << 10)

/* Copies through pinned memory: from pageable memory the driver would stage or wait by itself. */
static int copy(struct pc_device_comm *dc, uint64_t device, char *host, size_t nbytes, bool up)
{
    int rc = PC_OK;
    for (size_t at = 0, n; at < nbytes && rc == PC_OK; at += n) {
        n = nbytes - at < PC_STAGING_BYTES ? nbytes - at : PC_STAGING_BYTES;
        uint64_t pinned = (uint64_t)(uintptr_t)dc->staging;
        if (up)
            memcpy(dc->staging, host + at, n);
        rc = pc_cuda_copy(dc->device, up ? device + at : pinned, up ? pinned : device + at, n,
                          dc->stream, dc->error);
        if (rc == PC_OK)
            rc = pc_cuda_stream_wait(dc->device, dc->stream, dc->error);
        if (rc == PC_OK && !up)
            memcpy(host + at, dc->staging, n);
    }
    return rc;
}

int pc__device_comm_upload(struct pc_device_comm *dc, uint64_t to, const void *from, size_t nbytes)
{
    return copy(dc, to, (char *)(uintptr_t)from, nbytes, true);
}

int pc__device_comm_download(struct pc_device_comm *dc, void *to, uint64_t from, size_t nbytes)
{
    return copy(dc, from, to, nbytes, false);
}

static int check_options(struct pc_device_comm *dc, const struct pc_device_comm_options *o)
{
    const struct pc_options *c = &dc->comm->options;
    bool mine = false, rising = true;
    for (uint32_t i = 0; i < o->nlocals && i < c->size; i++) {
        mine = mine || o->locals[i] == c->rank;
        rising = rising && o->locals[i] < c->size && (i == 0 || o->locals[i] > o->locals[i - 1]);
    }
    if (!dc->comm->sealed)
        return pc__fail(dc->error, PC_INVALID, -1,
                        "a device communicator before its ranks are connected");
    if (!mine || !rising || o->nlocals > c->size || o->heap_bytes % PC_PAGE != 0
        || o->heap_bytes > (UINT64_C(1) << 46))
        return pc__fail(dc->error, PC_INVALID, -1,
                        "%u local ranks that are not in order, not of %u, or not with rank %u; or "
                        "%llu bytes of heap",
                        o->nlocals, c->size, c->rank, (unsigned long long)o->heap_bytes);
    return PC_OK;
}

static int place_locals(struct pc_device_comm *dc, const struct pc_device_comm_options *o)
{
    uint32_t size = dc->comm->options.size;
    dc->peers = calloc(size, sizeof *dc->peers);
    dc->locals = malloc(o->nlocals * sizeof *dc->locals);
    dc->plans = calloc(PC_MAX_PLANS, sizeof *dc->plans);
    if (dc->peers == NULL || dc->locals == NULL || dc->plans == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1, "no memory for a device communicator");
    for (uint32_t p = 0; p < size; p++)
        dc->peers[p].local = UINT32_MAX;
    for (uint32_t i = 0; i < o->nlocals; i++) {
        dc->locals[i] = o->locals[i];
        dc->peers[o->locals[i]].local = i;
    }
    dc->nlocals = o->nlocals;
    dc->local = dc->peers[dc->comm->options.rank].local;
    return PC_OK;
}

static int allocate(struct pc_device_comm *dc, bool multicast)
{
    const struct pc_options *o = &dc->comm->options;
    int device = dc->device;
    void *control = NULL, *staging = NULL;
    uint64_t ignored;
    dc->layout
        = pc__device_layout(dc->nlocals, o->slots, o->slot_bytes, multicast ? 0 : dc->heap.bytes);
    int rc = pc_cuda_alloc(device, dc->layout.end, dc->error, &dc->arena);
    if (rc == PC_OK && multicast)
        rc = pc__multicast_heap(dc);
    else
        dc->heap_at = dc->arena + dc->layout.heap;
    if (rc == PC_OK)
        rc = pc_cuda_fill(device, dc->arena, 0, dc->layout.data, dc->stream, dc->error);
    if (rc == PC_OK)
        rc = pc_cuda_host_alloc(device, sizeof *dc->control, dc->error, &control,
                                &dc->watch_device);
    dc->control = control;
    if (rc == PC_OK)
        rc = pc_cuda_host_alloc(device, PC_STAGING_BYTES, dc->error, &staging, &ignored);
    dc->staging = staging;
    if (rc == PC_OK)
        rc = pc__pool_open(dc);
    if (rc != PC_OK)
        return rc;
    rc = pc_cuda_event(device, 0, dc->error, &dc->order);
    return rc == PC_OK ? pc_cuda_event(device, 0, dc->error, &dc->captured_order) : rc;
}

static int open_device(struct pc_device_comm *dc, bool multicast)
{
    struct pc_cuda_device device;
    int least, greatest;
    int rc = pc_cuda_device(dc->device, dc->error, &device);
    if (rc == PC_OK)
        rc = pc_cuda_priorities(dc->device, dc->error, &least, &greatest);
    if (rc == PC_OK)
        rc = pc_cuda_stream(dc->device, greatest, dc->error, &dc->stream);
    if (rc != PC_OK)
        return rc;
    dc->sync_domains = (uint32_t)device.sync_domains;
    dc->max_threads = (uint32_t)device.threads_per_block;
    rc = allocate(dc, multicast);
    return rc == PC_OK ? pc__ipc_open(dc) : rc;
}

int pc_device_comm_open(struct pc_comm *comm, const struct pc_device_comm_options *options,
                        struct pc_device_comm **out)
{
    *out = NULL;
    struct pc_device_comm *dc = calloc(1, sizeof *dc);
    if (dc == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a device communicator");
    dc->comm = comm;
    dc->error = &comm->error;
    dc->device = options->device;
    dc->pid = getpid();
    dc->heap.bytes = options->heap_bytes;
    pthread_mutex_init(&dc->lock, NULL);
    pthread_mutex_init(&dc->heap_lock, NULL);
    pthread_mutex_init(&dc->plans_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&dc->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = check_options(dc, options);
    if (rc == PC_OK)
        rc = place_locals(dc, options);
    if (rc == PC_OK && *pc_cuda_missing() != 0)
        rc = pc__fail(dc->error, PC_UNMAPPABLE, -1, "%s", pc_cuda_missing());
    if (rc == PC_OK) {
        int mode = pc__cuda_relax(PC_CUDA_RELAXED);
        rc = open_device(dc, options->multicast != 0);
        pc__cuda_relax(mode);
    }
    if (rc != PC_OK) {
        struct pc_error why = comm->error;
        pc_device_comm_close(dc);
        comm->error = why;
        return rc;
    }
    *out = dc;
    return PC_OK;
}

static int seal(struct pc_device_comm *dc, const uint8_t *ipc_peers, bool registers)
{
    const struct pc_comm *comm = dc->comm;
    for (uint32_t p = 0; p < comm->options.size; p++) {
        struct pc_device_peer *peer = &dc->peers[p];
        if (p == comm->options.rank) {
            peer->route = PC_ROUTE_SELF;
        } else if (ipc_peers[p] && peer->arena != 0) {
            peer->route = PC_ROUTE_P2P;
        } else if (ipc_peers[p] || dc->whole) {
            return pc__fail(dc->error, PC_INVALID, (int)p,
                            "rank %u is said to be reached by rank %u, which it is not", p,
                            comm->options.rank);
        } else {
            pc__ipc_drop(dc, p);
            peer->route = pc__mapped(comm, p) ? PC_ROUTE_SHM : PC_ROUTE_NET;
            dc->proxied = dc->proxied || peer->route == PC_ROUTE_NET;
        }
    }
    int rc = pc__host_register_open(dc);
    if (rc == PC_OK)
        rc = pc__device_fifos_make(dc);
    if (rc == PC_OK && registers)
        rc = pc__registration_open(dc);
    if (rc == PC_OK)
        rc = pc__transfers_open(dc);
    return rc == PC_OK ? pc__proxy_start(dc) : rc;
}

int pc_device_comm_seal(struct pc_device_comm *dc, const uint8_t *ipc_peers, uint32_t whole,
                        uint32_t registers)
{
    if (dc->sealed)
        return pc__fail(dc->error, PC_INVALID, -1, "a device communicator that is sealed already");
    dc->whole = whole != 0;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = seal(dc, ipc_peers, registers != 0);
    pc__cuda_relax(mode);
    dc->sealed = rc == PC_OK;
    return rc;
}

void pc__device_comm_fail(struct pc_device_comm *dc, int code, const struct pc_error *error)
{
    int nobody = 0;
    if (atomic_compare_exchange_strong(&dc->failing, &nobody, 1)) {
        dc->failure = *error;
        pc__break(dc->comm, code, &dc->failure);
    }
    __atomic_store_n(&dc->control->abort, 1, __ATOMIC_RELEASE);
}

/* Waits at most `seconds` for running kernels, then aborts them; true if all have ended. Launches
 * by graphs are not counted: but these end, too, and the driver frees memory only after all kernels
 * of the process have. */
static bool settle(struct pc_device_comm *dc, double seconds)
{
    const struct timespec nap = {0, 100000};
    struct pc_error ignored;
    uint64_t until = pc__now() + (uint64_t)(seconds * 1e9);
    while ((pc__launches_over(dc, &ignored) == PC_AGAIN || !pc__proxy_settled(dc))
           && pc_device_comm_check(dc) == PC_OK && pc__now() < until)
        nanosleep(&nap, NULL);
    __atomic_store_n(&dc->control->abort, 1, __ATOMIC_RELEASE);
    until = pc__now() + PC_END_NS;
    while (pc__launches_retired(dc, &ignored) == PC_AGAIN && pc__now() < until)
        nanosleep(&nap, NULL);
    int rc = pc__launches_retired(dc, &ignored);
    return rc == PC_OK || (rc != PC_AGAIN && pc__launches_ended(dc));
}

void pc_device_comm_detach(struct pc_device_comm *dc, double seconds)
{
    if (dc == NULL || dc->detached || dc->pid != getpid())
        return;
    dc->detached = true;
    int mode = *pc_cuda_missing() == 0 ? pc__cuda_relax(PC_CUDA_RELAXED) : 0;
    dc->hung = dc->sealed && !settle(dc, seconds);
    pc__proxy_stop(dc);
    if (dc->hung)
        pc__gpudirect_keep(dc);
    if (!dc->hung) {
        if (*pc_cuda_missing() == 0)
            pc__multicast_leave(dc);
        pc__registration_leave(dc);
        pc__ipc_close(dc);
    }
    if (*pc_cuda_missing() == 0)
        pc__cuda_relax(mode);
}

/* Moves the text of the failure to the communicator, which lives longer. */
static void leave_failure(struct pc_device_comm *dc)
{
    struct pc_comm *comm = dc->comm;
    if (atomic_load(&comm->failure) != &dc->failure)
        return;
    comm->call.error = dc->failure;
    atomic_store(&comm->failure, &comm->call.error);
}

static void give_back(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    int device = dc->device;
    pc__host_register_close(dc);
    pc__timeline_close(dc);
    if (dc->order != 0)
        pc_cuda_event_free(device, dc->order, &ignored);
    if (dc->captured_order != 0)
        pc_cuda_event_free(device, dc->captured_order, &ignored);
    if (dc->edges_memory != 0)
        pc_cuda_free(device, dc->edges_memory, &ignored);
    pc__multicast_close(dc);
    if (dc->arena != 0)
        pc_cuda_free(device, dc->arena, &ignored);
    pc__pool_close(dc);
    pc__transfers_close(dc);
    if (dc->staging != NULL)
        pc_cuda_host_free(device, dc->staging, &ignored);
    if (dc->control != NULL)
        pc_cuda_host_free(device, dc->control, &ignored);
    if (dc->stream != 0)
        pc_cuda_stream_free(device, dc->stream, &ignored);
}

void pc_device_comm_close(struct pc_device_comm *dc)
{
    /* A child of fork owns none of it; and memory that a kernel may still touch is never freed. */
    if (dc == NULL || dc->pid != getpid())
        return;
    pc_device_comm_detach(dc, 0);
    if (dc->hung)
        return;
    leave_failure(dc);
    if (*pc_cuda_missing() == 0) {
        int mode = pc__cuda_relax(PC_CUDA_RELAXED);
        pc__device_plans_drop(dc);
        give_back(dc);
        pc__cuda_relax(mode);
    }
    pc__heap_drop(&dc->heap);
    pc__registration_drop(dc);
    pthread_cond_destroy(&dc->moved);
    pthread_mutex_destroy(&dc->lock);
    pthread_mutex_destroy(&dc->heap_lock);
    pthread_mutex_destroy(&dc->plans_lock);
    free(dc->peers);
    free(dc->locals);
    free(dc->plans);
    free(dc);
}

uint64_t pc_device_comm_alloc(struct pc_device_comm *dc, size_t nbytes)
{
    size_t offset;
    pthread_mutex_lock(&dc->heap_lock); /* any thread may free arrays */
    bool found = !dc->detached && pc__heap_take(&dc->heap, nbytes, &offset);
    pthread_mutex_unlock(&dc->heap_lock);
    return found ? dc->heap_at + offset : 0;
}

int pc_device_comm_free(struct pc_device_comm *dc, uint64_t address)
{
    size_t offset = (size_t)(address - dc->heap_at);
    pthread_mutex_lock(&dc->heap_lock);
    bool found = pc__heap_taken(&dc->heap, offset) != 0;
    if (found)
        pc__heap_give(&dc->heap, offset);
    pthread_mutex_unlock(&dc->heap_lock);
    return found ? PC_OK : PC_INVALID;
}

void pc_device_comm_state(struct pc_device_comm *dc, struct pc_device_comm_state *out)
{
    *out = (struct pc_device_comm_state){.launched = dc->launches,
                                         .captured = dc->captures,
                                         .max_blocks = PC_MAX_BLOCKS,
                                         .handed_over = atomic_load(&dc->handed_over),
                                         .pinned = pc__transfers_graphs(dc) != 0,
                                         .calling = dc->control != NULL && pc__calls_run(dc)};
    pthread_mutex_lock(&dc->plans_lock);
    for (uint32_t i = 0; i < dc->nplans; i++)
        if (dc->plans[i] != NULL)
            out->pinned += __atomic_load_n(dc->plans[i]->graphs, __ATOMIC_ACQUIRE) != 0;
    pthread_mutex_unlock(&dc->plans_lock);
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        out->direct += dc->peers[p].route == PC_ROUTE_P2P;
        out->staged += dc->peers[p].route == PC_ROUTE_SHM;
        out->remote += dc->peers[p].route == PC_ROUTE_NET;
    }
}
