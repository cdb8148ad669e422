/* Gathers frames and their messages, and scatters received bytes into this rank's slots. */
#include <string.h>
#include <sys/socket.h>
#include "tcp/tcp.h"

#define PC_GATHER_PARTS 32 /* two of a message; one of a credit, or of a message begun */

/* Fills the iovec, PC_GATHER_PARTS long, from the first unsent byte of the queue on. */
static size_t gather(const struct pc_tcp_connection *conn, struct iovec *parts)
{
    size_t n = 0, skip = conn->gone;
    for (uint32_t i = conn->head; i != conn->tail && n + 2 <= PC_GATHER_PARTS; i++) {
        const struct pc_tcp_send *out = &conn->queue[i % PC_CONNECTION_FRAMES];
        size_t nbytes = out->frame.nbytes, header = sizeof out->frame;
        if (skip < header)
            parts[n++] = (struct iovec){(char *)(uintptr_t)&out->frame + skip, header - skip};
        skip = skip < header ? 0 : skip - header;
        if (nbytes > skip)
            parts[n++] = (struct iovec){(char *)(uintptr_t)out->bytes + skip, nbytes - skip};
        skip = 0;
    }
    return n;
}

ssize_t pc__tcp_send_some(const struct pc_tcp_connection *conn)
{
    struct iovec parts[PC_GATHER_PARTS];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = gather(conn, parts)};
    return sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Whether the message that is being received goes where a call expects it. */
static bool is_landing(const struct pc_tcp_connection *conn)
{
    return conn->frame.kind == PC_FRAME_MESSAGE
           && pc__tcp_message(conn) == conn->peer->base.edges[conn->frame.channel].expected.into;
}

void pc__tcp_unexpect(struct pc_net_edge *edge)
{
    struct pc_tcp_peer *peer = (struct pc_tcp_peer *)edge->peer;
    struct pc_net_expected expected = edge->expected;
    struct pc_error error;
    edge->expected.into = NULL;
    for (uint32_t i = 0; i < peer->nconns; i++) {
        struct pc_tcp_connection *conn = peer->conns[i];
        size_t come = conn->frame.nbytes - conn->rest;
        char *slot;
        if (conn->into == NULL || conn->frame.channel != edge->fifo->channel
            || pc__tcp_message(conn) != expected.into
            || pc__frame_check(&peer->base, &conn->frame, &slot, &error) != PC_OK)
            continue;
        memcpy(slot, expected.into, come);
        conn->into = slot + come;
    }
}

/* Where the message after the last one goes, if it is as long and of the same channel: then one
 * system call receives its header and its bytes, and these into place. The guess passes the check
 * that the frame itself must pass: its slot is free, so that a wrong guess harms nothing. */
static void guess(struct pc_tcp_connection *conn)
{
    struct pc_frame next = conn->frame;
    struct pc_error error;
    next.count++;
    conn->guess = NULL;
    if (conn->peer->nconns == 1 && next.kind == PC_FRAME_MESSAGE && next.channel < PC_MAX_CHANNELS
        && next.nbytes >= PC_GUESS_FROM && next.nbytes <= PC_GUESS_TO
        && pc__frame_check(&conn->peer->base, &next, &conn->guess, &error) == PC_OK)
        conn->guessed = next.nbytes;
}

int pc__tcp_scatter(struct pc_tcp_connection *conn, struct iovec *parts)
{
    int n = 0;
    size_t there = conn->end - conn->begin; /* less than a header; 0 inside a message */
    if (there != 0)
        memmove(conn->ahead, conn->ahead + conn->begin, there);
    conn->begin = 0;
    conn->end = there;
    conn->guess = NULL;
    if (conn->into != NULL) {
        parts[n++] = (struct iovec){conn->into, conn->rest};
        if (is_landing(conn)) /* so may be what follows, but not yet */
            return n;
    } else if (there == 0)
        guess(conn);
    if (conn->guess != NULL) {
        parts[n++] = (struct iovec){conn->ahead, sizeof conn->frame};
        parts[n++] = (struct iovec){conn->guess, conn->guessed};
        there = sizeof conn->frame;
    }
    parts[n++] = (struct iovec){conn->ahead + there, PC_READ_AHEAD - there};
    return n;
}

/* `nbytes`: of a header, a message as guessed, and what follows. */
static void check_guess(struct pc_tcp_connection *conn, size_t nbytes)
{
    struct pc_frame frame;
    struct pc_error error;
    char *into;
    size_t header = sizeof frame, landed = pc__smaller(nbytes - header, conn->guessed);
    conn->end = nbytes - landed;
    memcpy(&frame, conn->ahead, header);
    if (pc__frame_check(&conn->peer->base, &frame, &into, &error) == PC_OK && into == conn->guess
        && frame.nbytes >= landed) {
        conn->frame = frame;
        conn->begin = header;
        conn->into = into + landed;
        conn->rest = frame.nbytes - landed;
        return;
    }
    char *rest = conn->ahead + header;
    memmove(rest + landed, rest, conn->end - header);
    memcpy(rest, conn->guess, landed);
    conn->end = nbytes;
}

void pc__tcp_scattered(struct pc_tcp_connection *conn, size_t nbytes)
{
    if (conn->guess != NULL && nbytes > sizeof conn->frame) {
        check_guess(conn, nbytes);
        return;
    }
    size_t n = conn->into == NULL ? 0 : pc__smaller(nbytes, conn->rest);
    if (n != 0) {
        conn->into += n;
        conn->rest -= n;
    }
    conn->end += nbytes - n;
}
