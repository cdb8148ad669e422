/* The transfer kernel: what each thread of a block runs to move messages between two ranks. C++
 * (SIMT and CUDA); the target's header and span.h come first.
 *
 * A block has a job for each direction of a peer that has a lane in it. It never waits for one job
 * while another can move, so any number of jobs in any order needs no more than one block. In turns
 *   the leader (thread 0)  looks which jobs can move a message, and says where from and where to
 *   all threads            copy those messages, after a barrier
 *   the leader             raises the counts, after a barrier
 * A thread that cannot go on is `dead`, as in kernel.h; all threads learn that at the barrier. */
#ifndef PC_KERNEL_TRANSFER_H
#define PC_KERNEL_TRANSFER_H
#include "gpu/transfer.h"
#include "gpu/kernel/kernel.h" /* flags of packets, and how often a wait looks at host memory */

struct pc_transfer_job {
    struct pc_fifo *fifo;
    char *at;               /* of the present transfer: what is left of its part */
    uint64_t left;          /* in bytes */
    void *address[2];       /* of the next message: destination, source */
    uint32_t nbytes;        /* of the next message */
    uint16_t transfer, end; /* the present transfer, and those of this job; equal: it is done */
    uint8_t lane;
};

struct pc_transfer_shared { /* the shared memory of a block */
    struct pc_transfer_job jobs[PC_KERNEL_TRANSFERS];
    uint8_t ready[PC_KERNEL_TRANSFERS]; /* jobs whose next message is to be copied */
    uint32_t nready;
};

struct pc_transfer_call { /* of the leader, but for `dead` */
    const struct pc_transfer_args *args;
    struct pc_transfer_shared *shared;
    struct pc_block_state *state;
    uint64_t deadline;
    uint64_t tag;    /* mixed into signatures, as pc__transfer_tag does */
    uint32_t number; /* of this block */
    uint32_t njobs, unfinished;
    uint32_t turn; /* the job to look at first */
    uint32_t spins;
    bool dead;
};

/* ---- giving up ------------------------------------------------------------------------------- */

/* Gives up because of a job. The first block of this rank writes the reason, as in kernel.h. */
PC_DEVICE_FN void pc__transfer_give_up(struct pc_transfer_call *call,
                                       const struct pc_transfer_job *job, int code, uint64_t theirs)
{
    struct pc_device_error *error = &call->args->control->error;
    const struct pc_kernel_transfer *t = &call->args->transfers[job->transfer];
    const struct pc_fifo *f = job->fifo;
    bool first = false, sends = t->direction == PC_DIRECTION_SEND;
    call->dead = true;
    PC_ROLLED
    for (uint32_t b = 0; b < PC_MAX_BLOCKS; b++)
        first = pc__claim(&call->args->states[b].dead, 1);
    if (!first)
        return;
    error->claimed = 1 + call->number;
    error->block = call->number;
    error->instruction = job->transfer;
    error->peer = t->peer;
    error->want = sends ? f->sent - call->args->slots + 1 : f->received + 1;
    error->got = sends ? f->credit : f->received;
    error->slot = sends ? f->sent : f->received;
    error->transfer = t->signature;
    error->theirs = theirs;
    error->tag = call->tag;
    error->timeout_ns = call->args->timeout_ns;
    error->direction = t->direction;
    pc__store_release(&error->code, (uint64_t)-code);
}

/* Whether the peer is in a collective whose messages do not come here: LL packets, or READY. */
PC_DEVICE_FN bool pc__transfer_elsewhere(const struct pc_transfer_call *call,
                                         const struct pc_kernel_transfer *t,
                                         const struct pc_fifo *f)
{
    if (t->direction == PC_DIRECTION_RECV && f->in_packets) {
        const char *slot
            = f->in_packets + (f->received & (call->args->slots - 1)) * (uint64_t)PC_LL_SLOT_BYTES;
        if (pc__load_packet((const pc_vector *)slot).y >> 32 == pc__flag_of(f->received))
            return true;
    }
    if (call->args->ipc_peers == NULL)
        return false;
    const uint64_t n = call->args->states[0].ready + 1;
    return pc__load_acquire(&call->args->ipc_peers[t->peer].in[n & 1].count) >= n;
}

PC_DEVICE_FN bool pc__transfer_ready(struct pc_transfer_call *call, struct pc_transfer_job *job);

/* Called after every turn in vain; true when waiting has no use any more. */
PC_DEVICE_FN bool pc__transfer_hopeless(struct pc_transfer_call *call)
{
    const struct pc_transfer_args *args = call->args;
    if (++call->spins % PC_SPINS_PER_LOOK != 0)
        return false;
    int code = PC_OK;
    if (pc__load_relaxed32(&call->state->dead))
        code = PC_BROKEN;
    else if (pc__load_relaxed32(&args->control->abort))
        code = PC_ABORTED;
    else if (pc__clock_ns() >= call->deadline)
        code = PC_TIMEDOUT;
    if (code == PC_BROKEN) /* another block has given the reason */
        call->dead = true;
    PC_ROLLED
    for (uint32_t j = 0; j < call->njobs && !call->dead; j++) {
        struct pc_transfer_job *job = &call->shared->jobs[j];
        if (job->transfer == job->end)
            continue;
        const struct pc_kernel_transfer *t = &args->transfers[job->transfer];
        if (code != PC_OK) {
            pc__transfer_give_up(call, job, code, 0);
            break;
        }
        /* Read before the last look for a message: it came before the peer went elsewhere. A call's
         * peers that are gone are the host's matter, which knows what they had finished. */
        bool gone = args->call == 0 && pc__load_relaxed32(&args->peers[t->peer].gone);
        if (!gone && !pc__transfer_elsewhere(call, t, job->fifo))
            continue;
        if (!pc__transfer_ready(call, job) && !call->dead)
            pc__transfer_give_up(call, job, gone ? PC_LOST : PC_MISMATCH, 0);
    }
    return call->dead;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Finds the next transfer from job->transfer on that has bytes on this lane; lane 0 has a message
 * of each. */
PC_DEVICE_FN void pc__transfer_load(struct pc_transfer_call *call, struct pc_transfer_job *job)
{
    PC_ROLLED
    for (; job->transfer < job->end; job->transfer++) {
        const struct pc_kernel_transfer *t = &call->args->transfers[job->transfer];
        const uint64_t nbytes = t->signature & (((uint64_t)1 << PC_NBYTES_BITS) - 1);
        const uint32_t lanes = 1u << t->lanes_log2;
        const uint64_t each = (((nbytes + lanes - 1) >> t->lanes_log2) + 127) & ~(uint64_t)127;
        const uint64_t begin = job->lane * each;
        if (job->lane != 0 && (job->lane >= lanes || begin >= nbytes))
            continue;
        job->at = t->at + begin;
        job->left = nbytes - begin < each ? nbytes - begin : each;
        return;
    }
    call->unfinished--;
}

/* Makes the jobs of this block. */
PC_DEVICE_FN void pc__transfer_begin(struct pc_transfer_call *call)
{
    const struct pc_transfer_args *args = call->args;
    PC_ROLLED
    for (uint32_t i = 0, end; i < args->n; i = end) {
        const struct pc_kernel_transfer *t = &args->transfers[i];
        const uint32_t ahead = call->number + args->nblocks - t->block;
        const uint32_t lane = ahead < args->nblocks ? ahead : ahead - args->nblocks;
        bool has = false;
        PC_ROLLED
        for (end = i; end < args->n && args->transfers[end].peer == t->peer
                      && args->transfers[end].direction == t->direction;
             end++)
            has |= lane >> args->transfers[end].lanes_log2 == 0;
        if (!has)
            continue;
        struct pc_transfer_job *job = &call->shared->jobs[call->njobs++];
        job->fifo = &args->fifos[(uint64_t)t->peer * PC_MAX_BLOCKS + lane];
        job->transfer = (uint16_t)i;
        job->end = (uint16_t)end;
        job->lane = (uint8_t)lane;
        call->unfinished++;
        pc__transfer_load(call, job);
    }
}

/* The messages that ranks refused count: what one rank sends in the place of a message that it
 * refused is not taken for that. */
PC_DEVICE_FN uint32_t pc__transfer_refused(const struct pc_transfer_call *call,
                                           const struct pc_kernel_transfer *t)
{
    if (call->args->call)
        return 0;
    return call->args->in_graph
               ? pc__load_relaxed32(&call->args->peers[t->peer].refused[t->direction])
               : t->refused;
}

/* Whether a count has reached `want`; acquires it only then, as that empties the L1. */
PC_DEVICE_FN bool pc__transfer_raised(const struct pc_line *line, uint64_t want)
{
    return pc__load_relaxed64(&line->count) >= want && pc__load_acquire(&line->count) >= want;
}

/* Whether the job's next message can move, and where to; a message of something else ends all. */
PC_DEVICE_FN bool pc__transfer_ready(struct pc_transfer_call *call, struct pc_transfer_job *job)
{
    const struct pc_transfer_args *args = call->args;
    const struct pc_kernel_transfer *t = &args->transfers[job->transfer];
    struct pc_fifo *f = job->fifo;
    const bool sends = t->direction == PC_DIRECTION_SEND;
    const uint64_t n = sends ? f->sent : f->received;
    struct pc_line *line = &(sends ? f->out_lines : f->in_lines)[n & (PC_LINES - 1)];
    const uint32_t nbytes = job->left < args->slot_bytes ? (uint32_t)job->left : args->slot_bytes;
    if (sends) {
        if (n - f->credit >= args->slots && pc__transfer_raised(f->out_credit, f->credit + 1))
            f->credit = pc__load_acquire(&f->out_credit->count);
        if (n - f->credit >= args->slots)
            return false;
    } else {
        if (!pc__transfer_raised(line, n + 1))
            return false;
        const uint64_t mine = t->signature ^ call->tag;
        uint64_t theirs = line->signature;
        if (theirs == mine && line->place != pc__transfer_refused(call, t))
            theirs = PC_REFUSED_MESSAGE ^ call->tag;
        if (theirs != mine || line->nbytes != nbytes) {
            pc__transfer_give_up(call, job, PC_MISMATCH, theirs);
            return false;
        }
    }
    char *slot = (char *)line->bytes;
    if (nbytes > PC_INLINE_BYTES)
        slot = (sends ? f->out_data : f->in_data)
               + (n & (args->slots - 1)) * (uint64_t)args->slot_bytes;
    job->address[0] = sends ? slot : job->at;
    job->address[1] = sends ? job->at : slot;
    job->nbytes = nbytes;
    return true;
}

/* Waits until messages can move, and lists them; none when all jobs are done. */
PC_DEVICE_FN void pc__transfer_gather(struct pc_transfer_call *call)
{
    struct pc_transfer_shared *shared = call->shared;
    uint32_t nready = 0;
    while (call->unfinished && nready == 0 && !call->dead) {
        uint32_t bytes = 0; /* short messages share barriers; a long one's credit shall not wait */
        PC_ROLLED
        for (uint32_t k = 0; k < call->njobs && bytes < call->args->slot_bytes && !call->dead;
             k++) {
            const uint32_t j = call->turn;
            struct pc_transfer_job *job = &shared->jobs[j];
            call->turn = j + 1 == call->njobs ? 0 : j + 1;
            if (job->transfer == job->end || !pc__transfer_ready(call, job))
                continue;
            shared->ready[nready++] = (uint8_t)j;
            bytes += job->nbytes;
        }
        if (nready == 0 && !call->dead && !pc__transfer_hopeless(call))
            pc__relax();
    }
    shared->nready = nready;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Tells the proxy to hand over a message or a credit. */
PC_DEVICE_FN void pc__transfer_put(struct pc_transfer_call *call, const struct pc_transfer_job *job,
                                   const struct pc_kernel_transfer *t)
{
    struct pc_host_control *control = call->args->control;
    struct pc_block_state *state = call->state;
    const uint64_t n = state->head;
    while (n - state->tail >= PC_PROXY_FIFO_ENTRIES) {
        state->tail = pc__load_acquire(&control->tail[call->number][0]);
        if (n - state->tail < PC_PROXY_FIFO_ENTRIES)
            break;
        if (pc__transfer_hopeless(call))
            return;
        pc__relax();
    }
    const uint32_t what = (uint32_t)job->lane << 1 | (t->direction == PC_DIRECTION_RECV);
    const uint64_t entry = (uint64_t)!(n / PC_PROXY_FIFO_ENTRIES & 1) << 63
                           | (uint64_t)PC_TRANSFER_ENTRY << 48 | (uint64_t)t->peer << 24 | what;
    state->head = n + 1;
    pc__store_release(&control->ring[call->number][n & (PC_PROXY_FIFO_ENTRIES - 1)], entry);
}

/* Packets that are left in a slot would look like new ones a period of flags later; see pc__clean.
 */
PC_DEVICE_FN void pc__transfer_clean(const struct pc_transfer_call *call, const struct pc_fifo *f)
{
    const uint32_t slots = call->args->slots;
    if (!f->in_packets || pc__in_period(f->received) < PC_LL_FLAG_PERIOD - slots)
        return;
    pc_vector *packet
        = (pc_vector *)(f->in_packets + (f->received & (slots - 1)) * (uint64_t)PC_LL_SLOT_BYTES);
    const pc_vector zeros = {};
    PC_ROLLED
    for (uint32_t k = 0; k < PC_LL_PACKETS; k++)
        pc__store_packet(&packet[k], zeros);
}

/* Raises the count of the message that was copied, and turns to the next one. */
PC_DEVICE_FN void pc__transfer_signal(struct pc_transfer_call *call, struct pc_transfer_job *job)
{
    const struct pc_kernel_transfer *t = &call->args->transfers[job->transfer];
    struct pc_fifo *f = job->fifo;
    struct pc_line *raised = f->in_credit;
    uint64_t count;
    if (t->direction == PC_DIRECTION_SEND) {
        raised = &f->out_lines[f->sent & (PC_LINES - 1)];
        raised->signature = t->signature ^ call->tag;
        raised->place = pc__transfer_refused(call, t);
        raised->nbytes = job->nbytes;
        count = ++f->sent;
    } else {
        pc__transfer_clean(call, f);
        count = ++f->received;
    }
    job->at += job->nbytes;
    job->left -= job->nbytes;
    if (job->left == 0) {
        job->transfer++;
        pc__transfer_load(call, job);
    }
    if (t->by_proxy) /* which looks at the jobs as it waits for room */
        pc__transfer_put(call, job, t);
    else
        pc__store_release(&raised->count, count);
}

/* Block `number` of a launch. `shared` is uninitialised memory of the block. */
PC_DEVICE_FN void pc__transfers(const struct pc_transfer_args *args, uint32_t number,
                                struct pc_transfer_shared *shared)
{
    typedef pc__folding<PC_DTYPE_UINT8, PC_REDUCE_SUM> bytes;
    struct pc_transfer_call call = {};
    const bool leads = pc__thread() == 0;
    if (number >= args->nblocks)
        return;
    call.args = args;
    call.shared = shared;
    call.number = number;
    call.state = &args->states[number];
    if (leads) {
        const uint64_t now = pc__clock_ns(), deadline = now + args->timeout_ns;
        const uint64_t salt
            = args->in_graph ? pc__load_relaxed64(&args->states[0].salt) : args->salt;
        call.deadline = deadline < now ? ~(uint64_t)0 : deadline;
        call.tag = args->call ? args->call ^ salt : 0;
        call.dead = pc__load_relaxed32(&call.state->dead);
        pc__transfer_begin(&call);
    }
    for (;;) {
        if (leads)
            pc__transfer_gather(&call);
        if (pc__barrier(shared, call.dead) || shared->nready == 0)
            break;
        PC_ROLLED
        for (uint32_t k = 0; k < shared->nready; k++) {
            struct pc_transfer_job *job = &shared->jobs[shared->ready[k]];
            pc__span_gpu<bytes>(job->address, 1, (const void *const *)job->address + 1, 1,
                                job->nbytes, 0);
        }
        pc__barrier(shared, false); /* the releases that follow cover the accesses of all threads */
        PC_ROLLED
        for (uint32_t k = 0; leads && k < shared->nready && !call.dead; k++)
            pc__transfer_signal(&call, &shared->jobs[shared->ready[k]]);
    }
    if (leads)
        pc__store_release(&args->control->finished[number][0], ++call.state->launches);
}
#endif
