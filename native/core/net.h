/* A network: how a rank reaches peers whose memory it does not map. One folder is one network and
 * exports one const struct pc_net_ops; pc__nets in net/nets.c lists them.
 *
 * Such a peer has a shadow here: private memory laid out as its arena is. What this rank writes
 * there the network carries, with the same addresses, to where it belongs.
 *
 * General C calls the functions of net/net.c, which take net->lock and call the ops. An op is
 * called with the lock held, does not block unless its contract says so, and calls back only the
 * functions marked (op). A network's own structs begin with the general ones: struct pc_tcp_peer {
 * struct pc_net_peer base; ... }.
 *
 * A peer that is lost, or that lied, is no failure until a call needs it: what it has sent before
 * is still received. */
#ifndef PC_NET_H
#define PC_NET_H
#include <pthread.h>
#include "core/layout.h"

struct pc_comm;
struct pc_net;
struct pc_net_peer;
struct pc_rndv; /* one end of a transfer that its receiver reads; the network's own */

#define PC_MAX_FRAGS 8u
#define PC_EDGE_LINES (PC_EDGE_CHANNELS * PC_LINES)
#define PC_PENDING_OPS 2048u /* of a peer */
_Static_assert(PC_PENDING_OPS >= PC_EDGE_LINES * PC_MAX_FRAGS, "all fragments fit the queue");

/* Both directions between this rank and such a peer on one channel, beside its pc_fifo. */
struct pc_net_edge {
    struct pc_net_peer *peer;
    struct pc_fifo *fifo;
    uint64_t put;            /* messages handed to the network */
    uint64_t consumed, told; /* of the other direction: consumed here, and as the peer knows */
    bool ahead;              /* (op) when the last message came, the one before was not consumed:
                              * more may come that memory does not show yet */
    uint32_t pending;        /* fragments that have not left, or are not acknowledged */
    uint8_t come[PC_LINES];  /* of the next message on each line, fragments that have; bits */
};

enum pc_send_kind { PC_SEND_MESSAGE, PC_SEND_CREDIT };

struct pc_send_op { /* what goes out as one unit */
    struct pc_net_edge *edge;
    struct pc_rndv *rndv; /* the op's own */
    uint64_t number;
    const char *data; /* in the shadow; stays as it is until the peer gives the message back */
    uint64_t nbytes;
    uint8_t kind; /* enum pc_send_kind */
    uint8_t frag;
    uint8_t frags;    /* of the message; at most PC_MAX_FRAGS */
    uint8_t requests; /* the op's own */
};

struct pc_net_peer {
    struct pc_net *net;
    uint32_t rank;
    bool ended;             /* nothing more comes, and `fault` says why */
    bool dirty;             /* in net->dirty */
    bool sending;           /* (op) bytes leave anyway, so that credit costs nothing */
    uint32_t owed;          /* bit per channel: messages were consumed that the peer knows not of */
    uint32_t undeliverable; /* bit per channel: a message never can arrive */
    struct pc_error fault;  /* (op) with a code nothing more goes; 0: only what failed last */
    struct pc_send_op *queue; /* a ring of what could not be sent yet */
    uint32_t head, tail;
    struct pc_net_edge edges[PC_EDGE_CHANNELS];
};

struct pc_net {
    const struct pc_net_ops *ops;
    struct pc_comm *comm;
    struct pc_net_peer **peers; /* by rank; NULL: its memory is mapped */
    struct pc_net_peer **dirty; /* those with something to send */
    uint32_t npeers, ndirty;
    uint32_t called, posted; /* fragments of calls and of posted transfers that are pending */
    uint32_t credits;        /* (op) credit alone that has not left */
    uint32_t in_flight;      /* (op) what a device has, whose failure nothing announces */
    const struct pc_error *undeliverable; /* a message of a call that never can arrive */
    uint32_t calls;                       /* since the last poll */
    uint32_t turns;                       /* of progress */
    char *shadows;                        /* of the peers' memory, in order of rank */
    int shadow_fd;
    int epoll;             /* what has to be seen to beside messages; -1: nothing has */
    int pause_epoll;       /* that one, the wakeup socket, and descriptors of messages */
    int timer;             /* in epoll */
    uint64_t due;          /* when handle_due is, or 0 */
    uint64_t timed;        /* when the timer expires */
    bool timer_set;        /* for what is in flight */
    bool events_pending;   /* epoll should be looked at */
    bool has_event_thread; /* somebody looks at it while no call runs */
    bool pausing;          /* a thread sleeps in pc__net_pause */
    int pid;               /* a fork's child must not touch what is the parent's */
    struct pc_net_state state;
    pthread_mutex_t lock;
};

struct pc_net_ops {
    const char *name;
    size_t net_bytes, peer_bytes; /* of the structs that begin with pc_net and pc_net_peer */
    uint32_t yields;              /* a rank yields so often before it sleeps, and is woken */
    uint64_t slow_yield_ns;       /* a yield that takes longer has let a foreign process run */
    uint32_t calls_per_poll; /* messages and credits without a poll in between; 0: any number */
    bool credit_at_sleep;    /* all credit is told before a sleep, not only what is due */

    /* net.c. missing: "" or what keeps this machine from it, and what mends that. open: `options`
     * are the network's own; its text is in comm->error. close: also of a net that failed to open,
     * and in a fork's child; says goodbye. */
    const char *(*missing)(void);
    int (*open)(struct pc_net *net, const void *options, size_t nbytes);
    void (*close)(struct pc_net *net);

    /* peer.c. adopt: an authenticated stream socket to the peer, which is the op's on OK; several
     * may come. send: OK when it was taken, and then it is the op's to tell what becomes of it
     * (pc__net_count, and pc__net_told where credit went along); AGAIN: it waits in the queue; else
     * it fails. flush: pushes out what send only gathered; false when something is left.
     * connections: how many live. settled: all that was sent has arrived, or never will. */
    int (*adopt)(struct pc_net_peer *peer, int fd);
    int (*send)(struct pc_net_peer *peer, const struct pc_send_op *op);
    bool (*flush)(struct pc_net_peer *peer);
    int (*connections)(const struct pc_net_peer *peer);
    bool (*settled)(const struct pc_net_peer *peer);

    /* The next four, or none: a receiver may read a long transfer from where it lies, with nobody's
     * help. expose: lets the peer read, and writes what it must know to, at most PC_INLINE_BYTES;
     * UNMAPPABLE when this memory cannot be had. get: begins to read; AGAIN
     * when it could not begin yet. test: 1 when all of it is
     * here, 0 while it is not, or a code. release: of both ends, `taken` when all was read; else it
     * is broken off, and on return nothing reads that memory, or writes it, any more. */
    int (*expose)(struct pc_net_peer *peer, const void *at, uint64_t nbytes, void *rkey,
                  struct pc_rndv **out);
    int (*get)(struct pc_net_peer *peer, void *into, uint64_t nbytes, const void *rkey,
               struct pc_rndv **out, struct pc_error *error);
    int (*test)(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error);
    void (*release)(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken);

    /* events.c. poll: takes in what has come, of one peer or of all (NULL). arm: before a sleep of
     * at most `ns`, whose new length it returns; 0: something has come. woken: a descriptor of
     * messages has ended the sleep, which takes nothing in. handle_event: a descriptor in
     * net->epoll is ready. handle_due: what is due; sets net->due anew, and may block, with the
     * lock given back, only if `block`. */
    void (*poll)(struct pc_net *net, struct pc_net_peer *only);
    uint64_t (*arm)(struct pc_net *net, uint64_t ns);
    void (*woken)(struct pc_net *net, uint64_t what);
    void (*handle_event)(struct pc_net *net, uint64_t what);
    void (*handle_due)(struct pc_net *net, bool block);
};

extern const struct pc_net_ops *const pc__nets[]; /* nets.c; ends with NULL */

/* net.c: general C calls these, on any thread. */
/* Waits at most `linger_ns` for what has been sent to arrive. NULL: nothing to close. */
void pc__net_close(struct pc_net *net, uint64_t linger_ns);
/* Sends the next message of the edge, whose `nbytes` lie at `data` in the shadow, and raises
 * fifo->sent. The shadow must stay as it is until the peer has given the message back. */
int pc__net_message(struct pc_net_edge *edge, const char *data, uint64_t nbytes,
                    struct pc_error *error);
/* The peer is to be told that `received` messages are consumed. That may be held back for a
 * message to travel with, but not so long that the peer waits for it. */
void pc__net_credit(struct pc_net_edge *edge, uint64_t received);
/* Sends what is due, and takes in what has come from all peers. */
void pc__net_progress(struct pc_net *net);
/* The same of one rank. Why nothing more can come from it, or NULL; of a mapped rank NULL. */
const struct pc_error *pc__net_poll(struct pc_net *net, uint32_t rank);
const struct pc_error *pc__net_fault(struct pc_net *net, uint32_t rank);
/* 1 when the messages of this edge (NULL: of all calls) have left this process, 0 while some have
 * not; a code when a message never can. A call does not wait for posted transfers, nor for credit
 * that stands behind them: who sees to them sees to that. */
int pc__net_drained(struct pc_net *net, const struct pc_net_edge *edge, struct pc_error *error);
/* Sends what was held back, then sleeps until something comes, or a wakeup, or `ns` have passed;
 * true when it was a wakeup. Takes nothing in; one thread at a time. */
bool pc__net_pause(struct pc_net *net, uint64_t ns);

/* (op) What a network tells the general half. */
#define PC_NET_TIMER UINT64_MAX /* what descriptors stand for; smaller numbers are the op's */
#define PC_NET_WAKEUP (UINT64_MAX - 1)
#define PC_NET_EVENTS (UINT64_MAX - 2)
/* In open: something has to be seen to while no thread is inside a call. */
int pc__net_attend(struct pc_net *net);
int pc__net_watch(int epoll, int fd, uint32_t events, uint64_t what);
void pc__net_unlock(struct pc_net *net); /* and sets the timer by what is due */
void pc__net_schedule(struct pc_net *net, uint64_t when);
/* Fragments are pending, or (by -1) one is not any more: it has left, or is acknowledged. */
void pc__net_count(struct pc_net_edge *edge, int by);
void pc__net_told(struct pc_net_edge *edge);          /* the peer is told all credit */
void pc__net_undeliverable(struct pc_net_edge *edge); /* a message of it never can arrive */
void pc__net_dirty(struct pc_net_peer *peer);         /* it has something to send, or room */
void pc__net_queue(struct pc_net_peer *peer, const struct pc_send_op *op, bool first);
/* Nothing more goes to the peer or comes from it, for peer->fault; what is queued is dropped. */
void pc__net_end(struct pc_net_peer *peer);
void pc__net_wake(struct pc_net *net); /* another thread sleeps, maybe for what has happened */

/* edge.c: (op) what came. */
/* A fragment, behind whose bytes and line nothing is missing; true when the message is whole. */
bool pc__edge_frag(struct pc_net_edge *edge, uint32_t line, uint32_t frag, uint32_t frags);
/* What the peer must be told now: it runs ahead, or soon has no room. */
bool pc__edge_due(const struct pc_net_edge *edge, bool all);
/* Whether this rank's transfers hold back their credit themselves, and may be all that it does. */
bool pc__edge_holds_credit(const struct pc_net_edge *edge);
#endif
