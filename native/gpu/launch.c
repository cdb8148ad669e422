/* Launches kernels. A launch waits for nothing and, while its stream is being captured, allocates
 * nothing. All launches of a device communicator run in order, since they share its edges. */
#include <sched.h>
#include <string.h>
#include <time.h>
#include "gpu/driver/cuda.h"
#include "core/trace.h"
#include "gpu/device_comm.h"
#include "gpu/timeline.h"

#define PC_STREAM_PER_THREAD 2u /* CU_STREAM_PER_THREAD */

uint64_t pc__launches_finished(const struct pc_device_comm *dc, uint32_t block)
{
    return __atomic_load_n(&dc->control->finished[block][0], __ATOMIC_ACQUIRE);
}

bool pc__launches_ended(const struct pc_device_comm *dc)
{
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        if (pc__launches_finished(dc, b) < atomic_load(&dc->launched[b]))
            return false;
    return true;
}

bool pc__calls_run(const struct pc_device_comm *dc)
{
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        if (pc__launches_finished(dc, b) < atomic_load(&dc->called[b]))
            return true;
    return atomic_load(&dc->capturing) != 0;
}

/* What the driver says of the last launch: after a fault of any kernel on the device no launch
 * reports its end. */
static int ask_driver(const struct pc_device_comm *dc, bool ended, struct pc_error *error)
{
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    int rc = pc_cuda_event_query(dc->device, dc->order, error);
    pc__cuda_relax(mode);
    return rc == PC_OK && !ended ? PC_AGAIN : rc;
}

int pc__launches_over(const struct pc_device_comm *dc, struct pc_error *error)
{
    bool ended = pc__launches_ended(dc);
    if (!dc->ordered || (ended && !atomic_load(&dc->capturing)))
        return ended ? PC_OK : PC_AGAIN;
    return ask_driver(dc, ended, error);
}

int pc__launches_retired(const struct pc_device_comm *dc, struct pc_error *error)
{
    bool ended = pc__launches_ended(dc);
    if (!dc->ordered)
        return ended ? PC_OK : PC_AGAIN;
    return ask_driver(dc, ended, error);
}

/* Reports the first failure of a kernel as the communicator's error. */
static void report_error(struct pc_device_comm *dc)
{
    const struct pc_device_error *t = &dc->control->error;
    int code = -(int)__atomic_load_n(&t->code, __ATOMIC_ACQUIRE);
    struct pc_error error;
    if (code == PC_OK || code == PC_ABORTED || atomic_load(&dc->failing))
        return;
    if (t->transfer != 0)
        code = pc__transfers_report(t, &error);
    else if (code == PC_MISMATCH)
        pc__fail(&error, code, (int)t->peer, "message %llu from rank %u belongs to another call",
                 (unsigned long long)t->slot, t->peer);
    else
        pc__fail(&error, code, (int)t->peer,
                 "no progress on the GPU: block %u at instruction %u waits for count %llu of rank "
                 "%u, which has reached %llu",
                 t->block, t->instruction, (unsigned long long)t->want, t->peer,
                 (unsigned long long)t->got);
    pc__device_comm_fail(dc, code, &error);
}

int pc_device_comm_check(struct pc_device_comm *dc)
{
    struct pc_comm *comm = dc->comm;
    if (dc->control != NULL)
        report_error(dc);
    if (atomic_load(&comm->aborted) && dc->control != NULL)
        pc__device_comm_fail(dc, PC_ABORTED, &comm->abort_error);
    /* Another thread may have begun to report a kernel that gave up, and not have set `broken` yet:
     * with OK a caller would take what that kernel left for a result. That thread waits for nobody,
     * and whoever reports first sets `broken`. */
    while (atomic_load(&dc->failing) && atomic_load(&comm->broken) == 0)
        sched_yield();
    return atomic_load(&comm->broken);
}

int pc__launchable(struct pc_device_comm *dc)
{
    int rc = pc_device_comm_check(dc);
    if (rc == PC_OK && (!dc->sealed || dc->detached))
        rc = pc__fail(dc->error, PC_INVALID, -1, "a device communicator that is %s",
                      dc->sealed ? "closed" : "not open yet");
    return rc;
}

static int usable(struct pc_device_comm *dc, const struct pc_device_plan *p, uint64_t in,
                  uint64_t out)
{
    int rc = pc__launchable(dc);
    if (rc != PC_OK)
        return rc;
    if (p->plan->apart && in == out && p->plan->nbytes)
        return pc__fail(dc->error, PC_INVALID, -1, "this collective has no in-place form");
    return PC_OK;
}

static struct pc_kernel_args argument_of(const struct pc_device_plan *p, uint64_t in, uint64_t out,
                                         double timeout)
{
    const struct pc_plan_spec *spec = &p->plan->spec;
    struct pc_kernel_args args = p->args;
    args.in = (char *)(uintptr_t)(in - pc__extent_at(p->plan, spec->input));
    args.out = (char *)(uintptr_t)(out - pc__extent_at(p->plan, spec->output));
    args.timeout_ns = (uint64_t)(timeout * 1e9);
    args.salt = p->dc->comm->salt;
    return args;
}

/* Counts a launch before it is made, so that a running kernel never looks as if it had ended. */
static void count(struct pc_device_comm *dc, uint32_t blocks, bool call, bool begins, int by)
{
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t before = atomic_fetch_add(&dc->launched[b], (uint64_t)(int64_t)by);
        if (call)
            atomic_store(&dc->called[b], before + (uint64_t)(int64_t)by);
    }
    if (begins)
        dc->launches += (uint64_t)(int64_t)by;
}

static int enqueue(struct pc_device_comm *dc, const struct pc_launch *l, uintptr_t stream)
{
    struct pc_cuda_grid grid = {.function = l->function,
                                .stream = stream,
                                .blocks = {l->blocks, 1, 1},
                                .threads = {l->threads, 1, 1},
                                .flags = dc->sync_domains > 1 ? PC_CUDA_REMOTE : 0};
    void *arguments[] = {l->argument};
    return pc_cuda_launch(dc->device, &grid, arguments, dc->error);
}

/* Whether stream order puts a launch on `stream` after one on `last`. The per-thread default stream
 * is another one on each thread, with the same handle. */
static bool same_stream(uintptr_t stream, uintptr_t last)
{
    return stream == last && stream != PC_STREAM_PER_THREAD;
}

static int launch_now(struct pc_device_comm *dc, const struct pc_launch *l, uintptr_t stream)
{
    int rc = PC_OK;
    if (dc->ordered && !same_stream(stream, dc->last_stream))
        rc = pc_cuda_stream_after(dc->device, stream, dc->order, dc->error);
    if (rc != PC_OK)
        return rc;
    count(dc, l->blocks, l->call, l->begins, 1);
    if (l->begins)
        pc__status_enter(dc->comm, l->signature, PC_TRACE_FROM_BYTES);
    pc__proxy_wake(dc);
    struct pc_arena *arena = (struct pc_arena *)dc->comm->arena;
    uint64_t sequence = atomic_load_explicit(&arena->sequence, memory_order_relaxed);
    bool timed = l->begins && dc->timeline != NULL;
    if (timed)
        rc = pc__timeline_begins(dc, sequence, stream);
    if (rc == PC_OK)
        rc = enqueue(dc, l, stream);
    if (rc != PC_OK) {
        count(dc, l->blocks, l->call, l->begins, -1);
        return rc;
    }
    dc->last_stream = stream;
    dc->ordered = true;
    rc = pc_cuda_event_record(dc->device, dc->order, stream, dc->error);
    return rc == PC_OK && timed ? pc__timeline_ends(dc, sequence, stream) : rc;
}

/* Orders launches within one capture. The order of a graph among other launches is up to the user.
 */
static int launch_captured(struct pc_device_comm *dc, const struct pc_launch *l, uintptr_t stream,
                           uint64_t capture)
{
    int rc = PC_OK;
    if (dc->capture == capture && !same_stream(stream, dc->captured_stream))
        rc = pc_cuda_stream_after(dc->device, stream, dc->captured_order, dc->error);
    if (rc == PC_OK)
        rc = pc_cuda_capture_pin(dc->device, stream, l->graphs, dc->error);
    if (rc != PC_OK)
        return rc;
    dc->captures++;
    atomic_store(&dc->capturing, 1);
    *l->in_graph = 1;
    pc__proxy_wake(dc);
    rc = enqueue(dc, l, stream);
    if (rc == PC_OK)
        rc = pc_cuda_event_record(dc->device, dc->captured_order, stream, dc->error);
    dc->capture = capture;
    dc->captured_stream = stream;
    return rc;
}

/* The order of what is no launch: copies that belong to a call. */
static int order_now(struct pc_device_comm *dc, uintptr_t stream, bool ends)
{
    if (!ends)
        return dc->ordered && !same_stream(stream, dc->last_stream)
                   ? pc_cuda_stream_after(dc->device, stream, dc->order, dc->error)
                   : PC_OK;
    dc->last_stream = stream;
    dc->ordered = true;
    return pc_cuda_event_record(dc->device, dc->order, stream, dc->error);
}

static int order_captured(struct pc_device_comm *dc, uintptr_t stream, bool ends, uint64_t capture)
{
    if (!ends)
        return dc->capture == capture && !same_stream(stream, dc->captured_stream)
                   ? pc_cuda_stream_after(dc->device, stream, dc->captured_order, dc->error)
                   : PC_OK;
    dc->capture = capture;
    dc->captured_stream = stream;
    return pc_cuda_event_record(dc->device, dc->captured_order, stream, dc->error);
}

int pc_device_comm_order(struct pc_device_comm *dc, uintptr_t stream, uint32_t ends)
{
    uint64_t capture = 0;
    int rc = pc_cuda_capturing(dc->device, stream, dc->error, &capture);
    if (rc == PC_CUDA_NO_CAPTURE)
        return order_now(dc, stream, ends != 0);
    if (rc == PC_CUDA_CAPTURING)
        return order_captured(dc, stream, ends != 0, capture);
    return rc < 0 ? rc : PC_OK; /* a launch says what is wrong with the capture */
}

/* Counts the op here: in the caller an exception (Ctrl-C) may arrive right after the launch. */
static int placed(struct pc_device_comm *dc, int rc)
{
    if (rc == PC_OK)
        for (struct pc_comm *comm = dc->comm; comm != NULL; comm = comm->leader)
            atomic_fetch_add_explicit(&comm->op_count, 1, memory_order_relaxed);
    return rc;
}

int pc__launch(struct pc_device_comm *dc, const struct pc_launch *l, uintptr_t stream)
{
    uint64_t capture = 0;
    int rc = pc_cuda_capturing(dc->device, stream, dc->error, &capture);
    bool captured = rc == PC_CUDA_CAPTURING;
    if (captured || rc == PC_CUDA_NO_CAPTURE) {
        rc = pc__registration_launch(dc, l->plan, l->in, l->out, captured, l->argument);
        if (rc == PC_OK)
            rc = captured ? launch_captured(dc, l, stream, capture) : launch_now(dc, l, stream);
        return placed(dc, rc);
    }
    return rc < 0 ? rc
                  : pc__fail(dc->error, PC_INVALID, -1,
                             "stream %#zx is in a capture that has failed", (size_t)stream);
}

int pc_device_comm_launch(struct pc_device_comm *dc, struct pc_device_plan *p, uint64_t in,
                          uint64_t out, uintptr_t stream, double timeout)
{
    int rc = usable(dc, p, in, out);
    if (rc != PC_OK)
        return rc;
    struct pc_kernel_args argument = argument_of(p, in, out, timeout);
    struct pc_launch launch = {.function = p->function,
                               .blocks = p->shape.blocks,
                               .threads = p->shape.threads,
                               .argument = &argument,
                               .in_graph = &argument.in_graph,
                               .graphs = p->graphs,
                               .call = true,
                               .begins = true,
                               .signature = p->plan->spec.signature,
                               .plan = p,
                               .in = in,
                               .out = out};
    rc = pc__launch(dc, &launch, stream);
    if (rc != PC_OK)
        return rc;
    int news = dc->registration.news ? PC_LAUNCHED_LACK : 0;
    dc->registration.news = false;
    return news | (dc->registration.active ? PC_LAUNCHED_REGISTERED : 0);
}

int pc_device_comm_prepare(struct pc_device_comm *dc, struct pc_device_plan *p, uint64_t in,
                           uint64_t out, double timeout, void *argument, size_t capacity)
{
    int rc = usable(dc, p, in, out);
    if (rc != PC_OK)
        return rc;
    struct pc_kernel_args launch = argument_of(p, in, out, timeout);
    if (capacity < sizeof launch)
        return pc__fail(dc->error, PC_INVALID, -1, "an argument has %zu bytes, got %zu",
                        sizeof launch, capacity);
    memcpy(argument, &launch, sizeof launch);
    count(dc, p->shape.blocks, true, true, 1);
    pc__proxy_wake(dc);
    return (int)sizeof launch;
}

int pc_device_comm_refuse(struct pc_device_comm *dc, uint64_t *number)
{
    struct pc_comm *comm = dc->comm;
    int rc = pc_refuse(comm, number);
    if (rc != PC_OK)
        return rc;
    int mode = pc__cuda_relax(PC_CUDA_RELAXED);
    uint64_t at = dc->edges.states + offsetof(struct pc_block_state, salt);
    rc = pc__device_comm_upload(dc, at, &comm->salt, sizeof comm->salt);
    pc__cuda_relax(mode);
    if (rc != PC_OK) {
        struct pc_error error = *dc->error;
        pc__device_comm_fail(dc, rc, &error);
    }
    return rc;
}

int pc_device_comm_wait(struct pc_device_comm *dc, double seconds)
{
    uint64_t until = pc__now() + (uint64_t)(seconds > 0 ? seconds * 1e9 : 0);
    for (uint64_t nap = 0;; nap = nap < 200000 ? nap + 10000 : nap) {
        struct pc_error error;
        int rc = pc__launches_retired(dc, &error); /* who waits may free what kernels write to */
        if (rc != PC_OK && rc != PC_AGAIN) {       /* what has not run never will */
            *dc->error = error;
            pc__device_comm_fail(dc, rc, &error);
        }
        int failed = pc_device_comm_check(dc);
        if (failed != PC_OK || rc != PC_AGAIN) {
            if (failed == PC_OK && rc == PC_OK)
                pc__status_leave(dc->comm);
            return failed != PC_OK ? failed : rc;
        }
        if (pc__now() >= until)
            return PC_AGAIN;
        const struct timespec t = {0, (long)nap};
        nanosleep(&t, NULL);
    }
}

int pc_device_comm_stuck(struct pc_device_comm *dc, struct pc_stuck *out)
{
    const struct pc_device_error *t = &dc->control->error;
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
