/* The engine's internal structures, which nothing outside native/ sees. */
#ifndef PC_INTERNAL_H
#define PC_INTERNAL_H
#include <pthread.h>
#include <stdbool.h>
#include "core/heap.h"
#include "core/layout.h"
#include "reduce/reduce.h"
#include "core/net.h"
#include "core/transport.h"

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
    bool apart; /* IN and OUT must be distinct memory */
    struct pc_vm_instruction *code;
    struct pc_vm_operand *operands;
    struct pc_probe *probes; /* one for each instruction that fills a slot */
};

/* What plans of a communicator write to while a tile of theirs runs: they share it, as one call
 * runs at a time. */
struct pc_scratch {
    _Atomic uint32_t references;
    uint64_t nbytes;
    char *at;
};

/* Where each block and each chunk of a message lies: 24 bytes for each of as many as there are
 * ranks. Plans that are made one after the other for the same blocks share it. */
struct pc_partition {
    _Atomic uint32_t references;
    uint32_t nblocks;
    uint32_t root;
    uint32_t nchunks;
    uint64_t *starts; /* where each block begins in the message, and the end */
    struct pc_chunk *chunks;
};

struct pc_plan {
    struct pc_plan_spec spec;
    struct pc_program *staged;
    struct pc_program *direct; /* the direct form, or NULL */
    pc_fold_fn fold;
    uint32_t itemsize_log2;
    uint64_t nbytes;                    /* of all blocks together */
    struct pc_partition *partitions[2]; /* by form: staged, direct */
    struct pc_terms terms[2];
    uint64_t salt;              /* the communicator's salt in these signatures */
    bool apart;                 /* one of its programs needs IN and OUT distinct */
    bool adjacent;              /* chunk c + 1 follows chunk c in memory */
    struct pc_scratch *scratch; /* or NULL */
};

/* The one call in progress. */
struct pc_call {
    struct pc_comm *comm;
    struct pc_plan *plan;
    struct pc_batch *batch;           /* instead of a plan */
    const struct pc_program *program; /* NULL while READY lines are exchanged */
    const struct pc_terms *terms;     /* the plan's terms for that program */
    char *in;                         /* where the message would begin if the array held it all */
    char *out;
    uint32_t running; /* channels that have not finished */
    uint32_t ready;   /* peers whose READY was read */
    bool all_registered;
    bool active;
    struct pc_error error; /* written by the call's thread, read once the communicator broke */
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
    struct pc_batch *batch;  /* instead of a plan; the queue owns it until the call begins */
    uint64_t signature;      /* of the batch's call */
    bool refused;            /* a refused call, which has neither */
    struct pc_batch *posted; /* transfers that were posted, not queued */
    double timeout;
    uint64_t place;  /* in the user's code */
    char where[232]; /* as long as pc_arena's text */
    struct pc_work *next;
    _Atomic uint32_t state; /* futex; enum pc_work_state */
    int result;
};

struct pc_rndv_ops; /* p2p/p2p.h */

struct pc_peer {
    _Atomic(char *) arena; /* its header, once mapped; written last, as any thread may look */
    char *record;          /* this rank's in there; of a remote peer its shadow */
    bool mapped;           /* or near: pc_comm_map will map it */
    bool stands_in;        /* it was lost before: private memory is in the place of its arena */
    const struct pc_rndv_ops *rndv; /* rendezvous with this peer; or NULL */
    _Atomic uint32_t ready;         /* it has a connection; earlier messages wait for one */
    _Atomic uint32_t gone;          /* a mapped peer that closed or died */
    const char *in;                 /* from READY of the present call */
    char *out;
};

struct pc_comm {
    struct pc_options options;
    struct pc_layout layout;
    struct pc_shm *device;
    struct pc_net *net;    /* NULL where every peer is mapped */
    int wakeup_fd;         /* the wakeup socket, readable when this rank was woken; or -1 */
    _Atomic int signal_fd; /* a socket that sends to others' wakeup sockets, or -1 */
    _Atomic int listening; /* a thread sleeps in pc__net_pause */
    _Atomic int sleepers;  /* threads that sleep, this one included */
    char *arena;
    struct pc_peer *peers;
    uint32_t *neighbours; /* the mapped peers, from pc_comm_sealed on */
    _Atomic uint32_t nneighbours;
    uint32_t nmapped;                         /* mapped or near ranks so far, with this one */
    uint32_t yields;                          /* yields before a sleep; with a network only */
    uint32_t polls_per_yield;                 /* pc_net_ops */
    _Atomic uint32_t polls;                   /* that a yield could follow */
    uint64_t slow_yield_ns;                   /* a longer yield has let another process run */
    struct pc_fifo *fifos;                    /* [peer][channel], PC_EDGE_CHANNELS each */
    struct pc_token *dones;                   /* [peer] */
    _Atomic(struct pc_scratch *) scratch;     /* of the plans that are made next, or NULL */
    _Atomic(struct pc_partition *) partition; /* the last plan's, or NULL */
    struct pc_token locals[PC_MAX_CHANNELS][PC_MAX_CHANNELS];
    uint64_t ready_calls;
    _Atomic uint32_t died; /* 1 + the first rank that died, or 0; ends all transfers */
    bool sealed;
    struct pc_error error;
    uint64_t salt;      /* mixed into signatures: the calls that this rank refused */
    _Atomic int broken; /* the code that broke it, or 0 */
    _Atomic(struct pc_error *) failure; /* what broke it: the error of the call or of a transfer */
    _Atomic int aborted;
    _Atomic int abort_claimed;
    struct pc_error abort_error;
    _Atomic uintptr_t entered;        /* the thread inside a call, or 0 */
    _Atomic uint64_t op_count;        /* calls and messages begun so far, refused ones included */
    _Atomic uint64_t op_count_before; /* its value when the present call came in from Python */
    struct pc_comm *leader;           /* launches here count among its calls, too; or NULL */
    struct pc_call call;
    _Atomic uint64_t yield_after; /* ns: until then a waiting rank sleeps without yielding */
    _Atomic uint64_t yield_pause; /* ns: the length of the last such time */

    pthread_t thread; /* progress thread, started by the first pc_submit */
    bool threaded;
    _Atomic int stopping;
    pthread_mutex_t queue_lock;
    pthread_cond_t queue_moved;
    struct pc_work *head;
    struct pc_work *tail;
    _Atomic uint32_t queued; /* submitted and not finished */
    uint64_t numbered;       /* the number of the last queued call */
    struct pc_work *joined;  /* a blocking call that waits in the queue */

    struct pc_p2p *p2p;
    _Atomic uint32_t posted; /* unfinished batches of transfers */

    struct pc_heap heap;

    struct pc_trace *trace;
    struct pc_trace_event *event; /* of the last call */
    _Atomic uint64_t place;       /* in the user's code: of the call that came in from Python */
};

/* Whether a rank's memory is mapped, or will be before it is needed. */
static inline bool pc__mapped(const struct pc_comm *comm, uint32_t rank)
{
    return comm->peers[rank].mapped;
}

/* The same for the peer of an edge; if not, a network carries its signals. */
static inline bool pc__edge_mapped(const struct pc_fifo *f)
{
    return f->edge == NULL;
}

/* Whether a network must be polled, and slept on, besides memory. */
static inline bool pc__has_net(const struct pc_comm *comm)
{
    return comm->net != NULL;
}

/* Whether there are edges to a rank: what is near has none before it is mapped. */
static inline bool pc__resolved(const struct pc_comm *comm, uint32_t rank)
{
    return comm->peers[rank].record != NULL;
}

/* comm.c: sets up the edges to a remote peer, by the shadow of this rank's record. */
void pc__comm_resolve_remote(struct pc_comm *comm, uint32_t peer, char *shadow,
                             struct pc_net_peer *by_net, const struct pc_rndv_ops *rndv);

/* p2p/: rendezvous with mapped peers, and by a network that supports it. */
extern const struct pc_rndv_ops pc__cma_rndv, pc__get_rndv;

/* A call that takes longer returns to its caller, which looks for signals and deaths. */
#define PC_FIRST_PATIENCE_NS UINT64_C(1000000)

/* memory/mem_events.c: this memory gets other pages, and the kernel has no event for that. */
void pc__mem_changed(const void *at, size_t nbytes);

/* error.c */
int pc__fail(struct pc_error *error, int code, int peer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* plan.c */
/* Where part k of a block of `nbytes` bytes begins: multiples of PC_CHUNK_UNIT, as even as those
 * allow. */
uint64_t pc__part_at(uint64_t nbytes, uint32_t nparts, uint32_t k);
/* The communicator lets go of its scratch; plans keep theirs until they are freed. */
void pc__scratch_drop(struct pc_comm *comm);
void pc__partition_drop(struct pc_comm *comm);

static inline uint64_t pc__extent_at(const struct pc_plan *plan, struct pc_extent e)
{
    return e.count ? plan->partitions[0]->starts[e.first] : 0;
}

static inline uint64_t pc__extent_bytes(const struct pc_plan *plan, struct pc_extent e)
{
    const uint64_t *starts = plan->partitions[0]->starts;
    return starts[e.first + e.count] - starts[e.first];
}

/* progress.c: the caller owns the communicator (comm->entered or the progress thread). */
int pc__call_begin(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                   double timeout);
int pc__progress(struct pc_comm *comm, uint64_t patience_ns);
/* As pc_run, but polls only: returns AGAIN soon, and never sleeps. */
int pc__call_try(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                 double timeout);
/* As pc__call_begin, for a pairwise batch. */
int pc__call_begin_batch(struct pc_comm *comm, struct pc_batch *batch, uint64_t signature,
                         double timeout);
/* Counts a refused call in the order of calls. */
void pc__refused(struct pc_comm *comm);
uint64_t pc__hash(uint64_t x);
int pc__enter(struct pc_comm *comm);
/* Notes the op count of a call that comes in from Python, unless another call is in progress. */
static inline void pc__note_entry(struct pc_comm *comm, uint64_t place)
{
    atomic_store_explicit(&comm->place, place, memory_order_relaxed);
    if (atomic_load_explicit(&comm->entered, memory_order_relaxed) == 0)
        atomic_store_explicit(&comm->op_count_before,
                              atomic_load_explicit(&comm->op_count, memory_order_relaxed),
                              memory_order_relaxed);
}

/* Breaks the communicator. Only the first failure counts. */
void pc__break(struct pc_comm *comm, int code, struct pc_error *error);
void pc__leave(struct pc_comm *comm);
uint64_t pc__now(void);

/* work.c */
void pc__progress_thread_stop(struct pc_comm *comm);
/* Queues `job`; the queue owns its batch from then on. */
int pc__enqueue(struct pc_comm *comm, const struct pc_work *job, const char *where,
                struct pc_work **result);
int pc__join_queue(struct pc_comm *comm, const struct pc_work *job, double seconds);
int pc__joined_wait(struct pc_comm *comm, double seconds);

/* wakeup.c */
int pc__wakeup_open(struct pc_comm *comm); /* from now on a descriptor wakes this rank */
void pc__wakeup_close(struct pc_comm *comm);
void pc__wakeup_signal(struct pc_comm *comm, uint32_t peer);
uint32_t pc__wakeup_arm(struct pc_comm *comm);
/* Sleeps until the wakeup counter differs from `armed`, or something comes from a network. */
void pc__wakeup_wait(struct pc_comm *comm, uint32_t armed, uint64_t ns);

/* expect.c: before a poll, for the message that a channel waits for. */
void pc__expect(struct pc_call *call, const struct pc_channel *channel);

/* wait.c */
#define PC_POLLS_PER_CLOCK 64
#define PC_SLOW_YIELD_NS UINT64_C(1000000)
struct pc_spin { /* the state of a polling loop; see pc__spun */
    uint32_t polls;
    uint64_t until;
};
bool pc__spun_out(struct pc_comm *comm, struct pc_spin *spin);
bool pc__yielded_out(struct pc_comm *comm, struct pc_spin *spin); /* the same, after a yield */
int pc__idle(struct pc_comm *comm, uint64_t until_ns);
bool pc__shares_core(struct pc_comm *comm);
void pc__give_way(struct pc_comm *comm);
/* Whether no other process took the core at the last yield. */
bool pc__may_yield(struct pc_comm *comm, uint64_t now);
/* Sets PC_ASLEEP on `line`; false when its count is at least `want` already. */
bool pc__mark(struct pc_line *line, uint64_t want);
void pc__unmark(struct pc_line *line);

/* p2p.c */
int pc__p2p_open(struct pc_comm *comm);
void pc__p2p_close(struct pc_comm *comm);
/* Remote peers get fragments of so many bytes, if their ring allows, and transfers from so
 * many on by rendezvous; 0: as mapped ones do. */
void pc__p2p_reach(struct pc_comm *comm, uint64_t longest, uint64_t rndv_from);
/* Progress of all transfers: 1 when any moved, 0, or the code that broke the communicator. */
int pc__p2p_progress(struct pc_comm *comm);
bool pc__batch_done(const struct pc_batch *batch);
void pc__batch_stuck(const struct pc_batch *batch, struct pc_stuck *out);
/* Ends all posted transfers with `result`: the communicator is broken. */
void pc__p2p_end(struct pc_comm *comm, int result);
/* Around a sleep: from begin on, all that transfers wait for wakes this rank. False when it must
 * not sleep; lowers `until` to the first deadline. */
bool pc__p2p_sleep_begin(struct pc_comm *comm, uint64_t *until);
void pc__p2p_sleep_end(struct pc_comm *comm);

/* batch.c */
int pc__batch_resume(struct pc_comm *comm, uint64_t patience_ns);
int pc__batch_wait(struct pc_batch *batch, double seconds);
/* As pc_exchange; patience 0 polls only, and never sleeps. So many transfers need no memory. */
#define PC_FEW_TRANSFERS 16u
int pc__exchange(struct pc_comm *comm, const struct pc_p2p_op *messages, uint32_t n, double timeout,
                 uint64_t patience_ns);

/* progress_thread.c: progress of transfers that nobody waits for. */
int pc__progress_thread_wanted(struct pc_comm *comm); /* starts the thread if needed */
bool pc__progress_thread_turn(
    struct pc_comm *comm); /* one turn, with the queue's lock; false: no transfers */
int pc__progress_thread_start(struct pc_comm *comm);

/* status.c; `nbytes` of the call tell whether its begin is worth a look at the clock */
void pc__status_enter(struct pc_comm *comm, uint64_t signature, uint64_t nbytes);
void pc__status_leave(struct pc_comm *comm);
void pc__status_describe(struct pc_comm *comm, const char *text);
#endif
