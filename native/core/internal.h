/* The engine's own structures. Nothing outside native/ sees them. */
#ifndef PC_INTERNAL_H
#define PC_INTERNAL_H
#include <pthread.h>
#include <stdbool.h>
#include "core/heap.h"
#include "core/layout.h"
#include "reduce/reduce.h"
#include "core/net.h"
#include "core/transport.h"

/* How an instruction that fills a slot should store; see target_cpu.h. */
struct pc_probe {
    uint32_t turn;
    bool stream;      /* past the cache, for now */
    uint64_t cost[2]; /* clock ticks per KiB: through the cache, past it */
};

struct pc_program {
    _Atomic uint32_t references;
    uint32_t root;
    uint32_t flags;
    uint32_t nchunks;
    uint32_t nscratch;
    uint32_t widest;
    uint32_t nchannels;
    uint32_t starts[PC_MAX_CHANNELS];
    uint32_t noperands;
    uint32_t ninstructions;
    bool apart; /* IN and OUT must not be one memory */
    struct pc_vm_instruction *code;
    struct pc_vm_operand *operands;
    struct pc_probe *probes;
};

struct pc_plan {
    struct pc_plan_spec spec;
    struct pc_program *staged;
    struct pc_program *direct; /* or NULL */
    pc_fold_fn fold;
    uint32_t itemsize_log2;
    uint64_t nbytes;            /* of all blocks */
    uint64_t *starts;           /* of blocks in the message, and its end */
    struct pc_chunk *chunks[2]; /* staged, direct */
    struct pc_terms terms[2];
    uint64_t salt; /* of the communicator, when the terms were last salted */
    bool apart;    /* of one of its programs */
    bool adjacent; /* chunk c + 1 lies behind chunk c */
    char *scratch;
};

/* The one call in progress. */
struct pc_call {
    struct pc_comm *comm;
    struct pc_plan *plan;
    struct pc_batch *batch;           /* instead of a plan */
    const struct pc_program *program; /* NULL while READY is being exchanged */
    const struct pc_terms *terms;     /* of the plan, in the form of that program */
    char *in; /* where the message would begin if the array held all of it */
    char *out;
    uint32_t running; /* channels not finished */
    uint32_t ready;   /* peers whose READY has been seen */
    bool all_registered;
    bool active;
    struct pc_error error; /* written by whoever runs the call, read once the communicator broke */
    double timeout;
    uint64_t deadline; /* ns; 0 until the call first has to wait */
    struct pc_channel channels[PC_MAX_CHANNELS];
};

enum pc_work_state { PC_WORK_QUEUED, PC_WORK_FINISHED };

struct pc_work {
    struct pc_comm *comm;
    struct pc_plan *plan;
    char *in;
    char *out;
    struct pc_batch *batch;  /* instead of a plan, until the call has it */
    uint64_t signature;      /* of the batch's call */
    bool refused;            /* instead of either; nobody waits for it */
    struct pc_batch *posted; /* not queued at all: transfers that were posted */
    double timeout;
    char where[232]; /* as long as the board's text */
    struct pc_work *next;
    _Atomic uint32_t state; /* futex; enum pc_work_state */
    int result;
};

struct pc_rndv_ops; /* p2p/p2p.h */

struct pc_peer {
    char *arena; /* of a peer whose memory is not mapped: its shadow */
    bool mapped;
    const struct pc_rndv_ops *rndv; /* long messages are read from where they lie; or NULL */
    _Atomic uint32_t ready; /* messages can reach it; those before wait for the first connection */
    _Atomic uint32_t gone;  /* a mapped rank has left in good order, or died */
    const char *in;         /* READY of the present call */
    char *out;
};

struct pc_comm {
    struct pc_options options;
    struct pc_layout layout;
    struct pc_shm *device;
    struct pc_net *net;    /* NULL where every peer is mapped */
    int wakeup_fd;         /* a socket that is readable when this rank was woken; -1: it has none */
    _Atomic int signal_fd; /* a socket to wake others by theirs, or -1 */
    _Atomic int listening; /* a thread sleeps in pc__net_pause */
    _Atomic int sleepers;  /* threads that sleep, with that one */
    char *arena;
    struct pc_peer *peers;
    uint32_t *neighbours; /* whose memory is mapped, but this rank; known when all are connected */
    uint32_t nneighbours;
    uint32_t nmapped;       /* ranks so far, with this one */
    uint32_t yields;        /* a rank yields so often before it sleeps; with a network only */
    uint64_t slow_yield_ns; /* a yield that takes longer has let a foreign process run */
    struct pc_fifo *fifos;  /* [peer][channel], PC_EDGE_CHANNELS each */
    struct pc_token *dones; /* [peer] */
    struct pc_token locals[PC_MAX_CHANNELS][PC_MAX_CHANNELS];
    uint64_t ready_calls;
    _Atomic uint32_t died; /* 1 + the first rank that died, or 0: transfers with others end, too */
    uint32_t connected;
    bool sealed;
    struct pc_error error;
    uint64_t salt;                      /* of signatures: which calls this rank refused */
    _Atomic int broken;                 /* the code that broke it, or 0 */
    _Atomic(struct pc_error *) failure; /* what broke it: the call's error or the transfers' */
    _Atomic int aborted;
    _Atomic int abort_claimed;
    struct pc_error abort_error;
    _Atomic uintptr_t entered; /* the thread inside a call, or 0 */
    _Atomic uint64_t op_count; /* of calls and messages begun so far, refused ones included */
    _Atomic uint64_t op_count_before; /* those taken when the present call came in from Python */
    struct pc_comm *leader;           /* whose user's calls launches here are, or NULL */
    struct pc_call call;
    _Atomic uint64_t
        yield_after; /* ns: until then a rank that waits sleeps without yielding first */
    _Atomic uint64_t yield_pause; /* ns: how long that was the last time */

    pthread_t thread; /* progress thread, started by the first pc_submit */
    bool threaded;
    _Atomic int stopping;
    pthread_mutex_t queue_lock;
    pthread_cond_t queue_moved;
    struct pc_work *head;
    struct pc_work *tail;
    _Atomic uint32_t queued; /* submitted and not finished */
    uint64_t numbered;       /* the number of the call that was queued last */
    struct pc_work *joined;  /* a blocking call that stands in the queue */

    struct pc_p2p *p2p;
    _Atomic uint32_t posted; /* batches of transfers that are not finished */

    struct pc_heap heap;
};

/* Whether the memory of a rank can be loaded and stored. */
static inline bool pc__mapped(const struct pc_comm *comm, uint32_t rank)
{
    return comm->peers[rank].mapped;
}

/* The same of the peer of an edge: else its signals are the network's. */
static inline bool pc__edge_mapped(const struct pc_fifo *f)
{
    return f->edge == NULL;
}

/* Whether there is more to poll, and to sleep on, than memory. */
static inline bool pc__has_net(const struct pc_comm *comm)
{
    return comm->net != NULL;
}

/* comm.c: where the edges of a peer lie, who is mapped or is reached `by_net`. */
void pc__comm_resolve(struct pc_comm *comm, uint32_t peer, char *theirs, struct pc_net_peer *by_net,
                      const struct pc_rndv_ops *rndv);

/* p2p/: of mapped peers, and by a network that can do it. */
extern const struct pc_rndv_ops pc__cma_rndv, pc__get_rndv;

/* A call that takes longer hands back to its caller, who then looks about. */
#define PC_FIRST_PATIENCE_NS UINT64_C(1000000)

/* memory/mem_events.c: this memory gets other pages now, of which the kernel tells nobody. */
void pc__mem_changed(const void *at, size_t nbytes);

/* error.c */
int pc__fail(struct pc_error *error, int code, int peer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* plan.c */
/* Where part k of a block of `nbytes` bytes begins: multiples of PC_CHUNK_UNIT, as even as those
 * allow. */
uint64_t pc__part_at(uint64_t nbytes, uint32_t nparts, uint32_t k);

static inline uint64_t pc__extent_at(const struct pc_plan *plan, struct pc_extent e)
{
    return e.count ? plan->starts[e.first] : 0;
}

static inline uint64_t pc__extent_bytes(const struct pc_plan *plan, struct pc_extent e)
{
    return plan->starts[e.first + e.count] - plan->starts[e.first];
}

/* progress.c: the caller owns the communicator (comm->entered or the progress thread). */
int pc__call_begin(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                   double timeout);
int pc__progress(struct pc_comm *comm, uint64_t patience_ns);
/* pc_run that only polls: AGAIN soon, and never sleeps. */
int pc__call_try(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                 double timeout);
/* The same for a pairwise batch. */
int pc__call_begin_batch(struct pc_comm *comm, struct pc_batch *batch, uint64_t signature,
                         double timeout);
/* The call that was refused takes its place. */
void pc__refused(struct pc_comm *comm);
uint64_t pc__hash(uint64_t x);
int pc__enter(struct pc_comm *comm);
/* A call comes in from Python. One that comes in amid another is not the one to look at. */
static inline void pc__note_entry(struct pc_comm *comm)
{
    if (atomic_load_explicit(&comm->entered, memory_order_relaxed) == 0)
        atomic_store_explicit(&comm->op_count_before,
                              atomic_load_explicit(&comm->op_count, memory_order_relaxed),
                              memory_order_relaxed);
}

/* The first failure is the communicator's. */
void pc__break(struct pc_comm *comm, int code, struct pc_error *error);
void pc__leave(struct pc_comm *comm);
uint64_t pc__now(void);

/* work.c */
void pc__progress_thread_stop(struct pc_comm *comm);
/* `job`: what to run. The queue owns its batch from then on. */
int pc__enqueue(struct pc_comm *comm, const struct pc_work *job, const char *where,
                struct pc_work **result);
int pc__join_queue(struct pc_comm *comm, const struct pc_work *job, double seconds);
int pc__joined_wait(struct pc_comm *comm, double seconds);

/* wakeup.c */
int pc__wakeup_open(struct pc_comm *comm); /* from now on this rank is woken by a descriptor */
void pc__wakeup_close(struct pc_comm *comm);
void pc__wakeup_signal(struct pc_comm *comm, uint32_t peer);
uint32_t pc__wakeup_arm(struct pc_comm *comm);
/* Sleeps until the wakeup counter has moved on from what it was; with a network also until
 * something comes from one. */
void pc__wakeup_wait(struct pc_comm *comm, uint32_t armed, uint64_t ns);

/* wait.c */
#define PC_POLLS_PER_CLOCK 64
#define PC_SLOW_YIELD_NS UINT64_C(1000000)
struct pc_spin { /* of who polls; see pc__spun */
    uint32_t polls;
    uint64_t until;
};
bool pc__spun_out(struct pc_comm *comm, struct pc_spin *spin);
int pc__idle(struct pc_comm *comm, uint64_t until_ns);
bool pc__shares_core(struct pc_comm *comm);
void pc__give_way(struct pc_comm *comm);
/* No foreign process has taken the core at the last yield. */
bool pc__may_yield(struct pc_comm *comm, uint64_t now);
/* Marks `line`; false when the count is there already. */
bool pc__mark(struct pc_line *line, uint64_t want);
void pc__unmark(struct pc_line *line);

/* p2p.c */
int pc__p2p_open(struct pc_comm *comm);
void pc__p2p_close(struct pc_comm *comm);
/* Moves what transfers can move: 1 when any did, 0, or the code that broke the communicator. */
int pc__p2p_progress(struct pc_comm *comm);
bool pc__batch_done(const struct pc_batch *batch);
void pc__batch_stuck(const struct pc_batch *batch, struct pc_stuck *out);
/* Whatever is posted ends with `result`: the communicator is broken. */
void pc__p2p_end(struct pc_comm *comm, int result);
/* Around a sleep: from begin on, whatever transfers wait for wakes this rank. False when there
 * is no reason to sleep; lowers `until` to the first deadline. */
bool pc__p2p_sleep_begin(struct pc_comm *comm, uint64_t *until);
void pc__p2p_sleep_end(struct pc_comm *comm);

/* batch.c */
int pc__batch_resume(struct pc_comm *comm, uint64_t patience_ns);
int pc__batch_wait(struct pc_batch *batch, double seconds);
int pc__send_receive(struct pc_comm *comm, const struct pc_p2p_op *message, double timeout,
                     uint64_t patience_ns);

/* progress_thread.c: the progress thread, about transfers that nobody waits for. */
int pc__progress_thread_wanted(struct pc_comm *comm); /* makes sure that it does */
bool pc__progress_thread_turn(
    struct pc_comm *comm); /* a turn of it, with the queue's lock; false: none needed */
int pc__progress_thread_start(struct pc_comm *comm);

/* status.c */
void pc__status_enter(struct pc_comm *comm, uint64_t signature);
void pc__status_leave(struct pc_comm *comm);
void pc__status_describe(struct pc_comm *comm, const char *text);
#endif
