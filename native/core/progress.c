/* The progress loop: one call at a time, its channels stepped until all have finished. */
#include <string.h>
#include "core/interpreter_cpu.h"
#include "core/trace.h"
#include "p2p/p2p.h"

/* The calling thread's identity; never zero. */
static uintptr_t self(void)
{
    return (uintptr_t)pthread_self();
}

int pc__enter(struct pc_comm *comm)
{
    uintptr_t nobody = 0;
    if (!atomic_compare_exchange_strong_explicit(&comm->entered, &nobody, self(),
                                                 memory_order_acquire, memory_order_relaxed))
        return PC_BUSY;
    uint64_t op_count = atomic_load_explicit(&comm->op_count, memory_order_relaxed);
    atomic_store_explicit(&comm->op_count, op_count + 1, memory_order_relaxed);
    return PC_OK;
}

void pc__leave(struct pc_comm *comm)
{
    atomic_store_explicit(&comm->entered, 0, memory_order_release);
}

static int finish(struct pc_comm *comm, int rc)
{
    if (rc != PC_AGAIN)
        pc__leave(comm);
    return rc;
}

static void start(struct pc_call *call, const struct pc_program *program, int form)
{
    call->program = program;
    call->terms = &call->plan->terms[form];
    call->running = program->nchannels;
    if (pc__has_net(call->comm))
        pc__net_begin(call->comm->net, call->terms->longest);
    for (uint32_t c = 0; c < program->nchannels; c++)
        call->channels[c] = (struct pc_channel){.pc = program->code + program->starts[c]};
}

/* The offset of an array in this rank's heap, plus one; 0 when it is not in the heap. A missing
 * array (NULL) does not prevent the direct form. */
static uint64_t registered(const struct pc_comm *comm, const char *message, struct pc_extent e)
{
    const char *heap = comm->arena + comm->layout.heap;
    const char *array = message + pc__extent_at(comm->call.plan, e);
    uint64_t nbytes = pc__extent_bytes(comm->call.plan, e);
    if (e.count == 0)
        return 1;
    if (array < heap || array + nbytes > comm->arena + comm->layout.end)
        return 0;
    return (uint64_t)(array - heap) + 1;
}

static void publish_ready(struct pc_comm *comm)
{
    const struct pc_call *call = &comm->call;
    const struct pc_plan_spec *spec = &call->plan->spec;
    uint64_t n = ++comm->ready_calls;
    struct pc_ready mine = {.in = registered(comm, call->in, spec->input),
                            .out = registered(comm, call->out, spec->output),
                            .in_blocks = spec->input,
                            .out_blocks = spec->output};
    for (uint32_t p = 0; p < comm->options.size; p++) {
        if (p == comm->options.rank)
            continue;
        struct pc_line *line = pc__ready_line(comm->peers[p].record, comm->options.rank, n);
        line->signature = call->plan->terms[0].signature;
        memcpy(line->bytes, &mine, sizeof mine);
        if (pc__raise(line, n))
            pc__wakeup_signal(comm, p);
    }
    comm->call.all_registered = mine.in && mine.out;
}

/* Where a peer's message would begin if its array held all of it; NULL: READY is out of range. */
static char *message_of(const struct pc_comm *comm, uint32_t peer, uint64_t place,
                        struct pc_extent e)
{
    const struct pc_plan *plan = comm->call.plan;
    uint64_t heap = comm->options.heap_bytes;
    if (e.first > plan->spec.nblocks || e.count > plan->spec.nblocks - e.first)
        return NULL;
    uint64_t nbytes = pc__extent_bytes(plan, e);
    if (nbytes > heap || place - 1 > heap - nbytes)
        return NULL;
    return comm->peers[peer].arena + comm->layout.heap + (place - 1) - pc__extent_at(plan, e);
}

/* Reads the peers' READY, in order of rank. 1 when all have been read, 0 to wait, or a code. */
static int read_ready(struct pc_comm *comm)
{
    struct pc_call *call = &comm->call;
    for (; call->ready < comm->options.size; call->ready++) {
        uint32_t p = call->ready;
        if (p == comm->options.rank)
            continue;
        char *mine = pc__record(comm->arena, &comm->layout, p);
        struct pc_line *line = pc__ready_line(mine, p, comm->ready_calls);
        if (pc__count(line) < comm->ready_calls) {
            call->channels[0].line = line;
            call->channels[0].want = comm->ready_calls;
            return 0;
        }
        if (line->signature != call->plan->terms[0].signature)
            return pc__fail(&call->error, PC_MISMATCH, (int)p,
                            "READY of rank %u is of another call", p);
        struct pc_ready theirs;
        memcpy(&theirs, line->bytes, sizeof theirs);
        if (theirs.in == 0 || theirs.out == 0) {
            call->all_registered = false;
            continue;
        }
        comm->peers[p].in = message_of(comm, p, theirs.in, theirs.in_blocks);
        comm->peers[p].out = message_of(comm, p, theirs.out, theirs.out_blocks);
        if (comm->peers[p].in == NULL || comm->peers[p].out == NULL)
            return pc__fail(&call->error, PC_INVALID, (int)p,
                            "READY of rank %u points outside its heap", p);
    }
    return 1;
}

void pc__break(struct pc_comm *comm, int code, struct pc_error *error)
{
    struct pc_error *none = NULL;
    if (atomic_compare_exchange_strong(&comm->failure, &none, error))
        atomic_store(&comm->broken, code);
}

/* OK, or why no call can be made any more. */
static int usable(struct pc_comm *comm)
{
    if (atomic_load_explicit(&comm->broken, memory_order_relaxed))
        return PC_BROKEN;
    if (!atomic_load_explicit(&comm->aborted, memory_order_acquire))
        return PC_OK;
    comm->call.error = comm->abort_error;
    pc__break(comm, PC_ABORTED, &comm->call.error);
    return PC_ABORTED;
}

uint64_t pc__hash(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

void pc__refused(struct pc_comm *comm)
{
    pc__status_enter(comm, PC_REFUSED, 0);
    pc__status_leave(comm);
    uint64_t number
        = atomic_load_explicit(&((struct pc_arena *)comm->arena)->sequence, memory_order_relaxed);
    comm->salt = pc__hash(comm->salt ^ number);
}

int pc_refuse(struct pc_comm *comm, uint64_t *number)
{
    *number = 0;
    int rc = pc__enter(comm);
    if (rc != PC_OK)
        return rc;
    if (atomic_load_explicit(&comm->queued,
                             memory_order_acquire)) { /* the progress thread runs the calls */
        const struct pc_work job = {.refused = true};
        struct pc_work *unused;
        rc = atomic_load(&comm->broken) ? PC_BROKEN : pc__enqueue(comm, &job, "", &unused);
    } else if ((rc = usable(comm)) == PC_OK) {
        pc__refused(comm);
    }
    if (rc == PC_OK)
        *number = pc_comm_calls(comm);
    return finish(comm, rc);
}

/* Mixes the salt into a plan's signatures: ranks that refused different calls then find that their
 * later calls differ. Only a call that follows a refused one comes here. */
static void salt(struct pc_plan *plan, uint64_t with)
{
    plan->salt = with;
    for (int form = 0; form < 2; form++)
        plan->terms[form].signature = plan->spec.signature ^ with;
}

int pc__call_begin(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                   double timeout)
{
    struct pc_call *call = &comm->call;
    int rc = usable(comm);
    if (rc != PC_OK)
        return rc;
    if (plan->apart && in == out && plan->nbytes) /* the call has not begun: nothing is broken */
        return pc__fail(&comm->error, PC_INVALID, -1, "this collective has no in-place form");
    if (plan->salt != comm->salt)
        salt(plan, comm->salt);
    call->plan = plan;
    call->batch = NULL;
    call->in = (char *)((uintptr_t)in - pc__extent_at(plan, plan->spec.input));
    call->out = (char *)((uintptr_t)out - pc__extent_at(plan, plan->spec.output));
    call->timeout = timeout;
    call->deadline = 0;
    call->active = true;
    pc__status_enter(comm, plan->spec.signature, plan->nbytes);
    if (plan->direct == NULL) {
        start(call, plan->staged, 0);
    } else {
        call->program = NULL;
        call->channels[0] = (struct pc_channel){0};
        call->running = 1;
        call->ready = 0;
        publish_ready(comm);
    }
    return PC_OK;
}

int pc__call_begin_batch(struct pc_comm *comm, struct pc_batch *batch, uint64_t signature,
                         double timeout)
{
    static const struct pc_program empty; /* the program of a batch call: nothing */
    struct pc_call *call = &comm->call;
    int rc = usable(comm);
    if (rc != PC_OK)
        return rc;
    call->program = &empty;
    call->batch = batch;
    call->running = 1; /* counts the batch as one channel */
    call->timeout = timeout;
    call->deadline = 0;
    call->active = true;
    pc__status_enter(comm, signature, PC_TRACE_FROM_BYTES);
    for (uint32_t i = 0; i < batch->n; i++)
        pc__transfer_tag(&batch->transfers[i], signature ^ comm->salt);
    pc__pairwise_post(comm, batch);
    return PC_OK;
}

int pc__progress(struct pc_comm *comm, uint64_t patience_ns)
{
    struct pc_call *call = &comm->call;
    uint64_t until = 0;
    bool drained = true;
    int rc;
    for (;;) {
        rc = 0;
        if (call->batch != NULL) {
            if (pc__batch_done(call->batch)) {
                rc = pc__batch_end(comm, &call->batch);
                call->running = 0;
            }
        } else if (call->program == NULL) {
            rc = read_ready(comm);
            if (rc > 0)
                start(call, call->all_registered ? call->plan->direct : call->plan->staged,
                      call->all_registered);
        } else {
            int stepped = 0;
            for (uint32_t c = 0; c < call->program->nchannels && stepped >= 0; c++)
                if (!call->channels[c].finished) {
                    stepped = pc__step(call, &call->channels[c]);
                    rc |= stepped;
                }
            if (stepped < 0)
                rc = stepped;
        }
        /* A call ends when all that it sent has left: nobody sends it later. */
        bool ran = rc >= 0 && call->batch == NULL && call->running == 0;
        if (ran && pc__has_net(comm)) {
            rc = pc__net_drained(comm->net, NULL, &call->error);
            drained = rc != 0;
        }
        if (rc >= 0 && ran && drained) {
            call->active = false;
            pc__status_leave(comm);
            return PC_OK;
        }
        if (rc > 0)
            continue;
        if (rc == 0) {
            if (until == 0 && patience_ns != 0)
                until = pc__now() + patience_ns;
            pc__trace_wait(comm);
            rc = pc__idle(comm, until);
            if (rc == PC_OK)
                continue;
        }
        if (rc != PC_AGAIN) {
            pc__trace_leave(comm, rc);
            pc__break(comm, rc, &call->error);
            if (pc__has_net(comm))
                pc__net_unexpect(comm->net);
            if (call->batch != NULL) {
                pc__p2p_end(comm, rc);
                pc__batch_end(comm, &call->batch);
            }
        }
        return rc;
    }
}

static int run(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
               double timeout, uint64_t patience_ns)
{
    int rc = pc__enter(comm);
    if (rc != PC_OK)
        return rc;
    if (atomic_load_explicit(&comm->queued, memory_order_acquire)) {
        struct pc_work job
            = {.plan = plan, .in = (char *)(uintptr_t)in, .out = out, .timeout = timeout};
        return finish(comm, pc__join_queue(comm, &job, (double)patience_ns * 1e-9));
    }
    rc = pc__call_begin(comm, plan, in, out, timeout);
    if (rc == PC_OK)
        rc = pc__progress(comm, patience_ns);
    return finish(comm, rc);
}

int pc_run(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out, double timeout)
{
    return run(comm, plan, in, out, timeout, PC_FIRST_PATIENCE_NS);
}

int pc__call_try(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                 double timeout)
{
    return run(comm, plan, in, out, timeout, 0);
}

int pc_resume(struct pc_comm *comm, double seconds)
{
    uint64_t patience = seconds > 0 ? (uint64_t)(seconds * 1e9) : 1;
    if (atomic_load_explicit(&comm->entered, memory_order_relaxed) != self())
        return PC_INVALID; /* comm->error belongs to the thread inside a call */
    if (comm->p2p->blocking != NULL)
        return finish(comm, pc__batch_resume(comm, patience));
    if (comm->joined != NULL)
        return finish(comm, pc__joined_wait(comm, seconds));
    return finish(comm, pc__progress(comm, patience));
}

int pc_comm_stuck(struct pc_comm *comm, struct pc_stuck *out)
{
    const struct pc_call *call = &comm->call;
    memset(out, 0, sizeof *out);
    out->peer = -1;
    if (!call->active)
        return 0;
    if (call->batch != NULL) {
        pc__batch_stuck(call->batch, out);
        return 1;
    }
    if (call->program == NULL) {
        out->peer = (int32_t)call->ready;
        out->direction = PC_DIRECTION_RECV;
        out->want = comm->ready_calls;
        return 1;
    }
    for (uint32_t c = 0; c < call->program->nchannels; c++) {
        const struct pc_channel *channel = &call->channels[c];
        const struct pc_vm_instruction *i = channel->pc;
        if (channel->finished || !pc__waits(i) || i->step == PC_STEP_WAIT_LOCAL)
            continue;
        if (channel->line == NULL) /* it has not been stepped since its last tile */
            continue;
        out->channel = c;
        out->instruction = (uint32_t)(i - call->program->code);
        out->peer = (int32_t)pc__awaited(i);
        out->direction = i->step == PC_STEP_WAIT_CREDIT ? PC_DIRECTION_SEND : PC_DIRECTION_RECV;
        out->want = channel->want;
        out->got = pc__count(channel->line);
        return 1;
    }
    return 1;
}

int pc_comm_entered(struct pc_comm *comm)
{
    uintptr_t by = atomic_load(&comm->entered);
    return by == 0 ? 0 : by == self() ? 2 : 1;
}

uint64_t pc_comm_op_count(struct pc_comm *comm)
{
    return atomic_load_explicit(&comm->op_count, memory_order_relaxed);
}

uint64_t pc_comm_op_count_before(struct pc_comm *comm)
{
    return atomic_load_explicit(&comm->op_count_before, memory_order_relaxed);
}

void pc_comm_follow(struct pc_comm *comm, struct pc_comm *leader)
{
    comm->leader = leader;
}

void pc_comm_uncount_ops(struct pc_comm *comm, uint64_t op_count)
{
    atomic_store_explicit(&comm->op_count, op_count, memory_order_relaxed);
}

uint64_t pc_comm_calls(struct pc_comm *comm)
{
    if (atomic_load_explicit(&comm->queued, memory_order_acquire))
        return comm->numbered;
    return atomic_load_explicit(&((struct pc_arena *)comm->arena)->sequence, memory_order_relaxed);
}

int pc_comm_broken(struct pc_comm *comm)
{
    return atomic_load(&comm->broken);
}

int pc_comm_abort(struct pc_comm *comm, int cause, int peer, const char *text)
{
    int first = 0;
    bool claimed = atomic_compare_exchange_strong(&comm->abort_claimed, &first, 1);
    if (pc__has_net(comm)) /* its caller may go on, and free what the call would have written */
        pc__net_unexpect(comm->net);
    if (!claimed)
        return PC_OK; /* the first cause is reported */
    pc__fail(&comm->abort_error, PC_ABORTED, peer, "%s", text);
    comm->abort_error.cause = cause;
    atomic_store(&comm->aborted, 1);
    pc__wakeup_signal(comm, comm->options.rank);
    return PC_OK;
}
