/* The proxy: the thread of a device communicator that does for its kernels what only a CPU can.
 *
 * A kernel that has a message for a remote peer, or has consumed one, pushes an entry into its
 * block's ring, and the proxy hands it to the transport, as the CPU's interpreter does itself. A
 * kernel cannot wake a thread: while launches run, or might since a graph was captured, the proxy
 * looks, the more seldom the longer nothing has happened. Else it is parked. Where no peer is
 * remote it sleeps on the communicator's wakeup, and only passes on that the call was aborted. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include "core/interpreter_cpu.h"
#include "gpu/device_comm.h"
#include "gpu/proxy_fifo.h"

#define PC_ENTRIES_AT_ONCE 64u /* of a ring, before the others get their turn */
/* It goes on looking for so long after the last launch has ended: the next may be near. */
#define PC_AFTERWARDS_NS UINT64_C(2000000)
/* When nothing has come for so long, it naps; then longer; then it listens to the network only. */
#define PC_LATE_NS UINT64_C(200000)
#define PC_LATER_NS UINT64_C(20000000)
#define PC_NAP_NS 20000
#define PC_LONG_NAP_NS 200000
#define PC_LISTEN_NS UINT64_C(1000000)
#define PC_DOZE_NS UINT64_C(100000000) /* with no remote peers, until it looks whether to park */
/* A peer that is lost may have sent before all that a call needs: so long the kernels may go on. */
#define PC_GRACE_NS UINT64_C(200000000)

/* Does for the kernel what it cannot: hands a message or a credit to the transport. The signature
 * in the message's line is the kernel's: the plan's, and what its launch knew of refused calls. */
static int hand_over(struct pc_device_comm *dc, struct pc_proxy_entry entry)
{
    const struct pc_device_plan *p = dc->plans[entry.plan];
    const struct pc_program *program = p == NULL ? NULL : p->plan->staged;
    struct pc_call *call = &dc->call;
    int rc = PC_INVALID;
    const struct pc_vm_instruction *i = NULL;
    if (program != NULL && entry.instruction < program->ninstructions
        && entry.tile < p->plan->terms[0].ntiles)
        i = &program->code[entry.instruction];
    if (i != NULL && (i->step == PC_STEP_PUT_MESSAGE || i->step == PC_STEP_PUT_CREDIT)) {
        struct pc_channel channel = {.tile = entry.tile};
        call->plan = p->plan;
        call->terms = &p->plan->terms[0];
        rc = pc__hand_over(call, &channel, i);
    } else {
        pc__fail(&call->error, rc, -1, "a ring says plan %u, instruction %u, tile %u: no message",
                 entry.plan, entry.instruction, entry.tile);
    }
    if (rc != PC_OK)
        pc__device_comm_fail(dc, rc, &call->error);
    return rc;
}

/* Empties a block's ring, for the most part; true when there was something. */
static bool serve(struct pc_device_comm *dc, uint32_t block)
{
    struct pc_host_control *control = dc->control;
    uint64_t first = dc->tail[block], tail = first;
    struct pc_proxy_entry entry;
    while (tail - first < PC_ENTRIES_AT_ONCE
           && pc__proxy_fifo_read(control->ring[block], tail, &entry)
           && hand_over(dc, entry) == PC_OK)
        tail++;
    if (tail == first)
        return false;
    dc->tail[block] = tail;
    atomic_fetch_add_explicit(&dc->handed_over, tail - first, memory_order_relaxed);
    __atomic_store_n(&control->tail[block][0], tail, __ATOMIC_RELEASE);
    return true;
}

/* The bits of all counts that peers have raised here: whether anything has come. */
static uint64_t arrived(const struct pc_device_comm *dc)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; p < dc->comm->options.size; p++)
        for (uint32_t c = 0; c < PC_MAX_CHANNELS && dc->peers[p].route == PC_ROUTE_NET; c++) {
            const struct pc_fifo *f = &dc->comm->fifos[(size_t)p * PC_EDGE_CHANNELS + c];
            sum += pc__count(f->out_credit) + pc__count(&f->in_lines[f->received & (PC_LINES - 1)]);
        }
    return sum;
}

/* A peer from which nothing more can come while kernels run is a failure, unless what it sent
 * before is all that they need. */
static void look_for_faults(struct pc_device_comm *dc, uint64_t now)
{
    const struct pc_error *fault = NULL;
    for (uint32_t p = 0; p < dc->comm->options.size && fault == NULL; p++)
        if (dc->peers[p].route == PC_ROUTE_NET)
            fault = pc__net_fault(dc->comm->net, p);
    if (fault == NULL || (pc__launches_ended(dc) && !atomic_load(&dc->capturing))) {
        dc->fault_since = 0;
    } else if (dc->fault_since == 0) {
        dc->fault_since = now;
    } else if (now - dc->fault_since > PC_GRACE_NS) {
        struct pc_error error = *fault;
        pc__device_comm_fail(dc, error.code, &error);
    }
}

/* Whether all that was handed over has left; what never can is a failure. */
static bool drained(struct pc_device_comm *dc)
{
    struct pc_error error;
    int rc = pc__net_drained(dc->comm->net, NULL, &error);
    if (rc < 0)
        pc__device_comm_fail(dc, rc, &error);
    return rc != 0;
}

static bool rings_empty(const struct pc_device_comm *dc)
{
    struct pc_proxy_entry entry;
    for (uint32_t b = 0; b < PC_MAX_CHANNELS; b++) {
        uint64_t tail = __atomic_load_n(&dc->control->tail[b][0], __ATOMIC_ACQUIRE);
        if (pc__proxy_fifo_read(dc->control->ring[b], tail, &entry))
            return false;
    }
    return true;
}

bool pc__proxy_settled(struct pc_device_comm *dc)
{
    return !dc->proxied || (pc__launches_ended(dc) && rings_empty(dc) && drained(dc));
}

/* Whether there is nothing to look after. A kernel may have ended before this thread saw it begin,
 * and all that it pushed still stands in the ring. A graph that was captured may be launched
 * unseen; but what is broken stays so, and its kernels end by themselves. */
static bool over(struct pc_device_comm *dc)
{
    bool broken = atomic_load(&dc->comm->broken) != 0;
    return pc__launches_ended(dc) && (broken || !atomic_load(&dc->capturing))
           && (broken || pc__proxy_settled(dc));
}

static void nap(long ns)
{
    const struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

/* Nothing has come since `since`: gives way, the more the longer that is. */
static void rest(struct pc_device_comm *dc, uint64_t now, uint64_t since)
{
    struct pc_comm *comm = dc->comm;
    uint64_t idle = now - since;
    if (idle < comm->options.spin * UINT64_C(1000))
        pc__relax();
    else if (idle < PC_LATE_NS && pc__may_yield(comm, now))
        pc__give_way(comm);
    else if (idle < PC_LATER_NS)
        nap(PC_NAP_NS);
    else if (!pc__launches_ended(dc))
        nap(PC_LONG_NAP_NS);
    else /* only a graph may bring something */
        pc__wakeup_wait(comm, pc__wakeup_arm(comm), PC_LISTEN_NS);
}

/* Serves the rings until there is no more reason to. */
static void serve_all(struct pc_device_comm *dc)
{
    struct pc_comm *comm = dc->comm;
    uint64_t since = pc__now(), looked = since, come = arrived(dc);
    bool flushed = false;
    while (!atomic_load(&dc->stopping)) {
        bool moved = false;
        bool failed = pc_device_comm_check(dc) != PC_OK;
        for (uint32_t b = 0; b < PC_MAX_CHANNELS && !failed; b++)
            moved = serve(dc, b) || moved;
        pc__net_progress(comm->net);
        uint64_t now = pc__now(), here = arrived(dc);
        moved = moved || here != come;
        come = here;
        if (moved) {
            since = now;
            flushed = false;
            continue;
        }
        if (now - looked > PC_LATE_NS) {
            looked = now;
            look_for_faults(dc, now);
        }
        if (!flushed && (failed || pc__proxy_settled(dc))) {
            /* Credit that waits for a message to go with leaves now. */
            pc__wakeup_wait(comm, pc__wakeup_arm(comm), 0);
            flushed = true;
            continue;
        }
        if (flushed && now - since > PC_AFTERWARDS_NS && over(dc))
            return;
        rest(dc, now, since);
    }
}

/* With no remote peers: nothing to carry, and an abort rings. */
static void stand_by(struct pc_device_comm *dc)
{
    while (!atomic_load(&dc->stopping)) {
        uint32_t armed = pc__wakeup_arm(dc->comm); /* first: what comes after the looks moves it */
        pc_device_comm_check(dc);
        if (!atomic_load(&dc->stopping))
            pc__wakeup_wait(dc->comm, armed, PC_DOZE_NS);
        if (over(dc))
            return;
    }
}

static void *run(void *argument)
{
    struct pc_device_comm *dc = argument;
    pthread_mutex_lock(&dc->lock);
    while (!atomic_load(&dc->stopping)) {
        /* Parked before it looks for the last time: whoever launches looks after it has counted. */
        atomic_store(&dc->parked, 1);
        if (over(dc)) {
            pthread_cond_wait(&dc->moved, &dc->lock);
            continue;
        }
        atomic_store(&dc->parked, 0);
        pthread_mutex_unlock(&dc->lock);
        if (dc->proxied)
            serve_all(dc);
        else
            stand_by(dc);
        pthread_mutex_lock(&dc->lock);
    }
    pthread_mutex_unlock(&dc->lock);
    return NULL;
}

void pc__proxy_wake(struct pc_device_comm *dc)
{
    if (!atomic_load(&dc->parked))
        return;
    pthread_mutex_lock(&dc->lock);
    pthread_cond_signal(&dc->moved);
    pthread_mutex_unlock(&dc->lock);
}

int pc__proxy_start(struct pc_device_comm *dc)
{
    sigset_t all, before;
    dc->call.comm = dc->comm;
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&dc->thread, NULL, run, dc);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    dc->threaded = error == 0;
    return error == 0
               ? PC_OK
               : pc__fail(dc->error, PC_SYSTEM, -1, "the proxy's thread: %s", strerror(error));
}

void pc__proxy_stop(struct pc_device_comm *dc)
{
    if (!dc->threaded)
        return;
    pthread_mutex_lock(&dc->lock);
    atomic_store(&dc->stopping, 1);
    pthread_cond_signal(&dc->moved);
    pthread_mutex_unlock(&dc->lock);
    pc__wakeup_signal(dc->comm, dc->comm->options.rank);
    pthread_join(dc->thread, NULL);
    dc->threaded = false;
}
