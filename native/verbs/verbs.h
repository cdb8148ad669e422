/* The network of RDMA: rails, connections and peers. Everything here is touched under the net's
 * lock. */
#ifndef PC_VERBS_H
#define PC_VERBS_H
#include "verbs/wireup.h"
#include "verbs/memory.h"
#include "core/target_cpu.h"

#ifdef PC_VERBS

/* A peer that runs ahead of this rank has all its lines on the way, and as many credits as there
 * were messages for it to consume: with receives for both it never finds none. */
#define PC_CONNECTION_RECV_WRS 512u
#define PC_CONNECTION_SEND_WRS 512u
#define PC_CONNECTION_SEND_OPS 256u
#define PC_CONNECTION_CQ_DEPTH (PC_CONNECTION_RECV_WRS + PC_CONNECTION_SEND_WRS)
#define PC_REPOST_BATCH 16u /* receives are posted again so many at a time */
_Static_assert(PC_CONNECTION_RECV_WRS >= 2 * PC_EDGE_CHANNELS * PC_LINES + 2 * PC_REPOST_BATCH,
               "no RNR");

/* What its receiver must know: where it lies, and the key to it by each rail of the sender. */
struct pc_rkey {
    uint64_t address;
    uint32_t keys[PC_MAX_RAILS];
};
_Static_assert(sizeof(struct pc_rkey) <= PC_INLINE_BYTES, "it fits a line");

/* A long transfer whose receiver reads it; of the sender only the first members count. */
struct pc_rndv {
    struct pc_rndv *next; /* of the peer's */
    struct pc_verbs_peer *peer;
    struct pc_rcache *rcaches;
    struct pc_rcache_region *cached; /* NULL: by the bounce buffer */
    char *into;
    uint64_t nbytes;
    struct pc_rkey rkey;
    uint64_t asked, came; /* bytes */
    uint32_t reads;       /* on their way */
    bool lent;
    bool broken;
};

enum pc_connection_state {
    PC_CONNECTION_DOWN,       /* neither end has a queue pair */
    PC_CONNECTION_REQUESTED,  /* this end has one; the peer has been told */
    PC_CONNECTION_REPLIED,    /* the other end is known: to be connected */
    PC_CONNECTION_CONNECTING, /* a thread connects it, without the lock: that may take a second */
    PC_CONNECTION_PROBING,    /* both have; nothing has passed yet */
    PC_CONNECTION_UP,
    PC_CONNECTION_DRAINING, /* what was posted is coming back */
    PC_CONNECTION_FENCED,   /* this end has none; what the other end got is awaited */
    PC_CONNECTION_RELEASED, /* that is known: what it has not got is to be taken back */
};

struct pc_verbs_connection { /* a queue pair to a peer, or the place for one */
    struct pc_verbs_peer *peer;
    uint32_t index; /* among the peer's connections; and it is the same at the other end */
    uint32_t rail;  /* of this rank */
    uint32_t their_rail;
    enum pc_connection_state state;
    uint32_t turn;
    struct ibv_qp *qp;
    struct pc_qp_info mine, theirs;
    double cost; /* ns per byte, of the slower end */
    struct pc_send_op *ops;
    uint32_t head, tail; /* of the send ops, ever growing */
    uint32_t requests;   /* in the send queue */
    uint64_t bytes;      /* not acknowledged */
    uint32_t receives;   /* posted */
    uint32_t spent;      /* to be posted again */
    bool failed_early;   /* JOINING: it has failed already */
    bool flushed;        /* FAILING: the last of the requests has come back */
    bool answered;       /* FENCED or BYE has come for this turn */
    struct pc_wireup_received *landed;
    uint64_t since;           /* when it failed, or was set up */
    uint64_t attempt;         /* when to offer it next */
    uint64_t pause;           /* before the attempt after that */
    bool revived;             /* it has been live before */
    char why[PC_WIREUP_TEXT]; /* it failed last, or could not be made: this end's device, reason */
};

struct pc_verbs_peer {
    struct pc_net_peer base; /* ended: no more wireup messages either */
    struct pc_wireup wireup;
    bool hello_received; /* its HELLO has come */
    bool aborted; /* a transfer was broken off, here or there: it gets no connection any more */
    struct pc_wireup_hello hello;
    struct ibv_pd *domains[PC_MAX_RAILS]; /* its own: no key of another peer's opens anything */
    struct ibv_mr *lines[PC_MAX_RAILS];   /* in this rank's arena: what the peer may write */
    struct ibv_mr *slots[PC_MAX_RAILS];
    struct ibv_mr *shadow[PC_MAX_RAILS]; /* of the peer's slots, from which this rank sends */
    struct pc_mr_domains regions[2]; /* by direction: memory of the user that this peer reads, or
                                     into which this rank reads the peer's */
    struct pc_rcache *rcaches[2];
    struct pc_rndv *rndvs;
    struct ibv_mr *bounce[PC_MAX_RAILS];
    char *bounce_at;
    bool bouncing;
    struct pc_verbs_connection *conns;
    uint32_t nconns;
    uint32_t live;
    bool reached;     /* a connection has been live */
    uint32_t tries;   /* that have failed since, of all connections */
    uint64_t cut_off; /* when the last connection failed, or the two were connected; or 0 */
};

struct pc_verbs_net {
    struct pc_net base;
    struct pc_verbs_options options;
    uint32_t nrails;
    struct pc_ib_device rails[PC_MAX_RAILS];
    uint32_t load[PC_MAX_RAILS]; /* connections by each */
    uint32_t reads;              /* on their way */
    bool armed[PC_MAX_RAILS];    /* its next message makes the completion channel readable */
    bool connecting;             /* somebody connects a connection at this moment */
};

static inline struct pc_verbs_peer *pc__verbs_peer(const struct pc_verbs_net *w, uint32_t rank)
{
    return (struct pc_verbs_peer *)w->base.peers[rank];
}

/* What descriptors stand for; smaller numbers are peers'. */
#define PC_EVENT_PORT (UINT64_C(1) << 32) /* plus the rail */
#define PC_EVENT_CQ (UINT64_C(2) << 32)   /* plus the rail */

/* events.c: pc_net_ops's poll, arm, woken, handle_event and handle_due. */
void pc__verbs_poll(struct pc_net *net, struct pc_net_peer *only);
uint64_t pc__verbs_arm(struct pc_net *net, uint64_t ns);
void pc__verbs_woken(struct pc_net *net, uint64_t what);
void pc__verbs_handle_event(struct pc_net *net, uint64_t what);
/* Offers, goes on, gives up. Connects, which may take long, only with `block`. */
void pc__verbs_handle_due(struct pc_net *net, bool block);

/* connection.c: the life of one queue pair. */
int pc__connection_request(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* INVALID: the peer lied. */
int pc__connection_requested(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                             uint32_t turn, const struct pc_qp_info *theirs);
void pc__connection_replied(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                            const struct pc_qp_info *theirs);
/* CALLED: connects it. Where the peer's address must be found out first, and nobody answers, this
 * takes seconds; the lock is given back meanwhile. */
void pc__connection_connect(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
void pc__connection_up(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* `why` NULL: that was told when it became doomed. */
void pc__connection_fail(struct pc_verbs_net *w, struct pc_verbs_connection *conn, const char *why);
/* OK, or NOMEM. */
int pc__connection_fenced(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                          const struct pc_wireup_received *landed);
/* FAILING: goes on when everything posted has come back. */
void pc__connection_drain(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* Fails it, and destroys its queue pair without waiting for what was posted: only after that does
 * the device touch nothing by it any more, as one in the state ERR may still end what it has begun.
 */
void pc__connection_abort(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* RELEASED: the last of what was posted and is not acknowledged; false when nothing is left, and
 * then the connection is down. */
bool pc__connection_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                              struct pc_send_op *op);
void pc__connection_down(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* The peer has ended: the connection as well. What it had posted can be taken back. */
void pc__connection_close(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* OK; AGAIN: the connection has failed. */
int pc__connection_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                        const struct pc_send_op *op);
void pc__connection_receive(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t n);
/* What this rank has got of the peer's messages, and why it says so now. */
void pc__received_so_far(const struct pc_verbs_peer *peer, const char *why,
                         struct pc_wireup_received *out);

/* wr.c: what goes out by a connection, and what comes back. */
enum pc_event_kind {
    PC_EVENT_RECEIVED,
    PC_EVENT_DATA, /* the first of an op's two requests, which is told only when it fails */
    PC_EVENT_SENT, /* and the last */
};

struct pc_event { /* a completion: of which request, and what an immediate says */
    uint16_t rank, turn, op;
    uint8_t conn;
    uint8_t kind; /* enum pc_event_kind */
    enum ibv_wc_status status;
    uint8_t channel; /* of the credit, or of the fragment of the message on a line */
    bool is_frag;
    uint8_t frags, frag, line;
    uint32_t credit; /* the low bits */
};
#define PC_EVENTS_AT_ONCE 16
#define PC_IMM_KIND 27 /* bits of an immediate below its kind */
#define PC_IMM_CREDIT ((UINT32_C(1) << PC_IMM_KIND) - 1)

bool pc__can_post(const struct pc_verbs_connection *conn);
/* An errno, or 0. `edge` NULL: a probe, or a read. */
int pc__wr_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                const struct pc_send_op *op);
int pc__wr_post_receives(struct pc_verbs_connection *conn, uint32_t n);
uint32_t pc__wr_poll(struct pc_ib_device *rail, struct pc_event *out); /* how many there were */

/* rndv.c: pc_net_ops's expose, get and test. */
#define PC_BOUNCE_BYTES (UINT64_C(256) << 10)
int pc__rndv_expose(struct pc_net_peer *peer, const void *at, uint64_t nbytes, void *rkey,
                    struct pc_rndv **out);
int pc__rndv_get(struct pc_net_peer *peer, void *into, uint64_t nbytes, const void *rkey,
                 struct pc_rndv **out, struct pc_error *error);
int pc__rndv_test(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error);
/* It is over; true when something of it may still be under way. */
bool pc__rndv_break(struct pc_rndv *rndv, bool taken);
/* One of its reads is done. */
void pc__rndv_read_done(struct pc_verbs_net *w, struct pc_rndv *rndv, uint64_t nbytes);
/* One never will be, and is not asked for again. */
void pc__rndv_read_failed(struct pc_verbs_net *w, struct pc_rndv *rndv);
void pc__rndv_close_all(struct pc_verbs_peer *peer);

/* peer.c: pc_net_ops's adopt, send, flush, connections, settled and release. */
int pc__verbs_adopt(struct pc_net_peer *peer, int fd);
int pc__verbs_send(struct pc_net_peer *peer, const struct pc_send_op *op);
bool pc__verbs_flush(struct pc_net_peer *peer);
int pc__verbs_connections(const struct pc_net_peer *peer);
bool pc__verbs_settled(const struct pc_net_peer *peer);
void pc__verbs_release(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken);
/* OK; a code: it has ended, or wrote what is no letter; 1: its goodbye lies in peer->wireup. */
int pc__verbs_peer_read(struct pc_verbs_net *w, struct pc_verbs_peer *peer);
/* A connection may have been RELEASED: what had not landed goes by another. */
void pc__verbs_peer_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn);
/* Nothing more goes to it or comes from it. `landed` is what it said of what had come, or NULL. */
void pc__verbs_peer_fail(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                         const char *why);
void pc__verbs_peer_leave(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                          const char *why, const struct pc_wireup_received *landed);
void pc__verbs_peer_close(struct pc_verbs_net *w, struct pc_verbs_peer *peer);
#endif
#endif
