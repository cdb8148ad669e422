/* Gathers frames from the shadow, and scatters received bytes into this rank's slots. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include "tcp/tcp.h"

#define PC_FRAMES_AT_ONCE 16
#define PC_PAGES_FROM (32u << 10)

/* Whether sendfile() sends the bytes without a copy. Their pages do not change before the peer's
 * credit, which is to say, before the peer has read them. */
static bool is_zero_copy(const struct pc_tcp_send *out)
{
    return out->frame.nbytes >= PC_PAGES_FROM;
}

/* Fills the iovec from the first unsent byte of the queue up to a message for sendfile(). */
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
        if (is_zero_copy(out)) {
            *more = true;
            break;
        }
        if (nbytes > skip)
            parts[n++] = (struct iovec){(char *)(uintptr_t)out->bytes + skip, nbytes - skip};
        skip = 0;
    }
    return n;
}

/* sendfile() has no MSG_NOSIGNAL: SIGPIPE is blocked, and taken off the queue. */
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

ssize_t pc__tcp_send_some(const struct pc_tcp_connection *conn)
{
    const struct pc_net *net = conn->peer->base.net;
    const struct pc_tcp_send *first = &conn->queue[conn->head % PC_CONNECTION_FRAMES];
    size_t header = sizeof first->frame;
    if (is_zero_copy(first) && conn->gone >= header) {
        size_t skip = conn->gone - header;
        return send_pages(conn->fd, net->shadow_fd, first->bytes + skip - net->shadows,
                          first->frame.nbytes - skip);
    }
    struct iovec parts[2 * PC_FRAMES_AT_ONCE];
    bool more = false;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(conn, parts, &more)};
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
}

int pc__tcp_scatter(struct pc_tcp_connection *conn, struct iovec *parts)
{
    int n = 0;
    size_t there = conn->end - conn->begin; /* less than a header; 0 inside a message */
    if (there != 0)
        memmove(conn->ahead, conn->ahead + conn->begin, there);
    conn->begin = 0;
    conn->end = there;
    if (conn->into != NULL)
        parts[n++] = (struct iovec){conn->into, conn->rest};
    parts[n++] = (struct iovec){conn->ahead + there, PC_CONNECTION_READ_AHEAD - there};
    return n;
}
