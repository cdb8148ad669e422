/* A plane's life: its memory on the device and on the host, its edges, its end. */
#include "gpu/device_comm.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gpu/driver/cuda.h"

/* How long a rank that closes waits for kernels that were told to end. */
#define PC_END_NS UINT64_C(5000000000)
#define PC_STAGING_BYTES ((size_t)64 << 10)

/* By way of pinned memory: else the driver would have to wait for the copy, or copy itself. */
static int copy(struct pc_device_comm *plane, uint64_t device, char *host, size_t nbytes, bool up)
{
    int rc = PC_OK;
    for (size_t at = 0, n; at < nbytes && rc == PC_OK; at += n) {
        n = nbytes - at < PC_STAGING_BYTES ? nbytes - at : PC_STAGING_BYTES;
        uint64_t pinned = (uint64_t)(uintptr_t)plane->staging;
        if (up)
            memcpy(plane->staging, host + at, n);
        rc = pc_cuda_copy(plane->device, up ? device + at : pinned, up ? pinned : device + at, n,
                          plane->stream, plane->error);
        if (rc == PC_OK)
            rc = pc_cuda_stream_wait(plane->device, plane->stream, plane->error);
        if (rc == PC_OK && !up)
            memcpy(host + at, plane->staging, n);
    }
    return rc;
}

int pc__device_comm_upload(struct pc_device_comm *plane, uint64_t to, const void *from,
                           size_t nbytes)
{
    return copy(plane, to, (char *)(uintptr_t)from, nbytes, true);
}

int pc__device_comm_download(struct pc_device_comm *plane, void *to, uint64_t from, size_t nbytes)
{
    return copy(plane, from, to, nbytes, false);
}

static int check_options(struct pc_device_comm *plane, const struct pc_device_comm_options *o)
{
    const struct pc_options *c = &plane->comm->options;
    bool mine = false, rising = true;
    for (uint32_t i = 0; i < o->nlocals && i < c->size; i++) {
        mine = mine || o->locals[i] == c->rank;
        rising = rising && o->locals[i] < c->size && (i == 0 || o->locals[i] > o->locals[i - 1]);
    }
    if (!plane->comm->sealed)
        return pc__fail(plane->error, PC_INVALID, -1, "a plane before its ranks are connected");
    if (!mine || !rising || o->nlocals > c->size || o->heap_bytes % PC_PAGE != 0
        || o->heap_bytes > (UINT64_C(1) << 46))
        return pc__fail(plane->error, PC_INVALID, -1,
                        "%u local ranks that are not in order, not of %u, or not with rank %u; or "
                        "%llu bytes of heap",
                        o->nlocals, c->size, c->rank, (unsigned long long)o->heap_bytes);
    return PC_OK;
}

static int place_locals(struct pc_device_comm *plane, const struct pc_device_comm_options *o)
{
    uint32_t size = plane->comm->options.size;
    plane->peers = calloc(size, sizeof *plane->peers);
    plane->locals = malloc(o->nlocals * sizeof *plane->locals);
    plane->plans = calloc(PC_MAX_PLANS, sizeof *plane->plans);
    if (plane->peers == NULL || plane->locals == NULL || plane->plans == NULL)
        return pc__fail(plane->error, PC_NOMEM, -1, "no memory for a plane");
    for (uint32_t p = 0; p < size; p++)
        plane->peers[p].place = UINT32_MAX;
    for (uint32_t i = 0; i < o->nlocals; i++) {
        plane->locals[i] = o->locals[i];
        plane->peers[o->locals[i]].place = i;
    }
    plane->nlocals = o->nlocals;
    plane->place = plane->peers[plane->comm->options.rank].place;
    return PC_OK;
}

static int allocate(struct pc_device_comm *plane)
{
    const struct pc_options *o = &plane->comm->options;
    int device = plane->device;
    void *watch = NULL, *staging = NULL;
    uint64_t ignored;
    plane->layout = pc__device_layout(plane->nlocals, o->slots, o->slot_bytes, plane->heap.bytes);
    int rc = pc_cuda_alloc(device, plane->layout.end, plane->error, &plane->arena);
    if (rc == PC_OK)
        rc = pc_cuda_fill(device, plane->arena, 0, plane->layout.data, plane->stream, plane->error);
    if (rc == PC_OK)
        rc = pc_cuda_host_alloc(device, sizeof *plane->watch, plane->error, &watch,
                                &plane->watch_device);
    plane->watch = watch;
    if (rc == PC_OK)
        rc = pc_cuda_host_alloc(device, PC_STAGING_BYTES, plane->error, &staging, &ignored);
    plane->staging = staging;
    if (rc == PC_OK)
        rc = pc__pool_open(plane);
    if (rc != PC_OK)
        return rc;
    rc = pc_cuda_event(device, 0, plane->error, &plane->order);
    return rc == PC_OK ? pc_cuda_event(device, 0, plane->error, &plane->captured_order) : rc;
}

static int open_device(struct pc_device_comm *plane)
{
    struct pc_cuda_device device;
    int least, greatest;
    int rc = pc_cuda_device(plane->device, plane->error, &device);
    if (rc == PC_OK)
        rc = pc_cuda_priorities(plane->device, plane->error, &least, &greatest);
    if (rc == PC_OK)
        rc = pc_cuda_stream(plane->device, greatest, plane->error, &plane->stream);
    if (rc != PC_OK)
        return rc;
    plane->sync_domains = (uint32_t)device.sync_domains;
    plane->max_threads = (uint32_t)device.threads_per_block;
    rc = allocate(plane);
    return rc == PC_OK ? pc__ipc_open(plane) : rc;
}

int pc_device_comm_open(struct pc_comm *comm, const struct pc_device_comm_options *options,
                        struct pc_device_comm **out)
{
    *out = NULL;
    struct pc_device_comm *plane = calloc(1, sizeof *plane);
    if (plane == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a plane");
    plane->comm = comm;
    plane->error = &comm->error;
    plane->device = options->device;
    plane->pid = getpid();
    plane->heap.bytes = options->heap_bytes;
    pthread_mutex_init(&plane->lock, NULL);
    pthread_mutex_init(&plane->heap_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&plane->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = check_options(plane, options);
    if (rc == PC_OK)
        rc = place_locals(plane, options);
    if (rc == PC_OK && *pc_cuda_missing() != 0)
        rc = pc__fail(plane->error, PC_UNMAPPABLE, -1, "%s", pc_cuda_missing());
    if (rc == PC_OK) {
        int mode = pc__cuda_relax(PC_CUDA_RELAXED);
        rc = open_device(plane);
        pc__cuda_relax(mode);
    }
    if (rc != PC_OK) {
        struct pc_error why = comm->error;
        pc_device_comm_close(plane);
        comm->error = why;
        return rc;
    }
    *out = plane;
    return PC_OK;
}

static int seal(struct pc_device_comm *plane, const uint8_t *reached)
{
    const struct pc_comm *comm = plane->comm;
    for (uint32_t p = 0; p < comm->options.size; p++) {
        struct pc_device_peer *peer = &plane->peers[p];
        if (p == comm->options.rank) {
            peer->reach = PC_ROUTE_SELF;
        } else if (reached[p] && peer->arena != 0) {
            peer->reach = PC_ROUTE_P2P;
        } else if (reached[p] || plane->whole) {
            return pc__fail(plane->error, PC_INVALID, (int)p,
                            "rank %u is said to be reached by rank %u, which it is not", p,
                            comm->options.rank);
        } else {
            pc__ipc_drop(plane, p);
            peer->reach = comm->peers[p].remote ? PC_ROUTE_NET : PC_ROUTE_SHM;
            plane->proxied = plane->proxied || comm->peers[p].remote;
        }
    }
    int rc = pc__host_register_open(plane);
    if (rc == PC_OK)
        rc = pc__device_fifos_make(plane);
    return rc == PC_OK ? pc__proxy_start(plane) : rc;
}

int pc_device_comm_seal(struct pc_device_comm *plane, const uint8_t *reached, uint32_t whole)
{
    if (plane->sealed)
        return pc__fail(plane->error, PC_INVALID, -1, "a plane that is sealed already");
    plane->whole = whole != 0;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = seal(plane, reached);
    pc__cuda_relax(mode);
    plane->sealed = rc == PC_OK;
    return rc;
}

void pc__device_comm_fail(struct pc_device_comm *plane, int code, const struct pc_error *error)
{
    int nobody = 0;
    if (atomic_compare_exchange_strong(&plane->failing, &nobody, 1)) {
        plane->failure = *error;
        pc__break(plane->comm, code, &plane->failure);
    }
    __atomic_store_n(&plane->watch->abort, 1, __ATOMIC_RELEASE);
}

/* Waits for kernels that run, as long as they may, then until they have seen that they must end;
 * true if they have. What graphs launch is not counted: but that ends, too, and memory is not freed
 * before all kernels of the process have. */
static bool settle(struct pc_device_comm *plane, double seconds)
{
    const struct timespec nap = {0, 100000};
    uint64_t until = pc__now() + (uint64_t)(seconds * 1e9);
    while ((pc__launches_over(plane) == PC_AGAIN || !pc__proxy_settled(plane))
           && pc_device_comm_check(plane) == PC_OK && pc__now() < until)
        nanosleep(&nap, NULL);
    __atomic_store_n(&plane->watch->abort, 1, __ATOMIC_RELEASE);
    until = pc__now() + PC_END_NS;
    while (pc__launches_over(plane) == PC_AGAIN && pc__now() < until)
        nanosleep(&nap, NULL);
    int rc = pc__launches_over(plane);
    return rc == PC_OK || (rc != PC_AGAIN && pc__launches_ended(plane));
}

void pc_device_comm_detach(struct pc_device_comm *plane, double seconds)
{
    if (plane == NULL || plane->detached || plane->pid != getpid())
        return;
    plane->detached = true;
    int mode = *pc_cuda_missing() == 0 ? pc__cuda_relax(PC_CUDA_RELAXED) : 0;
    plane->hung = plane->sealed && !settle(plane, seconds);
    pc__proxy_stop(plane);
    if (!plane->hung)
        pc__ipc_close(plane);
    if (*pc_cuda_missing() == 0)
        pc__cuda_relax(mode);
}

/* What the plane said of its failure stays the communicator's, which lives longer. */
static void leave_failure(struct pc_device_comm *plane)
{
    struct pc_comm *comm = plane->comm;
    if (atomic_load(&comm->failure) != &plane->failure)
        return;
    comm->call.error = plane->failure;
    atomic_store(&comm->failure, &comm->call.error);
}

static void give_back(struct pc_device_comm *plane)
{
    struct pc_error ignored;
    int device = plane->device;
    pc__host_register_close(plane);
    if (plane->order != 0)
        pc_cuda_event_free(device, plane->order, &ignored);
    if (plane->captured_order != 0)
        pc_cuda_event_free(device, plane->captured_order, &ignored);
    if (plane->edges_memory != 0)
        pc_cuda_free(device, plane->edges_memory, &ignored);
    if (plane->arena != 0)
        pc_cuda_free(device, plane->arena, &ignored);
    pc__pool_close(plane);
    if (plane->staging != NULL)
        pc_cuda_host_free(device, plane->staging, &ignored);
    if (plane->watch != NULL)
        pc_cuda_host_free(device, plane->watch, &ignored);
    if (plane->stream != 0)
        pc_cuda_stream_free(device, plane->stream, &ignored);
}

void pc_device_comm_close(struct pc_device_comm *plane)
{
    /* A fork's child owns nothing of it; and memory that a kernel may still touch is never freed.
     */
    if (plane == NULL || plane->pid != getpid())
        return;
    pc_device_comm_detach(plane, 0);
    if (plane->hung)
        return;
    leave_failure(plane);
    if (*pc_cuda_missing() == 0) {
        int mode = pc__cuda_relax(PC_CUDA_RELAXED);
        pc__device_plans_drop(plane);
        give_back(plane);
        pc__cuda_relax(mode);
    }
    pc__heap_drop(&plane->heap);
    pthread_cond_destroy(&plane->moved);
    pthread_mutex_destroy(&plane->lock);
    pthread_mutex_destroy(&plane->heap_lock);
    free(plane->peers);
    free(plane->locals);
    free(plane->plans);
    free(plane);
}

uint64_t pc_device_comm_alloc(struct pc_device_comm *plane, size_t nbytes)
{
    size_t offset;
    pthread_mutex_lock(
        &plane->heap_lock); /* arrays are freed by whichever thread lets go of them */
    bool found = !plane->detached && pc__heap_take(&plane->heap, nbytes, &offset);
    pthread_mutex_unlock(&plane->heap_lock);
    return found ? plane->arena + plane->layout.heap + offset : 0;
}

int pc_device_comm_free(struct pc_device_comm *plane, uint64_t address)
{
    size_t offset = (size_t)(address - (plane->arena + plane->layout.heap));
    pthread_mutex_lock(&plane->heap_lock);
    bool found = pc__heap_taken(&plane->heap, offset) != 0;
    if (found)
        pc__heap_give(&plane->heap, offset);
    pthread_mutex_unlock(&plane->heap_lock);
    return found ? PC_OK : PC_INVALID;
}

void pc_device_comm_state(struct pc_device_comm *plane, struct pc_device_comm_state *out)
{
    *out = (struct pc_device_comm_state){.launched = plane->launches,
                                         .captured = plane->captures,
                                         .carried = atomic_load(&plane->carried)};
    for (uint32_t i = 0; i < plane->nplans; i++)
        if (plane->plans[i] != NULL)
            out->pinned += __atomic_load_n(plane->plans[i]->graphs, __ATOMIC_ACQUIRE) != 0;
    for (uint32_t p = 0; p < plane->comm->options.size; p++) {
        out->direct += plane->peers[p].reach == PC_ROUTE_P2P;
        out->staged += plane->peers[p].reach == PC_ROUTE_SHM;
        out->remote += plane->peers[p].reach == PC_ROUTE_NET;
    }
}
