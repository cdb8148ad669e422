/* One stream socket to a remote peer: a queue of frames that leave, and the frame that is coming.
 */
#ifndef PC_TCP_CONNECTION_H
#define PC_TCP_CONNECTION_H
#include "tcp/frame.h"

/* Every frame of a peer fits one queue: all lines of all channels, and a credit for each. */
#define PC_MAX_CONNECTIONS 8u /* per peer */
#define PC_CONNECTION_FRAMES 256u
#define PC_CONNECTION_READ_AHEAD \
    (16u << 10) /* bytes read ahead: many small frames for one system call */
_Static_assert(PC_CONNECTION_FRAMES >= PC_EDGE_CHANNELS * (PC_LINES + 1),
               "a queue holds all frames");

struct pc_tcp_send {
    struct pc_frame frame;
    const char *bytes; /* in the shadow, which does not change before the peer's credit */
};

struct pc_tcp_connection {
    int fd; /* -1: the frames wait for a socket */
    uint32_t peer;
    bool reading; /* more may come */
    bool writing; /* more may go; without a socket too */
    bool full;    /* the socket takes no more at present */

    struct pc_tcp_send *queue; /* a ring; made with the first frame */
    uint32_t head, tail;
    size_t gone; /* bytes of the first frame that have left */

    struct pc_frame frame; /* whose bytes are coming */
    char *into;
    size_t rest;
    size_t begin, end; /* of what was read ahead */
    char *ahead;       /* made with the socket */
};

struct pc_tcp_connection *pc__tcp_connection_new(uint32_t peer);
/* What has not left is lost; the socket is closed. */
void pc__tcp_connection_free(struct pc_tcp_connection *conn);

/* OK, or INVALID when the queue is full: the Program never waits for credit. */
int pc__tcp_connection_push(struct pc_tcp_connection *conn, const struct pc_frame *frame,
                            const char *bytes);
uint32_t pc__tcp_connection_queued(const struct pc_tcp_connection *conn);

/* Sends what the socket takes. A failure ends `writing`, and its text is in `error`. */
int pc__tcp_connection_flush(struct pc_tcp_connection *conn, const struct pc_comm *comm,
                             struct pc_error *error);
/* Takes in what has come. 1: that was all, 0: there may be more. A failure or the end of the stream
 * ends `reading`; LOST when the peer or the network caused it, INVALID when the peer lied. */
int pc__tcp_connection_read(struct pc_tcp_connection *conn, struct pc_comm *comm,
                            struct pc_error *error);
#endif
