/* One stream socket: sends frames from a queue, and receives frames into this rank's arena. */
#include <errno.h>
#include <linux/tcp.h> /* newer than netinet/tcp.h, which has no tcpi_busy_time */
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tcp/tcp.h"

#define PC_READS_AT_ONCE 16 /* recv calls in a row: one peer must not starve the others */

struct pc_tcp_connection *pc__tcp_connection_new(struct pc_tcp_peer *peer)
{
    struct pc_tcp_connection *conn = calloc(1, sizeof *conn);
    if (conn != NULL)
        *conn = (struct pc_tcp_connection){.fd = -1, .peer = peer, .writing = true};
    return conn;
}

void pc__tcp_connection_free(struct pc_tcp_connection *conn)
{
    if (conn == NULL)
        return;
    if (conn->fd >= 0)
        close(conn->fd);
    free(conn->queue);
    free(conn->ahead);
    free(conn);
}

int pc__tcp_connection_watch(struct pc_tcp_connection *conn, int operation)
{
    struct epoll_event event
        = {.events = conn->full ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = conn};
    return epoll_ctl(conn->peer->base.net->pause_epoll, operation, conn->fd, &event);
}

uint32_t pc__tcp_connection_queued(const struct pc_tcp_connection *conn)
{
    return conn->tail - conn->head;
}

int pc__tcp_connection_push(struct pc_tcp_connection *conn, const struct pc_frame *frame,
                            const char *bytes)
{
    if (conn->queue == NULL)
        conn->queue = malloc(PC_CONNECTION_FRAMES * sizeof *conn->queue);
    if (conn->queue == NULL)
        return PC_NOMEM;
    if (pc__tcp_connection_queued(conn) == PC_CONNECTION_FRAMES)
        return PC_AGAIN;
    conn->queue[conn->tail++ % PC_CONNECTION_FRAMES] = (struct pc_tcp_send){*frame, bytes};
    return PC_OK;
}

void pc__tcp_connection_keep(struct pc_tcp_connection *conn, char *keep)
{
    struct pc_tcp_send *out = &conn->queue[(conn->tail - 1) % PC_CONNECTION_FRAMES];
    size_t gone = conn->head + 1 == conn->tail ? conn->gone : 0;
    size_t skip = gone > sizeof out->frame ? gone - sizeof out->frame : 0;
    if (conn->head == conn->tail)
        return;
    memcpy(keep + skip, out->bytes + skip, out->frame.nbytes - skip);
    out->bytes = keep;
}

/* The peer is lost, or the network to it. */
static int lost(const struct pc_tcp_connection *conn, struct pc_error *error, const char *what)
{
    uint32_t rank = conn->peer->base.rank;
    return pc__fail(error, PC_LOST, (int)rank, "rank %u is lost: %s: %s", rank, what,
                    strerror(errno));
}

static void advance(struct pc_tcp_connection *conn, size_t sent)
{
    conn->gone += sent;
    while (conn->head != conn->tail) {
        const struct pc_tcp_send *out = &conn->queue[conn->head % PC_CONNECTION_FRAMES];
        size_t whole = sizeof out->frame + out->frame.nbytes;
        if (conn->gone < whole)
            return;
        conn->gone -= whole;
        conn->head++;
    }
}

int pc__tcp_connection_flush(struct pc_tcp_connection *conn, struct pc_error *error)
{
    while (conn->head != conn->tail) {
        ssize_t n = pc__tcp_send_some(conn);
        if (n >= 0) {
            advance(conn, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            conn->full = true;
            return PC_OK;
        } else if (errno != EINTR) {
            conn->writing = false;
            return lost(conn, error, "send");
        }
    }
    conn->full = false;
    return PC_OK;
}

/* Whether another connection is receiving the same message, and would still write where it lies
 * when it has been taken. */
static bool is_doubled(const struct pc_tcp_connection *conn)
{
    const struct pc_tcp_peer *peer = conn->peer;
    for (uint32_t i = 0; i < peer->nconns; i++) {
        const struct pc_tcp_connection *other = peer->conns[i];
        if (other != conn && other->into != NULL && other->frame.kind == PC_FRAME_MESSAGE
            && other->frame.channel == conn->frame.channel
            && other->frame.count == conn->frame.count)
            return true;
    }
    return false;
}

/* Parses the frames in `ahead`, as far as they are complete. */
static int parse(struct pc_tcp_connection *conn, struct pc_error *error)
{
    struct pc_net_peer *peer = &conn->peer->base;
    struct pc_comm *comm = peer->net->comm;
    int rc = PC_OK;
    for (;;) {
        size_t there = conn->end - conn->begin;
        if (conn->into != NULL) {
            size_t n = pc__smaller(there, conn->rest);
            memcpy(conn->into, conn->ahead + conn->begin, n);
            conn->into += n;
            conn->rest -= n;
            conn->begin += n;
            if (conn->rest != 0)
                return PC_OK;
        } else {
            if (there < sizeof conn->frame)
                return PC_OK;
            memcpy(&conn->frame, conn->ahead + conn->begin, sizeof conn->frame);
            conn->begin += sizeof conn->frame;
            rc = pc__frame_check(peer, &conn->frame, &conn->into, error);
            if (rc != PC_OK)
                return rc;
            if (conn->frame.kind == PC_FRAME_MESSAGE && is_doubled(conn))
                return pc__fail(
                    error, PC_INVALID, (int)peer->rank,
                    "a frame of rank %u holds message %llu, which another connection is "
                    "bringing",
                    peer->rank, (unsigned long long)conn->frame.count);
            conn->rest = conn->frame.nbytes;
            if (conn->rest != 0)
                continue;
        }
        const char *at = pc__tcp_message(conn);
        conn->into = NULL;
        rc = pc__frame_land(peer, &conn->frame, at, error);
        if (rc < 0)
            return rc;
        if (rc > 0) /* another thread: this one is awake */
            pc__wakeup_signal(comm, comm->options.rank);
    }
}

/* Whether the last message came where it was expected. */
static bool has_landed(const struct pc_tcp_connection *conn)
{
    return conn->frame.kind == PC_FRAME_MESSAGE
           && conn->peer->base.edges[conn->frame.channel].landed == conn->frame.count;
}

int pc__tcp_connection_read(struct pc_tcp_connection *conn, struct pc_error *error)
{
    uint32_t rank = conn->peer->base.rank;
    for (int turn = 0; turn < PC_READS_AT_ONCE && conn->reading; turn++) {
        struct iovec parts[PC_SCATTER_PARTS];
        int nparts = pc__tcp_scatter(conn, parts);
        size_t room = 0;
        for (int i = 0; i < nparts; i++)
            room += parts[i].iov_len;
        ssize_t n = nparts == 1 ? recv(conn->fd, parts[0].iov_base, room, MSG_DONTWAIT)
                                : readv(conn->fd, parts, nparts);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 1;
        if (n <= 0) {
            bool within = conn->into != NULL || conn->end != 0;
            conn->reading = false;
            if (n < 0)
                return lost(conn, error, "receive");
            errno = 0;
            return pc__fail(error, PC_LOST, (int)rank, "rank %u is lost: it closed its %s", rank,
                            within ? "connection within a message" : "connection");
        }
        pc__tcp_scattered(conn, (size_t)n);
        int rc = parse(conn, error);
        if (rc != PC_OK) {
            conn->reading = false;
            return rc;
        }
        if ((size_t)n < room)
            return 1;
        if (conn->into == NULL && has_landed(conn)) /* the call may expect the next one, too */
            return 0;
    }
    return 0;
}

/* The time in which all that was on its way waited for the peer to read is none of the network's.
 */
bool pc__tcp_connection_count(const struct pc_tcp_connection *conn, struct pc_link *out)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (conn->fd < 0 || getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0
        || length < offsetof(struct tcp_info, tcpi_sndbuf_limited)) /* Linux before 4.10 */
        return false;
    uint64_t busy = info.tcpi_busy_time, limited = info.tcpi_rwnd_limited;
    *out = (struct pc_link){.sent = info.tcpi_bytes_acked,
                            .busy_ns = busy > limited ? (busy - limited) * UINT64_C(1000) : 0};
    return true;
}
