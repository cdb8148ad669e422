/* The network of stream sockets. A peer has one or more connections, each with a queue of frames
 * that leave, and the frame that is coming. */
#ifndef PC_TCP_H
#define PC_TCP_H
#include <sys/uio.h>
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
    struct pc_tcp_peer *peer;
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

struct pc_tcp_peer {
    struct pc_net_peer base;
    struct pc_tcp_connection *conns[PC_MAX_CONNECTIONS]; /* the first may have no socket yet */
    uint32_t nconns;
    uint32_t reading; /* connections that are */
};

/* connection.c */
struct pc_tcp_connection *pc__tcp_connection_new(struct pc_tcp_peer *peer);
/* What has not left is lost; the socket is closed. */
void pc__tcp_connection_free(struct pc_tcp_connection *conn);

/* OK, or AGAIN when the queue is full. */
int pc__tcp_connection_push(struct pc_tcp_connection *conn, const struct pc_frame *frame,
                            const char *bytes);
uint32_t pc__tcp_connection_queued(const struct pc_tcp_connection *conn);
/* EPOLL_CTL_*: wakes a rank that sleeps when more comes, and when the socket takes more again. */
int pc__tcp_connection_watch(struct pc_tcp_connection *conn, int operation);

/* Sends what the socket takes. A failure ends `writing`, and its text is in `error`. */
int pc__tcp_connection_flush(struct pc_tcp_connection *conn, struct pc_error *error);
/* Takes in what has come. 1: that was all, 0: there may be more. A failure or the end of the stream
 * ends `reading`; LOST when the peer or the network caused it, INVALID when the peer lied. */
int pc__tcp_connection_read(struct pc_tcp_connection *conn, struct pc_error *error);

/* memory.c */
/* Sends from what is queued; returns what send() does. */
ssize_t pc__tcp_send_some(const struct pc_tcp_connection *conn);
/* Where the next bytes go: the rest of a message straight into its place, all else ahead. */
int pc__tcp_scatter(struct pc_tcp_connection *conn, struct iovec *parts);

/* peer.c: pc_net_ops's adopt, send, flush, connections and settled. */
int pc__tcp_adopt(struct pc_net_peer *peer, int fd);
int pc__tcp_send(struct pc_net_peer *peer, const struct pc_send_op *op);
bool pc__tcp_flush(struct pc_net_peer *peer);
int pc__tcp_connections(const struct pc_net_peer *peer);
bool pc__tcp_settled(const struct pc_net_peer *peer);
void pc__tcp_peer_flush(struct pc_tcp_connection *conn); /* one connection's queue */
/* A connection has ended for `error`. */
void pc__tcp_peer_lose(struct pc_tcp_connection *conn, const struct pc_error *error);

/* events.c: pc_net_ops's poll, arm and woken. */
void pc__tcp_poll(struct pc_net *net, struct pc_net_peer *only);
uint64_t pc__tcp_arm(struct pc_net *net, uint64_t ns);
void pc__tcp_woken(struct pc_net *net, uint64_t what);
#endif
