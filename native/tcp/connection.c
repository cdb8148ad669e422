/* One stream socket: frames out of a queue, frames into this rank's memory. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "tcp/tcp.h"

#define PC_FRAMES_AT_ONCE 16
#define PC_PAGES_FROM (32u << 10)
#define PC_READS_AT_ONCE 16 /* so that one peer does not keep this rank from the others */

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

/* A peer that is gone, or the way to it. */
static int lost(const struct pc_tcp_connection *conn, struct pc_error *error, const char *what)
{
    uint32_t rank = conn->peer->base.rank;
    return pc__fail(error, PC_LOST, (int)rank, "rank %u is lost: %s: %s", rank, what,
                    strerror(errno));
}

/* The pages of a large message are sent themselves: they do not change before the peer's credit,
 * which is to say, before the peer has read them. */
static bool by_page(const struct pc_tcp_send *out)
{
    return out->frame.nbytes >= PC_PAGES_FROM;
}

/* Describes what is queued, from the first byte that has not left, up to what is sent by page. */
static int gather(const struct pc_tcp_connection *conn, struct iovec *parts, bool *more)
{
    int n = 0;
    size_t skip = conn->gone;
    for (uint32_t i = conn->head; i != conn->tail && n < 2 * PC_FRAMES_AT_ONCE; i++) {
        const struct pc_tcp_send *out = &conn->queue[i % PC_CONNECTION_FRAMES];
        size_t nbytes = out->frame.nbytes, header = sizeof out->frame;
        if (skip < header)
            parts[n++] = (struct iovec){(char *)(uintptr_t)&out->frame + skip, header - skip};
        skip = skip < header ? 0 : skip - header;
        if (by_page(out)) {
            *more = true;
            break;
        }
        if (nbytes > skip)
            parts[n++] = (struct iovec){(char *)(uintptr_t)out->bytes + skip, nbytes - skip};
        skip = 0;
    }
    return n;
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

/* sendfile() has no MSG_NOSIGNAL: the signal of a closed connection is taken before anyone sees it.
 */
static ssize_t send_pages(int fd, int file, off_t at, size_t nbytes)
{
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    ssize_t n = sendfile(fd, file, &at, nbytes);
    int error = errno;
    if (n < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe_signal, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

/* Sends from what is queued; returns what send() does. */
static ssize_t send_some(const struct pc_tcp_connection *conn)
{
    const struct pc_net *net = conn->peer->base.net;
    const struct pc_tcp_send *first = &conn->queue[conn->head % PC_CONNECTION_FRAMES];
    size_t header = sizeof first->frame;
    if (by_page(first) && conn->gone >= header) {
        size_t skip = conn->gone - header;
        return send_pages(conn->fd, net->shadow_fd, first->bytes + skip - net->shadows,
                          first->frame.nbytes - skip);
    }
    struct iovec parts[2 * PC_FRAMES_AT_ONCE];
    bool more = false;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(conn, parts, &more)};
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
}

int pc__tcp_connection_flush(struct pc_tcp_connection *conn, struct pc_error *error)
{
    while (conn->head != conn->tail) {
        ssize_t n = send_some(conn);
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

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Takes frames out of what was read ahead, as far as it goes. */
static int parse(struct pc_tcp_connection *conn, struct pc_error *error)
{
    struct pc_net_peer *peer = &conn->peer->base;
    struct pc_comm *comm = peer->net->comm;
    int rc = PC_OK;
    for (;;) {
        size_t there = conn->end - conn->begin;
        if (conn->into != NULL) {
            size_t n = smaller(there, conn->rest);
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
            conn->rest = conn->frame.nbytes;
            if (conn->rest != 0)
                continue;
        }
        conn->into = NULL;
        rc = pc__frame_land(peer, &conn->frame, error);
        if (rc < 0)
            return rc;
        if (rc > 0) /* another thread, or this one would not be here */
            pc__wakeup_signal(comm, comm->options.rank);
    }
}

/* Where the next bytes go: the rest of a message straight into its place, all else ahead. */
static int scatter(struct pc_tcp_connection *conn, struct iovec *parts)
{
    int n = 0;
    size_t there
        = conn->end - conn->begin; /* less than a header; nothing while bytes are awaited */
    if (there != 0)
        memmove(conn->ahead, conn->ahead + conn->begin, there);
    conn->begin = 0;
    conn->end = there;
    if (conn->into != NULL)
        parts[n++] = (struct iovec){conn->into, conn->rest};
    parts[n++] = (struct iovec){conn->ahead + there, PC_CONNECTION_READ_AHEAD - there};
    return n;
}

static void take(struct pc_tcp_connection *conn, size_t nbytes)
{
    size_t n = conn->into == NULL ? 0 : smaller(nbytes, conn->rest);
    if (n != 0) {
        conn->into += n;
        conn->rest -= n;
    }
    conn->end += nbytes - n;
}

int pc__tcp_connection_read(struct pc_tcp_connection *conn, struct pc_error *error)
{
    uint32_t rank = conn->peer->base.rank;
    for (int turn = 0; turn < PC_READS_AT_ONCE && conn->reading; turn++) {
        struct iovec parts[2];
        int nparts = scatter(conn, parts);
        size_t room = parts[0].iov_len + (nparts > 1 ? parts[1].iov_len : 0);
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
        take(conn, (size_t)n);
        int rc = parse(conn, error);
        if (rc != PC_OK) {
            conn->reading = false;
            return rc;
        }
        if ((size_t)n < room)
            return 1;
    }
    return 0;
}
