/* How a transfer crosses an edge: inline in its line, as fragments in the ring, or by rendezvous.
 */
#include <stdio.h>
#include <string.h>
#include "net/edge.h"
#include "p2p/p2p.h"
#include "core/target_cpu.h"

/* Credit is sent for several messages together: it takes a cache line from the sender. */
#define PC_UNPUBLISHED_MESSAGES (PC_LINES / 4)
#define PC_RNDV_BYTES_FAR (UINT64_C(64) << 10)
#define PC_STAGED_WHEN_FAR 8u /* one transfer of so many, so that the probe goes on */

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

/* Formats a signature, which may be any bits: "3 elements float32". */
static const char *amount(uint64_t signature, char *text, size_t capacity)
{
    uint64_t dtype = signature >> PC_NBYTES_BITS & (PC_DTYPE_CODES - 1),
             nbytes = signature & ((UINT64_C(1) << PC_NBYTES_BITS) - 1);
    if (signature == PC_REFUSED_MESSAGE) {
        snprintf(text, capacity, "a message that was refused");
    } else if (!of_transfer(signature)) {
        snprintf(text, capacity, "something else");
    } else if (dtype >= PC_NNAMED) { /* a hash: only its owner knows the dtype's name */
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

/* Finds room for `nbytes` of the next message in the peer's ring; false: none yet. */
static bool find_room(struct pc_comm *comm, struct pc_edge_queue *queue, uint64_t nbytes,
                      uint64_t *offset)
{
    struct pc_fifo *f = queue->fifo;
    uint64_t ring = comm->p2p->ring_bytes,
             need = ((nbytes + PC_LINE_BYTES - 1) & -(uint64_t)PC_LINE_BYTES) + pc__edge_trailer(f);
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
        if (f->sent == f->credit && begin % ring) /* empty: start where the caches are warm */
            begin += ring - begin % ring;
        if (begin % ring + need > ring) /* a fragment must not wrap */
            begin += ring - begin % ring;
        end = begin + need;
        oldest = f->sent == f->credit ? begin : queue->begins[f->credit & (PC_LINES - 1)];
        if (end - oldest > ring)
            continue;
        queue->begins[f->sent & (PC_LINES - 1)]
            = f->sent == f->credit ? begin
                                   : queue->filled; /* skipped bytes belong to this message */
        queue->filled = end;
        *offset = begin % ring;
        return true;
    }
    return false;
}

/* Sends the next message, and with it what credit is held back. */
static int message(struct pc_comm *comm, struct pc_edge_queue *queue, void *slot, const void *from,
                   uint64_t nbytes)
{
    struct pc_fifo *f = queue->fifo;
    if (queue->published != f->received && pc__edge_credit_along(f, f->received)) {
        queue->published = f->received;
        queue->unpublished_bytes = 0;
    }
    return pc__edge_message(comm, f, &queue->probe, slot, from, nbytes, &comm->p2p->error);
}

/* From which length on transfers between mapped ranks go by rendezvous. Where both ranks send and
 * the probe says that their cores are far from each other, one copy by the kernel, which leaves the
 * ring's lines alone, takes less time from 64 KiB on (256 KiB each way: 41 us, by the kernel 30;
 * near ones 24 and 29). */
static uint64_t rndv_from(const struct pc_comm *comm, const struct pc_transfer *t, bool far)
{
    uint64_t from = comm->p2p->rndv_bytes[t->both_ways];
    return far && t->both_ways && from > PC_RNDV_BYTES_FAR ? PC_RNDV_BYTES_FAR : from;
}

static bool is_far(struct pc_edge_queue *queue, const struct pc_transfer *t)
{
    return t->both_ways && t->nbytes >= PC_RNDV_BYTES_FAR && queue->probe.stream
           && ++queue->far % PC_STAGED_WHEN_FAR != 0;
}

int pc__edge_queue_send(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    struct pc_fifo *f = queue->fifo;
    if (t->leaving) {
        int rc = pc__net_drained(comm->net, f->edge, &comm->p2p->error);
        f->credit = pc__count(f->out_credit); /* a sleeper marks the credit line for this count */
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
        if (!find_room(comm, queue, 0, &offset))
            return 0;
        line->place = PC_IN_LINE;
    } else if (t->done == 0 && !t->staged) {
        if (!find_room(comm, queue, 0, &offset))
            return 0;
        const struct pc_rndv_ops *rndv = comm->peers[t->peer].rndv;
        uint64_t from = pc__edge_either(f, rndv_from(comm, t, is_far(queue, t)),
                                        comm->p2p->net_rndv_bytes[t->both_ways]);
        t->staged = rndv == NULL || t->nbytes < from || !rndv->offer(comm, queue, t, line);
        if (t->staged)
            return 1;
        line->place = PC_IN_SENDER;
        line->signature = t->signature;
        line->nbytes = 0;
        t->offered = f->sent + 1;
        int rc = message(comm, queue, line->bytes, NULL, PC_INLINE_BYTES);
        return rc == PC_OK || rc == PC_AGAIN ? 1 : rc;
    } else {
        uint64_t longest = pc__edge_either(f, comm->p2p->frag_bytes, comm->p2p->net_frag_bytes);
        n = left < longest ? left : longest;
        if (!find_room(comm, queue, n, &offset))
            return 0;
        line->place = (uint32_t)(offset / PC_LINE_BYTES);
        to = f->out_data + offset;
    }
    line->nbytes = (uint32_t)n;
    line->signature = t->signature;
    int rc = message(comm, queue, to, t->at + t->done, n);
    t->done += n;
    if (rc != PC_OK && rc != PC_AGAIN)
        return rc;
    /* What the network took must also leave before the transfer ends: nobody may come in later. */
    t->leaving = rc == PC_AGAIN && t->done == t->nbytes;
    t->finished = rc == PC_OK && t->done == t->nbytes;
    return 1;
}

void pc__edge_queue_publish(struct pc_comm *comm, struct pc_edge_queue *queue)
{
    if (queue->published == queue->fifo->received)
        return;
    queue->published = queue->fifo->received;
    queue->unpublished_bytes = 0;
    pc__edge_credit(comm, queue->fifo, queue->published);
}

int pc__transfer_mismatch(struct pc_error *error, const struct pc_transfer *t, uint64_t theirs)
{
    char mine[96], what[64];
    bool call = t->tag != 0 && !of_transfer(theirs ^ t->tag);
    pc__fail(error, PC_MISMATCH, (int)t->peer, "%s: rank %u sent %s",
             pc__transfer_text(t, mine, sizeof mine), t->peer,
             call ? "the message of another call" : amount(theirs ^ t->tag, what, sizeof what));
    error->cause = call ? PC_CAUSE_CALL : PC_CAUSE_TRANSFER;
    return PC_MISMATCH;
}

int pc__edge_queue_receive(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t)
{
    struct pc_fifo *f = queue->fifo;
    const struct pc_line *line = &f->in_lines[f->received & (PC_LINES - 1)];
    if (pc__count(line) <= f->received)
        return 0;
    if (line->signature != t->signature)
        return pc__transfer_mismatch(&comm->p2p->error, t, line->signature);
    uint64_t left = t->nbytes - t->done, n = line->nbytes;
    const struct pc_rndv_ops *rndv = comm->peers[t->peer].rndv;
    if (line->place == PC_IN_SENDER && rndv != NULL)
        return rndv->read(comm, queue, t, line);
    const char *from = (const char *)line->bytes;
    uint64_t limit = PC_INLINE_BYTES;
    if (line->place != PC_IN_LINE) {
        uint64_t offset = (uint64_t)line->place * PC_LINE_BYTES;
        from = f->in_data + offset;
        limit = offset < comm->p2p->ring_bytes ? comm->p2p->ring_bytes - offset : 0;
    }
    if (n > left || n > limit)
        return pc__fail(&comm->p2p->error, PC_INVALID, (int)f->peer,
                        "rank %u sent a fragment of %llu bytes, want at most %llu", f->peer,
                        (unsigned long long)n, (unsigned long long)(left < limit ? left : limit));
    pc__copy(t->at + t->done, from, n);
    t->done += n;
    t->finished = t->done == t->nbytes;
    f->received++;
    queue->unpublished_bytes += line->place == PC_IN_LINE ? 0 : n;
    if (!queue->probed && t->nbytes >= rndv_from(comm, t, true)) {
        queue->probed = true;
        if (pc__cma_usable(comm, f->peer))
            __atomic_store_n(&f->in_credit->place, 1, __ATOMIC_RELAXED);
    }
    if (f->received - queue->published >= PC_UNPUBLISHED_MESSAGES
        || queue->unpublished_bytes
               >= pc__edge_either(f, comm->p2p->unpublished_bytes, comm->p2p->ring_bytes / 4))
        pc__edge_queue_publish(comm, queue);
    return 1;
}
