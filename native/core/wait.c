/* Waiting: poll while that is cheap, yield once, then sleep until a peer wakes it.
 *
 * With more ranks than cores a polling rank only keeps the core from the rank it waits for, so
 * options.spin is 0 there. Elsewhere another process may still push two ranks onto one core: a rank
 * that has polled for a moment publishes its core, and stops polling when a peer has the same. A
 * sleeper marks the counts that it needs (PC_ASLEEP) and sleeps on its wakeup counter; whoever
 * raises a marked count raises that counter. */
#include <sched.h>
#include <time.h>
#include "core/interpreter_cpu.h"
#include "core/trace.h"

#define PC_YIELD_PAUSE_NS UINT64_C(4000000)
#define PC_LONGEST_PAUSE_NS UINT64_C(1000000000)
#define PC_YIELDS_PER_LOOK 8u /* the awaited peers are polled; all of them every so many yields */

uint64_t pc__now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool reached(const struct pc_channel *channel)
{
    return channel->line == NULL || pc__count(channel->line) >= channel->want;
}

/* Whether a channel can step. Channels that wait for another channel of this rank do not count:
 * they step when that one does. */
static bool moved(const struct pc_call *call, uint32_t nchannels)
{
    if (call->batch != NULL)
        return pc__batch_done(call->batch);
    for (uint32_t c = 0; c < nchannels; c++)
        if (!call->channels[c].finished && call->channels[c].line && reached(&call->channels[c]))
            return true;
    return false;
}

/* All of a row of WAITs must pass before anything else happens: sleep on the last one that does
 * not, so that one wake-up serves them all. */
static struct pc_line *sleep_on(struct pc_call *call, struct pc_channel *channel, uint64_t *want)
{
    struct pc_line *line = channel->line, *other;
    *want = channel->want;
    if (call->program == NULL)
        return line;
    for (const struct pc_vm_instruction *i = channel->pc; pc__waits(i); i++) {
        uint64_t n;
        if (!pc__passes(call, i, &other, &n) && other != NULL) {
            line = other;
            *want = n;
        }
    }
    return line;
}

bool pc__mark(struct pc_line *line, uint64_t want)
{
    uint64_t seen = atomic_load_explicit(&line->count, memory_order_acquire);
    while ((seen & ~PC_ASLEEP) < want)
        if (seen & PC_ASLEEP
            || atomic_compare_exchange_weak_explicit(&line->count, &seen, seen | PC_ASLEEP,
                                                     memory_order_acq_rel, memory_order_acquire))
            return true;
    return false;
}

/* Whether a peer was last seen on the core that this rank runs on. */
bool pc__shares_core(struct pc_comm *comm)
{
    struct pc_arena *mine = (struct pc_arena *)comm->arena;
    uint32_t core = (uint32_t)sched_getcpu() + 1; /* peers read 0 as: not known yet */
    if (atomic_load_explicit(&mine->core, memory_order_relaxed) != core)
        atomic_store_explicit(&mine->core, core, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&comm->nneighbours, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        struct pc_arena *peer = (struct pc_arena *)comm->peers[comm->neighbours[i]].arena;
        if (atomic_load_explicit(&peer->core, memory_order_relaxed) == core)
            return true;
    }
    return false;
}

void pc__unmark(struct pc_line *line)
{
    atomic_fetch_and_explicit(&line->count, ~PC_ASLEEP, memory_order_relaxed);
}

enum listening { FROM_AWAITED, FROM_ALL };

/* Polls the network: 1 when a finished call has sent all. A lost peer is a failure only where a
 * channel waits for it, and after all that it sent was received. */
static int listen_to(struct pc_comm *comm, uint32_t nchannels, enum listening whom)
{
    struct pc_net *net = comm->net;
    struct pc_call *call = &comm->call;
    for (uint32_t c = 0; pc__net_expects(net) && call->program != NULL && c < nchannels; c++)
        pc__expect(call, &call->channels[c]);
    if (whom == FROM_ALL) /* first: this may drain the network */
        pc__net_progress(net);
    int rc = pc__net_drained(net, NULL, &call->error);
    if (rc < 0 || (rc > 0 && call->running == 0))
        return rc;
    for (uint32_t c = 0; c < nchannels; c++) {
        const struct pc_channel *channel = &call->channels[c];
        if (channel->finished || channel->line == NULL)
            continue;
        uint32_t peer = pc__awaited(channel->pc);
        const struct pc_error *fault
            = whom == FROM_AWAITED ? pc__net_poll(net, peer) : pc__net_fault(net, peer);
        if (fault != NULL && !reached(channel)) {
            call->error = *fault;
            return fault->code;
        }
    }
    return PC_OK;
}

static void sleep_until(struct pc_comm *comm, uint32_t nchannels, uint32_t armed, uint64_t now,
                        uint64_t until)
{
    bool posted = atomic_load_explicit(&comm->posted, memory_order_relaxed) != 0;
    struct pc_line *marked[PC_MAX_CHANNELS];
    uint32_t n = 0;
    bool asleep = true;
    for (uint32_t c = 0; c < nchannels && asleep; c++) {
        struct pc_channel *channel = &comm->call.channels[c];
        if (channel->finished || channel->line == NULL)
            continue;
        uint64_t want;
        marked[n] = sleep_on(&comm->call, channel, &want);
        asleep = pc__mark(marked[n], want);
        n += asleep;
    }
    if (posted && !pc__p2p_sleep_begin(comm, &until))
        asleep = false;
    if (comm->call.batch != NULL && pc__batch_done(comm->call.batch))
        asleep = false;
    /* pc_comm_abort and pc__progress_thread_stop write before they signal: nothing is missed. */
    if (asleep && until > now && !atomic_load(&comm->aborted))
        pc__wakeup_wait(comm, armed, until - now);
    while (n > 0) /* a mark left behind would cost its signaller a system call */
        pc__unmark(marked[--n]);
    if (posted)
        pc__p2p_sleep_end(comm);
}

/* Yields to the other ranks of this core, which is cheaper than to sleep and be woken. But another
 * process that burns the core gets its whole time slice, milliseconds, and nobody wakes a rank that
 * only yielded: each time that happens, ranks go straight to sleep for longer. */
void pc__give_way(struct pc_comm *comm)
{
    if (comm->polls_per_yield > 1
        && atomic_fetch_add_explicit(&comm->polls, 1, memory_order_relaxed) % comm->polls_per_yield)
        return;
    uint64_t before = pc__now();
    if (before < atomic_load_explicit(&comm->yield_after, memory_order_relaxed))
        return;
    sched_yield();
    uint64_t pause = atomic_load_explicit(&comm->yield_pause, memory_order_relaxed);
    /* Many ranks of this job that ran before this one are no other process. */
    if (pc__now() - before < comm->slow_yield_ns * (1 + comm->options.size / 16)) {
        atomic_store_explicit(&comm->yield_pause, pause / 2, memory_order_relaxed);
        return;
    }
    pause = 4 * pause + PC_YIELD_PAUSE_NS;
    if (pause > PC_LONGEST_PAUSE_NS)
        pause = PC_LONGEST_PAUSE_NS;
    atomic_store_explicit(&comm->yield_pause, pause, memory_order_relaxed);
    atomic_store_explicit(&comm->yield_after, before + pause, memory_order_relaxed);
}

bool pc__may_yield(struct pc_comm *comm, uint64_t now)
{
    return now >= atomic_load_explicit(&comm->yield_after, memory_order_relaxed);
}

bool pc__spun_out(struct pc_comm *comm, struct pc_spin *spin)
{
    uint64_t now = pc__now();
    if (spin->until == 0)
        spin->until = pc__shares_core(comm) ? now : now + comm->options.spin * UINT64_C(1000);
    return now >= spin->until || atomic_load(&comm->aborted) || atomic_load(&comm->broken);
}

/* A rank of another host may share this core, too: hosts can be containers of one machine. */
bool pc__yielded_out(struct pc_comm *comm, struct pc_spin *spin)
{
    spin->polls++;
    if (pc__spun_out(comm, spin))
        return true;
    pc__give_way(comm);
    return false;
}

static inline int listen_if_any(struct pc_comm *comm, uint32_t nchannels, enum listening whom)
{
    return pc__has_net(comm) ? listen_to(comm, nchannels, whom) : PC_OK;
}

/* Polls the call while that is cheap, then returns AGAIN. */
static int poll_call(struct pc_comm *comm, uint32_t nchannels, bool once)
{
    struct pc_call *call = &comm->call;
    for (struct pc_spin spin = {.polls = 1};;) {
        bool others = spin.polls % PC_POLLS_PER_CLOCK == 0 || once || call->running == 0;
        int rc = listen_if_any(comm, nchannels, others ? FROM_ALL : FROM_AWAITED);
        if (rc != PC_OK)
            return rc < 0 ? rc : PC_OK;
        if (moved(call, nchannels))
            return PC_OK;
        if (atomic_load_explicit(&comm->posted, memory_order_relaxed) && pc__p2p_progress(comm) > 0)
            continue;
        if (comm->options.spin == 0 || pc__spun(comm, &spin))
            return PC_AGAIN;
    }
}

/* The peer that the first channel waits for, or -1. */
static int32_t awaited(const struct pc_call *call, uint32_t nchannels)
{
    if (call->program == NULL)
        return (int32_t)call->ready;
    for (uint32_t c = 0; c < nchannels; c++)
        if (!call->channels[c].finished && call->channels[c].line != NULL)
            return (int32_t)pc__awaited(call->channels[c].pc);
    return -1;
}

/* Yields and sleeps until the call can go on, or until_ns. */
static int wait_call(struct pc_comm *comm, uint32_t nchannels, uint64_t until_ns)
{
    struct pc_call *call = &comm->call;
    int rc;
    pc__give_way(comm);
    enum listening whom = FROM_AWAITED;
    for (uint32_t turns = comm->yields;;) {
        uint32_t armed = pc__wakeup_arm(comm); /* first: later news changes the counter */
        if (atomic_load(&comm->aborted)) {
            call->error = comm->abort_error;
            return PC_ABORTED;
        }
        bool posted = atomic_load_explicit(&comm->posted, memory_order_relaxed) != 0;
        if (posted || call->batch != NULL || call->running == 0)
            whom = FROM_ALL;
        rc = listen_if_any(comm, nchannels, whom);
        if (rc != PC_OK)
            return rc < 0 ? rc : PC_OK;
        if (posted)
            pc__p2p_progress(comm);
        if (moved(call, nchannels))
            return PC_OK;
        if (atomic_load(&comm->broken)) /* broken by a transfer */
            return PC_BROKEN;
        uint64_t now = pc__now();
        if (call->deadline == 0)
            call->deadline = now + (uint64_t)(call->timeout * 1e9);
        if (now >= call->deadline)
            return pc__fail(&call->error, PC_TIMEDOUT, -1, "no progress for %.3g s", call->timeout);
        bool over = now >= until_ns;
        if (over && whom == FROM_ALL)
            return PC_AGAIN;
        if (!over && turns > 0 && pc__may_yield(comm, now)) {
            whom = --turns % PC_YIELDS_PER_LOOK == 0 ? FROM_ALL : FROM_AWAITED;
            pc__give_way(comm);
            continue;
        }
        if (whom != FROM_ALL) { /* before it sleeps, or leaves to a caller with little patience */
            whom = FROM_ALL;
            continue;
        }
        uint64_t limit = until_ns < call->deadline ? until_ns : call->deadline;
        sleep_until(comm, nchannels, armed, now, limit);
        whom = FROM_AWAITED;
    }
}

int pc__idle(struct pc_comm *comm, uint64_t until_ns)
{
    struct pc_call *call = &comm->call;
    uint32_t nchannels = call->batch ? 0 : call->program ? call->program->nchannels : 1;
    int rc = poll_call(comm, nchannels, until_ns == 0);
    if (rc != PC_AGAIN || until_ns == 0) /* until_ns 0: poll only */
        return rc;
    uint64_t from = pc__now();
    int32_t peer = awaited(call, nchannels);
    rc = wait_call(comm, nchannels, until_ns);
    pc__trace_waited(comm, pc__now() - from, peer);
    return rc;
}
