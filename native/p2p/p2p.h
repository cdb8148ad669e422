/* Transfers: messages between two ranks that no Program sends.
 *
 * An edge queue is the edge to one peer and the edge back, on one channel. Its messages go in the
 * order in which they were posted; edge queues are independent of each other. The lock guards all
 * of this; whichever thread polls or waits takes it. */
#ifndef PC_P2P_H
#define PC_P2P_H
#include <sched.h>
#include "core/internal.h"
#include "core/probe.h"
#include "core/target_cpu.h"

#define PC_TRANSFER_CHANNELS 2u /* PC_CHANNEL_P2P, PC_CHANNEL_PAIRWISE */
#define PC_STEPS 8              /* of one transfer in a row */

struct pc_edge_queue;

struct pc_transfer {
    struct pc_edge_queue *queue;
    struct pc_transfer *next; /* in its edge queue */
    struct pc_batch *batch;   /* NULL: a finished send to this rank, whose bytes were copied */
    char *at;
    uint64_t nbytes;
    uint64_t done;        /* bytes copied so far */
    uint64_t signature;   /* of dtype, nbytes and tag; must be equal at both ends */
    uint64_t tag;         /* the signature of a pairwise batch's call, or 0 */
    struct pc_rndv *rndv; /* a rendezvous by the network, at either end */
    uint64_t offered;     /* SEND: the credit at which the peer has read it, or 0 */
    uint32_t peer;
    uint32_t direction; /* enum pc_direction */
    bool both_ways;     /* its batch sends and receives */
    bool staged;        /* SEND: by fragments, not by rendezvous */
    bool withdrawn;     /* RECV: the sender broke the rendezvous off */
    bool leaving;       /* SEND: the network has all of it, but not all has left */
    bool finished;
};

/* Transfers that are posted, waited for and reported together. */
struct pc_batch {
    struct pc_comm *comm;
    struct pc_batch *next, *previous; /* in the list of outstanding batches */
    double timeout;
    uint64_t deadline; /* ns; UINT64_MAX: the waiter watches it */
    uint32_t n;
    uint32_t unfinished;
    int result;
    bool forgotten;        /* nobody waits for it: it is freed when done */
    _Atomic uint32_t done; /* written last: the owner may free the batch then */
    struct pc_transfer transfers[];
};

struct pc_edge_queue {
    struct pc_fifo *fifo;
    struct pc_transfer *head[2], *tail[2]; /* by direction */
    struct pc_edge_queue *next;            /* in the list of edge queues with something to do */
    bool listed;
    bool probed;           /* CMA with this peer was tried */
    struct pc_probe probe; /* of the fragments that this rank writes */
    uint32_t far;          /* transfers while it said that the peer's core is far */
    /* Transfers use the data area of an edge as a ring of bytes: a message takes what it needs. */
    uint64_t filled;            /* where the next one may begin; only grows */
    uint64_t begins[PC_LINES];  /* of the messages in flight */
    uint64_t published;         /* received messages whose credit was sent */
    uint64_t unpublished_bytes; /* received since */
};

struct pc_p2p {
    _Atomic uint32_t lock;
    _Atomic uint32_t sleepers; /* threads that rely on PC_ASLEEP in the lines of transfers */
    _Atomic uint32_t waiters;  /* threads that wait for a batch */
    _Atomic uint32_t visits;   /* counts the user's calls */
    _Atomic uint32_t watching; /* the progress thread looks after the transfers */
    _Atomic uint32_t driving;  /* and has taken over, asleep on the wakeup in between */
    struct pc_edge_queue *listed;
    struct pc_batch *batches;
    struct pc_batch *few;         /* for a blocking call of PC_FEW_TRANSFERS at most */
    struct pc_batch *blocking;    /* of the blocking call that is unfinished, or NULL */
    struct pc_edge_queue *queues; /* [channel][peer] */
    uint64_t ring_bytes;
    uint64_t frag_bytes;        /* the longest fragment; see edge_queue.c */
    uint64_t net_frag_bytes;    /* and to a remote peer */
    uint64_t unpublished_bytes; /* the credit held back, at most, of a mapped peer */
    uint64_t rndv_bytes[2];     /* from this length on by rendezvous, if possible; [both_ways] */
    uint64_t net_rndv_bytes[2]; /* and with a remote peer */
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
            sched_yield(); /* the holder copies a few fragments at most */
}

static inline void pc__unlock(struct pc_p2p *p)
{
    atomic_store_explicit(&p->lock, 0, memory_order_release);
}

/* p2p.c: with the lock. */
struct pc_edge_queue *pc__edge_queue_of(struct pc_comm *comm, uint32_t channel, uint32_t peer);
/* Progress of a queue's head: 1 when it moved, 0 when it waits, or a code. */
int pc__p2p_step(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t);
/* The batch may be finished, and freed, when this returns. */
void pc__p2p_post(struct pc_comm *comm, struct pc_batch *batch, uint32_t channel);
/* Breaks the communicator with p2p->error. */
int pc__p2p_fail(struct pc_comm *comm, int code);
/* Unlocks, and wakes sleeping threads if transfers moved. */
int pc__p2p_release(struct pc_comm *comm, int moved);
/* batch.c: a pairwise batch as the call in progress. */
void pc__pairwise_post(struct pc_comm *comm, struct pc_batch *batch);
int pc__batch_end(struct pc_comm *comm, struct pc_batch **batch); /* frees it; returns its result */

struct pc_batch *pc__batch_new(struct pc_comm *comm, uint32_t n);

/* edge_queue.c: with the lock. 1 when it moved, 0 when it waits, or a code. */
int pc__edge_queue_send(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t);
int pc__edge_queue_receive(struct pc_comm *comm, struct pc_edge_queue *queue,
                           struct pc_transfer *t);
void pc__edge_queue_publish(struct pc_comm *comm, struct pc_edge_queue *queue);
struct pc_line *pc__edge_queue_waits(struct pc_edge_queue *queue, uint32_t direction,
                                     uint64_t *want);
#define PC_DTYPE_CODES (1u << (63 - PC_NBYTES_BITS))
uint64_t pc__transfer_signature(uint32_t dtype, uint64_t nbytes);
const char *pc__transfer_text(const struct pc_transfer *t, char *text, size_t capacity);
/* MISMATCH, and its text: a receive found a message of the signature `theirs`. */
int pc__transfer_mismatch(struct pc_error *error, const struct pc_transfer *t, uint64_t theirs);

/* Mixes a tag into the signature: both ends must then agree on that, too. */
static inline void pc__transfer_tag(struct pc_transfer *t, uint64_t tag)
{
    t->signature ^= t->tag ^ tag;
    t->tag = tag;
}

/* A rendezvous protocol: the receiver of a long message reads it from where it lies. */
struct pc_rndv_ops {
    /* Whether the peer can read it; the line then says from where. */
    bool (*offer)(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                  struct pc_line *line);
    /* Reads a part of it: 1 when it moved, 0 when it waits, or a code. */
    int (*read)(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                const struct pc_line *line);
};

/* get.c: ends the rendezvous by the network; breaks it off unless all was read. */
void pc__transfer_release(struct pc_comm *comm, struct pc_transfer *t);

/* cma.c */
bool pc__cma_usable(struct pc_comm *comm, uint32_t peer);
#endif
