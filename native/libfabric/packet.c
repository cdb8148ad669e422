/* Packets: made from what waits for a peer; checked, and put together again, at its end. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <string.h>

#define BAD(...) \
    pc__fail(error, PC_INVALID, (int)peer->base.rank, "a packet of rank %u " __VA_ARGS__)

static struct pc_fabric_head *head_of(const struct pc_fabric_packet *packet)
{
    return (struct pc_fabric_head *)packet->bytes;
}

void pc__fabric_address(struct pc_fabric_net *w, struct pc_fabric_packet *packet)
{
    struct pc_fabric_head *head = head_of(packet);
    head->key = packet->peer->their_key;
    head->rank = w->base.comm->options.rank;
    head->received = packet->peer->received;
}

void pc__fabric_posted(struct pc_fabric_net *w, struct pc_fabric_packet *packet, size_t nbytes)
{
    struct pc_fabric_peer *peer = packet->peer;
    peer->free = packet->next;
    peer->told = peer->received;
    peer->tells = false;
    peer->under_way++;
    w->base.in_flight++;
    pc__net_add_sent(&w->base, 0, nbytes);
    w->base.state.requests++;
}

/* Hands a packet to the provider. It tells the peer what was received, too. */
static int post(struct pc_fabric_net *w, struct pc_fabric_packet *packet, size_t nbytes)
{
    struct pc_fabric_peer *peer = packet->peer;
    pc__fabric_address(w, packet);
    ssize_t code = fi_send(w->endpoint.ep, packet->bytes, nbytes, packet->desc, peer->address,
                           &packet->context);
    if (code == -FI_EAGAIN)
        w->again = true;
    if (code != 0)
        return (int)code;
    pc__fabric_posted(w, packet, nbytes);
    return 0;
}

int pc__fabric_tell(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    struct pc_fabric_packet *packet = peer->free;
    if (packet == NULL)
        return -FI_EAGAIN;
    head_of(packet)->at = 0;
    head_of(packet)->written = 0;
    return post(w, packet, PC_FABRIC_TELLS);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Sends the next fragment of the first frame that waits. */
static int post_fragment(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                         struct pc_fabric_send *out)
{
    struct pc_net_edge *edge = &peer->base.edges[out->frame.channel];
    struct pc_fabric_packet *packet = peer->free;
    struct pc_fabric_head *head = head_of(packet);
    uint64_t rest = out->frame.nbytes - out->gone;
    uint64_t nbytes = out->written ? 0 : smaller(rest, PC_FABRIC_FRAGMENT);
    bool last = out->written || nbytes == rest;
    head->at = out->gone;
    head->written = out->written;
    head->frame = out->frame;
    if (nbytes != 0)
        memcpy(packet->bytes + sizeof *head, out->bytes + out->gone, nbytes);
    int code = post(w, packet, sizeof *head + nbytes);
    if (code != 0)
        return code;
    packet->edge = edge;
    packet->count = out->frame.count;
    packet->credit = out->frame.kind == PC_FRAME_CREDIT;
    peer->sent++;
    out->gone += nbytes;
    if (last)
        peer->head++;
    else
        pc__net_count(edge,
                      1); /* a fragment of its own; the last one is counted as the message is */
    return 0;
}

int pc__fabric_post(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    int code = 0;
    if (peer->told_to_stop)
        return 0;
    while (code == 0 && peer->head != peer->tail && peer->free != NULL
           && peer->sent - peer->arrived < peer->window
           && peer->under_way < w->window) { /* the rest of `free` is for packets that tell */
        struct pc_fabric_send *out = &peer->queue[peer->head % PC_FABRIC_SENDS];
        if (pc__fabric_is_joined(w, peer, &out->frame)) {
            if ((code = pc__fabric_write_joined(w, peer, out)) == 0)
                peer->head++;
        } else if (out->written || !pc__fabric_is_written(w, peer, &out->frame))
            code = post_fragment(w, peer, out);
        else if ((code = pc__fabric_write(w, peer, out)) == 0)
            out->written = true;
        if (code == -FI_ENOSYS && peer->writes && peer->base.gpu_out == 0
            && !peer->slots_gpu) { /* the provider says too much of itself: by less of it */
            peer->writes = peer->joins && peer->writes;
            peer->joins = false;
            code = 0;
        }
    }
    if (code == 0 && peer->tells)
        code = pc__fabric_tell(w, peer);
    return code;
}

void pc__fabric_receive(struct pc_fabric_net *w, struct pc_fabric_packet *packet)
{
    if (fi_recv(w->endpoint.ep, packet->bytes, PC_FABRIC_PACKET, packet->desc, FI_ADDR_UNSPEC,
                &packet->context)
        == 0)
        return;
    packet->next = w->unposted;
    w->unposted = packet;
    w->again = true;
}

void pc__fabric_receive_unposted(struct pc_fabric_net *w)
{
    struct pc_fabric_packet *packet = w->unposted;
    w->unposted = NULL;
    while (packet != NULL) {
        struct pc_fabric_packet *next = packet->next;
        pc__fabric_receive(w, packet);
        packet = next;
    }
}

/* What was counted for a frame, or a fragment of one, is so no more. */
static void uncount(struct pc_net_peer *peer, struct pc_net_edge *edge, bool credit)
{
    if (credit)
        peer->net->credits--;
    else
        pc__net_count(edge, -1);
}

void pc__fabric_sent(struct pc_fabric_packet *packet)
{
    struct pc_fabric_peer *peer = packet->peer;
    struct pc_net *net = peer->base.net;
    if (peer->base.ended)
        return; /* pc__fabric_drop has counted it */
    packet->next = peer->free;
    peer->free = packet;
    peer->under_way--;
    net->in_flight--;
    if (packet->edge == NULL)
        return;
    uncount(&peer->base, packet->edge, packet->credit);
    if (packet->edge->pending == 0)
        pc__net_wake(net);
    packet->edge = NULL;
}

/* The peer has it, whether or not the provider knows that yet. */
static bool has_landed(const struct pc_fabric_peer *peer, const struct pc_fabric_packet *packet)
{
    uint32_t line = packet->edge->fifo->channel * PC_LINES + (packet->count - 1) % PC_LINES;
    return peer->closed && (int32_t)(peer->landed[line] - (uint32_t)packet->count) >= 0;
}

void pc__fabric_drop(struct pc_fabric_peer *peer)
{
    for (; peer->head != peer->tail; peer->head++) {
        const struct pc_frame *frame = &peer->queue[peer->head % PC_FABRIC_SENDS].frame;
        struct pc_net_edge *edge = &peer->base.edges[frame->channel];
        uncount(&peer->base, edge, frame->kind == PC_FRAME_CREDIT);
        if (frame->kind == PC_FRAME_MESSAGE)
            pc__net_undeliverable(edge);
    }
    for (uint32_t i = 0; i < peer->sends.n; i++) {
        struct pc_fabric_packet *packet = &peer->sends.packets[i];
        if (packet->edge == NULL)
            continue;
        uncount(&peer->base, packet->edge, packet->credit);
        if (!packet->credit && !has_landed(peer, packet))
            pc__net_undeliverable(packet->edge);
        packet->edge = NULL; /* the provider may keep it */
    }
}

struct pc_fabric_peer *pc__fabric_sender(const struct pc_fabric_net *w, const char *bytes,
                                         size_t nbytes)
{
    struct pc_fabric_head head;
    if (nbytes < PC_FABRIC_TELLS)
        return NULL;
    memcpy(&head, bytes, PC_FABRIC_TELLS);
    if (head.rank >= w->base.comm->options.size)
        return NULL;
    struct pc_fabric_peer *peer = pc__fabric_peer(w, head.rank);
    return peer != NULL && peer->receives.n != 0 && !peer->base.ended && peer->key == head.key
               ? peer
               : NULL;
}

/* Takes a fragment of a message. 1 when the message is whole, 0 when it is not yet. */
static int take_fragment(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                         const struct pc_fabric_head *head, const char *bytes, size_t nbytes,
                         char *into, struct pc_error *error)
{
    const struct pc_frame *frame = &head->frame;
    uint64_t fragments = (frame->nbytes + PC_FABRIC_FRAGMENT - 1) / PC_FABRIC_FRAGMENT;
    uint32_t line = frame->channel * PC_LINES + (uint32_t)(frame->count - 1) % PC_LINES;
    struct pc_fabric_arrival *arrival = &peer->arrivals[line];
    if (head->written) {
        /* Before its greeting nobody knows where the peer has its data. */
        bool is_short = fragments <= 1 && peer->greeted && !pc__fabric_of_gpu(peer, frame);
        if (head->written != 1 || !w->endpoint.writes || is_short
            || frame->nbytes <= PC_INLINE_BYTES || head->at != 0 || nbytes != 0
            || arrival->fragments != 0 || arrival->headed)
            return BAD("says that message %llu of channel %u is written, which cannot be",
                       peer->base.rank, (unsigned long long)frame->count, frame->channel);
        int whole = arrival->written;
        arrival->frame = *frame;
        arrival->headed = !whole;
        arrival->written = false;
        pc__fabric_partial(w, peer, whole ? -1 : 1);
        return whole;
    }
    if (frame->nbytes > PC_INLINE_BYTES && peer->base.gpu_in != 0)
        return BAD("holds bytes of a message of %llu, which are for memory of a GPU",
                   peer->base.rank, (unsigned long long)frame->nbytes);
    if (head->at % PC_FABRIC_FRAGMENT != 0 || (head->at != 0 && head->at >= frame->nbytes)
        || nbytes != smaller(frame->nbytes - head->at, PC_FABRIC_FRAGMENT))
        return BAD("holds %zu bytes from %llu on of a message of %llu", peer->base.rank, nbytes,
                   (unsigned long long)head->at, (unsigned long long)frame->nbytes);
    if (nbytes != 0)
        memcpy(into + head->at, bytes, nbytes);
    if (fragments <= 1)
        return 1;
    uint64_t *come = peer->come + (size_t)line * w->words;
    uint64_t fragment = head->at / PC_FABRIC_FRAGMENT, bit = UINT64_C(1) << fragment % 64;
    if (arrival->fragments == 0) {
        pc__fabric_partial(w, peer, 1);
        arrival->frame = *frame;
        memset(come, 0, w->words * sizeof *come);
    }
    if (arrival->headed || memcmp(&arrival->frame, frame, sizeof *frame) != 0
        || come[fragment / 64] & bit)
        return BAD("holds fragment %llu of message %llu of channel %u, which came otherwise before",
                   peer->base.rank, (unsigned long long)fragment, (unsigned long long)frame->count,
                   frame->channel);
    come[fragment / 64] |= bit;
    if (++arrival->fragments != fragments)
        return 0;
    arrival->fragments = 0;
    pc__fabric_partial(w, peer, -1);
    return 1;
}

int pc__fabric_told(struct pc_fabric_peer *peer, uint64_t received, struct pc_error *error)
{
    if (received > peer->sent)
        return BAD("says that %llu packets arrived; %llu were sent", peer->base.rank,
                   (unsigned long long)received, (unsigned long long)peer->sent);
    if (received > peer->arrived) {
        peer->arrived = received;
        pc__net_dirty(&peer->base);
    }
    return PC_OK;
}

void pc__fabric_count(struct pc_fabric_peer *peer)
{
    peer->received++;
    if (peer->received - peer->told >= peer->window / 2) {
        peer->tells = true;
        pc__net_dirty(&peer->base);
    }
}

int pc__fabric_land(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *bytes,
                    size_t nbytes, struct pc_error *error)
{
    struct pc_fabric_head head;
    char *into;
    bool tells = nbytes == PC_FABRIC_TELLS;
    if (!tells && nbytes < sizeof head)
        return BAD("has %zu bytes", peer->base.rank, nbytes);
    memcpy(&head, bytes, tells ? PC_FABRIC_TELLS : sizeof head);
    int rc = pc__fabric_told(peer, head.received, error);
    if (rc != PC_OK)
        return rc;
    if (tells)
        return (head.at | head.written) == 0
                   ? PC_OK
                   : BAD("only tells, and has a fragment, too", peer->base.rank);
    if (peer->received - peer->told >= w->window)
        return BAD("comes after %u that it was told nothing about", peer->base.rank, w->window);
    rc = pc__frame_check(&peer->base, &head.frame, &into, error);
    if (rc != PC_OK)
        return rc;
    rc = take_fragment(w, peer, &head, bytes + sizeof head, nbytes - sizeof head, into, error);
    if (rc < 0)
        return rc;
    if (rc == 1)
        return pc__fabric_whole(w, peer, &head.frame, error);
    if (!head.written)
        pc__fabric_count(peer);
    return rc;
}
#endif
