/* Transfers: posting, progress by whichever thread polls or waits, waiting, and their end. */
#include <stdlib.h>
#include <string.h>
#include "p2p/p2p.h"
#include "core/target_cpu.h"

/* The longest fragment: large enough to be copied at full speed, small enough that the first one is
 * soon in flight and that those in flight stay in the caches. */
#define PC_FRAG_BYTES (UINT64_C(32) << 10)
#define PC_UNPUBLISHED_BYTES (UINT64_C(32) << 10)
/* Two copies through the ring, by two ranks at once and in their caches, take less time than one
 * by the kernel until the message is far larger than the caches; but twice the work, which is what
 * counts where both ranks send, and so have both copies to make (8 MiB: 1.28 ms, by the kernel
 * 0.82), and where ranks share cores. */
#define PC_RNDV_BYTES (UINT64_C(16) << 20)
#define PC_RNDV_BYTES_BOTH_WAYS (UINT64_C(4) << 20)
#define PC_RNDV_BYTES_SHARED (UINT64_C(256) << 10)

struct pc_batch *pc__batch_new(struct pc_comm *comm, uint32_t n)
{
    struct pc_batch *batch = calloc(1, sizeof *batch + n * sizeof *batch->transfers);
    if (batch == NULL) {
        pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u transfers", n);
        return NULL;
    }
    batch->comm = comm;
    batch->n = n;
    atomic_store_explicit(&batch->done, 1, memory_order_relaxed);
    return batch;
}

int pc__p2p_open(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p = calloc(1, sizeof *p);
    uint32_t size = comm->options.size;
    if (p != NULL) {
        p->queues = calloc((size_t)size * PC_TRANSFER_CHANNELS, sizeof *p->queues);
        p->few = pc__batch_new(comm, PC_FEW_TRANSFERS);
    }
    if (p == NULL || p->queues == NULL || p->few == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for transfers with %u peers", size);
    p->ring_bytes = comm->options.ring_bytes;
    if (p->ring_bytes == 0)
        p->ring_bytes = (uint64_t)comm->options.slots * comm->options.slot_bytes;
    /* With both limits at a quarter, credit that is held back never stops a sender for good: once
     * all is received, half of the ring is free, in one span. */
    uint64_t quarter = p->ring_bytes / 4, frag = quarter - PC_TRAILER_BYTES;
    p->frag_bytes = frag < PC_FRAG_BYTES ? frag : PC_FRAG_BYTES;
    p->rndv_bytes[false] = comm->options.spin ? PC_RNDV_BYTES : PC_RNDV_BYTES_SHARED;
    p->rndv_bytes[true] = comm->options.spin ? PC_RNDV_BYTES_BOTH_WAYS : PC_RNDV_BYTES_SHARED;
    p->unpublished_bytes = quarter < PC_UNPUBLISHED_BYTES ? quarter : PC_UNPUBLISHED_BYTES;
    pc__p2p_reach(comm, 0, 0);
    return PC_OK;
}

void pc__p2p_reach(struct pc_comm *comm, uint64_t longest, uint64_t rndv_from)
{
    struct pc_p2p *p = comm->p2p;
    uint64_t frag = p->ring_bytes / 4 - PC_TRAILER_BYTES;
    p->net_frag_bytes = longest == 0 ? p->frag_bytes : frag < longest ? frag : longest;
    for (uint32_t both = 0; both < 2; both++)
        p->net_rndv_bytes[both] = rndv_from != 0 ? rndv_from : p->rndv_bytes[both];
}

/* Frees the bytes of sends to this rank that were never received. */
static void drop_kept(struct pc_edge_queue *queue)
{
    for (struct pc_transfer *t = queue->head[PC_DIRECTION_SEND], *next; t != NULL; t = next) {
        next = t->next;
        free(t);
    }
}

static void end_all(struct pc_comm *comm, int result);

void pc__p2p_close(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    if (p == NULL)
        return;
    if (p->queues != NULL) {
        end_all(comm, PC_ABORTED);
        for (uint32_t c = 0; c < PC_TRANSFER_CHANNELS; c++)
            drop_kept(&p->queues[(size_t)c * comm->options.size + comm->options.rank]);
    }
    free(p->queues);
    free(p->few);
    free(p);
    comm->p2p = NULL;
}

/* Ends a transfer. After the last one the owner may free the batch: it is not touched again. */
static void transfer_ended(struct pc_comm *comm, struct pc_batch *batch, int result)
{
    struct pc_p2p *p = comm->p2p;
    if (batch->result == PC_OK)
        batch->result = result;
    if (--batch->unfinished > 0)
        return;
    if (batch->next)
        batch->next->previous = batch->previous;
    if (batch->previous)
        batch->previous->next = batch->next;
    else if (p->batches == batch)
        p->batches = batch->next;
    atomic_fetch_sub_explicit(&comm->posted, 1, memory_order_release);
    if (batch->forgotten) {
        free(batch);
        return;
    }
    atomic_store_explicit(&batch->done, 1, memory_order_release);
}

/* Comes before an owner of exposed memory writes there: peers check this flag after reading. */
static void withdraw_exposed(struct pc_comm *comm)
{
    if (comm->arena == NULL) /* a child of fork, which has exposed nothing */
        return;
    atomic_store(&((struct pc_arena *)comm->arena)->withdrawn, 1);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Ends all batches: the communicator is broken, or closes. */
static void end_all(struct pc_comm *comm, int result)
{
    struct pc_p2p *p = comm->p2p;
    withdraw_exposed(comm);
    for (struct pc_edge_queue *queue = p->listed; queue != NULL; queue = queue->next) {
        queue->listed = false;
        for (int d = 0; d < 2; d++) {
            for (struct pc_transfer *t = queue->head[d], *next; t != NULL; t = next) {
                next = t->next;
                pc__transfer_release(comm, t);
                if (t->batch != NULL)
                    transfer_ended(comm, t->batch, result);
                else
                    free(t);
            }
            queue->head[d] = NULL;
        }
    }
    p->listed = NULL;
}

int pc__p2p_fail(struct pc_comm *comm, int code)
{
    if (code != PC_ABORTED && comm->p2p->error.cause != PC_CAUSE_CALL)
        comm->p2p->error.cause = PC_CAUSE_TRANSFER;
    pc__break(comm, code, &comm->p2p->error);
    end_all(comm, code);
    pc__wakeup_signal(comm, comm->options.rank); /* a call of another thread must end, too */
    return code;
}

/* Matches receives with sends to this rank itself, whose bytes are kept until then. */
static int match_self_sends(struct pc_comm *comm, struct pc_edge_queue *queue)
{
    struct pc_transfer *s = queue->head[PC_DIRECTION_SEND], *r = queue->head[PC_DIRECTION_RECV];
    if (s == NULL || r == NULL)
        return 0;
    if (s->signature != r->signature) {
        char mine[96], theirs[96];
        return pc__fail(&comm->p2p->error, PC_MISMATCH, (int)r->peer, "%s meets %s",
                        pc__transfer_text(r, mine, sizeof mine),
                        pc__transfer_text(s, theirs, sizeof theirs));
    }
    memmove(r->at, s->at, r->nbytes);
    s->finished = r->finished = true;
    return 1;
}

static void pop(struct pc_comm *comm, struct pc_edge_queue *queue, uint32_t direction)
{
    struct pc_transfer *t = queue->head[direction];
    queue->head[direction] = t->next;
    if (t->batch != NULL)
        transfer_ended(comm, t->batch, PC_OK);
    else
        free(t);
}

static int lost(struct pc_comm *comm, const struct pc_transfer *t, uint32_t peer)
{
    char what[96];
    return pc__fail(&comm->p2p->error, PC_LOST, (int)peer, "%s cannot finish",
                    pc__transfer_text(t, what, sizeof what));
}

/* Whether somebody waits for it: nobody does for the empty message in place of a refused one. */
static bool awaited(const struct pc_transfer *t)
{
    return t->batch == NULL || !t->batch->forgotten;
}

static const struct pc_transfer *first_awaited(const struct pc_transfer *t)
{
    while (t != NULL && !awaited(t))
        t = t->next;
    return t;
}

/* The peer is gone: that fails a transfer, unless nobody waits for it. */
static int peer_gone(struct pc_transfer *t, int code)
{
    if (awaited(t))
        return code;
    t->finished = true;
    return 1;
}

/* A rank has died: any transfer may depend on it, directly or not. Pairwise batches are left out:
 * they are calls of all ranks, and end well where the dead rank had done its part. */
static int fail_all(struct pc_comm *comm, uint32_t died)
{
    for (struct pc_edge_queue *queue = comm->p2p->listed; queue != NULL; queue = queue->next) {
        if (queue >= pc__edge_queue_of(comm, PC_CHANNEL_PAIRWISE - PC_CHANNEL_P2P, 0))
            continue;
        const struct pc_transfer *t = first_awaited(queue->head[PC_DIRECTION_RECV]);
        if (t == NULL && queue->fifo->peer != comm->options.rank)
            t = first_awaited(queue->head[PC_DIRECTION_SEND]);
        if (t != NULL)
            return lost(comm, t, died);
    }
    return 0;
}

static int move(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    return t->direction == PC_DIRECTION_SEND ? pc__edge_queue_send(comm, queue, t)
                                             : pc__edge_queue_receive(comm, queue, t);
}

/* 1 when the head of a queue moved, 0 when it waits, or a code. */
int pc__p2p_step(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    if (t == NULL || t->finished)
        return 0;
    uint32_t peer = queue->fifo->peer;
    if (peer == comm->options.rank)
        return match_self_sends(comm, queue);
    /* Read first: what the peer sent before it went is still received. */
    bool gone = atomic_load_explicit(&comm->peers[peer].gone, memory_order_acquire);
    bool begun = t->done > 0 || t->offered > 0;
    if (gone && t->direction == PC_DIRECTION_SEND && !begun)
        return peer_gone(t, lost(comm, t, peer)); /* even if there is room: it reads nothing */
    int rc = move(comm, queue, t);
    if (rc == 0 && !pc__edge_mapped(queue->fifo)) { /* else the peer writes here itself */
        const struct pc_error *fault = pc__net_poll(comm->net, peer);
        rc = move(comm, queue, t);
        if (rc == 0 && fault != NULL) {
            comm->p2p->error = *fault;
            return peer_gone(t, fault->code);
        }
    } else if (rc == 0 && gone) {
        rc = lost(comm, t, peer);
    }
    return rc == PC_LOST ? peer_gone(t, rc) : rc;
}

/* Progress of all edge queues with something to do. */
static int progress_queues(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    int moved = 0;
    if (atomic_load_explicit(&comm->broken, memory_order_acquire)) {
        end_all(comm, PC_BROKEN);
        return PC_BROKEN;
    }
    if (atomic_load_explicit(&comm->aborted, memory_order_acquire)) {
        p->error = comm->abort_error;
        return pc__p2p_fail(comm, PC_ABORTED);
    }
    for (struct pc_edge_queue **at = &p->listed, *queue; (queue = *at) != NULL;) {
        for (uint32_t d = 0; d < 2; d++)
            for (int n = 0, rc;
                 n < PC_STEPS && (rc = pc__p2p_step(comm, queue, queue->head[d])) != 0; n++) {
                if (rc < 0)
                    return pc__p2p_fail(comm, rc);
                moved = 1;
                for (uint32_t e = 0; e < 2; e++) /* both, where a rank sends to itself */
                    if (queue->head[e] != NULL && queue->head[e]->finished)
                        pop(comm, queue, e);
            }
        bool own = queue->fifo->peer == comm->options.rank;
        if (queue->head[PC_DIRECTION_RECV] || (queue->head[PC_DIRECTION_SEND] && !own)) {
            at = &queue->next;
        } else {
            queue->listed = false;
            *at = queue->next;
        }
    }
    uint32_t died = atomic_load_explicit(&comm->died, memory_order_acquire);
    if (died != 0 && moved == 0) {
        int rc = fail_all(comm, died - 1);
        return rc < 0 ? pc__p2p_fail(comm, rc) : rc;
    }
    return moved;
}

/* Sleepers have set PC_ASLEEP for what was waited for before: they must look again. */
int pc__p2p_release(struct pc_comm *comm, int moved)
{
    bool wake = moved && atomic_load_explicit(&comm->p2p->sleepers, memory_order_relaxed);
    pc__unlock(comm->p2p);
    if (wake)
        pc__wakeup_signal(comm, comm->options.rank);
    return moved;
}

int pc__p2p_progress(struct pc_comm *comm)
{
    if (!pc__try_lock(comm->p2p))
        return 0;
    return pc__p2p_release(comm, progress_queues(comm));
}

struct pc_edge_queue *pc__edge_queue_of(struct pc_comm *comm, uint32_t channel, uint32_t peer)
{
    struct pc_edge_queue *queue = &comm->p2p->queues[(size_t)channel * comm->options.size + peer];
    if (queue->fifo == NULL) /* at its first use: most ranks talk to few peers, of many */
        queue->fifo = &comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + PC_CHANNEL_P2P + channel];
    return queue;
}

static void append(struct pc_edge_queue *queue, struct pc_transfer *t)
{
    t->next = NULL;
    if (queue->head[t->direction] == NULL)
        queue->head[t->direction] = t;
    else
        queue->tail[t->direction]->next = t;
    queue->tail[t->direction] = t;
}

static void list(struct pc_p2p *p, struct pc_edge_queue *queue)
{
    if (queue->listed)
        return;
    queue->listed = true;
    queue->next = p->listed;
    p->listed = queue;
}

/* A send to this rank goes to a waiting receive, or its bytes are kept. It is finished either way.
 */
static int post_self_send(struct pc_comm *comm, struct pc_edge_queue *queue,
                          const struct pc_transfer *t)
{
    struct pc_transfer *waiting = queue->head[PC_DIRECTION_RECV];
    if (waiting != NULL && queue->head[PC_DIRECTION_SEND] == NULL
        && waiting->signature == t->signature) { /* so no earlier send is kept */
        memmove(waiting->at, t->at, t->nbytes);
        waiting->finished = true;
        pop(comm, queue, PC_DIRECTION_RECV);
        return PC_OK;
    }
    struct pc_transfer *kept = malloc(sizeof *kept + t->nbytes);
    if (kept == NULL)
        return pc__fail(&comm->p2p->error, PC_NOMEM, (int)t->peer,
                        "no memory to keep %llu bytes that are sent to this rank itself",
                        (unsigned long long)t->nbytes);
    *kept = *t;
    kept->batch = NULL;
    kept->at = (char *)(kept + 1);
    memcpy(kept->at, t->at, t->nbytes);
    append(queue, kept);
    list(comm->p2p, queue);
    return PC_OK;
}

void pc__p2p_post(struct pc_comm *comm, struct pc_batch *batch, uint32_t channel)
{
    struct pc_p2p *p = comm->p2p;
    uint32_t n = batch->n;
    batch->result = PC_OK;
    batch->unfinished = n + 1; /* one more, so that it cannot end before the last line */
    batch->previous = NULL;
    batch->next = p->batches;
    if (batch->next)
        batch->next->previous = batch;
    p->batches = batch;
    atomic_store_explicit(&batch->done, 0, memory_order_relaxed);
    atomic_fetch_add(&comm->posted, 1);
    int rc = PC_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct pc_transfer *t = &batch->transfers[i];
        struct pc_edge_queue *queue = t->queue = pc__edge_queue_of(comm, channel, t->peer);
        t->batch = batch;
        if (t->finished) { /* before it was posted */
            transfer_ended(comm, batch, PC_OK);
            continue;
        }
        if (t->peer == comm->options.rank && t->direction == PC_DIRECTION_SEND) {
            if (rc == PC_OK)
                rc = post_self_send(comm, queue, t);
            t->finished = true;
            transfer_ended(comm, batch, rc);
            continue;
        }
        append(queue, t);
        list(p, queue);
    }
    if (rc != PC_OK)
        pc__p2p_fail(comm, rc);
    else
        progress_queues(comm);
    transfer_ended(comm, batch, PC_OK);
}

bool pc__batch_done(const struct pc_batch *batch)
{
    return atomic_load_explicit(&batch->done, memory_order_acquire);
}

/* The first unfinished transfer of a batch. */
static const struct pc_transfer *unfinished(const struct pc_batch *batch)
{
    uint32_t i = 0;
    while (i + 1 < batch->n && batch->transfers[i].finished)
        i++;
    return &batch->transfers[i];
}

void pc__batch_stuck(const struct pc_batch *batch, struct pc_stuck *out)
{
    if (pc__batch_done(batch))
        return;
    const struct pc_transfer *t = unfinished(batch);
    out->peer = (int32_t)t->peer;
    out->direction = t->direction;
}

void pc__p2p_end(struct pc_comm *comm, int result)
{
    pc__lock(comm->p2p);
    end_all(comm, result);
    pc__p2p_release(comm, 1);
}

/* The first deadline of all batches; 0 when one has passed. Deadlines start at the first sleep. */
static uint64_t first_deadline(struct pc_comm *comm)
{
    uint64_t now = pc__now(), first = UINT64_MAX;
    for (struct pc_batch *b = comm->p2p->batches; b != NULL; b = b->next) {
        if (b->deadline == 0)
            b->deadline = now + (uint64_t)(b->timeout * 1e9);
        if (now >= b->deadline) {
            char what[96];
            const struct pc_transfer *t = unfinished(b);
            pc__p2p_fail(comm, pc__fail(&comm->p2p->error, PC_TIMEDOUT, (int)t->peer,
                                        "%s did not finish within %.3g s",
                                        pc__transfer_text(t, what, sizeof what), b->timeout));
            return 0;
        }
        first = b->deadline < first ? b->deadline : first;
    }
    return first;
}

bool pc__p2p_sleep_begin(struct pc_comm *comm, uint64_t *until)
{
    struct pc_p2p *p = comm->p2p;
    pc__lock(p);
    atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_relaxed);
    bool ending = atomic_load(&comm->aborted) || atomic_load(&comm->broken), asleep = !ending;
    for (struct pc_edge_queue *queue = p->listed; queue != NULL && asleep; queue = queue->next) {
        if (queue->fifo->peer == comm->options.rank)
            continue;
        pc__edge_queue_publish(comm, queue);
        for (uint32_t d = 0; d < 2 && asleep; d++) {
            uint64_t want;
            if (queue->head[d] == NULL)
                continue;
            if (d == PC_DIRECTION_RECV && queue->head[d]->rndv != NULL)
                continue; /* the network wakes this rank */
            if (queue->head[d]->withdrawn)
                continue; /* the connection or the failure that is missing wakes this rank */
            struct pc_line *line
                = pc__edge_queue_waits(queue, d, &want); /* must come before `want` is read */
            asleep = pc__mark(line, want);
        }
    }
    uint64_t first = ending ? 0 : first_deadline(comm);
    *until = first < *until ? first : *until;
    pc__unlock(p);
    return asleep && first != 0;
}

/* A mark left behind would cost its signaller a system call; but other sleepers may rely on it. */
void pc__p2p_sleep_end(struct pc_comm *comm)
{
    struct pc_p2p *p = comm->p2p;
    pc__lock(p);
    if (atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_relaxed) == 1)
        for (struct pc_edge_queue *queue = p->listed; queue != NULL; queue = queue->next)
            for (uint32_t d = 0; d < 2; d++) {
                uint64_t want;
                if (queue->head[d] != NULL && queue->fifo->peer != comm->options.rank)
                    pc__unmark(pc__edge_queue_waits(queue, d, &want));
            }
    pc__unlock(p);
    if (pc__has_net(comm)) /* receive what came: it would end the next sleep at once */
        pc__net_progress(comm->net);
}
