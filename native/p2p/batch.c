/* The calls of point-to-point: send, receive, batches of them, and pairwise batches. */
#include <stdlib.h>
#include <string.h>
#include "p2p/p2p.h"

static int check(struct pc_comm *comm, const struct pc_p2p_op *m)
{
    if (m->peer >= comm->options.size || m->dtype >= PC_DTYPE_CODES
        || m->direction > PC_DIRECTION_RECV || m->nbytes >> PC_NBYTES_BITS)
        return pc__fail(&comm->error, PC_INVALID, (int)m->peer,
                        "transfer of %llu bytes of dtype %u with rank %u of %u",
                        (unsigned long long)m->nbytes, m->dtype, m->peer, comm->options.size);
    if (!pc__resolved(comm, m->peer))
        return pc__fail(&comm->error, PC_INVALID, (int)m->peer, "rank %u is not connected",
                        m->peer);
    return PC_OK;
}

static struct pc_transfer transfer(const struct pc_p2p_op *m)
{
    return (struct pc_transfer){.at = m->at,
                                .nbytes = m->nbytes,
                                .signature = pc__transfer_signature(m->dtype, m->nbytes),
                                .peer = m->peer,
                                .direction = m->direction};
}

static inline int check_all(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int rc = check(comm, &messages[i]);
        if (rc != PC_OK)
            return rc;
    }
    return PC_OK;
}

static inline void fill(struct pc_batch *batch, const struct pc_p2p_op *messages, uint32_t n,
                        double timeout)
{
    batch->n = n;
    batch->timeout = timeout;
    batch->deadline = 0;
    uint32_t directions = 0;
    for (uint32_t i = 0; i < n; i++)
        directions |= 1u << messages[i].direction;
    for (uint32_t i = 0; i < n; i++) {
        batch->transfers[i] = transfer(&messages[i]);
        batch->transfers[i].both_ways = directions == 3;
    }
}

static int make(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout,
                struct pc_batch **out)
{
    int rc = check_all(comm, messages, n);
    if (rc != PC_OK)
        return rc;
    *out = pc__batch_new(comm, n);
    if (*out == NULL)
        return PC_NOMEM;
    fill(*out, messages, n, timeout);
    return PC_OK;
}

/* Enters a communicator that is not broken. */
static int enter(struct pc_comm *comm)
{
    int rc = pc__enter(comm);
    if (rc == PC_OK && atomic_load_explicit(&comm->broken, memory_order_relaxed)) {
        pc__leave(comm);
        rc = PC_BROKEN;
    }
    return rc;
}

static void post(struct pc_comm *comm, struct pc_batch *batch, uint32_t channel)
{
    pc__lock(comm->p2p);
    pc__p2p_post(comm, batch, channel - PC_CHANNEL_P2P);
    pc__p2p_release(comm, 1);
}

/* Makes progress until a batch is done; the caller reads its result. */
static int wait_for_batch(struct pc_comm *comm, struct pc_batch *batch, uint64_t patience_ns)
{
    for (struct pc_spin spin = {.polls = 1};;) {
        if (pc__batch_done(batch))
            return PC_OK;
        if (pc__p2p_progress(comm) > 0)
            continue;
        if (comm->options.spin == 0 || pc__spun(comm, &spin))
            break;
    }
    if (patience_ns == 0) /* patience 0: poll only */
        return PC_AGAIN;
    pc__give_way(comm);
    uint32_t turns = comm->yields;
    for (uint64_t until = pc__now() + patience_ns;;) {
        uint32_t armed = pc__wakeup_arm(comm); /* first: later news changes the counter */
        int moved = pc__p2p_progress(comm);
        if (pc__batch_done(batch))
            return PC_OK;
        if (moved > 0)
            continue;
        uint64_t now = pc__now();
        if (now >= until)
            return PC_AGAIN;
        if (turns > 0 && pc__may_yield(comm, now)) {
            turns--;
            pc__give_way(comm);
            continue;
        }
        uint64_t limit = until;
        if (pc__p2p_sleep_begin(comm, &limit) && !pc__batch_done(batch)
            && !atomic_load(&comm->aborted) && limit > now)
            pc__wakeup_wait(comm, armed, limit - now);
        pc__p2p_sleep_end(comm);
    }
}

int pc__batch_resume(struct pc_comm *comm, uint64_t patience_ns)
{
    struct pc_batch *batch = comm->p2p->blocking;
    int rc = wait_for_batch(comm, batch, patience_ns);
    if (rc == PC_AGAIN)
        return rc;
    rc = batch->result;
    comm->p2p->blocking = NULL;
    if (batch != comm->p2p->few)
        free(batch);
    return rc;
}

/* Whether none of `n` transfers has to wait for one before it in its edge queue. */
static inline bool alone(struct pc_comm *comm, struct pc_transfer *transfers, uint32_t n)
{
    for (struct pc_transfer *t = transfers; t < transfers + n; t++) {
        t->queue = pc__edge_queue_of(comm, 0, t->peer);
        if (t->peer == comm->options.rank || t->queue->head[t->direction] != NULL)
            return false;
        for (const struct pc_transfer *before = transfers; before < t; before++)
            if (before->queue == t->queue && before->direction == t->direction)
                return false;
    }
    return true;
}

/* Steps those that are unfinished: 1 when any moved, 0, or a code. */
static inline int step_all(struct pc_comm *comm, struct pc_transfer *transfers, uint32_t n,
                           uint32_t *finished)
{
    int moved = 0;
    for (struct pc_transfer *t = transfers; t < transfers + n; t++) {
        if (t->finished)
            continue;
        for (int steps = 0, rc; steps < PC_STEPS && !t->finished; steps++, moved = 1)
            if ((rc = pc__p2p_step(comm, t->queue, t)) < 0)
                return rc;
            else if (rc == 0)
                break;
        *finished += t->finished;
    }
    return moved;
}

/* Tries transfers without posting them, while they move at once or soon. True when they ended. */
static inline bool try_unposted(struct pc_comm *comm, struct pc_transfer *transfers, uint32_t n,
                                int *rc)
{
    uint32_t finished = 0;
    *rc = PC_OK;
    for (struct pc_spin spin = {.polls = 1};;) {
        int moved = step_all(comm, transfers, n, &finished);
        if (moved < 0) {
            for (uint32_t i = 0; i < n; i++)
                pc__transfer_release(comm, &transfers[i]);
            *rc = pc__p2p_fail(comm, moved);
            return true;
        }
        if (finished == n)
            return true;
        if (moved > 0)
            continue;
        /* Other threads with transfers may wait for the lock. */
        if (comm->options.spin == 0 || atomic_load_explicit(&comm->posted, memory_order_relaxed)
            || pc__spun(comm, &spin))
            return false;
    }
}

static inline int exchange(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n,
                           double timeout, uint64_t patience_ns)
{
    struct pc_p2p *p = comm->p2p;
    struct pc_batch *batch = p->few;
    int rc = enter(comm);
    if (rc != PC_OK)
        return rc;
    if (n > PC_FEW_TRANSFERS)
        rc = make(comm, messages, n, timeout, &batch);
    else if ((rc = check_all(comm, messages, n)) == PC_OK)
        fill(batch, messages, n, timeout);
    if (rc != PC_OK) {
        pc__leave(comm);
        return rc;
    }
    pc__lock(p);
    if (n <= PC_FEW_TRANSFERS && alone(comm, batch->transfers, n)
        && try_unposted(comm, batch->transfers, n, &rc)) {
        pc__p2p_release(comm, 0);
        pc__leave(comm);
        return rc;
    }
    p->blocking = batch;
    pc__p2p_post(comm, batch, 0);
    pc__p2p_release(comm, 1);
    rc = pc__batch_resume(comm, patience_ns);
    if (rc != PC_AGAIN)
        pc__leave(comm);
    return rc;
}

int pc__exchange(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout,
                 uint64_t patience_ns)
{
    if (n == 1) /* the compiler drops the loops: it is what a send or a receive takes */
        return exchange(comm, messages, 1, timeout, patience_ns);
    return exchange(comm, messages, n, timeout, patience_ns);
}

int pc_exchange(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout)
{
    return pc__exchange(comm, messages, n, timeout, PC_FIRST_PATIENCE_NS);
}

int pc_post(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout,
            struct pc_work **out)
{
    struct pc_work *work = NULL;
    struct pc_batch *batch = NULL;
    int rc = enter(comm);
    if (rc != PC_OK)
        return rc;
    rc = make(comm, messages, n, timeout, &batch);
    if (rc == PC_OK && (work = calloc(1, sizeof *work)) == NULL) {
        free(batch);
        rc = pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u transfers", n);
    }
    if (rc == PC_OK) {
        work->posted = batch;
        *out = work;
        post(comm, batch, PC_CHANNEL_P2P);
        if (!pc__batch_done(batch))
            pc__progress_thread_wanted(comm); /* without the thread, the next call makes progress */
    }
    pc__leave(comm);
    return rc;
}

int pc__batch_wait(struct pc_batch *batch, double seconds)
{
    struct pc_comm *comm = batch->comm;
    if (pc__batch_done(batch)) /* the communicator may be closed then */
        return batch->result;
    if (comm->arena == NULL) /* a child of fork */
        return PC_BROKEN;
    if (seconds <= 0) {
        pc__p2p_progress(comm);
        return pc__batch_done(batch) ? batch->result : PC_AGAIN;
    }
    atomic_fetch_add_explicit(&comm->p2p->waiters, 1, memory_order_relaxed);
    int rc = wait_for_batch(comm, batch, (uint64_t)(seconds * 1e9));
    atomic_fetch_add_explicit(&comm->p2p->visits, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&comm->p2p->waiters, 1, memory_order_relaxed);
    return rc == PC_OK ? batch->result : rc;
}

int pc_refuse_message(struct pc_comm *comm, uint32_t peer, uint32_t direction)
{
    if (peer >= comm->options.size || direction > PC_DIRECTION_RECV || !pc__resolved(comm, peer))
        return PC_INVALID;
    int rc = enter(comm);
    if (rc != PC_OK)
        return rc;
    struct pc_batch *batch = pc__batch_new(comm, 1);
    if (batch != NULL) {
        batch->transfers[0] = (struct pc_transfer){.at = comm->arena,
                                                   .signature = PC_REFUSED_MESSAGE,
                                                   .peer = peer,
                                                   .direction = direction};
        batch->deadline = UINT64_MAX;
        batch->forgotten = true;
        post(comm, batch, PC_CHANNEL_P2P);
    } else {
        rc = PC_NOMEM;
    }
    pc__leave(comm);
    return rc;
}

int pc_comm_gone(struct pc_comm *comm, uint32_t peer, int died)
{
    if (peer >= comm->options.size)
        return PC_INVALID;
    uint32_t nobody = 0;
    if (died)
        atomic_compare_exchange_strong(&comm->died, &nobody, peer + 1);
    /* The network reports remote peers, once all that they sent was received. */
    if (pc__mapped(comm, peer))
        atomic_store_explicit(&comm->peers[peer].gone, 1, memory_order_release);
    if (comm->arena != NULL)
        pc__wakeup_signal(comm, comm->options.rank);
    return PC_OK;
}

void pc__pairwise_post(struct pc_comm *comm, struct pc_batch *batch)
{
    batch->deadline = UINT64_MAX; /* the call's deadline counts */
    post(comm, batch, PC_CHANNEL_PAIRWISE);
}

int pc__batch_end(struct pc_comm *comm, struct pc_batch **batch)
{
    int rc = (*batch)->result;
    (void)comm;
    free(*batch);
    *batch = NULL;
    return rc;
}

int pc_pairwise(struct pc_comm *comm, uint64_t signature, const struct pc_p2p_op *messages,
                uint32_t n, double timeout)
{
    struct pc_work job = {.signature = signature, .timeout = timeout};
    int rc = pc__enter(comm);
    if (rc != PC_OK)
        return rc;
    rc = make(comm, messages, n, timeout, &job.batch);
    if (rc == PC_OK && atomic_load_explicit(&comm->queued, memory_order_acquire)) {
        rc = pc__join_queue(comm, &job, (double)PC_FIRST_PATIENCE_NS * 1e-9);
    } else if (rc == PC_OK) {
        rc = pc__call_begin_batch(comm, job.batch, signature, timeout);
        if (rc == PC_OK)
            rc = pc__progress(comm, PC_FIRST_PATIENCE_NS);
        else
            free(job.batch);
    }
    if (rc != PC_AGAIN)
        pc__leave(comm);
    return rc;
}

int pc_pairwise_submit(struct pc_comm *comm, uint64_t signature, const struct pc_p2p_op *messages,
                       uint32_t n, double timeout, const char *where, struct pc_work **work)
{
    struct pc_work job = {.signature = signature, .timeout = timeout};
    int rc = enter(comm);
    if (rc != PC_OK)
        return rc;
    rc = make(comm, messages, n, timeout, &job.batch);
    if (rc == PC_OK)
        rc = pc__enqueue(comm, &job, where, work);
    pc__leave(comm);
    return rc;
}
