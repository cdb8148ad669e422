/* The network of stream sockets. A peer has one or more connections, each with a queue of frames to
 * send, and the frame that is being received. */
#ifndef PC_TCP_H
#define PC_TCP_H
#include <sys/uio.h>
#include "net/frame.h"

/* One queue holds every frame of a peer: all lines of all channels, and a credit for each. */
#define PC_MAX_CONNECTIONS 8u /* per peer */
#define PC_CONNECTION_FRAMES 256u
#define PC_SEND_AT_ONCE 4096u     /* shorter messages are gathered until this rank waits next */
#define PC_READ_AHEAD (16u << 10) /* bytes: one system call reads many small frames */
#define PC_GUESS_FROM 4096u       /* bytes of messages whose place is guessed, see memory.c */
#define PC_GUESS_TO (64u << 10)
_Static_assert(PC_CONNECTION_FRAMES >= PC_EDGE_CHANNELS * (PC_LINES + 1),
               "a queue holds all frames");

struct pc_tcp_send {
    struct pc_frame frame;
    const char
        *bytes; /* in the shadow, unchanged until the peer's credit; or lent to pc__tcp_send */
};

struct pc_tcp_connection {
    int fd; /* -1: no socket yet; frames wait in the queue */
    struct pc_tcp_peer *peer;
    bool reading; /* the socket is open for receiving */
    bool writing; /* open for sending; also before there is a socket */
    bool full;    /* the last send would have blocked */

    struct pc_tcp_send *queue; /* a ring, allocated for the first frame */
    uint32_t head, tail;
    size_t gone; /* bytes of the first frame that were sent */

    struct pc_frame frame; /* being received */
    char *into;
    size_t rest;
    char *guess; /* where the next message's bytes are received, if it is the one expected */
    size_t guessed;
    size_t begin, end; /* of the unparsed bytes in `ahead` */
    char *ahead;       /* PC_READ_AHEAD + PC_GUESS_TO bytes, allocated with the socket */
};

struct pc_tcp_peer {
    struct pc_net_peer base;
    struct pc_tcp_connection *conns[PC_MAX_CONNECTIONS]; /* the first may have no socket yet */
    uint32_t nconns;
    uint32_t reading; /* how many are open for receiving */
};

static inline size_t pc__smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* connection.c: one socket. */
struct pc_tcp_connection *pc__tcp_connection_new(struct pc_tcp_peer *peer);
/* Closes the socket; queued frames are lost. */
void pc__tcp_connection_free(struct pc_tcp_connection *conn);

/* OK, or AGAIN when the queue is full. */
int pc__tcp_connection_push(struct pc_tcp_connection *conn, const struct pc_frame *frame,
                            const char *bytes);
uint32_t pc__tcp_connection_queued(const struct pc_tcp_connection *conn);
/* Copies to `keep` what has not been sent of the last frame's bytes, which were lent. */
void pc__tcp_connection_keep(struct pc_tcp_connection *conn, char *keep);
/* EPOLL_CTL_* on net->pause_epoll: for readable, and for writable if `full`. */
int pc__tcp_connection_watch(struct pc_tcp_connection *conn, int operation);

/* What the kernel has counted of the socket; false: it does not. */
bool pc__tcp_connection_count(const struct pc_tcp_connection *conn, struct pc_link *out);
/* Sends until the socket would block. A failure clears `writing`; its text is in `error`. */
int pc__tcp_connection_flush(struct pc_tcp_connection *conn, struct pc_error *error);
/* Receives. 1: that was all, 0: there may be more. A failure or the end of the stream clears
 * `reading`: LOST when the peer or the network caused it, INVALID when a frame is wrong. */
int pc__tcp_connection_read(struct pc_tcp_connection *conn, struct pc_error *error);

/* memory.c: which bytes are sent, and where received bytes go. */
/* Sends from the queue; returns what send() does. */
ssize_t pc__tcp_send_some(const struct pc_tcp_connection *conn);
#define PC_SCATTER_PARTS 3
/* The iovec of the next receive: a message straight into place, all else into `ahead`. */
int pc__tcp_scatter(struct pc_tcp_connection *conn, struct iovec *parts);
/* So many bytes came there. */
void pc__tcp_scattered(struct pc_tcp_connection *conn, size_t nbytes);
/* Where the first byte of the message lies that is being received. */
static inline char *pc__tcp_message(const struct pc_tcp_connection *conn)
{
    return conn->into - (conn->frame.nbytes - conn->rest);
}
void pc__tcp_unexpect(struct pc_net_edge *edge);

/* peer.c: pc_net_ops's adopt, send, flush, connections, settled and links. */
int pc__tcp_adopt(struct pc_net_peer *peer, int fd);
int pc__tcp_send(struct pc_net_peer *peer, const struct pc_send_op *op);
bool pc__tcp_flush(struct pc_net_peer *peer);
int pc__tcp_connections(const struct pc_net_peer *peer);
bool pc__tcp_settled(const struct pc_net_peer *peer);
uint32_t pc__tcp_links(const struct pc_net_peer *peer, struct pc_link *out);
void pc__tcp_peer_flush(struct pc_tcp_connection *conn); /* sends from one connection's queue */
/* The connection failed by `error`: drops its queue, and ends the peer with its last connection. */
void pc__tcp_peer_lose(struct pc_tcp_connection *conn, const struct pc_error *error);

/* events.c: pc_net_ops's poll, arm and woken. */
void pc__tcp_poll(struct pc_net *net, struct pc_net_peer *only);
uint64_t pc__tcp_arm(struct pc_net *net, uint64_t ns);
void pc__tcp_woken(struct pc_net *net, uint64_t what);
#endif
