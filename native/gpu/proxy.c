/* The proxy: the thread of a device communicator that does for its kernels what only a CPU can.
 *
 * A kernel that has a message for a remote peer, or has consumed one, pushes an entry into its
 * block's proxy FIFO, and the proxy hands it to the network, as the CPU interpreter would. A kernel
 * cannot wake a thread: while launches run, or might since a graph was captured, the proxy polls,
 * the more seldom the longer nothing has happened. Else it is parked. Where no peer is remote it
 * sleeps on the communicator's wakeup, and only passes an abort on to the kernels. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include "core/interpreter_cpu.h"
#include "gpu/device_comm.h"

#define PC_ENTRIES_AT_ONCE 64u /* of one proxy FIFO in a row */
/* How long it polls on after the last launch has ended: the next may be near. */
#define PC_AFTERWARDS_NS UINT64_C(2000000)
/* After so long without an entry it naps; then longer; then it sleeps on the network. */
#define PC_LATE_NS UINT64_C(200000)
#define PC_LATER_NS UINT64_C(20000000)
#define PC_NAP_NS 20000
#define PC_LONG_NAP_NS 200000
#define PC_LISTEN_NS UINT64_C(1000000)
#define PC_STANDBY_NS UINT64_C(100000000) /* no remote peers: between two checks */
/* How long kernels may go on after a peer is lost: it may have sent all that the call needs. */
#define PC_GRACE_NS UINT64_C(200000000)

/* Hands a message or a credit to the network. The kernel wrote the signature into the message's
 * line: the plan's, with its launch's salt. */
static int hand_over(struct pc_device_comm *dc, struct pc_proxy_entry entry)
{
    if (entry.plan == PC_TRANSFER_ENTRY) {
        struct pc_error error;
        int code = pc__transfers_hand_over(dc, entry, &error);
        if (code != PC_OK)
            pc__device_comm_fail(dc, code, &error);
        return code;
    }
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
        rc = pc__hand_over(call, &channel, i, NULL);
    } else {
        pc__fail(&call->error, rc, -1, "a ring says plan %u, instruction %u, tile %u: no message",
                 entry.plan, entry.instruction, entry.tile);
    }
    if (rc != PC_OK)
        pc__device_comm_fail(dc, rc, &call->error);
    return rc;
}

/* Serves a block's proxy FIFO; true when there was an entry. */
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

/* The sum of all counts that remote peers have raised: it changes when anything has come. */
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

/* Fails the device communicator when a peer is lost while kernels of calls run, unless what it sent
 * before is all that they need. Transfers with it end by themselves. */
static void look_for_faults(struct pc_device_comm *dc, uint64_t now)
{
    const struct pc_error *fault = NULL;
    for (uint32_t p = 0; p < dc->comm->options.size; p++) {
        const struct pc_error *found = NULL;
        if (dc->peers[p].route == PC_ROUTE_NET)
            found = pc__net_fault(dc->comm->net, p);
        if (found != NULL)
            pc__transfers_gone(dc, p);
        if (fault == NULL)
            fault = found;
    }
    if (fault == NULL || !pc__calls_run(dc)) {
        dc->fault_since = 0;
    } else if (dc->fault_since == 0) {
        dc->fault_since = now;
    } else if (now - dc->fault_since > PC_GRACE_NS) {
        struct pc_error error = *fault;
        pc__device_comm_fail(dc, error.code, &error);
    }
}

/* Whether all that was handed over has left; fails if something never can. */
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

/* Whether the proxy may park. A kernel may have ended before this thread saw it begin, with all its
 * entries still in the FIFO. A captured graph may be launched unseen; but a broken communicator
 * stays so, and its kernels end by themselves. */
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

/* Backs off, the more the longer nothing has come. */
static void back_off(struct pc_device_comm *dc, uint64_t now, uint64_t since)
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
    else /* only a graph may start kernels */
        pc__wakeup_wait(comm, pc__wakeup_arm(comm), PC_LISTEN_NS);
}

/* Serves the proxy FIFOs until the proxy may park. */
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
            /* Sends the credit that is due. */
            pc__wakeup_wait(comm, pc__wakeup_arm(comm), 0);
            flushed = true;
            continue;
        }
        if (flushed && now - since > PC_AFTERWARDS_NS && over(dc))
            return;
        back_off(dc, now, since);
    }
}

/* With no remote peers: only passes an abort on, which wakes it. */
static void stand_by(struct pc_device_comm *dc)
{
    while (!atomic_load(&dc->stopping)) {
        uint32_t armed = pc__wakeup_arm(dc->comm); /* first: later news changes it */
        pc_device_comm_check(dc);
        if (!atomic_load(&dc->stopping))
            pc__wakeup_wait(dc->comm, armed, PC_STANDBY_NS);
        if (over(dc))
            return;
    }
}

static void *run(void *argument)
{
    struct pc_device_comm *dc = argument;
    pthread_mutex_lock(&dc->lock);
    while (!atomic_load(&dc->stopping)) {
        /* Set before the last check: a launch is counted before it reads `parked`. */
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
    sigfillset(&all); /* signals go to the user's threads */
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
