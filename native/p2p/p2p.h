/* Transfers: messages between two ranks that no Program sends.
 *
 * An edge queue is both directions between this rank and one peer on one channel. Its messages
 * follow one another in the order in which they were posted; edge queues know nothing of each
 * other. All of this is touched only under the lock, by whichever thread polls or waits at the
 * time. */
#ifndef PC_P2P_H
#define PC_P2P_H
#include <sched.h>
#include "core/internal.h"
#include "core/target_cpu.h"

#define PC_TRANSFER_CHANNELS 2u /* PC_CHANNEL_P2P, PC_CHANNEL_PAIRWISE */

struct pc_transfer {
    struct pc_transfer *next; /* in its edge queue's queue */
    struct pc_batch *batch;   /* NULL: of a send to this rank, whose bytes were kept */
    char *at;
    uint64_t nbytes;
    uint64_t done;        /* bytes that have been copied */
    uint64_t signature;   /* of what, dtype and nbytes, and tag; both ends must say the same */
    uint64_t tag;         /* of the call that a pairwise batch is */
    struct pc_rndv *rndv; /* a network's receiver reads it from where it lies; both ends */
    uint64_t offered;     /* SEND: consumed messages that mean the peer has fetched it, or 0 */
    uint32_t peer;
    uint32_t direction; /* enum pc_direction */
    bool staged;        /* SEND: nobody reads it from where it lies */
    bool withdrawn;     /* RECV: nobody may read it from where it lies any more */
    bool leaving;       /* SEND: only what was put into sockets is missing */
    bool finished;
};

/* Transfers that are posted, waited for and reported together. */
struct pc_batch {
    struct pc_comm *comm;
    struct pc_batch *next, *previous; /* of those outstanding */
    double timeout;
    uint64_t deadline; /* ns; UINT64_MAX: whoever waits sees to it */
    uint32_t n;
    uint32_t unfinished;
    int result;
    bool forgotten;        /* nobody waits for it: it frees itself */
    _Atomic uint32_t done; /* the last thing written: its owner may free it then */
    struct pc_transfer transfers[];
};

struct pc_edge_queue {
    struct pc_fifo *fifo;
    struct pc_transfer *head[2], *tail[2]; /* by direction */
    struct pc_edge_queue *next;            /* of those with something to do */
    bool listed;
    bool probed; /* whether this rank can read the peer's memory has been found out */
    /* The data area of an edge is a ring of bytes here: messages take what they need of it. */
    uint64_t filled;            /* where the next one may begin, ever growing */
    uint64_t begins[PC_LINES];  /* of the messages on their way */
    uint64_t published;         /* messages received that the sender knows about */
    uint64_t unpublished_bytes; /* of the others */
};

struct pc_p2p {
    _Atomic uint32_t lock;
    _Atomic uint32_t sleepers; /* threads that rely on marks of transfers' lines */
    _Atomic uint32_t waiters;  /* threads that wait for a batch */
    _Atomic uint32_t visits;   /* moves whenever the user comes in */
    _Atomic uint32_t watching; /* the progress thread sees to what nobody waits for */
    _Atomic uint32_t driving;  /* and sleeps on the doorbell for that */
    struct pc_edge_queue *listed;
    struct pc_batch *batches;
    struct pc_batch *single; /* for a blocking call of one transfer */
    struct pc_batch *blocking;
    struct pc_edge_queue *queues; /* [channel][peer] */
    uint64_t ring_bytes;
    uint64_t frag_bytes;        /* of the ring, at most; see edge_queue.c */
    uint64_t unpublished_bytes; /* at most */
    uint64_t rndv_bytes;        /* from here on the reader fetches a message, if it can */
    struct pc_error error;
};

static inline bool pc__try_lock(struct pc_p2p *p)
{
    return atomic_load_explicit(&p->lock, memory_order_relaxed) == 0
           && atomic_exchange_explicit(&p->lock, 1, memory_order_acquire) == 0;
}

static inline void pc__lock(struct pc_p2p *p)
{
    for (int polls = 0; !pc__try_lock(p); polls++)
        if (polls < PC_POLLS_PER_CLOCK)
            pc__relax();
        else
            sched_yield(); /* its holder copies a few fragments at most */
}

static inline void pc__unlock(struct pc_p2p *p)
{
    atomic_store_explicit(&p->lock, 0, memory_order_release);
}

/* p2p.c: under the lock. */
struct pc_edge_queue *pc__edge_queue_of(struct pc_comm *comm, uint32_t channel, uint32_t peer);
/* 1 when the head of a queue moved, 0 when it waits, or a code. */
int pc__p2p_step(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t);
/* The batch may be finished, and gone, when this returns. */
void pc__p2p_post(struct pc_comm *comm, struct pc_batch *batch, uint32_t channel);
/* Breaks the communicator with p2p->error. */
int pc__p2p_fail(struct pc_comm *comm, int code);
/* Unlocks, and wakes who sleeps if transfers moved. */
int pc__p2p_release(struct pc_comm *comm, int moved);
/* batch.c: a pairwise batch as the call in progress. */
void pc__pairwise_post(struct pc_comm *comm, struct pc_batch *batch);
int pc__batch_end(struct pc_comm *comm, struct pc_batch **batch); /* frees; gives its result */

struct pc_batch *pc__batch_new(struct pc_comm *comm, uint32_t n);

/* edge_queue.c: under the lock. 1 when it moved, 0 when it waits, or a code. */
int pc__edge_queue_send(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t);
int pc__edge_queue_receive(struct pc_comm *comm, struct pc_edge_queue *queue,
                           struct pc_transfer *t);
void pc__edge_queue_publish(struct pc_comm *comm, struct pc_edge_queue *queue);
struct pc_line *pc__edge_queue_waits(struct pc_edge_queue *queue, uint32_t direction,
                                     uint64_t *want);
#define PC_NBYTES_BITS 48 /* of a signature; above are the dtype's code and a top bit set */
#define PC_DTYPE_CODES (1u << (63 - PC_NBYTES_BITS))
uint64_t pc__transfer_signature(uint32_t dtype, uint64_t nbytes);
const char *pc__transfer_text(const struct pc_transfer *t, char *text, size_t capacity);

/*
 * Signature of an empty message in the place of one that was refused: its like alone meets it, as
 * all others have the top bit set.
 */
#define PC_REFUSED_MESSAGE UINT64_C(1)

/* Has both ends of a transfer say the same of more than what is sent. */
static inline void pc__transfer_tag(struct pc_transfer *t, uint64_t tag)
{
    t->signature ^= t->tag ^ tag;
    t->tag = tag;
}

/* How the receiver of a long message reads it from where it lies. */
struct pc_rndv_ops {
    /* Whether the peer would; the line then says from where. */
    bool (*offer)(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                  struct pc_line *line);
    /* Takes one step of it: 1 when it moved, 0 when it waits, or a code. */
    int (*read)(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                const struct pc_line *line);
};

/* get.c: nothing reads the message of a network any more, unless all of it is here. */
void pc__transfer_release(struct pc_comm *comm, struct pc_transfer *t);

/* cma.c */
bool pc__cma_usable(struct pc_comm *comm, uint32_t peer);
#endif
