/* Remote peers over RDMA: rails, connections and peers. Everything here is touched under
 * wire->lock.
 */
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
#define PC_PENDING_OPS 2048u
#define PC_MAX_FRAGS 8u
#define PC_EDGE_LINES (PC_EDGE_CHANNELS * PC_LINES)
#define PC_REPOST_BATCH 16u /* receives are posted again so many at a time */
_Static_assert(PC_CONNECTION_RECV_WRS >= 2 * PC_EDGE_CHANNELS * PC_LINES + 2 * PC_REPOST_BATCH,
               "no RNR");
_Static_assert(PC_PENDING_OPS >= PC_EDGE_LINES * PC_MAX_FRAGS + 64,
               "all pieces, and reads, fit the queue");

struct pc_send_op { /* a message or a fragment of one: queued, or given to a connection and not
                     * acknowledged
                     */
    struct pc_fifo *fifo; /* NULL: credit alone, a probe, or a read */
    struct pc_rndv *rndv; /* a read; `number` is the peer's address then */
    uint64_t number;
    const char *data;
    uint64_t nbytes;
    uint8_t requests; /* that it took */
    uint8_t frag;
    uint8_t frags; /* of the message; at most PC_MAX_FRAGS */
};

/* A long transfer whose receiver reads it; of the sender only the first members count. */
struct pc_rndv {
    struct pc_rndv *next; /* of the peer's */
    struct pc_verbs_peer *peer;
    struct pc_rcache *rcaches;
    struct pc_rcache_region *cached; /* NULL: by the bounce buffer */
    char *into;
    uint64_t nbytes;
    struct pc_rkey loan;
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

struct pc_verbs_peer { /* a remote peer */
    uint32_t rank;
    struct pc_wireup wireup;
    bool hello_received; /* its HELLO has come */
    bool ended;          /* it has closed, or died: no more wireup messages */
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
    bool reached;             /* a connection has been live */
    uint32_t tries;           /* that have failed since, of all connections */
    uint64_t cut_off;         /* when the last connection failed, or the two were connected; or 0 */
    struct pc_send_op *queue; /* a ring of messages without a connection */
    uint32_t head, tail;
    uint32_t unacknowledged[PC_EDGE_CHANNELS]; /* fragments of messages, queued or on their way */
    uint8_t come[PC_EDGE_LINES]; /* of the message on each line, fragments that have come; bits */
    uint32_t owed;          /* bit per channel: messages were consumed that the peer knows not of */
    uint32_t undeliverable; /* bit per channel: a message never can arrive */
    bool dirty;             /* in the list of peers with something to send */
    struct pc_error fault;
};

struct pc_net {
    struct pc_comm *comm;
    int pid; /* a fork's child must not touch what is the parent's */
    uint32_t nrails;
    struct pc_ib_device rails[PC_MAX_RAILS];
    uint32_t load[PC_MAX_RAILS]; /* connections by each */
    struct pc_verbs_peer *peers; /* by rank */
    struct pc_verbs_peer **dirty;
    uint32_t ndirty;
    uint32_t called, posted; /* fragments of calls and of posted transfers, unacknowledged */
    uint32_t reads;          /* on their way */
    uint32_t in_flight;      /* all send ops that are */
    const struct pc_error *undeliverable; /* a message of a call that never can arrive */
    uint32_t calls;                       /* since completions were looked for */
    uint32_t turns;                       /* of progress */
    bool events_pending;                  /* wireup messages or events wait */
    bool armed[PC_MAX_RAILS]; /* its next message makes the completion channel readable */
    bool pausing;
    bool has_event_thread; /* there is a thread that attends */
    bool connecting;       /* it connects a connection at this moment */
    bool timer_set;        /* the timer is set for what is flying */
    int epoll;             /* wireup messages, ports' events, the timer */
    int pause_epoll;       /* that one, completion channels and the wakeup socket */
    int timer;
    uint64_t due;   /* when something has to be seen to, or 0 */
    uint64_t timed; /* when the timer expires */
    struct pc_net_state state;
    pthread_mutex_t lock;
};

/* What descriptors stand for; smaller numbers are peers'. */
#define PC_EVENT_TIMER (UINT64_C(1) << 32)
#define PC_EVENT_WAKEUP (UINT64_C(2) << 32)
#define PC_EVENT_ASYNC (UINT64_C(3) << 32)
#define PC_EVENT_PORT (UINT64_C(4) << 32) /* plus the rail */
#define PC_EVENT_CQ (UINT64_C(5) << 32)   /* plus the rail */

/* events.c */
/* Offers, goes on, gives up: what is due. Connects, which may take long, only with `join`. */
void pc__handle_due(struct pc_net *w, bool join);
void pc__handle_events(struct pc_net *w); /* wireup messages, events */
/* Gives the lock back, and sets the timer by what is due. */
void pc__net_unlock(struct pc_net *w);

/* connection.c: the life of one queue pair. */
int pc__connection_request(struct pc_net *w, struct pc_verbs_connection *conn);
void pc__connection_requested(struct pc_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                              const struct pc_qp_info *theirs);
void pc__connection_replied(struct pc_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                            const struct pc_qp_info *theirs);
/* CALLED: connects it. Where the peer's address must be found out first, and nobody answers, this
 * takes seconds; the lock is given back meanwhile. */
void pc__connection_connect(struct pc_net *w, struct pc_verbs_connection *conn);
void pc__connection_up(struct pc_net *w, struct pc_verbs_connection *conn);
/* `why` NULL: that was told when it became doomed. */
void pc__connection_fail(struct pc_net *w, struct pc_verbs_connection *conn, const char *why);
void pc__connection_fenced(struct pc_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                           const struct pc_wireup_received *landed);
/* FAILING: goes on when everything posted has come back. */
void pc__connection_drain(struct pc_net *w, struct pc_verbs_connection *conn);
/* Fails it, and destroys its queue pair without waiting for what was posted: only after that does
 * the device touch nothing by it any more, as one in the state ERR may still end what it has begun.
 */
void pc__connection_abort(struct pc_net *w, struct pc_verbs_connection *conn);
/* The peer has ended: the connection as well, and what had not landed is lost. */
void pc__connection_close(struct pc_net *w, struct pc_verbs_connection *conn,
                          const struct pc_wireup_received *landed);
/* What this rank has got of the peer's messages, and why it says so now. */
void pc__received_so_far(struct pc_net *w, const struct pc_verbs_peer *peer, const char *why,
                         struct pc_wireup_received *out);
void pc__schedule(struct pc_net *w, uint64_t when);

/* wr.c: what goes out by a connection, and what comes back. */
bool pc__can_post(const struct pc_verbs_connection *conn);
/* OK, or the connection has failed. `fifo` NULL: a probe. */
int pc__post_message(struct pc_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op);
int pc__post_credit(struct pc_net *w, struct pc_verbs_connection *conn, struct pc_fifo *f);
int pc__post_receives(struct pc_net *w, struct pc_verbs_connection *conn, uint32_t n);
/* Takes in all completions; true when messages or credit had come. */
bool pc__poll_cq(struct pc_net *w);

/* rndv.c: pc_net_ops's lend, borrow, borrowed and release. */
#define PC_BOUNCE_BYTES (UINT64_C(256) << 10)
int pc__rndv_expose(struct pc_net *w, uint32_t rank, const void *at, uint64_t nbytes,
                    struct pc_rkey *loan, struct pc_rndv **out);
int pc__rndv_get(struct pc_net *w, uint32_t rank, void *into, uint64_t nbytes,
                 const struct pc_rkey *loan, struct pc_rndv **out, struct pc_error *error);
int pc__rndv_test(struct pc_net *w, struct pc_rndv *rndv, struct pc_error *error);
void pc__rndv_release(struct pc_net *w, struct pc_rndv *rndv, bool taken);
/* The local key of where it reads to. */
uint32_t pc__rndv_lkey(const struct pc_rndv *rndv, uint32_t rail);
/* One of its reads is done. */
void pc__rndv_read_done(struct pc_net *w, struct pc_rndv *rndv, uint64_t nbytes);
/* One never will be, and is not asked for again. */
void pc__rndv_read_failed(struct pc_net *w, struct pc_rndv *rndv);
void pc__rndv_close_all(struct pc_verbs_peer *peer);

/* peer.c: one remote peer. */
int pc__verbs_peer_wireup(struct pc_net *w, struct pc_verbs_peer *peer, int fd);
void pc__verbs_peer_read(struct pc_net *w, struct pc_verbs_peer *peer);
/* False when no connection takes it now. A long message is cut over several. */
bool pc__verbs_peer_send(struct pc_net *w, struct pc_verbs_peer *peer, const struct pc_send_op *op);
void pc__verbs_peer_queue(struct pc_net *w, struct pc_verbs_peer *peer, const struct pc_send_op *op,
                          bool first);
/* Sends what is queued and the credit that is due; false when something is left. */
bool pc__verbs_peer_flush(struct pc_net *w, struct pc_verbs_peer *peer, bool all_credit);
void pc__verbs_peer_dirty(struct pc_net *w, struct pc_verbs_peer *peer);
/* Nothing more goes to it or comes from it. `landed` is what it said of what had come, or NULL. */
void pc__verbs_peer_fail(struct pc_net *w, struct pc_verbs_peer *peer, int code, const char *why);
void pc__verbs_peer_leave(struct pc_net *w, struct pc_verbs_peer *peer, int code, const char *why,
                          const struct pc_wireup_received *landed);
void pc__verbs_peer_close(struct pc_net *w, struct pc_verbs_peer *peer);
/* Counts a fragment that is queued, or (by -1) one that is acknowledged or never will be. */
void pc__verbs_peer_count_pending(struct pc_net *w, struct pc_verbs_peer *peer,
                                  const struct pc_fifo *f, int by);
/* A message of this FIFO never can arrive. */
void pc__verbs_peer_mark_undeliverable(struct pc_net *w, struct pc_verbs_peer *peer,
                                       const struct pc_fifo *f);
#endif
#endif
