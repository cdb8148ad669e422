/* Frames: made from an edge's shadow, checked by the receiver, and written into its arena. */
#include <string.h>
#include "net/frame.h"

#define BAD(...) pc__fail(error, PC_INVALID, (int)peer, "a frame of rank %u " __VA_ARGS__)

static struct pc_line *line_of(const struct pc_fifo *f, uint64_t number)
{
    return &f->in_lines[number & (PC_LINES - 1)];
}

struct pc_frame pc__frame_message(const struct pc_net_edge *edge, uint64_t number, uint64_t nbytes)
{
    const struct pc_fifo *f = edge->fifo;
    const struct pc_line *line = &f->out_lines[number & (PC_LINES - 1)];
    return (struct pc_frame){.magic = PC_FRAME_MAGIC,
                             .kind = PC_FRAME_MESSAGE,
                             .channel = f->channel,
                             .nbytes = nbytes,
                             .count = number + 1,
                             .credit = edge->consumed,
                             .signature = line->signature,
                             .place = line->place,
                             .fragment = line->nbytes};
}

struct pc_frame pc__frame_credit(const struct pc_net_edge *edge)
{
    return (struct pc_frame){.magic = PC_FRAME_MAGIC,
                             .kind = PC_FRAME_CREDIT,
                             .channel = edge->fifo->channel,
                             .credit = edge->consumed};
}

/* Where the bytes go; NULL when they do not fit there. A Program's message goes to its slot, a
 * transfer's where its line says. */
static char *place_of(const struct pc_net_edge *edge, const struct pc_frame *frame, uint64_t *depth)
{
    const struct pc_layout *l = &edge->peer->net->comm->layout;
    const struct pc_fifo *f = edge->fifo;
    uint64_t number = frame->count - 1, slots = l->slots, slot_bytes = l->slot_bytes, at;
    bool transfer = frame->channel >= PC_MAX_CHANNELS;
    *depth = PC_LINES;
    bool offers = frame->place == PC_IN_SENDER && edge->peer->net->ops->get != NULL;
    if (transfer ? frame->place == PC_IN_LINE || offers : frame->nbytes <= PC_INLINE_BYTES)
        return frame->nbytes <= PC_INLINE_BYTES ? (char *)line_of(f, number)->bytes : NULL;
    if (transfer) {
        at = (uint64_t)frame->place * PC_CHUNK_UNIT;
        return at <= slots * slot_bytes && frame->nbytes <= slots * slot_bytes - at
                   ? f->in_data + at
                   : NULL;
    }
    if (frame->nbytes <= l->small_bytes)
        return f->in_data + slots * slot_bytes
               + (number & (PC_LINES - 1)) * pc__small_stride(l->small_bytes);
    *depth = slots;
    return frame->nbytes <= slot_bytes ? f->in_data + (number & (slots - 1)) * slot_bytes : NULL;
}

/* A line takes every PC_LINES-th message, each exactly once, and never before the message that lies
 * where this one will go has been consumed. */
static bool is_next(const struct pc_net_edge *edge, uint64_t count, uint64_t depth)
{
    uint64_t before = count <= PC_LINES ? 0 : count - PC_LINES;
    return count != 0 && count - 1 - edge->consumed < depth
           && pc__count(line_of(edge->fifo, count - 1)) == before;
}

static bool is_expected(const struct pc_net_edge *edge, const struct pc_frame *frame)
{
    const struct pc_net_expected *e = &edge->expected;
    return e->into != NULL && frame->count == e->count && frame->nbytes == e->nbytes
           && frame->signature == e->signature;
}

int pc__frame_check(struct pc_net_peer *from, const struct pc_frame *frame, char **into,
                    struct pc_error *error)
{
    uint32_t peer = from->rank;
    uint64_t depth;
    *into = NULL;
    if (frame->magic != PC_FRAME_MAGIC || frame->zero != 0
        || (frame->kind != PC_FRAME_MESSAGE && frame->kind != PC_FRAME_CREDIT))
        return BAD("begins with %#x, kind %u; want %#x, kind 1 or 2", peer, frame->magic,
                   frame->kind, PC_FRAME_MAGIC);
    if (frame->channel >= PC_EDGE_CHANNELS)
        return BAD("is for channel %u of %u", peer, frame->channel, PC_EDGE_CHANNELS);
    const struct pc_net_edge *edge = &from->edges[frame->channel];
    if (frame->credit > edge->put)
        return BAD("gives back %llu messages; %llu have been sent", peer,
                   (unsigned long long)frame->credit, (unsigned long long)edge->put);
    if (frame->kind == PC_FRAME_CREDIT) {
        if (frame->nbytes | frame->count | frame->signature | frame->place | frame->fragment)
            return BAD("holds a message besides its credit", peer);
        return PC_OK;
    }
    char *place = place_of(edge, frame, &depth);
    if (place == NULL)
        return BAD("holds %llu bytes, which do not fit where they belong", peer,
                   (unsigned long long)frame->nbytes);
    if (!is_next(edge, frame->count, depth))
        return BAD("holds message %llu of channel %u; %llu have been consumed, and the rest may "
                   "come once each, %llu ahead",
                   peer, (unsigned long long)frame->count, frame->channel,
                   (unsigned long long)edge->consumed, (unsigned long long)depth);
    *into = is_expected(edge, frame) ? edge->expected.into : place;
    return PC_OK;
}

int pc__frame_land(struct pc_net_peer *from, const struct pc_frame *frame, const char *at,
                   struct pc_error *error)
{
    uint32_t peer = from->rank;
    struct pc_net_edge *edge = &from->edges[frame->channel];
    struct pc_fifo *f = edge->fifo;
    int asleep = 0;
    if (frame->kind == PC_FRAME_MESSAGE) {
        struct pc_line *line = line_of(f, frame->count - 1);
        if (!is_next(edge, frame->count,
                     PC_LINES)) /* the same message came over two streams at once */
            return BAD("holds message %llu for the second time", peer,
                       (unsigned long long)frame->count);
        line->signature = frame->signature;
        line->place = frame->place;
        line->nbytes = frame->fragment;
        /* Else it had begun to come before it was expected, and lies in its slot. */
        if (is_expected(edge, frame) && at == edge->expected.into) {
            edge->landed = frame->count;
            from->net->state.landed++;
        }
        asleep |= pc__raise(line, frame->count);
    }
    if (frame->credit
        > pc__count(f->out_credit)) /* with several streams, an older credit may come late */
        asleep |= pc__raise(f->out_credit, frame->credit);
    return asleep;
}
