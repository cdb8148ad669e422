/* Remote peers over RDMA: rails, paths and partners. Everything here is touched under wire->lock.
 */
#ifndef PC_VERBS_H
#define PC_VERBS_H
#include "verbs/wireup.h"
#include "verbs/memory.h"
#include "core/target_cpu.h"

#ifdef PC_VERBS

/* A peer that runs ahead of this rank has all its lines on the way, and as many credits as there
 * were messages for it to consume: with receives for both it never finds none. */
#define PC_PATH_RECEIVES 512u
#define PC_PATH_SENDS 512u
#define PC_PATH_RECORDS 256u
#define PC_PATH_COMPLETIONS (PC_PATH_RECEIVES + PC_PATH_SENDS)
#define PC_QUEUE 2048u
#define PC_MAX_PIECES 8u
#define PC_EDGE_LINES (PC_EDGE_CHANNELS * PC_LINES)
#define PC_REPOST 16u /* receives are posted again so many at a time */
_Static_assert(PC_PATH_RECEIVES >= 2 * PC_EDGE_CHANNELS * PC_LINES + 2 * PC_REPOST, "no RNR");
_Static_assert(PC_QUEUE >= PC_EDGE_LINES * PC_MAX_PIECES + 64,
               "all pieces, and reads, fit the queue");

struct pc_record { /* a message or a piece of one: queued, or given to a path and not acknowledged
                    */
    struct pc_fifo *fifo; /* NULL: credit alone, a probe, or a read */
    struct pc_pull *pull; /* a read; `number` is the peer's address then */
    uint64_t number;
    const char *data;
    uint64_t nbytes;
    uint8_t requests; /* that it took */
    uint8_t piece;
    uint8_t pieces; /* of the message; at most PC_MAX_PIECES */
};

/* A long transfer whose receiver reads it; of the sender only the first members count. */
struct pc_pull {
    struct pc_pull *next; /* of the partner's */
    struct pc_partner *partner;
    struct pc_pins *pins;
    struct pc_pinned *pinned; /* NULL: by the bounce buffer */
    char *into;
    uint64_t nbytes;
    struct pc_loan loan;
    uint64_t asked, came; /* bytes */
    uint32_t reads;       /* on their way */
    bool lent;
    bool broken;
};

enum pc_path_state {
    PC_PATH_DOWN,    /* neither end has a queue pair */
    PC_PATH_OFFERED, /* this end has one; the peer has been told */
    PC_PATH_CALLED,  /* the other end is known: to be connected */
    PC_PATH_JOINING, /* a thread connects it, without the lock: that may take a second */
    PC_PATH_PROBING, /* both have; nothing has passed yet */
    PC_PATH_LIVE,
    PC_PATH_FAILING, /* what was posted is coming back */
    PC_PATH_FENCED,  /* this end has none; what the other end got is awaited */
};

struct pc_path { /* a queue pair to a partner, or the place for one */
    struct pc_partner *partner;
    uint32_t index; /* among the partner's paths; and it is the same at the other end */
    uint32_t rail;  /* of this rank */
    uint32_t their_rail;
    enum pc_path_state state;
    uint32_t turn;
    struct ibv_qp *qp;
    struct pc_end mine, theirs;
    double cost; /* ns per byte, of the slower end */
    struct pc_record *records;
    uint32_t head, tail; /* of the records, ever growing */
    uint32_t requests;   /* in the send queue */
    uint64_t bytes;      /* not acknowledged */
    uint32_t receives;   /* posted */
    uint32_t spent;      /* to be posted again */
    bool doomed;         /* JOINING: it has failed already */
    bool flushed;        /* FAILING: the last of the requests has come back */
    bool answered;       /* FENCED or BYE has come for this turn */
    struct pc_landed *landed;
    uint64_t since;           /* when it failed, or was set up */
    uint64_t attempt;         /* when to offer it next */
    uint64_t pause;           /* before the attempt after that */
    bool revived;             /* it has been live before */
    char why[PC_LETTER_TEXT]; /* it failed last, or could not be made: this end's device, reason */
};

struct pc_partner { /* a remote peer */
    uint32_t rank;
    struct pc_mail mail;
    bool greeted;   /* its HELLO has come */
    bool ended;     /* it has closed, or died: no more letters */
    bool withdrawn; /* a transfer was broken off, here or there: it gets no path any more */
    struct pc_hello hello;
    struct ibv_pd *domains[PC_MAX_RAILS]; /* its own: no key of another peer's opens anything */
    struct ibv_mr *lines[PC_MAX_RAILS];   /* in this rank's arena: what the peer may write */
    struct ibv_mr *slots[PC_MAX_RAILS];
    struct ibv_mr *shadow[PC_MAX_RAILS]; /* of the peer's slots, from which this rank sends */
    struct pc_regions regions[2]; /* by direction: memory of the user that this peer reads, or
                                     into which this rank reads the peer's */
    struct pc_pins *pins[2];
    struct pc_pull *pulls;
    struct ibv_mr *bounce[PC_MAX_RAILS];
    char *bounce_at;
    bool bouncing;
    struct pc_path *paths;
    uint32_t npaths;
    uint32_t live;
    bool reached;            /* a path has been live */
    uint32_t tries;          /* that have failed since, of all paths */
    uint64_t cut_off;        /* when the last path failed, or the two were connected; or 0 */
    struct pc_record *queue; /* a ring of messages without a path */
    uint32_t head, tail;
    uint32_t unacknowledged[PC_EDGE_CHANNELS]; /* pieces of messages, queued or on their way */
    uint8_t come[PC_EDGE_LINES]; /* of the message on each line, pieces that have come; bits */
    uint32_t owed; /* bit per channel: messages were consumed that the peer knows not of */
    uint32_t torn; /* bit per channel: a message never can arrive */
    bool dirty;    /* in the list of partners with something to send */
    struct pc_error fault;
};

struct pc_wire {
    struct pc_comm *comm;
    int pid; /* a fork's child must not touch what is the parent's */
    uint32_t nrails;
    struct pc_rail rails[PC_MAX_RAILS];
    uint32_t load[PC_MAX_RAILS]; /* paths by each */
    struct pc_partner *partners; /* by rank */
    struct pc_partner **dirty;
    uint32_t ndirty;
    uint32_t called, posted;     /* pieces of calls and of posted transfers, unacknowledged */
    uint32_t reads;              /* on their way */
    uint32_t flying;             /* all records that are */
    const struct pc_error *torn; /* a message of a call that never can arrive */
    uint32_t calls;              /* since completions were looked for */
    uint32_t turns;              /* of progress */
    bool heed;                   /* letters or events wait */
    bool armed[PC_MAX_RAILS];    /* its next message makes the completion channel readable */
    bool pausing;
    bool attended; /* there is a thread that attends */
    bool joining;  /* it connects a path at this moment */
    bool ticking;  /* the timer is set for what is flying */
    int epoll;     /* letters, ports' events, the timer */
    int sleeper;   /* that one, completion channels and the bell */
    int timer;
    uint64_t due;   /* when something has to be seen to, or 0 */
    uint64_t timed; /* when the timer expires */
    struct pc_wire_state state;
    pthread_mutex_t lock;
};

/* What descriptors stand for; smaller numbers are partners'. */
#define PC_TIMER (UINT64_C(1) << 32)
#define PC_BELL (UINT64_C(2) << 32)
#define PC_ATTENTION (UINT64_C(3) << 32)
#define PC_PORT (UINT64_C(4) << 32)     /* plus the rail */
#define PC_MESSAGES (UINT64_C(5) << 32) /* plus the rail */

/* events.c */
/* Offers, goes on, gives up: what is due. Connects, which may take long, only with `join`. */
void pc__tend(struct pc_wire *w, bool join);
void pc__look(struct pc_wire *w); /* letters, events */
/* Gives the lock back, and sets the timer by what is due. */
void pc__unlock_wire(struct pc_wire *w);

/* connection.c: the life of one queue pair. */
int pc__path_offer(struct pc_wire *w, struct pc_path *path);
void pc__path_offered(struct pc_wire *w, struct pc_path *path, uint32_t turn,
                      const struct pc_end *theirs);
void pc__path_answered(struct pc_wire *w, struct pc_path *path, uint32_t turn,
                       const struct pc_end *theirs);
/* CALLED: connects it. Where the peer's address must be found out first, and nobody answers, this
 * takes seconds; the lock is given back meanwhile. */
void pc__path_join(struct pc_wire *w, struct pc_path *path);
void pc__path_live(struct pc_wire *w, struct pc_path *path);
/* `why` NULL: that was told when it became doomed. */
void pc__path_fail(struct pc_wire *w, struct pc_path *path, const char *why);
void pc__path_fenced(struct pc_wire *w, struct pc_path *path, uint32_t turn,
                     const struct pc_landed *landed);
/* FAILING: goes on when everything posted has come back. */
void pc__path_settle(struct pc_wire *w, struct pc_path *path);
/* Fails it, and destroys its queue pair without waiting for what was posted: only after that does
 * the device touch nothing by it any more, as one in the state ERR may still end what it has begun.
 */
void pc__path_withdraw(struct pc_wire *w, struct pc_path *path);
/* The partner has ended: the path as well, and what had not landed is lost. */
void pc__path_end(struct pc_wire *w, struct pc_path *path, const struct pc_landed *landed);
/* What this rank has got of the partner's messages, and why it says so now. */
void pc__landed(struct pc_wire *w, const struct pc_partner *partner, const char *why,
                struct pc_landed *out);
void pc__due(struct pc_wire *w, uint64_t when);

/* wr.c: what goes out by a path, and what comes back. */
bool pc__has_room(const struct pc_path *path);
/* OK, or the path has failed. `fifo` NULL: a probe. */
int pc__post_message(struct pc_wire *w, struct pc_path *path, const struct pc_record *record);
int pc__post_credit(struct pc_wire *w, struct pc_path *path, struct pc_fifo *f);
int pc__post_receives(struct pc_wire *w, struct pc_path *path, uint32_t n);
/* Takes in all completions; true when messages or credit had come. */
bool pc__reap(struct pc_wire *w);

/* rndv.c: pc_remote's lend, borrow, borrowed and release. */
#define PC_BOUNCE_BYTES (UINT64_C(256) << 10)
int pc__pull_lend(struct pc_wire *w, uint32_t peer, const void *at, uint64_t nbytes,
                  struct pc_loan *loan, struct pc_pull **out);
int pc__pull_borrow(struct pc_wire *w, uint32_t peer, void *into, uint64_t nbytes,
                    const struct pc_loan *loan, struct pc_pull **out, struct pc_error *error);
int pc__pull_borrowed(struct pc_wire *w, struct pc_pull *pull, struct pc_error *error);
void pc__pull_release(struct pc_wire *w, struct pc_pull *pull, bool taken);
void pc__pull_forget(struct pc_wire *w, const void *at, uint64_t nbytes);
/* The local key of where it reads to. */
uint32_t pc__pull_key(const struct pc_pull *pull, uint32_t rail);
/* One of its reads is done. */
void pc__pull_came(struct pc_wire *w, struct pc_pull *pull, uint64_t nbytes);
/* One never will be, and is not asked for again. */
void pc__pull_drop(struct pc_wire *w, struct pc_pull *pull);
void pc__pulls_close(struct pc_partner *partner);

/* peer.c: one remote peer. */
int pc__partner_greet(struct pc_wire *w, struct pc_partner *partner, int fd);
void pc__partner_read(struct pc_wire *w, struct pc_partner *partner);
/* False when no path takes it now. A long message is cut over several. */
bool pc__partner_send(struct pc_wire *w, struct pc_partner *partner,
                      const struct pc_record *record);
void pc__partner_queue(struct pc_wire *w, struct pc_partner *partner,
                       const struct pc_record *record, bool first);
/* Sends what is queued and the credit that is due; false when something is left. */
bool pc__partner_flush(struct pc_wire *w, struct pc_partner *partner, bool all_credit);
void pc__partner_dirty(struct pc_wire *w, struct pc_partner *partner);
/* Nothing more goes to it or comes from it. `landed` is what it said of what had come, or NULL. */
void pc__partner_end(struct pc_wire *w, struct pc_partner *partner, int code, const char *why);
void pc__partner_leave(struct pc_wire *w, struct pc_partner *partner, int code, const char *why,
                       const struct pc_landed *landed);
void pc__partner_close(struct pc_wire *w, struct pc_partner *partner);
/* Counts a piece that is queued, or (by -1) one that is acknowledged or never will be. */
void pc__partner_count(struct pc_wire *w, struct pc_partner *partner, const struct pc_fifo *f,
                       int by);
/* A message of this FIFO never can arrive. */
void pc__partner_tear(struct pc_wire *w, struct pc_partner *partner, const struct pc_fifo *f);
#endif
#endif
