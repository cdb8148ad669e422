/* A network: how a rank reaches peers whose memory it does not map. One folder is one network and
 * exports one const struct pc_net_ops; pc__nets in net/nets.c lists them.
 *
 * Such a peer has a shadow here: private memory laid out as this rank's record in its arena is.
 * This rank writes a message into the shadow, and the network carries it to the same offset there.
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
struct pc_rndv; /* one end of a rendezvous; each network defines its own */

#define PC_MAX_FRAGS 8u
#define PC_EDGE_LINES (PC_EDGE_CHANNELS * PC_LINES)
#define PC_PENDING_OPS 2048u /* per peer */
/* What a network may write behind a transfer's bytes, from the next whole line on. */
#define PC_TRAILER_BYTES PC_LINE_BYTES
_Static_assert(PC_PENDING_OPS >= PC_EDGE_LINES * PC_MAX_FRAGS, "all fragments fit the queue");

/* A message that a call waits for, and the memory that its bytes are for: the network may receive
 * them there, so that nobody copies them from a slot. */
struct pc_net_expected {
    char *into; /* NULL: it goes to its slot */
    uint64_t nbytes, signature;
    uint64_t count; /* written by the thread of the call alone */
};

/* An edge to a remote peer and the edge back, on one channel: what the network adds to pc_fifo. */
struct pc_net_edge {
    struct pc_net_peer *peer;
    struct pc_fifo *fifo;
    uint64_t put;            /* messages handed to the network */
    uint64_t consumed, told; /* credit of the edge back: consumed here, and told to the peer */
    struct pc_net_expected expected;
    uint64_t landed;        /* count of the last message that came where it was expected */
    uint32_t pending;       /* fragments that have not left or are not acknowledged */
    uint8_t come[PC_LINES]; /* per line, a bit for each fragment of the next message that came */
};

enum pc_send_kind { PC_SEND_MESSAGE, PC_SEND_CREDIT };

struct pc_send_op { /* what a network sends as one unit */
    struct pc_net_edge *edge;
    struct pc_rndv *rndv; /* for the network's use */
    uint64_t number;
    const char *data; /* in the shadow, unchanged until the peer's credit; or lent */
    char *keep;       /* NULL, or data are lent: `send` copies to here, in the shadow, what it has
                         not sent when it returns */
    uint64_t nbytes;
    uint8_t kind; /* enum pc_send_kind */
    uint8_t frag;
    uint8_t frags;    /* how many the message has; at most PC_MAX_FRAGS */
    uint8_t requests; /* for the network's use */
};

/* Memory of a GPU in place of the slots of a device communicator's arena and shadows: for each
 * remote peer, in order of rank, the slots that the peer fills, and those of its shadow. Only NICs
 * and kernels touch it. Lines and credit stay in memory of the host, and so do the slots of a peer
 * whose part cannot be registered. */
struct pc_net_gpu {
    uint64_t at; /* its address on the device, in whole pages; 0: there is none */
    size_t each; /* bytes of a peer's slots */
    int32_t device;
    uint32_t ways; /* that may be tried, of PC_MEM_WAYS */
    /* Called when no NIC can reach it any more; keep: it is not, as a kernel may still write it. */
    void (*free)(int32_t device, uint64_t at);
    bool keep;
};

struct pc_net_peer {
    struct pc_net *net;
    uint32_t rank;
    uint64_t gpu_in, gpu_out; /* device addresses of its slots, and of those of its shadow, or 0 */
    struct pc_error staged;   /* why these are 0 though those of other peers are not; or code 0 */
    bool ended;               /* lost or closed: nothing more comes; `fault` says why */
    bool dirty;               /* in net->dirty */
    bool sending;             /* (op) bytes are being sent, so that credit with them is free */
    uint32_t owed;            /* bit per channel: the peer was not told all credit */
    uint32_t undeliverable;   /* bit per channel: a message can never arrive */
    struct pc_error fault;    /* (op) code 0: only notes a failure; else sending is refused */
    struct pc_send_op *queue; /* a ring of ops that wait to be sent */
    uint32_t head, tail;
    struct pc_net_edge edges[PC_EDGE_CHANNELS];
};

struct pc_net {
    const struct pc_net_ops *ops;
    struct pc_comm *comm;
    struct pc_net_peer **peers; /* by rank; NULL: a mapped peer */
    struct pc_net_peer **dirty; /* peers with something to send */
    uint32_t npeers, ndirty;
    uint32_t called, posted; /* pending fragments: of calls, of posted transfers */
    uint32_t credits;        /* (op) credit frames of their own that have not left */
    uint32_t in_flight;      /* (op) send ops that a device has; no event tells if they fail */
    const struct pc_error *undeliverable; /* not NULL: a message of a call can never arrive */
    _Atomic uint32_t depth; /* messages in flight on an edge, at most, in the calls of now */
    uint32_t calls;         /* calls of net.c since the last poll */
    uint32_t turns;         /* calls of pc__net_progress */
    uint32_t unpolled;      /* calls of pc__net_drained since all peers were polled */
    char *shadows;          /* the shadows of all peers, by rank */
    struct pc_net_gpu gpu;
    bool keeps;          /* (op) after `close`: something may still read these, so they stay */
    int epoll;           /* all events but messages: wireup, ports, the timer; -1: there are none */
    int pause_epoll;     /* for a sleep: `epoll`, the wakeup socket, the descriptors of messages */
    int timer;           /* timerfd, in `epoll` */
    uint64_t due;        /* when handle_due is to be called, or 0 */
    uint64_t timed;      /* when the timer expires, or 0 */
    bool timer_set;      /* the timer was set for `in_flight` */
    bool events_pending; /* `epoll` must be polled soon */
    bool has_event_thread; /* a thread polls `epoll` while no call runs */
    bool pausing;          /* a thread sleeps in pc__net_pause */
    int pid;               /* that opened it: a child of fork must not touch the parent's objects */
    struct pc_net_state state;
    pthread_mutex_t lock;
};

struct pc_net_ops {
    const char *name;
    size_t net_bytes, peer_bytes; /* of the structs that begin with pc_net and pc_net_peer */
    uint32_t yields;              /* how often a rank yields before it sleeps */
    uint32_t polls_per_yield; /* all the time before that, as a poll is a system call; 0: none */
    uint64_t slow_yield_ns;   /* a longer yield has let another process run */
    uint32_t calls_per_poll;  /* at most so many sends without a poll; 0: any number */
    uint32_t frag_bytes;      /* the longest fragment of a transfer; 0: as between mapped ranks */
    uint32_t rndv_from; /* transfers from so many bytes on by rendezvous; 0: as between mapped */
    uint32_t lend_from; /* messages from so many bytes on are lent, as `send` copies; 0: none */

    /* net.c. missing: "", or why this host cannot use the network and what mends that. open:
     * `options` are the network's own; the error is in comm->error. close: tells the peers; called
     * also for a net that failed to open, and in a child of fork. */
    const char *(*missing)(void);
    int (*open)(struct pc_net *net, const void *options, size_t nbytes);
    void (*close)(struct pc_net *net);

    /* peer.c. adopt: takes an authenticated stream socket to the peer, and owns it on OK; several
     * may come. send: OK: the op was taken, and the network reports its end (pc__net_count, and
     * pc__net_told where credit went along); AGAIN: the caller queues it; else it fails. flush:
     * sends what `send` only gathered; false when something is left. connections: how many are up.
     * settled: all that was sent has arrived, or never will. */
    int (*adopt)(struct pc_net_peer *peer, int fd);
    int (*send)(struct pc_net_peer *peer, const struct pc_send_op *op);
    bool (*flush)(struct pc_net_peer *peer);
    int (*connections)(const struct pc_net_peer *peer);
    bool (*settled)(const struct pc_net_peer *peer);
    /* What each connection to the peer has carried, in `out` of PC_MAX_RAILS; returns how many.
     * NULL: the network does not know how long bytes are on their way. */
    uint32_t (*links)(const struct pc_net_peer *peer, struct pc_link *out);

    /* GPUDirect RDMA, or NULL: the network sends from memory of the host. register_gpu: registers
     * net->gpu by pc__net_register_gpu, before any peer is connected, for kernels are told then
     * where slots are, and cannot be told anything else later; UNMAPPABLE: no NIC here reaches it.
     * A message whose bytes came into it is counted when kernels can see them. */
    int (*register_gpu)(struct pc_net *net, struct pc_error *error);

    /* Moves what has come of the edge's expected message to its slot, and receives the rest there.
     * NULL: the network never receives to edge->expected. */
    void (*unexpect)(struct pc_net_edge *edge);

    /* Rendezvous: all four functions, or none. expose: lets the peer read this memory, and writes
     * the `rkey`, at most PC_INLINE_BYTES; UNMAPPABLE when it cannot be registered. get: begins to
     * read; AGAIN: not possible yet. test: 1 when all of it is here, 0 while it is not, or a code.
     * release: at both ends, `taken` when all was read; else it is broken off, and on return
     * nothing reads or writes that memory any more; may take 0.1 s. */
    int (*expose)(struct pc_net_peer *peer, const void *at, uint64_t nbytes, void *rkey,
                  struct pc_rndv **out);
    int (*get)(struct pc_net_peer *peer, void *into, uint64_t nbytes, const void *rkey,
               struct pc_rndv **out, struct pc_error *error);
    int (*test)(struct pc_net_peer *peer, struct pc_rndv *rndv, struct pc_error *error);
    void (*release)(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken);

    /* events.c. poll: receives from one peer or from all (NULL). arm: prepares a sleep of at most
     * `ns`, and returns how long it may be; 0: something has come. woken: a descriptor of messages
     * ended the sleep; receives nothing. handle_event: a descriptor in net->epoll is ready.
     * handle_due: net->due has passed; sets it anew; may block, without the lock, only if `block`.
     */
    void (*poll)(struct pc_net *net, struct pc_net_peer *only);
    uint64_t (*arm)(struct pc_net *net, uint64_t ns);
    void (*woken)(struct pc_net *net, uint64_t what);
    void (*handle_event)(struct pc_net *net, uint64_t what);
    void (*handle_due)(struct pc_net *net, bool block);
};

extern const struct pc_net_ops *const pc__nets[]; /* nets.c; ends with NULL */

/* net.c: general C calls these functions, on any thread. */
/* Waits at most `linger_ns` until all that was sent has arrived, then closes. `net` may be NULL. */
void pc__net_close(struct pc_net *net, uint64_t linger_ns);
/* Sends the next message of the edge and raises fifo->sent. Its `nbytes` lie at `slot` in the
 * shadow, which must not change until the peer's credit for the message; or at `lent` (not NULL),
 * anywhere, and may change once this returns; of a network that does not take it it is copied. */
int pc__net_message(struct pc_net_edge *edge, char *slot, const char *lent, uint64_t nbytes,
                    struct pc_error *error);
/* Credit: `received` messages are consumed. It may be held back to travel with a message, but not
 * so long that the peer waits for it. */
void pc__net_credit(struct pc_net_edge *edge, uint64_t received);
/* The same, but the edge's next message, which follows at once, takes it along. */
void pc__net_credit_along(struct pc_net_edge *edge, uint64_t received);
/* Whether the network receives expected messages where they belong. */
static inline bool pc__net_expects(const struct pc_net *net)
{
    return net->ops->unexpect != NULL;
}

/* Counts what is sent, with the lock: whoever ends a call reads that without, see pc__net_sent. */
static inline void pc__net_add_sent(struct pc_net *net, uint32_t which, uint64_t nbytes)
{
    uint64_t *sent = &net->state.bytes[which];
    __atomic_store_n(sent, *sent + nbytes, __ATOMIC_RELAXED);
}
/* Writes to `bytes` of PC_MAX_RAILS what was sent on each so far; others may read them meanwhile.
 */
void pc__net_sent(const struct pc_net *net, uint64_t *bytes);
/* The next message that the thread of the call waits for. Its memory may be written from now on,
 * until the message has come, or pc__net_unexpect returns. */
void pc__net_expect(struct pc_net_edge *edge, const struct pc_net_expected *expected);
/* Nothing is written any more to where messages were expected: a call has failed. */
void pc__net_unexpect(struct pc_net *net);
/* Has the data of all remote edges go to and from memory of a GPU, once, before any peer is
 * connected, where the network has `register_gpu`. UNMAPPABLE: no NIC reaches it, and the caller
 * keeps it. OK: the net frees it; data of a peer that is `staged` stay in memory of the host. */
int pc__net_gpu(struct pc_net *net, const struct pc_net_gpu *gpu, struct pc_error *error);
/* A call begins, whose longest message has so many bytes: how many may be in flight on an edge
 * follows from that. */
void pc__net_begin(struct pc_net *net, uint64_t longest);
/* Sends what is due, and receives from all peers. */
void pc__net_progress(struct pc_net *net);
/* The same for one rank. Returns why nothing more can come from it, or NULL (always for a mapped
 * peer). pc__net_fault does not poll. */
const struct pc_error *pc__net_poll(struct pc_net *net, uint32_t rank);
const struct pc_error *pc__net_fault(struct pc_net *net, uint32_t rank);
/* 1 when the messages of this edge (NULL: of all calls) have left this process, 0 while some have
 * not; a code when one never can. A call does not wait for posted transfers, nor for credit that is
 * queued behind them: the progress of transfers sends both. */
int pc__net_drained(struct pc_net *net, const struct pc_net_edge *edge, struct pc_error *error);
/* Sends what is due, then sleeps until something comes, or a wakeup, or `ns` have passed;
 * true when it was a wakeup. Receives nothing; one thread at a time. */
bool pc__net_pause(struct pc_net *net, uint64_t ns);

/* (op) The functions that a network calls. */
#define PC_NET_TIMER UINT64_MAX /* epoll data; smaller numbers are the network's */
#define PC_NET_WAKEUP (UINT64_MAX - 1)
#define PC_NET_EVENTS (UINT64_MAX - 2)
/* In `open`: makes net->epoll and the timer, for events while no thread is inside a call. */
int pc__net_attend(struct pc_net *net);
int pc__net_watch(int epoll, int fd, uint32_t events, uint64_t what);
void pc__net_unlock(struct pc_net *net); /* sets the timer first */
void pc__net_schedule(struct pc_net *net, uint64_t when);
/* Adds `by` fragments to those pending; -1: one has left, or was acknowledged. */
void pc__net_count(struct pc_net_edge *edge, int by);
void pc__net_told(struct pc_net_edge *edge);          /* all credit was sent */
void pc__net_undeliverable(struct pc_net_edge *edge); /* a message of it can never arrive */
void pc__net_dirty(struct pc_net_peer *peer); /* it has something to send, or room to send */
void pc__net_queue(struct pc_net_peer *peer, const struct pc_send_op *op, bool first);
/* Has `register_slots` register gpu_in and gpu_out of each peer, both or neither; a peer of which
 * it fails is staged. UNMAPPABLE, and the reason of the first: it failed of all. */
int pc__net_register_gpu(struct pc_net *net,
                         int (*register_slots)(struct pc_net_peer *peer, struct pc_error *error),
                         struct pc_error *error);
/* Ends the peer for peer->fault: nothing more goes to it or comes from it; its queue is dropped. */
void pc__net_end(struct pc_net_peer *peer);
void pc__net_wake(struct pc_net *net); /* wakes a thread in pc__net_pause */

/* edge.c: (op) what has come. */
/* A fragment whose bytes and line are all in memory; true when its message is whole. */
bool pc__edge_frag(struct pc_net_edge *edge, uint32_t line, uint32_t frag, uint32_t frags);
/* Whether credit must be sent now, to a peer that may have `depth` messages in flight; 0: all. */
bool pc__edge_due(const struct pc_net_edge *edge, uint64_t depth);
/* Whether it is an edge of transfers: these hold back credit themselves, so it is sent at once. */
bool pc__edge_holds_credit(const struct pc_net_edge *edge);
#endif
