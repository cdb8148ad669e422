/* One remote peer: its connections, and the choice of one for each message. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tcp/tcp.h"

#define PC_STRIPE_BYTES (64u << 10) /* longer messages go round-robin over the sockets */

/* The first connection of a peer, which queues frames even before it has a socket. */
static struct pc_tcp_connection *first_connection(struct pc_tcp_peer *peer)
{
    if (peer->nconns == 0 && (peer->conns[0] = pc__tcp_connection_new(peer)) != NULL)
        peer->nconns = 1;
    return peer->nconns == 0 ? NULL : peer->conns[0];
}

/* The connection that gets the next socket, or NULL. */
static struct pc_tcp_connection *free_connection(struct pc_tcp_peer *peer)
{
    struct pc_tcp_connection *conn = first_connection(peer);
    if (conn == NULL || (conn->fd < 0 && conn->writing))
        return conn;
    if (peer->base.fault.code != 0 || peer->nconns == PC_MAX_CONNECTIONS)
        return NULL;
    if (peer->conns[peer->nconns] == NULL) /* else it is left from an `adopt` that failed */
        peer->conns[peer->nconns] = pc__tcp_connection_new(peer);
    return peer->conns[peer->nconns];
}

int pc__tcp_adopt(struct pc_net_peer *base, int fd)
{
    struct pc_tcp_peer *peer = (struct pc_tcp_peer *)base;
    int flags = fcntl(fd, F_GETFL), yes = 1;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return PC_SYSTEM;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes,
               sizeof yes); /* fails on Unix sockets, which have no such delay */
    struct pc_tcp_connection *conn = free_connection(peer);
    if (conn == NULL) { /* too many sockets, or the peer has failed */
        close(fd);
        return PC_OK;
    }
    if (conn->ahead == NULL)
        conn->ahead = malloc(PC_READ_AHEAD + PC_GUESS_TO);
    if (conn->ahead == NULL)
        return PC_NOMEM;
    conn->fd = fd;
    if (pc__tcp_connection_watch(conn, EPOLL_CTL_ADD) != 0) {
        conn->fd = -1;
        return PC_SYSTEM;
    }
    if (conn != peer->conns[0])
        peer->nconns++;
    conn->reading = true;
    peer->reading++;
    return PC_OK;
}

int pc__tcp_connections(const struct pc_net_peer *peer)
{
    return (int)((const struct pc_tcp_peer *)peer)->reading;
}

/* Counts a frame that is queued, or (by -1) one that no longer is. */
static void count(struct pc_net_peer *peer, const struct pc_frame *frame, int by)
{
    if (frame->kind == PC_FRAME_CREDIT)
        peer->net->credits += (uint32_t)by;
    else if (by < 0)
        pc__net_count(&peer->edges[frame->channel], by);
}

/* Drops the queue. Its messages are undeliverable; credit has no use any more. */
static void stop_writing(struct pc_tcp_connection *conn)
{
    struct pc_net_peer *peer = &conn->peer->base;
    for (; conn->head != conn->tail; conn->head++) {
        const struct pc_frame *frame = &conn->queue[conn->head % PC_CONNECTION_FRAMES].frame;
        count(peer, frame, -1);
        if (frame->kind == PC_FRAME_MESSAGE)
            pc__net_undeliverable(&peer->edges[frame->channel]);
    }
    conn->writing = false;
}

static void note(struct pc_net_peer *peer, const struct pc_error *error)
{
    if (peer->fault.code == 0)
        peer->fault = *error;
}

void pc__tcp_peer_lose(struct pc_tcp_connection *conn, const struct pc_error *error)
{
    note(&conn->peer->base, error);
    stop_writing(conn);
    if (--conn->peer->reading == 0)
        pc__net_end(&conn->peer->base);
    else
        pc__net_wake(conn->peer->base.net);
}

void pc__tcp_peer_flush(struct pc_tcp_connection *conn)
{
    struct pc_net_peer *peer = &conn->peer->base;
    struct pc_error error;
    bool was_full = conn->full;
    uint32_t head = conn->head;
    int rc = pc__tcp_connection_flush(conn, &error);
    for (; head != conn->head; head++)
        count(peer, &conn->queue[head % PC_CONNECTION_FRAMES].frame, -1);
    if (pc__tcp_connection_queued(conn) == 0)
        pc__net_wake(peer->net);
    if (rc != PC_OK) {
        note(peer, &error);
        stop_writing(conn);
    }
    if (conn->full != was_full && conn->reading)
        pc__tcp_connection_watch(conn, EPOLL_CTL_MOD);
}

static int push(struct pc_tcp_connection *conn, const struct pc_frame *frame, const char *bytes)
{
    int rc = pc__tcp_connection_push(conn, frame, bytes);
    if (rc == PC_OK)
        count(&conn->peer->base, frame, 1);
    return rc;
}

static int send_credit(struct pc_tcp_connection *conn, struct pc_net_edge *edge)
{
    struct pc_frame frame = pc__frame_credit(edge);
    int rc = conn->writing ? push(conn, &frame, NULL) : PC_OK; /* else credit has no use any more */
    if (rc == PC_OK)
        pc__net_told(edge);
    return rc;
}

int pc__tcp_send(struct pc_net_peer *base, const struct pc_send_op *op)
{
    struct pc_tcp_peer *peer = (struct pc_tcp_peer *)base;
    struct pc_tcp_connection *conn = first_connection(peer);
    if (conn == NULL)
        return PC_NOMEM;
    if (op->kind == PC_SEND_CREDIT)
        return send_credit(conn, op->edge);
    if (op->nbytes >= PC_STRIPE_BYTES)
        conn = peer->conns[op->number % peer->nconns];
    struct pc_frame frame = pc__frame_message(op->edge, op->number, op->nbytes);
    int rc = push(conn, &frame, op->data);
    if (rc != PC_OK)
        return rc;
    pc__net_add_sent(base->net, 0, op->nbytes);
    pc__net_told(op->edge);
    pc__net_dirty(base);
    if ((op->nbytes >= PC_SEND_AT_ONCE || pc__edge_holds_credit(op->edge)) && conn->fd >= 0
        && !conn->full)
        pc__tcp_peer_flush(conn);
    if (op->keep != NULL)
        pc__tcp_connection_keep(conn, op->keep);
    base->sending = pc__tcp_connection_queued(peer->conns[0]) != 0;
    return PC_OK;
}

bool pc__tcp_flush(struct pc_net_peer *base)
{
    const struct pc_tcp_peer *peer = (struct pc_tcp_peer *)base;
    bool more = false;
    for (uint32_t i = 0; i < peer->nconns; i++) {
        struct pc_tcp_connection *conn = peer->conns[i];
        if (conn->fd >= 0 && !conn->full && pc__tcp_connection_queued(conn) != 0)
            pc__tcp_peer_flush(conn);
        more = more || pc__tcp_connection_queued(conn) != 0;
    }
    base->sending = peer->nconns != 0 && pc__tcp_connection_queued(peer->conns[0]) != 0;
    return !more;
}

/* Whether the peer's kernel has acknowledged all bytes. If this rank closed before and one more
 * credit came from the peer, the kernel would answer with a reset, and the bytes would be lost. */
static bool arrived(const struct pc_tcp_connection *conn)
{
    int left = 0, domain = AF_UNIX;
    socklen_t length = sizeof domain;
    if (conn->fd < 0 || !conn->writing)
        return true; /* or it never will be */
    getsockopt(conn->fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
    return domain == AF_UNIX || ioctl(conn->fd, SIOCOUTQ, &left) != 0 || left == 0;
}

bool pc__tcp_settled(const struct pc_net_peer *base)
{
    const struct pc_tcp_peer *peer = (const struct pc_tcp_peer *)base;
    bool settled = true;
    for (uint32_t i = 0; i < peer->nconns; i++)
        settled = settled && arrived(peer->conns[i]);
    return settled;
}

uint32_t pc__tcp_links(const struct pc_net_peer *base, struct pc_link *out)
{
    const struct pc_tcp_peer *peer = (const struct pc_tcp_peer *)base;
    uint32_t n = 0;
    for (uint32_t i = 0; i < peer->nconns; i++)
        n += pc__tcp_connection_count(peer->conns[i], &out[n]);
    return n;
}
