/* One stream socket: frames out of a queue, frames into this rank's memory. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "tcp/connection.h"

#define PC_FRAMES_AT_ONCE 16
#define PC_PAGES_FROM (32u << 10)
#define PC_READS_AT_ONCE 16 /* so that one peer does not keep this rank from the others */

struct pc_tcp_connection *pc__tcp_connection_new(uint32_t peer)
{
    struct pc_tcp_connection *link = calloc(1, sizeof *link);
    if (link != NULL)
        *link = (struct pc_tcp_connection){.fd = -1, .peer = peer, .writing = true};
    return link;
}

void pc__tcp_connection_free(struct pc_tcp_connection *link)
{
    if (link == NULL)
        return;
    if (link->fd >= 0)
        close(link->fd);
    free(link->queue);
    free(link->ahead);
    free(link);
}

uint32_t pc__tcp_connection_queued(const struct pc_tcp_connection *link)
{
    return link->tail - link->head;
}

int pc__tcp_connection_push(struct pc_tcp_connection *link, const struct pc_frame *frame,
                            const char *bytes)
{
    if (link->queue == NULL)
        link->queue = malloc(PC_CONNECTION_FRAMES * sizeof *link->queue);
    if (link->queue == NULL)
        return PC_NOMEM;
    if (pc__tcp_connection_queued(link) == PC_CONNECTION_FRAMES)
        return PC_INVALID;
    link->queue[link->tail++ % PC_CONNECTION_FRAMES] = (struct pc_tcp_send){*frame, bytes};
    return PC_OK;
}

/* A peer that is gone, or the way to it. */
static int lost(const struct pc_tcp_connection *link, struct pc_error *error, const char *what)
{
    return pc__fail(error, PC_LOST, (int)link->peer, "rank %u is lost: %s: %s", link->peer, what,
                    strerror(errno));
}

/* The pages of a large message are sent themselves: they do not change before the peer's credit,
 * which is to say, before the peer has read them. */
static bool by_page(const struct pc_tcp_send *out)
{
    return out->frame.nbytes >= PC_PAGES_FROM;
}

/* Describes what is queued, from the first byte that has not left, up to what is sent by page. */
static int gather(const struct pc_tcp_connection *link, struct iovec *parts, bool *more)
{
    int n = 0;
    size_t skip = link->gone;
    for (uint32_t i = link->head; i != link->tail && n < 2 * PC_FRAMES_AT_ONCE; i++) {
        const struct pc_tcp_send *out = &link->queue[i % PC_CONNECTION_FRAMES];
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

static void advance(struct pc_tcp_connection *link, size_t sent)
{
    link->gone += sent;
    while (link->head != link->tail) {
        const struct pc_tcp_send *out = &link->queue[link->head % PC_CONNECTION_FRAMES];
        size_t whole = sizeof out->frame + out->frame.nbytes;
        if (link->gone < whole)
            return;
        link->gone -= whole;
        link->head++;
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
static ssize_t send_some(const struct pc_tcp_connection *link, const struct pc_comm *comm)
{
    const struct pc_tcp_send *first = &link->queue[link->head % PC_CONNECTION_FRAMES];
    size_t header = sizeof first->frame;
    if (by_page(first) && link->gone >= header) {
        size_t skip = link->gone - header;
        return send_pages(link->fd, comm->shadow_fd, first->bytes + skip - comm->shadows,
                          first->frame.nbytes - skip);
    }
    struct iovec parts[2 * PC_FRAMES_AT_ONCE];
    bool more = false;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(link, parts, &more)};
    return sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
}

int pc__tcp_connection_flush(struct pc_tcp_connection *link, const struct pc_comm *comm,
                             struct pc_error *error)
{
    while (link->head != link->tail) {
        ssize_t n = send_some(link, comm);
        if (n >= 0) {
            advance(link, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            link->full = true;
            return PC_OK;
        } else if (errno != EINTR) {
            link->writing = false;
            return lost(link, error, "send");
        }
    }
    link->full = false;
    return PC_OK;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Takes frames out of what was read ahead, as far as it goes. */
static int parse(struct pc_tcp_connection *link, struct pc_comm *comm, struct pc_error *error)
{
    int rc = PC_OK;
    for (;;) {
        size_t there = link->end - link->begin;
        if (link->into != NULL) {
            size_t n = smaller(there, link->rest);
            memcpy(link->into, link->ahead + link->begin, n);
            link->into += n;
            link->rest -= n;
            link->begin += n;
            if (link->rest != 0)
                return PC_OK;
        } else {
            if (there < sizeof link->frame)
                return PC_OK;
            memcpy(&link->frame, link->ahead + link->begin, sizeof link->frame);
            link->begin += sizeof link->frame;
            rc = pc__frame_check(comm, link->peer, &link->frame, &link->into, error);
            if (rc != PC_OK)
                return rc;
            link->rest = link->frame.nbytes;
            if (link->rest != 0)
                continue;
        }
        link->into = NULL;
        rc = pc__frame_land(comm, link->peer, &link->frame, error);
        if (rc < 0)
            return rc;
        if (rc > 0) /* another thread, or this one would not be here */
            pc__wakeup_signal(comm, comm->options.rank);
    }
}

/* Where the next bytes go: the rest of a message straight into its place, all else ahead. */
static int scatter(struct pc_tcp_connection *link, struct iovec *parts)
{
    int n = 0;
    size_t there
        = link->end - link->begin; /* less than a header; nothing while bytes are awaited */
    if (there != 0)
        memmove(link->ahead, link->ahead + link->begin, there);
    link->begin = 0;
    link->end = there;
    if (link->into != NULL)
        parts[n++] = (struct iovec){link->into, link->rest};
    parts[n++] = (struct iovec){link->ahead + there, PC_CONNECTION_READ_AHEAD - there};
    return n;
}

static void take(struct pc_tcp_connection *link, size_t nbytes)
{
    size_t n = link->into == NULL ? 0 : smaller(nbytes, link->rest);
    if (n != 0) {
        link->into += n;
        link->rest -= n;
    }
    link->end += nbytes - n;
}

int pc__tcp_connection_read(struct pc_tcp_connection *link, struct pc_comm *comm,
                            struct pc_error *error)
{
    for (int turn = 0; turn < PC_READS_AT_ONCE && link->reading; turn++) {
        struct iovec parts[2];
        int nparts = scatter(link, parts);
        size_t room = parts[0].iov_len + (nparts > 1 ? parts[1].iov_len : 0);
        ssize_t n = nparts == 1 ? recv(link->fd, parts[0].iov_base, room, MSG_DONTWAIT)
                                : readv(link->fd, parts, nparts);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 1;
        if (n <= 0) {
            bool within = link->into != NULL || link->end != 0;
            link->reading = false;
            if (n < 0)
                return lost(link, error, "receive");
            errno = 0;
            return pc__fail(error, PC_LOST, (int)link->peer, "rank %u is lost: it closed its %s",
                            link->peer, within ? "connection within a message" : "connection");
        }
        take(link, (size_t)n);
        int rc = parse(link, comm, error);
        if (rc != PC_OK) {
            link->reading = false;
            return rc;
        }
        if ((size_t)n < room)
            return 1;
    }
    return 0;
}
