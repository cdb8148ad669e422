/* Messages that are written into the peer's slots, of a length that would take several packets.
 *
 * The provider tells the receiver when all bytes of a write are there, with 32 bits of the
 * sender's. These name the sender's rank and the line, as an endpoint's completions do not say who
 * it was. Who may write at all is told by the key of the region, which is the peer's alone. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC

#define PC_LINE_BITS 8
_Static_assert(PC_EDGE_LINES <= 1u << PC_LINE_BITS, "a line's number fits");

bool pc__fabric_is_written(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                           const struct pc_frame *frame)
{
    return frame->nbytes > PC_FABRIC_FRAGMENT && peer->writes
           && frame->nbytes <= w->endpoint.info->ep_attr->max_msg_size;
}

int pc__fabric_write(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                     const struct pc_fabric_send *out)
{
    struct pc_fabric_packet *packet = peer->free;
    size_t nbytes;
    const char *shadow = pc__fabric_slots(w, w->base.comm->peers[peer->base.rank].record, &nbytes);
    uint32_t line = out->frame.channel * PC_LINES + (uint32_t)(out->frame.count - 1) % PC_LINES;
    uint64_t data = (uint64_t)w->base.comm->options.rank << PC_LINE_BITS | line;
    void *desc = peer->shadow_mr != NULL ? fi_mr_desc(peer->shadow_mr) : NULL;
    ssize_t code = fi_writedata(w->endpoint.ep, out->bytes, out->frame.nbytes, desc, data,
                                peer->address, peer->slots + (uint64_t)(out->bytes - shadow),
                                peer->slots_key, &packet->context);
    if (code == -FI_EAGAIN)
        w->again = true;
    if (code != 0)
        return (int)code;
    packet->edge = &peer->base.edges[out->frame.channel];
    packet->credit = false;
    packet->count = out->frame.count;
    pc__net_count(packet->edge, 1); /* the message itself is counted for its header */
    peer->free = packet->next;
    peer->under_way++;
    w->base.in_flight++;
    w->base.state.bytes[0] += out->frame.nbytes;
    w->base.state.requests++;
    return 0;
}

struct pc_fabric_peer *pc__fabric_writer(const struct pc_fabric_net *w, uint64_t data,
                                         uint32_t *line)
{
    uint64_t rank = data >> PC_LINE_BITS;
    *line = data & ((1u << PC_LINE_BITS) - 1);
    if (rank >= w->base.comm->options.size || *line >= PC_EDGE_LINES)
        return NULL;
    struct pc_fabric_peer *peer = pc__fabric_peer(w, (uint32_t)rank);
    return peer != NULL && peer->slots_mr != NULL && !peer->base.ended ? peer : NULL;
}

int pc__fabric_written(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t line,
                       struct pc_error *error)
{
    struct pc_fabric_arrival *arrival = &peer->arrivals[line];
    if (arrival->written)
        return pc__fail(error, PC_INVALID, (int)peer->base.rank,
                        "rank %u has written a message of channel %u twice", peer->base.rank,
                        line / PC_LINES);
    arrival->written = !arrival->headed;
    pc__fabric_partial(w, peer, arrival->headed ? -1 : 1);
    if (arrival->written)
        return PC_OK;
    arrival->headed = false;
    pc__fabric_count(peer);
    return pc__frame_land(&peer->base, &arrival->frame, error);
}
#endif
