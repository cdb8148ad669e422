/* The network of RDMA verbs: rails, peers and connections (queue pairs), under the net's lock. */
#ifndef PC_VERBS_H
#define PC_VERBS_H
#include "verbs/wireup.h"
#include "verbs/memory.h"
#include "core/target_cpu.h"

#ifdef PC_VERBS

/* At worst a peer has all its lines in flight, and a credit for each message that it has consumed.
 * Its own receive queue has work requests for both, so that it never runs empty (RNR NAK). */
#define PC_CONNECTION_RECV_WRS 512u
#define PC_CONNECTION_SEND_WRS 512u
#define PC_CONNECTION_SEND_OPS 256u
/* Where it shares receives, it is one of many, and its send queue is shorter too: with what goes
 * inline, that is by far the longer of its queues. */
#define PC_SHARING_SEND_WRS 128u
#define PC_CONNECTION_CQ_DEPTH (PC_CONNECTION_RECV_WRS + PC_CONNECTION_SEND_WRS)
#define PC_FLUSH_WRS 4u     /* of a queue pair that flushes */
#define PC_REPOST_BATCH 16u /* receive work requests that are posted together */
#define PC_SRQ_WRS 8191u    /* of a shared receive queue: providers round up to this, less a slot */
_Static_assert(PC_CONNECTION_RECV_WRS >= 2 * PC_EDGE_CHANNELS * PC_LINES + 2 * PC_REPOST_BATCH,
               "no RNR");

/* What the line of a message says, where the message does not lie in its line: the header goes with
 * the last fragment, behind the bytes. It is laid out as the begin of a line, and is written into
 * the line itself where no room is left behind the bytes. */
struct pc_message_header {
    uint64_t signature;
    uint32_t place;
    uint32_t nbytes;
    uint64_t count;  /* the line's, when the message is here */
    uint64_t credit; /* of the edge back */
};
_Static_assert(sizeof(struct pc_message_header) <= PC_TRAILER_BYTES
                   && offsetof(struct pc_message_header, count) == offsetof(struct pc_line, bytes)
                   && sizeof(struct pc_message_header) <= offsetof(struct pc_line, count),
               "a header fits behind a message, and into a line before the count");

/* The rkey of a rendezvous: the sender's address, and a remote key for each of its rails. */
struct pc_rkey {
    uint64_t address;
    uint32_t keys[PC_MAX_RAILS];
};
_Static_assert(sizeof(struct pc_rkey) <= PC_INLINE_BYTES, "it fits a line");

/* One end of a rendezvous. The sender does not use `asked`, `came` and `reads`. */
struct pc_rndv {
    struct pc_rndv *next; /* in the peer's list */
    struct pc_verbs_peer *peer;
    struct pc_rcache *rcaches;
    struct pc_rcache_region *cached; /* NULL: the bounce buffer is used */
    char *into;
    uint64_t nbytes;
    struct pc_rkey rkey;
    uint64_t asked, came; /* bytes */
    uint32_t reads;       /* RDMA reads in flight */
    bool lent;
    bool broken;
};

enum pc_connection_state {
    PC_CONNECTION_DOWN,       /* neither end has a queue pair */
    PC_CONNECTION_REQUESTED,  /* this end has a queue pair, and sent a request */
    PC_CONNECTION_REPLIED,    /* the other end is known: connect the queue pair */
    PC_CONNECTION_CONNECTING, /* a thread connects it without the lock, for up to a second */
    PC_CONNECTION_PROBING,    /* connected; no completion has come yet */
    PC_CONNECTION_UP,
    PC_CONNECTION_DRAINING, /* in ERR: being flushed */
    PC_CONNECTION_FENCED,   /* destroyed here; the peer has not said yet what it received */
    PC_CONNECTION_RELEASED, /* the peer has said it: take back what it did not receive */
};

#define PC_QPN_HALF 12 /* bits of a queue pair number's lower half, and of its upper */
struct pc_srq {        /* a shared receive queue of a rail, see srq.c */
    struct ibv_srq *queue;
    uint32_t max_wr; /* receives that it holds */
    uint32_t spent;  /* receives consumed and not posted again */
    uint32_t pairs;  /* queue pairs that take from it */
    bool unsure;     /* some may be consumed of which no completion tells: fill it up */
    bool failed;     /* it is made anew when it has no queue pair any more */
    struct pc_verbs_connection **owners[1 << PC_QPN_HALF]; /* by both halves of a number */
};

struct pc_verbs_connection { /* a queue pair to a peer, made anew after each failure */
    struct pc_verbs_peer *peer;
    uint32_t index; /* among the peer's connections, the same at both ends */
    uint32_t rail;  /* this rank's */
    uint32_t their_rail;
    enum pc_connection_state state;
    uint32_t turn;
    struct ibv_qp *qp;
    struct pc_qp_info mine, theirs;
    double cost; /* ns per byte of the slower end */
    struct pc_send_op *ops;
    uint32_t head, tail; /* of `ops`; they only grow */
    uint32_t requests;   /* work requests in the send queue */
    uint64_t bytes;      /* posted and not acknowledged */
    uint32_t receives;   /* receive work requests posted */
    uint32_t spent;      /* receive work requests consumed and not posted again */
    bool shares;         /* takes receives from the rail's `srq`; the two counts stay 0 */
    uint32_t polls_then; /* w->polls of its rail when it failed */
    uint32_t seen;       /* `head` when the oldest send op was looked at, see check_progress */
    uint64_t seen_at;    /* when it was first seen so; 0: nothing was in flight */
    bool failed_early;   /* in CONNECTING: it has failed already */
    bool flushed;        /* in DRAINING: the last work request was flushed */
    bool answered;       /* the peer's FENCED for this turn has come */
    struct pc_wireup_received *landed;
    uint64_t since;           /* when it failed, or came up, or was requested */
    uint64_t attempt;         /* when to send the next request */
    uint64_t pause;           /* the backoff before the one after that */
    bool revived;             /* it has been up before */
    char why[PC_WIREUP_TEXT]; /* this end's device, and the reason of the last failure */
};

struct pc_verbs_peer {
    struct pc_net_peer base; /* ended: the wireup socket is closed too */
    struct pc_wireup wireup;
    bool hello_received; /* the peer's HELLO has come */
    bool aborted; /* a transfer was broken off at either end: no connection is made any more */
    struct pc_wireup_hello hello;
    struct ibv_pd *domains[PC_MAX_RAILS]; /* this peer's alone: other peers' keys are void in it */
    struct ibv_mr *lines[PC_MAX_RAILS];   /* in this rank's arena; the peer may write them */
    struct ibv_mr *slots[PC_MAX_RAILS];   /* the same, there or in memory of a GPU */
    struct ibv_mr *shadow[PC_MAX_RAILS];  /* of the peer's slots: the source of RDMA writes */
    struct pc_mr_domains regions[2];      /* by direction; user memory */
    struct pc_rcache *rcaches[2];
    struct pc_rndv *rndvs;
    struct ibv_mr *bounce[PC_MAX_RAILS];
    char *bounce_at;
    bool bouncing;
    struct pc_verbs_connection *conns;
    uint32_t nconns;
    uint32_t live;
    bool reached;     /* a connection has been up */
    uint32_t tries;   /* failed attempts of all connections since `cut_off` */
    uint64_t cut_off; /* since when no connection is up; 0: one is */
};

struct pc_arrival { /* a fragment that came into memory of a GPU, where no kernel may see it yet */
    struct pc_net_edge *edge;
    uint8_t line, frag, frags;
};

/* What a rail has for memory of a GPU: it flushes what it wrote there by an RDMA read of its own,
 * on a queue pair to itself. */
struct pc_gpu_rail {
    struct ibv_mr *memory; /* of the GPU, for the read */
    struct ibv_mr *into;
    uint64_t *word; /* of the host, where the read goes */
    struct ibv_qp *qp;
    uint16_t turn;              /* of the queue pair: how often one was made */
    struct pc_arrival *arrived; /* a row, the oldest first */
    uint32_t narrived, room;
    uint32_t covered; /* of them, by the read that is in flight; 0: none is */
    uint64_t since;   /* when the read was posted */
    uint64_t attempt; /* when to try again after a failure, or 0 */
    uint64_t failing; /* since when none has ended well, or 0 */
};

struct pc_verbs_net {
    struct pc_net base;
    struct pc_verbs_options options;
    uint32_t nrails;
    struct pc_ib_device rails[PC_MAX_RAILS];
    uint32_t load[PC_MAX_RAILS];       /* connections on each rail */
    uint32_t sharing[PC_MAX_RAILS];    /* of those, how many share receives */
    struct pc_srq *srqs[PC_MAX_RAILS]; /* NULL: not needed, or not to be had */
    uint32_t polls[PC_MAX_RAILS];      /* of its completion queue; they only grow */
    uint32_t emptied[PC_MAX_RAILS]; /* the last poll after which it was empty, and all dealt with */
    uint32_t reads;                 /* RDMA reads in flight */
    bool armed[PC_MAX_RAILS];       /* by ibv_req_notify_cq */
    struct pc_gpu_rail gpu[PC_MAX_RAILS];
    bool connecting; /* a thread is in pc__connection_connect */
    bool watching;   /* a look at what is in flight is scheduled */
};

static inline uint32_t pc__send_wrs(const struct pc_verbs_connection *conn)
{
    return conn->shares ? PC_SHARING_SEND_WRS : PC_CONNECTION_SEND_WRS;
}

static inline struct pc_verbs_peer *pc__verbs_peer(const struct pc_verbs_net *w, uint32_t rank)
{
    return (struct pc_verbs_peer *)w->base.peers[rank];
}

/* The epoll data of file descriptors; smaller numbers are the ranks of wireup sockets. */
#define PC_EVENT_PORT (UINT64_C(1) << 32) /* plus the rail */
#define PC_EVENT_CQ (UINT64_C(2) << 32)   /* plus the rail */

/* events.c: pc_net_ops's poll, arm, woken, handle_event and handle_due. */
void pc__verbs_poll(struct pc_net *net, struct pc_net_peer *only);
uint64_t pc__verbs_arm(struct pc_net *net, uint64_t ns);
void pc__verbs_woken(struct pc_net *net, uint64_t what);
void pc__verbs_handle_event(struct pc_net *net, uint64_t what);
/* Requests, drains and gives up. Connects, which may take seconds, only if `block`. */
void pc__verbs_handle_due(struct pc_net *net, bool block);

/* connection.c: the states of one connection. */
int pc__connection_request(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* INVALID: the peer's request does not fit the state of the connection. */
int pc__connection_requested(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                             uint32_t turn, const struct pc_qp_info *theirs);
void pc__connection_replied(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                            const struct pc_qp_info *theirs);
/* In REPLIED: moves the queue pair to RTS. Releases the lock meanwhile, as resolving the peer's
 * address takes seconds where nobody answers. */
void pc__connection_connect(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
void pc__connection_up(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* `why` NULL: the reason is noted already. */
void pc__connection_fail(struct pc_verbs_net *w, struct pc_verbs_connection *conn, const char *why);
/* OK, or NOMEM. */
int pc__connection_fenced(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                          const struct pc_wireup_received *landed);
/* In DRAINING: fences it when all work requests were flushed. */
void pc__connection_drain(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* Fails it, and destroys its queue pair without waiting for the flush: in the state ERR the device
 * may still end what it has begun. */
void pc__connection_abort(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* In RELEASED: takes the last send op that was not acknowledged; false when none is left. */
bool pc__connection_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                              struct pc_send_op *op);
void pc__connection_down(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* The peer has ended: destroys the queue pair. The send ops can still be taken back. */
void pc__connection_close(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* OK; AGAIN: the connection has failed. */
int pc__connection_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                        const struct pc_send_op *op);
void pc__connection_receive(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t n);
/* Fills in which of the peer's messages this rank has received, and why it says so now. */
void pc__received_so_far(const struct pc_verbs_peer *peer, const char *why,
                         struct pc_wireup_received *out);

/* wr.c: work requests and their completions. */
enum pc_event_kind {
    PC_EVENT_RECEIVED,
    PC_EVENT_DATA,    /* the first work request of two: unsignaled, completes only by failing */
    PC_EVENT_SENT,    /* the last work request of a send op */
    PC_EVENT_FLUSHED, /* a rail's read of what it wrote */
    PC_EVENT_SHARED,  /* as RECEIVED, of a shared receive queue: only `qpn` tells by whom */
};

enum pc_imm_kind {
    PC_IMM_CREDIT, /* the low bits of the credit, and nothing else */
    PC_IMM_LINE,   /* the same: the message is in its line, whose count is in memory already */
    PC_IMM_FRAG,   /* a fragment that is not the last */
    PC_IMM_HEADER, /* the last fragment, or the whole message: there is a header */
};

struct pc_event { /* a completion: its work request, and the immediate data */
    uint32_t rank;
    uint32_t qpn;
    uint16_t turn, op;
    uint8_t conn;
    uint8_t kind; /* enum pc_event_kind */
    enum ibv_wc_status status;
    uint8_t channel; /* of the credit or the fragment */
    uint8_t imm;     /* enum pc_imm_kind */
    uint8_t frags, frag, line;
    uint32_t place;  /* of the header in the edge's data, in lines; PC_IMM_NO_PLACE: in the line */
    uint32_t credit; /* the low bits */
};
#define PC_EVENTS_AT_ONCE 16
#define PC_IMM_KIND 27 /* the kind of an immediate begins at this bit */
#define PC_IMM_CREDIT_BITS ((UINT32_C(1) << PC_IMM_KIND) - 1)
#define PC_IMM_NO_PLACE ((UINT32_C(1) << 19) - 1)

bool pc__can_post(const struct pc_verbs_connection *conn);
/* Posts work requests. An errno, or 0. op->edge NULL: a probe, or an RDMA read. */
int pc__wr_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                const struct pc_send_op *op);
int pc__wr_post_receives(struct pc_verbs_connection *conn, uint32_t n);
uint32_t pc__wr_poll(struct pc_ib_device *rail,
                     struct pc_event *out); /* the number of completions */

/* srq.c: the receives that connections of a rail share. */
/* Creates the rail's queue; false: the rail's connections have receives of their own, and
 * w->base.state.unshared says why. */
bool pc__srq_open(struct pc_verbs_net *w, uint32_t rail);
/* All its queue pairs must be destroyed. */
void pc__srq_close(struct pc_verbs_net *w, uint32_t rail);
/* For a new queue pair: OK, or a code when the queue has failed. */
int pc__srq_usable(struct pc_verbs_net *w, uint32_t rail, struct pc_error *error);
/* The connection's queue pair begins to take from the queue: OK, or NOMEM; or it was destroyed. */
int pc__srq_add(struct pc_verbs_net *w, struct pc_verbs_connection *conn, struct pc_error *error);
void pc__srq_remove(struct pc_verbs_net *w, uint32_t rail, uint32_t qpn);
/* A receive was consumed: whose it was, or NULL where that queue pair was destroyed. */
struct pc_verbs_connection *pc__srq_consumed(struct pc_verbs_net *w, uint32_t rail, uint32_t qpn);
/* Posts again what was consumed. `empty`: the completion queue has just been polled empty. */
void pc__srq_refill(struct pc_verbs_net *w, uint32_t rail, bool empty);
/* Asks for an event when half of the receives are consumed. */
void pc__srq_arm(struct pc_verbs_net *w, uint32_t rail);
/* Fails all connections that share it. */
void pc__srq_fail(struct pc_verbs_net *w, uint32_t rail, const char *why);

/* gpu.c: GPUDirect RDMA. */
/* pc_net_ops's register_gpu. */
int pc__verbs_register_gpu(struct pc_net *net, struct pc_error *error);
void pc__verbs_unregister_gpu(struct pc_verbs_net *w);
/* Whether messages that come into memory of a GPU must be flushed. */
static inline bool pc__gpu_flushes(const struct pc_verbs_net *w)
{
    return w->base.gpu.at != 0 && w->base.state.gpu_flush != PC_FLUSH_NONE;
}
/* A fragment has come: it is counted once a flush that begins later has ended. OK, or NOMEM. */
int pc__gpu_arrived(struct pc_verbs_net *w, uint32_t rail, struct pc_net_edge *edge,
                    const struct pc_event *event);
/* Begins or makes a flush for what has come; true when messages became visible. Never blocks. */
bool pc__gpu_flush(struct pc_verbs_net *w);
/* A rail's read has ended; true likewise. */
bool pc__gpu_flushed(struct pc_verbs_net *w, uint32_t rail, const struct pc_event *event);
/* Fails the reads that do not end within `patience` ns. */
void pc__gpu_check(struct pc_verbs_net *w, uint64_t patience);
/* Adds what waits for a flush to what a peer is told to have been received: that it was sent may
 * have been acknowledged, so that nobody could send it again. */
void pc__gpu_received(const struct pc_verbs_peer *peer, struct pc_wireup_received *out);

/* rndv.c: pc_net_ops's expose, get and test. */
#define PC_BOUNCE_BYTES (UINT64_C(256) << 10)
int pc__rndv_expose(struct pc_net_peer *peer, const void *at, uint64_t nbytes, void *rkey,
                    struct pc_rndv **out);
int pc__rndv_get(struct pc_net_peer *peer, void *into, uint64_t nbytes, const void *rkey,
                 struct pc_rndv **out, struct pc_error *error);
int pc__rndv_test(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error);
/* Ends it; true when a read of either end may still be in flight. */
bool pc__rndv_break(struct pc_rndv *rndv, bool taken);
/* An RDMA read has completed. */
void pc__rndv_read_done(struct pc_verbs_net *w, struct pc_rndv *rndv, uint64_t nbytes);
/* An RDMA read failed for good: it is not posted again. */
void pc__rndv_read_failed(struct pc_verbs_net *w, struct pc_rndv *rndv);
void pc__rndv_close_all(struct pc_verbs_peer *peer);

/* peer.c. A peer's slots in memory of a GPU, and those of its shadow, with every rail; or none. */
int pc__verbs_register_slots(struct pc_net_peer *peer, struct pc_error *error);
/* pc_net_ops's adopt, send, flush, connections, settled and release. */
int pc__verbs_adopt(struct pc_net_peer *peer, int fd);
int pc__verbs_send(struct pc_net_peer *peer, const struct pc_send_op *op);
bool pc__verbs_flush(struct pc_net_peer *peer);
int pc__verbs_connections(const struct pc_net_peer *peer);
bool pc__verbs_settled(const struct pc_net_peer *peer);
void pc__verbs_release(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken);
/* OK; 1: its CLOSE lies in peer->wireup; a code: the stream ended, or was no wireup message. */
int pc__verbs_peer_read(struct pc_verbs_net *w, struct pc_verbs_peer *peer);
/* If the connection is RELEASED, queues again what the peer did not receive. */
void pc__verbs_peer_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* Ends the peer. `landed`: what the peer says it has received, or NULL. */
void pc__verbs_peer_fail(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                         const char *why);
void pc__verbs_peer_leave(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                          const char *why, const struct pc_wireup_received *landed);
/* The same, because of what only this rank can know: the peer is told the reason, for which it
 * would else find but a closed connection. */
void pc__verbs_peer_give_up(struct pc_verbs_net *w, struct pc_verbs_peer *peer, const char *why);
void pc__verbs_peer_close(struct pc_verbs_net *w, struct pc_verbs_peer *peer);
#endif
#endif
