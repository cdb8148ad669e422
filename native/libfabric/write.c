/* Messages that are written into the peer's slots, of a length that would take several packets.
 *
 * The provider tells the receiver when all bytes of a write are there, with 32 bits of the
 * sender's. These name the sender's rank and the line, as an endpoint's completions do not say who
 * it was. Who may write at all is told by the key of the region, which is the peer's alone. A write
 * to two places at once brings the header, too, to one that each line has. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC

#define PC_LINE_BITS 9
#define PC_JOINED (UINT32_C(1) << PC_LINE_BITS) /* the header came along */
_Static_assert(PC_EDGE_LINES <= PC_JOINED, "a line's number fits");

static uint32_t line_of(const struct pc_frame *frame)
{
    return frame->channel * PC_LINES + (uint32_t)(frame->count - 1) % PC_LINES;
}

static uint64_t data_of(const struct pc_fabric_net *w, const struct pc_frame *frame,
                        uint32_t joined)
{
    return (uint64_t)w->base.comm->options.rank << (PC_LINE_BITS + 1) | joined | line_of(frame);
}

/* Where in its slots the peer has what lies here in the shadow. */
static uint64_t place_of(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                         const char *bytes)
{
    size_t nbytes;
    const char *shadow = pc__fabric_slots(w, w->base.comm->peers[peer->base.rank].record, &nbytes);
    return peer->slots + (uint64_t)(bytes - shadow);
}

/* Where it is written from: here, or in memory of the GPU. */
static const char *source_of(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                             const char *bytes)
{
    size_t nbytes;
    const char *shadow = pc__fabric_slots(w, w->base.comm->peers[peer->base.rank].record, &nbytes);
    uint64_t gpu = peer->base.gpu_out;
    return gpu == 0 ? bytes : (const char *)(uintptr_t)(gpu + (uint64_t)(bytes - shadow));
}

bool pc__fabric_is_joined(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                          const struct pc_frame *frame)
{
    return frame->nbytes >= PC_FABRIC_WRITE_FROM && peer->joins
           && frame->nbytes + sizeof(struct pc_fabric_head)
                  <= w->endpoint.info->ep_attr->max_msg_size;
}

int pc__fabric_write_joined(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                            const struct pc_fabric_send *out)
{
    struct pc_fabric_packet *packet = peer->free;
    struct pc_fabric_head *head = (struct pc_fabric_head *)packet->bytes;
    pc__fabric_address(w, packet);
    head->written = 1;
    head->at = 0;
    head->frame = out->frame;
    uint64_t line = line_of(&out->frame);
    const struct iovec from[] = {{head, sizeof *head}, {(char *)out->bytes, out->frame.nbytes}};
    void *descs[] = {packet->desc, peer->shadow_mr != NULL ? fi_mr_desc(peer->shadow_mr) : NULL};
    const struct fi_rma_iov to[]
        = {{peer->heads_at + line * sizeof *head, sizeof *head, peer->heads_key},
           {place_of(w, peer, out->bytes), out->frame.nbytes, peer->slots_key}};
    const struct fi_msg_rma message = {.msg_iov = from,
                                       .desc = descs,
                                       .iov_count = 2,
                                       .addr = peer->address,
                                       .rma_iov = to,
                                       .rma_iov_count = 2,
                                       .context = &packet->context,
                                       .data = data_of(w, &out->frame, PC_JOINED)};
    ssize_t code = fi_writemsg(w->endpoint.ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION);
    if (code == -FI_EAGAIN)
        w->again = true;
    if (code != 0)
        return (int)code;
    pc__fabric_posted(w, packet, out->frame.nbytes + sizeof *head);
    packet->edge = &peer->base.edges[out->frame.channel];
    packet->credit = false;
    packet->count = out->frame.count;
    peer->sent++;
    return 0;
}

bool pc__fabric_is_written(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer,
                           const struct pc_frame *frame)
{
    if (pc__fabric_of_gpu(peer, frame)) /* it can be: handle_hello has seen to that */
        return true;
    return frame->nbytes > PC_FABRIC_FRAGMENT && peer->writes && peer->base.gpu_out == 0
           && !peer->slots_gpu && frame->nbytes <= w->endpoint.info->ep_attr->max_msg_size;
}

int pc__fabric_write(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                     const struct pc_fabric_send *out)
{
    struct pc_fabric_packet *packet = peer->free;
    void *desc = peer->shadow_mr != NULL ? fi_mr_desc(peer->shadow_mr) : NULL;
    ssize_t code = fi_writedata(w->endpoint.ep, source_of(w, peer, out->bytes), out->frame.nbytes,
                                desc, data_of(w, &out->frame, 0), peer->address,
                                place_of(w, peer, out->bytes), peer->slots_key, &packet->context);
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
    pc__net_add_sent(&w->base, 0, out->frame.nbytes);
    w->base.state.gpu_bytes += peer->base.gpu_out != 0 ? out->frame.nbytes : 0;
    w->base.state.requests++;
    return 0;
}

struct pc_fabric_peer *pc__fabric_writer(const struct pc_fabric_net *w, uint64_t data,
                                         uint32_t *line, bool *joined)
{
    uint64_t rank = data >> (PC_LINE_BITS + 1);
    *line = data & (PC_JOINED - 1);
    *joined = data & PC_JOINED;
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
    return pc__fabric_whole(w, peer, &arrival->frame, error);
}

int pc__fabric_joined(struct pc_fabric_net *w, struct pc_fabric_peer *peer, uint32_t line,
                      struct pc_error *error)
{
    const struct pc_fabric_arrival *arrival = &peer->arrivals[line];
    char *into;
    if (peer->heads == NULL)
        return pc__fail(error, PC_INVALID, (int)peer->base.rank,
                        "rank %u has written a message of channel %u with its header, which has no "
                        "place here",
                        peer->base.rank, line / PC_LINES);
    /* A copy, as the peer can write there again at any time. */
    const struct pc_fabric_head head = peer->heads[line];
    int rc = pc__fabric_told(peer, head.received, error);
    if (rc == PC_OK && peer->received - peer->told >= w->window)
        rc = pc__fail(
            error, PC_INVALID, (int)peer->base.rank,
            "rank %u has written a message after %u packets that it was told nothing about",
            peer->base.rank, w->window);
    if (rc == PC_OK)
        rc = pc__frame_check(&peer->base, &head.frame, &into, error);
    if (rc == PC_OK && (head.frame.kind != PC_FRAME_MESSAGE || line_of(&head.frame) != line))
        rc = pc__fail(error, PC_INVALID, (int)peer->base.rank,
                      "rank %u has written message %llu of channel %u, and tells of line %u of "
                      "channel %u",
                      peer->base.rank, (unsigned long long)head.frame.count, head.frame.channel,
                      line % PC_LINES, line / PC_LINES);
    if (rc == PC_OK && (arrival->fragments != 0 || arrival->headed || arrival->written))
        rc = pc__fail(error, PC_INVALID, (int)peer->base.rank,
                      "rank %u has written message %llu of channel %u, of which a part had come",
                      peer->base.rank, (unsigned long long)head.frame.count, head.frame.channel);
    if (rc != PC_OK)
        return rc;
    pc__fabric_count(peer);
    return pc__frame_land(&peer->base, &head.frame, NULL, error);
}
#endif
