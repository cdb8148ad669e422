/* Launches. A launch waits for nothing and, while its stream is being captured, allocates nothing;
 * all launches of a plane run one after the other, since they share its edges. */
#include <string.h>
#include <time.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"
#include "gpu/proxy_fifo.h"

#define PC_STREAM_PER_THREAD 2u /* CU_STREAM_PER_THREAD */

uint64_t pc__launches_finished(const struct pc_device_comm *plane, uint32_t block)
{
    return __atomic_load_n(&plane->watch->finished[block][0], __ATOMIC_ACQUIRE);
}

bool pc__launches_ended(const struct pc_device_comm *plane)
{
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        if (pc__launches_finished(plane, b) < atomic_load(&plane->launched[b]))
            return false;
    return true;
}

int pc__launches_over(struct pc_device_comm *plane)
{
    bool ended = pc__launches_ended(plane);
    struct pc_error error;
    if (!plane->ordered || (ended && !atomic_load(&plane->capturing)))
        return ended ? PC_OK : PC_AGAIN;
    /* After a fault on the device, of whatever kernel, none ever says that it has ended. */
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = pc_cuda_event_query(plane->device, plane->order, &error);
    pc__cuda_relax(mode);
    if (rc != PC_OK && rc != PC_AGAIN)
        *plane->error = error;
    return rc == PC_OK && !ended ? PC_AGAIN : rc;
}

/* The first failure that a kernel met, put into words. */
static void tell_trouble(struct pc_device_comm *plane)
{
    const struct pc_device_error *t = &plane->watch->trouble;
    int code = -(int)__atomic_load_n(&t->code, __ATOMIC_ACQUIRE);
    struct pc_error error;
    if (code == PC_OK || code == PC_ABORTED || atomic_load(&plane->failing))
        return;
    if (code == PC_MISMATCH)
        pc__fail(&error, code, (int)t->peer, "message %llu from rank %u belongs to another call",
                 (unsigned long long)t->slot, t->peer);
    else
        pc__fail(&error, code, (int)t->peer,
                 "no progress on the GPU: block %u at instruction %u waits for count %llu of rank "
                 "%u, which has reached %llu",
                 t->block, t->instruction, (unsigned long long)t->want, t->peer,
                 (unsigned long long)t->got);
    pc__device_comm_fail(plane, code, &error);
}

int pc_device_comm_check(struct pc_device_comm *plane)
{
    struct pc_comm *comm = plane->comm;
    if (plane->watch != NULL)
        tell_trouble(plane);
    if (atomic_load(&comm->aborted) && plane->watch != NULL)
        pc__device_comm_fail(plane, PC_ABORTED, &comm->abort_error);
    return atomic_load(&comm->broken);
}

static int usable(struct pc_device_comm *plane, const struct pc_device_plan *p, uint64_t in,
                  uint64_t out)
{
    int rc = pc_device_comm_check(plane);
    if (rc != PC_OK)
        return rc;
    if (!plane->sealed || plane->detached)
        return pc__fail(plane->error, PC_INVALID, -1, "a plane that is %s",
                        plane->sealed ? "closed" : "not open yet");
    if (p->plan->apart && in == out && p->plan->nbytes)
        return pc__fail(plane->error, PC_INVALID, -1, "this collective has no in-place form");
    return PC_OK;
}

static struct pc_kernel_args argument_of(const struct pc_device_plan *p, uint64_t in, uint64_t out,
                                         double timeout)
{
    const struct pc_plan_spec *spec = &p->plan->spec;
    return (struct pc_kernel_args){
        .image = (const struct pc_device_image *)(uintptr_t)p->image,
        .in = (char *)(uintptr_t)(in - pc__extent_at(p->plan, spec->input)),
        .out = (char *)(uintptr_t)(out - pc__extent_at(p->plan, spec->output)),
        .timeout_ns = (uint64_t)(timeout * 1e9),
        .salt = p->plane->comm->salt,
    };
}

/* Before the launch, so that nobody takes a kernel that runs for one that has ended. */
static void count(struct pc_device_comm *plane, const struct pc_device_plan *p, int by)
{
    for (uint32_t b = 0; b < p->shape.blocks; b++)
        atomic_fetch_add(&plane->launched[b], (uint64_t)(int64_t)by);
    plane->launches += (uint64_t)(int64_t)by;
}

static int enqueue(struct pc_device_comm *plane, const struct pc_device_plan *p,
                   struct pc_kernel_args *argument, uintptr_t stream)
{
    struct pc_cuda_grid grid = {.function = p->function,
                                .stream = stream,
                                .blocks = {p->shape.blocks, 1, 1},
                                .threads = {p->shape.threads, 1, 1},
                                .flags = plane->sync_domains > 1 ? PC_CUDA_REMOTE : 0};
    void *arguments[] = {argument};
    return pc_cuda_launch(plane->device, &grid, arguments, plane->error);
}

/* Whether a launch on `stream` comes after one on `last` by itself. The default stream "per thread"
 * is another one on each thread, by the same handle. */
static bool same_stream(uintptr_t stream, uintptr_t last)
{
    return stream == last && stream != PC_STREAM_PER_THREAD;
}

static int launch_now(struct pc_device_comm *plane, struct pc_device_plan *p,
                      struct pc_kernel_args *argument, uintptr_t stream)
{
    int rc = PC_OK;
    if (plane->ordered && !same_stream(stream, plane->last_stream))
        rc = pc_cuda_stream_after(plane->device, stream, plane->order, plane->error);
    if (rc != PC_OK)
        return rc;
    count(plane, p, 1);
    pc__status_enter(plane->comm, p->plan->spec.signature);
    pc__proxy_wake(plane);
    rc = enqueue(plane, p, argument, stream);
    if (rc != PC_OK) {
        count(plane, p, -1);
        return rc;
    }
    plane->last_stream = stream;
    plane->ordered = true;
    return pc_cuda_event_record(plane->device, plane->order, stream, plane->error);
}

/* Within one capture the streams that it joins are put in order; a graph's place among other
 * launches is its user's matter, who launches it on some stream. */
static int launch_captured(struct pc_device_comm *plane, struct pc_device_plan *p,
                           struct pc_kernel_args *argument, uintptr_t stream, uint64_t capture)
{
    int rc = PC_OK;
    if (plane->capture == capture && !same_stream(stream, plane->captured_stream))
        rc = pc_cuda_stream_after(plane->device, stream, plane->captured_order, plane->error);
    if (rc == PC_OK)
        rc = pc_cuda_capture_pin(plane->device, stream, p->graphs, plane->error);
    if (rc != PC_OK)
        return rc;
    plane->captures++;
    atomic_store(&plane->capturing, 1);
    argument->in_graph = 1;
    pc__proxy_wake(plane);
    rc = enqueue(plane, p, argument, stream);
    if (rc == PC_OK)
        rc = pc_cuda_event_record(plane->device, plane->captured_order, stream, plane->error);
    plane->capture = capture;
    plane->captured_stream = stream;
    return rc;
}

/* Counted here, and not by the caller: an exception (Ctrl-C) may arrive right behind the launch. */
static int placed(struct pc_device_comm *plane, int rc)
{
    if (rc == PC_OK)
        for (struct pc_comm *comm = plane->comm; comm != NULL; comm = comm->leader)
            atomic_fetch_add_explicit(&comm->places, 1, memory_order_relaxed);
    return rc;
}

int pc_device_comm_launch(struct pc_device_comm *plane, struct pc_device_plan *p, uint64_t in,
                          uint64_t out, uintptr_t stream, double timeout)
{
    uint64_t capture = 0;
    int rc = usable(plane, p, in, out);
    if (rc != PC_OK)
        return rc;
    struct pc_kernel_args argument = argument_of(p, in, out, timeout);
    rc = pc_cuda_capturing(plane->device, stream, plane->error, &capture);
    if (rc == PC_CUDA_NO_CAPTURE)
        return placed(plane, launch_now(plane, p, &argument, stream));
    if (rc == PC_CUDA_CAPTURING)
        return placed(plane, launch_captured(plane, p, &argument, stream, capture));
    return rc < 0 ? rc
                  : pc__fail(plane->error, PC_INVALID, -1,
                             "stream %#zx is in a capture that has failed", (size_t)stream);
}

int pc_device_comm_prepare(struct pc_device_comm *plane, struct pc_device_plan *p, uint64_t in,
                           uint64_t out, double timeout, void *argument, size_t capacity)
{
    int rc = usable(plane, p, in, out);
    if (rc != PC_OK)
        return rc;
    struct pc_kernel_args launch = argument_of(p, in, out, timeout);
    if (capacity < sizeof launch)
        return pc__fail(plane->error, PC_INVALID, -1, "an argument has %zu bytes, got %zu",
                        sizeof launch, capacity);
    memcpy(argument, &launch, sizeof launch);
    count(plane, p, 1);
    pc__proxy_wake(plane);
    return (int)sizeof launch;
}

int pc_device_comm_refuse(struct pc_device_comm *plane, uint64_t *number)
{
    struct pc_comm *comm = plane->comm;
    int rc = pc_refuse(comm, number);
    if (rc != PC_OK)
        return rc;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    uint64_t at = plane->edges.states + offsetof(struct pc_block_state, salt);
    rc = pc__device_comm_upload(plane, at, &comm->salt, sizeof comm->salt);
    pc__cuda_relax(mode);
    if (rc != PC_OK) {
        struct pc_error error = *plane->error;
        pc__device_comm_fail(plane, rc, &error);
    }
    return rc;
}

int pc_device_comm_wait(struct pc_device_comm *plane, double seconds)
{
    uint64_t until = pc__now() + (uint64_t)(seconds > 0 ? seconds * 1e9 : 0);
    for (uint64_t nap = 0;; nap = nap < 200000 ? nap + 10000 : nap) {
        int rc = pc__launches_over(plane);
        if (rc != PC_OK && rc != PC_AGAIN) { /* what has not run will not, and its counts lack */
            struct pc_error error = *plane->error;
            pc__device_comm_fail(plane, rc, &error);
        }
        int failed = pc_device_comm_check(plane);
        if (failed != PC_OK || rc != PC_AGAIN) {
            if (failed == PC_OK && rc == PC_OK)
                pc__status_leave(plane->comm);
            return failed != PC_OK ? failed : rc;
        }
        if (pc__now() >= until)
            return PC_AGAIN;
        const struct timespec t = {0, (long)nap};
        nanosleep(&t, NULL);
    }
}

int pc_device_comm_stuck(struct pc_device_comm *plane, struct pc_stuck *out)
{
    const struct pc_device_error *t = &plane->watch->trouble;
    memset(out, 0, sizeof *out);
    out->peer = -1;
    if (__atomic_load_n(&t->code, __ATOMIC_ACQUIRE) == 0)
        return 0;
    *out = (struct pc_stuck){.channel = t->block,
                             .instruction = t->instruction,
                             .peer = (int32_t)t->peer,
                             .want = t->want,
                             .got = t->got};
    return 1;
}
