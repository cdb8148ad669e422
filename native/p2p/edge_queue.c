/* How a transfer crosses an edge queue: in its line, in fragments through the ring, or fetched. */
#include <stdio.h>
#include <string.h>
#include "p2p/p2p.h"
#include "core/target_cpu.h"

#define PC_CMA_BYTES (UINT64_C(4) << 20) /* at once; then others get their turn */
/* Credit is given back for several messages together: it takes a cache line from the sender. */
#define PC_UNPUBLISHED_MESSAGES (PC_LINES / 4)

/* The next message is filled: its line is ready but for the count. `data` is where its `nbytes`
 * were stored for the peer: in the ring or in the line. */
static int fill(struct pc_comm *comm, struct pc_fifo *f, const void *data, uint64_t nbytes)
{
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    if (comm->peers[f->peer].remote)
        return comm->remote->message(comm->wire, f, data, nbytes, &comm->p2p->error);
    if (pc__raise(line, ++f->sent))
        pc__wakeup_signal(comm, f->peer);
    return PC_OK;
}

struct offer { /* in the line of a message that is PC_IN_SENDER */
    uint64_t address;
    uint64_t heap; /* offset in the sender's heap, plus one; 0 when it lies elsewhere */
};

static const char *const dtype_names[PC_NNAMED] = PC_DTYPE_NAMES;
static const uint8_t dtype_bytes[PC_NNAMED] = PC_DTYPE_BYTES;

uint64_t pc__transfer_signature(uint32_t dtype, uint64_t nbytes)
{
    return UINT64_C(1) << 63 | (uint64_t)dtype << PC_NBYTES_BITS | nbytes;
}

static bool of_transfer(uint64_t signature)
{
    uint64_t dtype = signature >> PC_NBYTES_BITS & (PC_DTYPE_CODES - 1),
             nbytes = signature & ((UINT64_C(1) << PC_NBYTES_BITS) - 1);
    return signature >> 63 && nbytes >> 44 == 0
           && (dtype >= PC_NNAMED || nbytes % dtype_bytes[dtype] == 0);
}

/* "3 elements float32" of a signature, which may be any bits. */
static const char *amount(uint64_t signature, char *text, size_t capacity)
{
    uint64_t dtype = signature >> PC_NBYTES_BITS & (PC_DTYPE_CODES - 1),
             nbytes = signature & ((UINT64_C(1) << PC_NBYTES_BITS) - 1);
    if (signature == PC_REFUSED_MESSAGE) {
        snprintf(text, capacity, "a message that was refused");
    } else if (!of_transfer(signature)) {
        snprintf(text, capacity, "something else");
    } else if (dtype >= PC_NNAMED) { /* a hash: what it is called only its owner knows */
        snprintf(text, capacity, "%llu bytes of dtype #%llx", (unsigned long long)nbytes,
                 (unsigned long long)dtype);
    } else {
        uint64_t count = nbytes / dtype_bytes[dtype];
        snprintf(text, capacity, "%llu element%s %s", (unsigned long long)count,
                 count == 1 ? "" : "s", dtype_names[dtype]);
    }
    return text;
}

const char *pc__transfer_text(const struct pc_transfer *t, char *text, size_t capacity)
{
    char what[64];
    bool sends = t->direction == PC_DIRECTION_SEND;
    snprintf(text, capacity, "%s(%s) %s rank %u", sends ? "send" : "recv",
             amount(t->signature ^ t->tag, what, sizeof what), sends ? "to" : "from", t->peer);
    return text;
}

struct pc_line *pc__edge_queue_waits(struct pc_edge_queue *queue, uint32_t direction,
                                     uint64_t *want)
{
    struct pc_fifo *f = queue->fifo;
    if (direction == PC_DIRECTION_RECV) {
        *want = f->received + 1;
        return &f->in_lines[f->received & (PC_LINES - 1)];
    }
    const struct pc_transfer *t = queue->head[PC_DIRECTION_SEND];
    *want = t->offered ? t->offered : f->credit + 1;
    return f->out_credit;
}

/* Finds room for `nbytes` of the next message in the peer's ring; false when there is none yet. */
static bool room(struct pc_comm *comm, struct pc_edge_queue *queue, uint64_t nbytes,
                 uint64_t *offset)
{
    struct pc_fifo *f = queue->fifo;
    uint64_t ring = comm->p2p->ring_bytes,
             need = (nbytes + PC_LINE_BYTES - 1) & -(uint64_t)PC_LINE_BYTES;
    for (int fresh = 0; fresh < 2; fresh++) {
        if (fresh)
            f->credit = pc__count(f->out_credit);
        if (f->sent - f->credit >= PC_LINES)
            continue;
        uint64_t begin = queue->filled, end, oldest;
        if (nbytes == 0) {
            queue->begins[f->sent & (PC_LINES - 1)] = begin;
            return true;
        }
        if (f->sent == f->credit && begin % ring) /* empty: use again what is in the caches */
            begin += ring - begin % ring;
        if (begin % ring + need > ring) /* in one span */
            begin += ring - begin % ring;
        end = begin + need;
        oldest = f->sent == f->credit ? begin : queue->begins[f->credit & (PC_LINES - 1)];
        if (end - oldest > ring)
            continue;
        queue->begins[f->sent & (PC_LINES - 1)]
            = f->sent == f->credit ? begin : queue->filled; /* what was skipped is this message's */
        queue->filled = end;
        *offset = begin % ring;
        return true;
    }
    return false;
}

_Static_assert(sizeof(struct pc_rkey) <= PC_INLINE_BYTES, "a loan fits a line");

/* Whether the remote peer would read this message from where it lies. */
static bool lent(const struct pc_comm *comm, struct pc_transfer *t, struct pc_line *line)
{
    struct pc_rkey loan;
    const struct pc_net_ops *remote = comm->remote;
    if (remote->lend == NULL || t->nbytes < comm->p2p->rndv_bytes
        || remote->lend(comm->wire, t->peer, t->at, t->nbytes, &loan, &t->pull) != PC_OK)
        return false;
    memcpy(line->bytes, &loan, sizeof loan);
    return true;
}

/* Whether the peer would fetch this message; the line then says from where. */
static bool offered(const struct pc_comm *comm, const struct pc_fifo *f, struct pc_transfer *t,
                    struct pc_line *line)
{
    struct offer offer;
    if (comm->peers[t->peer].remote)
        return lent(comm, t, line);
    if (t->nbytes < comm->p2p->rndv_bytes)
        return false;
    const char *heap = comm->arena + comm->layout.heap;
    bool registered = t->at >= heap && t->at + t->nbytes <= comm->arena + comm->layout.end;
    offer.address = (uint64_t)(uintptr_t)t->at;
    offer.heap = registered ? (uint64_t)(t->at - heap) + 1 : 0;
    memcpy(line->bytes, &offer, sizeof offer);
    return registered || __atomic_load_n(&f->out_credit->place, __ATOMIC_RELAXED);
}

/* All of it is filled. What goes to a remote peer must leave, too: nobody may come in later. */
static int filled(struct pc_comm *comm, struct pc_transfer *t)
{
    t->leaving = comm->peers[t->peer].remote;
    t->finished = !t->leaving;
    return 1;
}

int pc__edge_queue_send(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    struct pc_fifo *f = queue->fifo;
    if (t->leaving) {
        int rc = comm->remote->drained(comm->wire, f, &comm->p2p->error);
        f->credit = pc__count(f->out_credit); /* a sleeper marks the next one */
        t->finished = rc > 0;
        return rc;
    }
    if (t->offered) {
        f->credit = pc__count(f->out_credit);
        t->finished = f->credit >= t->offered;
        if (t->finished)
            pc__transfer_release(comm, t);
        return t->finished;
    }
    struct pc_line *line = &f->out_lines[f->sent & (PC_LINES - 1)];
    uint64_t left = t->nbytes - t->done, offset = 0, n = left;
    char *to = (char *)line->bytes;
    if (left <= PC_INLINE_BYTES) {
        if (!room(comm, queue, 0, &offset))
            return 0;
        line->place = PC_IN_LINE;
    } else if (t->done == 0 && !t->staged) {
        if (!room(comm, queue, 0, &offset))
            return 0;
        t->staged = !offered(comm, f, t, line);
        if (t->staged)
            return 1;
        line->place = PC_IN_SENDER;
        line->signature = t->signature;
        line->nbytes = 0;
        t->offered = f->sent + 1;
        return fill(comm, f, line->bytes, 0) == PC_OK ? 1 : comm->p2p->error.code;
    } else {
        n = left < comm->p2p->frag_bytes ? left : comm->p2p->frag_bytes;
        if (!room(comm, queue, n, &offset))
            return 0;
        line->place = (uint32_t)(offset / PC_LINE_BYTES);
        to = f->out_data + offset;
    }
    memcpy(to, t->at + t->done, n);
    line->nbytes = (uint32_t)n;
    line->signature = t->signature;
    t->done += n;
    int rc = fill(comm, f, to, n);
    if (rc != PC_OK)
        return rc;
    return t->done == t->nbytes ? filled(comm, t) : 1;
}

void pc__edge_queue_publish(struct pc_comm *comm, struct pc_edge_queue *queue)
{
    if (queue->published == queue->fifo->received)
        return;
    queue->published = queue->fifo->received;
    queue->unpublished_bytes = 0;
    if (comm->peers[queue->fifo->peer].remote)
        comm->remote->credit(comm->wire, queue->fifo, queue->published);
    else if (pc__raise(queue->fifo->in_credit, queue->published))
        pc__wakeup_signal(comm, queue->fifo->peer);
}

/* Takes one step of what the sender offers. */
static int fetch(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                 const struct offer *offer)
{
    struct pc_fifo *f = queue->fifo;
    uint64_t left = t->nbytes - t->done, n = left < PC_CMA_BYTES ? left : PC_CMA_BYTES;
    const struct pc_arena *theirs = (const struct pc_arena *)comm->peers[f->peer].arena;
    int rc = PC_OK;
    t->withdrawn = atomic_load_explicit(&theirs->withdrawn, memory_order_relaxed);
    if (t->withdrawn)
        return 0;
    if (offer->heap == 0) {
        rc = pc__cma_read(comm, f->peer, t->at + t->done, offer->address + t->done, n);
    } else if (t->nbytes > comm->options.heap_bytes
               || offer->heap - 1 > comm->options.heap_bytes - t->nbytes) {
        rc = PC_INVALID;
    } else {
        const char *heap = comm->peers[f->peer].arena + comm->layout.heap;
        memcpy(t->at + t->done, heap + offer->heap - 1 + t->done, n);
    }
    atomic_thread_fence(memory_order_acquire);
    t->withdrawn = atomic_load_explicit(&theirs->withdrawn, memory_order_relaxed);
    if (t->withdrawn)
        return 0; /* it may have been overwritten, or freed, while it was read */
    if (rc != PC_OK)
        return pc__fail(&comm->p2p->error, rc, (int)f->peer, "the memory of rank %u cannot be read",
                        f->peer);
    t->done += n;
    if (t->done == t->nbytes) {
        f->received++;
        pc__edge_queue_publish(comm, queue); /* the sender waits for it */
        t->finished = true;
    }
    return 1;
}

/* Reads what the remote sender lends. */
static int borrow(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                  const struct pc_rkey *loan)
{
    const struct pc_net_ops *remote = comm->remote;
    struct pc_error *error = &comm->p2p->error;
    int rc = PC_OK;
    if (remote->borrow == NULL)
        return pc__fail(error, PC_INVALID, (int)t->peer, "rank %u lends, and nobody can borrow",
                        t->peer);
    if (t->pull == NULL)
        rc = remote->borrow(comm->wire, t->peer, t->at, t->nbytes, loan, &t->pull, error);
    if (rc == PC_OK)
        rc = remote->borrowed(comm->wire, t->pull, error);
    if (rc <= 0)
        return rc;
    t->done = t->nbytes;
    t->finished = true;
    pc__transfer_release(comm, t);
    queue->fifo->received++;
    pc__edge_queue_publish(comm, queue); /* the sender waits for it */
    return 1;
}

void pc__transfer_release(struct pc_comm *comm, struct pc_transfer *t)
{
    if (t->pull != NULL)
        comm->remote->release(comm->wire, t->pull, t->finished);
    t->pull = NULL;
}

static int mismatch(struct pc_comm *comm, const struct pc_transfer *t, uint64_t theirs)
{
    char mine[96], what[64];
    bool call = t->tag != 0 && !of_transfer(theirs ^ t->tag);
    pc__fail(&comm->p2p->error, PC_MISMATCH, (int)t->peer, "%s: rank %u sent %s",
             pc__transfer_text(t, mine, sizeof mine), t->peer,
             call ? "the message of another call" : amount(theirs ^ t->tag, what, sizeof what));
    comm->p2p->error.cause = call ? PC_CAUSE_CALL : PC_CAUSE_TRANSFER;
    return PC_MISMATCH;
}

int pc__edge_queue_receive(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    struct pc_fifo *f = queue->fifo;
    const struct pc_line *line = &f->in_lines[f->received & (PC_LINES - 1)];
    if (pc__count(line) <= f->received)
        return 0;
    if (line->signature != t->signature)
        return mismatch(comm, t, line->signature);
    uint64_t left = t->nbytes - t->done, n = line->nbytes;
    if (line->place == PC_IN_SENDER && comm->peers[t->peer].remote) {
        struct pc_rkey loan;
        memcpy(&loan, line->bytes, sizeof loan);
        return borrow(comm, queue, t, &loan);
    }
    if (line->place == PC_IN_SENDER) {
        struct offer offer;
        memcpy(&offer, line->bytes, sizeof offer);
        return fetch(comm, queue, t, &offer);
    }
    const char *from = (const char *)line->bytes;
    uint64_t limit = PC_INLINE_BYTES;
    if (line->place != PC_IN_LINE) {
        uint64_t offset = (uint64_t)line->place * PC_LINE_BYTES;
        from = f->in_data + offset;
        limit = offset < comm->p2p->ring_bytes ? comm->p2p->ring_bytes - offset : 0;
    }
    if (n > left || n > limit)
        return pc__fail(&comm->p2p->error, PC_INVALID, (int)f->peer,
                        "rank %u sent a piece of %llu bytes, want at most %llu", f->peer,
                        (unsigned long long)n, (unsigned long long)(left < limit ? left : limit));
    memcpy(t->at + t->done, from, n);
    t->done += n;
    t->finished = t->done == t->nbytes;
    f->received++;
    queue->unpublished_bytes += line->place == PC_IN_LINE ? 0 : n;
    if (!queue->probed && t->nbytes >= comm->p2p->rndv_bytes) {
        queue->probed = true;
        if (pc__cma_usable(comm, f->peer))
            __atomic_store_n(&f->in_credit->place, 1, __ATOMIC_RELAXED);
    }
    if (f->received - queue->published >= PC_UNPUBLISHED_MESSAGES
        || queue->unpublished_bytes >= comm->p2p->unpublished_bytes)
        pc__edge_queue_publish(comm, queue);
    return 1;
}
