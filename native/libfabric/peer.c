/* One remote peer: its socket, where its endpoint is, and the queue of what waits to be sent. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static struct pc_fabric_net *net_of(const struct pc_net_peer *peer)
{
    return (struct pc_fabric_net *)peer->net;
}

static int write_wireup(struct pc_fabric_peer *peer, enum pc_fabric_wireup_kind kind,
                        uint64_t packets)
{
    struct pc_fabric_wireup message
        = {.magic = PC_FABRIC_WIREUP_MAGIC, .kind = kind, .packets = packets};
    return pc__fabric_wireup_write(&peer->socket, &message);
}

static int greet(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    const struct pc_fabric_endpoint *e = &w->endpoint;
    struct pc_comm *comm = w->base.comm;
    struct pc_fabric_wireup hello = {.magic = PC_FABRIC_WIREUP_MAGIC,
                                     .kind = PC_FABRIC_WIREUP_HELLO,
                                     .key = peer->key,
                                     .window = w->window,
                                     .fragment = PC_FABRIC_FRAGMENT,
                                     .format = e->info->addr_format,
                                     .address_bytes = e->address_bytes};
    bool by_address = e->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    if (peer->base.gpu_in != 0) {
        hello.slots_bytes = w->base.gpu.each;
        hello.slots = by_address ? peer->base.gpu_in : 0;
        hello.slots_key = fi_mr_key(peer->slots_mr);
        hello.slots_gpu = 1;
    } else if (peer->slots_mr != NULL) {
        char *slots = pc__fabric_slots(w, pc__record(comm->arena, &comm->layout, peer->base.rank),
                                       &hello.slots_bytes);
        hello.slots = by_address ? (uintptr_t)slots : 0;
        hello.slots_key = fi_mr_key(peer->slots_mr);
    }
    if (peer->heads_mr != NULL) {
        hello.heads = by_address ? (uintptr_t)peer->heads : 0;
        hello.heads_key = fi_mr_key(peer->heads_mr);
        hello.joins = 1;
    }
    if (w->reads.ep != NULL) {
        hello.reads_bytes = w->reads.address_bytes;
        memcpy(hello.reads, w->reads.address, w->reads.address_bytes);
    }
    snprintf(hello.provider, sizeof hello.provider, "%s", e->info->fabric_attr->prov_name);
    memcpy(hello.address, e->address, e->address_bytes);
    return pc__fabric_wireup_write(&peer->socket, &hello);
}

/* Receives and sends of its own, before the peer learns where to send. */
static int make_packets(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                        struct pc_error *error)
{
    uint32_t n = w->window + PC_FABRIC_SPARE;
    if (getrandom(&peer->key, sizeof peer->key, 0) != sizeof peer->key)
        return pc__fail(error, PC_SYSTEM, -1, "getrandom gave no key");
    peer->queue = malloc(PC_FABRIC_SENDS * sizeof *peer->queue);
    peer->come = calloc((size_t)PC_EDGE_LINES * w->words, sizeof *peer->come);
    peer->reads_at = FI_ADDR_UNSPEC;
    if (peer->queue == NULL || peer->come == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for packets");
    int rc = pc__fabric_block_open(w, peer, n, false, &peer->sends, error);
    if (rc == PC_OK)
        rc = pc__fabric_block_open(w, peer, n, true, &peer->receives, error);
    if (rc != PC_OK)
        return rc;
    pc__fabric_regions_open(w, peer);
    for (uint32_t i = 0; i < n; i++) {
        peer->sends.packets[i].next = peer->free;
        peer->free = &peer->sends.packets[i];
        pc__fabric_receive(w, &peer->receives.packets[i]);
    }
    return PC_OK;
}

int pc__fabric_adopt(struct pc_net_peer *base, int fd)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    struct pc_fabric_net *w = net_of(base);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return PC_SYSTEM;
    if (peer->receives.n != 0 || base->fault.code != 0) { /* one is enough; or the peer is lost */
        close(fd);
        return PC_OK;
    }
    struct pc_error error;
    int rc = make_packets(w, peer, &error);
    if (rc != PC_OK) {
        base->fault = error;
        return rc;
    }
    if (pc__net_watch(w->base.epoll, fd, EPOLLIN, base->rank) != 0)
        return PC_SYSTEM;
    peer->socket.fd = fd;
    peer->socket.open = true;
    peer->since = w->adopted = pc__now();
    w->base.state.connections++;
    (void)greet(w, peer); /* if it fails the socket has ended, and its event says why */
    return PC_OK;
}

int pc__fabric_connections(const struct pc_net_peer *base)
{
    return ((const struct pc_fabric_peer *)base)->socket.open && !base->ended;
}

static int push(struct pc_fabric_peer *peer, const struct pc_frame *frame, const char *bytes)
{
    if (peer->tail - peer->head == PC_FABRIC_SENDS)
        return PC_AGAIN;
    peer->queue[peer->tail++ % PC_FABRIC_SENDS]
        = (struct pc_fabric_send){.frame = *frame, .bytes = bytes};
    pc__net_dirty(&peer->base);
    return PC_OK;
}

/* A credit is a packet of its own, so that base->sending is never set; a message's frame holds the
 * credit of its channel. */
int pc__fabric_send(struct pc_net_peer *base, const struct pc_send_op *op)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    bool credit = op->kind == PC_SEND_CREDIT;
    if (peer->queue == NULL) /* `adopt` makes it; credit is for what has come, so it comes later */
        return PC_AGAIN;
    if (credit && (base->fault.code != 0 || peer->told_to_stop)) {
        pc__net_told(op->edge); /* it has no use any more */
        return PC_OK;
    }
    struct pc_frame frame
        = credit ? pc__frame_credit(op->edge) : pc__frame_message(op->edge, op->number, op->nbytes);
    int rc = push(peer, &frame, op->data);
    if (rc != PC_OK)
        return rc;
    base->net->credits += credit;
    pc__net_told(op->edge);
    if (!credit && (op->nbytes >= PC_FABRIC_FRAGMENT || pc__edge_holds_credit(op->edge)))
        pc__fabric_flush(base);
    return PC_OK;
}

bool pc__fabric_flush(struct pc_net_peer *base)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)base;
    if (peer->greeted && base->fault.code == 0 && peer->cut == 0) {
        int code = pc__fabric_post(net_of(base), peer);
        if (code != 0 && code != -FI_EAGAIN)
            pc__fabric_peer_cut(peer, "send", pc__fi.strerror(-code));
        else if (code != 0 || peer->head != peer->tail) /* no call may come that waits for it */
            pc__net_schedule(base->net, pc__now() + (code != 0 ? PC_SHORT_NS : PC_FULL_NS));
    }
    return peer->head == peer->tail && !peer->tells;
}

/* All has arrived that was sent: the peer has told it, by itself or because it is asked here. */
bool pc__fabric_settled(const struct pc_net_peer *base)
{
    struct pc_fabric_peer *peer = (struct pc_fabric_peer *)(uintptr_t)base;
    if (base->ended || base->fault.code != 0)
        return true; /* or it never will */
    if (peer->head != peer->tail)
        return false;
    if (peer->arrived == peer->sent)
        return true;
    if (peer->asked != peer->sent + 1
        && write_wireup(peer, PC_FABRIC_WIREUP_LEAVING, peer->sent) == PC_OK)
        peer->asked = peer->sent + 1;
    return false;
}

static bool is_hello(const struct pc_fabric_net *w, const struct pc_fabric_wireup *message)
{
    size_t nbytes;
    pc__fabric_slots(w, NULL, &nbytes);
    if (message->slots_gpu == 1) /* a device communicator has no transfers of the CPU */
        nbytes = PC_MAX_CHANNELS * w->base.comm->layout.channel;
    return message->window >= PC_FABRIC_LEAST_WINDOW && message->window <= PC_FABRIC_WINDOW
           && message->fragment == PC_FABRIC_FRAGMENT && message->address_bytes > 0
           && message->address_bytes <= PC_FABRIC_ADDRESS
           && message->reads_bytes <= PC_FABRIC_ADDRESS
           && memchr(message->provider, 0, sizeof message->provider) != NULL
           && (message->slots_bytes == 0 || message->slots_bytes == nbytes)
           && message->slots_gpu <= (message->slots_bytes != 0)
           && message->joins + message->slots_gpu <= 1
           && message->joins <= (message->slots_bytes != 0)
           && message->format == w->endpoint.info->addr_format;
}

/* Whether every message can be written, which goes in no packet. */
static bool writes_all(const struct pc_fabric_net *w, const struct pc_fabric_peer *peer)
{
    return peer->writes
           && w->endpoint.info->ep_attr->max_msg_size >= w->base.comm->layout.slot_bytes;
}

static void handle_hello(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                         const struct pc_fabric_wireup *message)
{
    char why[128];
    const char *mine = w->endpoint.info->fabric_attr->prov_name;
    if (!peer->greeted && memchr(message->provider, 0, sizeof message->provider) != NULL
        && strncmp(message->provider, mine, sizeof message->provider - 1) != 0) {
        snprintf(why, sizeof why, "its libfabric provider is %s, here it is %s", message->provider,
                 mine);
        pc__fabric_peer_leave(w, peer, why);
        return;
    }
    if (peer->greeted || !is_hello(w, message)) {
        pc__fabric_peer_leave(w, peer, "its greeting is not one");
        return;
    }
    if (fi_av_insert(w->endpoint.av, message->address, 1, &peer->address, 0, NULL) != 1) {
        pc__fabric_peer_leave(w, peer, "the address of its endpoint cannot be used (fi_av_insert)");
        return;
    }
    if (message->reads_bytes == 0 || w->reads.ep == NULL
        || fi_av_insert(w->reads.av, message->reads, 1, &peer->reads_at, 0, NULL) != 1)
        peer->reads_at = FI_ADDR_UNSPEC; /* then transfers go by packets */
    peer->greeted = true;
    peer->their_key = message->key;
    peer->writes = peer->slots_mr != NULL && message->slots_bytes != 0;
    peer->slots = message->slots;
    peer->slots_key = message->slots_key;
    peer->slots_gpu = message->slots_gpu;
    /* A write has its places in memory of one kind. */
    peer->joins
        = peer->writes && w->endpoint.joins && message->joins != 0 && peer->base.gpu_out == 0;
    peer->heads_at = message->heads;
    peer->heads_key = message->heads_key;
    peer->window = message->window < w->window ? message->window : w->window;
    if ((peer->slots_gpu || peer->base.gpu_out != 0) && !writes_all(w, peer)) {
        pc__fabric_peer_leave(w, peer,
                              "data here or there is in memory of a GPU, and cannot be written: "
                              "PYCOLL_GPU_RDMA=off on all ranks stages it");
        return;
    }
    peer->tells = true; /* its first packet: both ends learn that there is a way */
    pc__net_dirty(&peer->base);
    pc__net_schedule(&w->base, pc__now());
    w->base.events_pending = true;
}

static void say_arrived(struct pc_fabric_peer *peer)
{
    if (!peer->leaves || peer->received < peer->leaves_at)
        return;
    write_wireup(peer, PC_FABRIC_WIREUP_ARRIVED,
                 peer->received); /* if it cannot be, the peer waits no more */
    peer->leaves = false;
}

static void say_closed(struct pc_fabric_peer *peer)
{
    struct pc_fabric_wireup message
        = {.magic = PC_FABRIC_WIREUP_MAGIC, .kind = PC_FABRIC_WIREUP_CLOSED, .packets = peer->sent};
    for (uint32_t i = 0; i < PC_EDGE_LINES; i++) {
        const struct pc_fifo *f = peer->base.edges[i / PC_LINES].fifo;
        message.counts[i] = (uint32_t)pc__count(&f->in_lines[i % PC_LINES]);
    }
    pc__fabric_wireup_write(&peer->socket, &message);
}

/* The peer is about to close and has no use for it, but calls here wait until it has left. */
static void drop_credit(struct pc_fabric_peer *peer)
{
    uint32_t kept = peer->head;
    for (uint32_t i = peer->head; i != peer->tail; i++) {
        struct pc_fabric_send *out = &peer->queue[i % PC_FABRIC_SENDS];
        if (out->frame.kind == PC_FRAME_CREDIT)
            peer->base.net->credits--;
        else
            peer->queue[kept++ % PC_FABRIC_SENDS] = *out;
    }
    peer->tail = kept;
}

static void handle_wireup(struct pc_fabric_net *w, struct pc_fabric_peer *peer,
                          const struct pc_fabric_wireup *message)
{
    if (message->kind == PC_FABRIC_WIREUP_HELLO) {
        handle_hello(w, peer, message);
    } else if (message->kind == PC_FABRIC_WIREUP_CLOSED) {
        peer->closed = true;
        peer->stopped = true;
        peer->stopped_at = message->packets;
        memcpy(peer->landed, message->counts, sizeof peer->landed);
    } else if (message->kind == PC_FABRIC_WIREUP_STOP) {
        peer->told_to_stop = true;
        drop_credit(peer);
        write_wireup(peer, PC_FABRIC_WIREUP_STOPPED, peer->sent);
        pc__net_schedule(&w->base, pc__now());
    } else if (message->kind == PC_FABRIC_WIREUP_GAVE_UP) {
        /* It ends with its socket, as others do: what it sent before may be on its way. */
        snprintf(peer->gave_up, sizeof peer->gave_up, "it gave up rank %u: %.*s",
                 w->base.comm->options.rank, (int)sizeof message->why - 1, message->why);
    } else if (message->kind == PC_FABRIC_WIREUP_BROKEN_OFF) {
        peer->broke_off = true;
        if (peer->cut_by_read && peer->base.fault.code == 0) {
            peer->cut = 0; /* the read failed for that reason, and nobody is gone */
            pc__net_dirty(&peer->base);
        }
    } else if (!peer->greeted
               || (message->kind == PC_FABRIC_WIREUP_ARRIVED ? message->packets > peer->sent
                                                             : message->packets < peer->received)) {
        pc__fabric_peer_leave(w, peer, "it counts packets that there were not");
    } else if (message->kind == PC_FABRIC_WIREUP_ARRIVED) {
        if (message->packets > peer->arrived)
            peer->arrived = message->packets;
    } else if (message->kind == PC_FABRIC_WIREUP_STOPPED) {
        peer->stopped = true;
        peer->stopped_at = message->packets;
    } else {
        peer->leaves = true;
        peer->leaves_at = message->packets;
        say_arrived(peer);
        if (peer->leaves)
            pc__net_schedule(&w->base, pc__now());
    }
}

int pc__fabric_peer_read(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    struct pc_fabric_wireup message;
    int rc = 0;
    pc__fabric_wireup_flush(&peer->socket);
    while (!peer->base.ended && (rc = pc__fabric_wireup_read(&peer->socket, &message)) > 0)
        handle_wireup(w, peer, &message);
    return rc;
}

void pc__fabric_peer_came(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    if (!peer->up)
        w->base.state.live++;
    peer->up = true;
    say_arrived(peer);
}

void pc__fabric_say(struct pc_fabric_net *w, enum pc_fabric_wireup_kind kind)
{
    for (uint32_t p = 0; p < w->base.comm->options.size; p++) {
        struct pc_fabric_peer *peer = pc__fabric_peer(w, p);
        if (peer != NULL && peer->socket.open)
            write_wireup(peer, kind, 0); /* if it cannot be, it is lost */
    }
}

void pc__fabric_peer_cut(struct pc_fabric_peer *peer, const char *what, const char *why)
{
    struct pc_net_peer *base = &peer->base;
    if (base->ended || base->fault.code != 0)
        return;
    uint64_t now = pc__now();
    if (peer->cut == 0) {
        snprintf(peer->why, sizeof peer->why, "%s: %s", what, why);
        peer->cut = now + PC_LAST_NS;
    }
    /* If it has closed, it has said what it has; if it has only broken off, it is not cut now. */
    pc__fabric_peer_read(net_of(base), peer);
    if (base->ended || peer->cut == 0)
        return;
    if (!peer->closed && now < peer->cut) {
        pc__net_schedule(base->net, now + PC_SHORT_NS);
        return;
    }
    pc__fail(&base->fault, PC_LOST, (int)base->rank, "rank %u is lost: %s", base->rank, peer->why);
    pc__fabric_drop(peer);
    if (peer->socket.open)
        shutdown(peer->socket.fd, SHUT_RDWR); /* both ends read its end, and then leave */
    base->net->events_pending = true;
    pc__net_wake(base->net);
}

void pc__fabric_peer_leave(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *why)
{
    struct pc_net_peer *base = &peer->base;
    if (base->ended)
        return;
    if (base->fault.code == 0)
        pc__fail(&base->fault, PC_LOST, (int)base->rank, "rank %u is lost: %s", base->rank, why);
    pc__fabric_drop(peer);
    w->base.in_flight -= peer->under_way;
    w->partial -= peer->partial;
    peer->partial = 0;
    peer->under_way = 0;
    w->base.state.live -= peer->up;
    w->base.state.connections--;
    peer->up = false;
    pc__fabric_wireup_close(&peer->socket); /* close removes it from the epoll */
    pc__net_end(base);
}

void pc__fabric_peer_give_up(struct pc_fabric_net *w, struct pc_fabric_peer *peer, const char *why)
{
    struct pc_fabric_wireup message
        = {.magic = PC_FABRIC_WIREUP_MAGIC, .kind = PC_FABRIC_WIREUP_GAVE_UP};
    snprintf(message.why, sizeof message.why, "%s", why);
    if (!peer->base.ended)
        (void)pc__fabric_wireup_write(&peer->socket, &message); /* if it cannot be, it is lost */
    pc__fabric_peer_leave(w, peer, why);
}

void pc__fabric_peer_close(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    if (peer->socket.open)
        say_closed(peer);
    pc__fabric_wireup_close(&peer->socket);
    pc__fabric_block_close(w, &peer->sends);
    pc__fabric_block_close(w, &peer->receives);
    pc__fabric_regions_close(w, peer);
    pc__fabric_heads_free(peer);
    free(peer->queue);
    free(peer->come);
}
#endif
