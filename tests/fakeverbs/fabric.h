/* What all processes of one pretended network share: a mapped file.
 *
 * A *port* is a device of a host (each device has one port, number 1). A *slot* is one opened
 * device: it has the ring into which the NICs of others put packets, and a doorbell to wake its own
 * NIC's thread. The state of links and the faults to come are here too, so that a test can set them
 * from outside. Everything is reached by atomics or under a slot's robust mutex: a process may be
 * killed at any instruction. */
#ifndef FV_FABRIC_H
#define FV_FABRIC_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FV_HOSTS 16u
#define FV_DEVICES 8u /* of a host */
#define FV_PORTS (FV_HOSTS * FV_DEVICES)
#define FV_SLOTS 512u
#define FV_RING_BYTES (256u << 10)

/* Kinds of packets, as bits: a cut names those that it drops. */
enum {
    FV_WRITE = 1,     /* of an RDMA WRITE */
    FV_WRITE_IMM = 2, /* of an RDMA WRITE with immediate data */
    FV_SEND = 4,      /* of a SEND, with immediate data or not */
    FV_READ = 8,      /* the request of an RDMA READ */
    FV_ACK = 16,      /* acknowledgements, also negative ones */
    FV_READ_RESPONSE = 32,
    FV_REQUESTS = 15,
    FV_RESPONSES = 48,
    FV_NOTE = 64, /* no packet of the network: tells a requester that one was lost; never dropped */
};

/* What is counted of a port, over all processes and for ever. */
enum fv_count {
    FV_TX_PACKETS,
    FV_TX_BYTES, /* payload */
    FV_RX_PACKETS,
    FV_RX_BYTES,
    FV_DROPPED,       /* packets that a fault took, on their way out of this port */
    FV_RETRANSMITTED, /* times that a requester began again */
    FV_DUPLICATES,    /* requests that a responder had executed before */
    FV_RNR,           /* receives that were not there */
    FV_REFUSED,       /* requests that a responder refused: rkey, bounds, access, length */
    FV_FAILED,        /* QPs that a failed request moved to ERR */
    FV_STRAY,         /* packets for a QP that is not there, or does not listen */
    FV_UNCLOSED,      /* objects that were left when their device was closed */
    FV_SENDS,         /* send requests that were posted */
    FV_QUERIES,       /* times that the port was queried */
    /* Of a GPU's memory, see gpu.c; packets, but for the flushes. */
    FV_HELD,             /* kept back */
    FV_LANDED_BY_READ,   /* as a READ of that memory was answered */
    FV_LANDED_BY_DRIVER, /* by cuFlushGPUDirectRDMAWrites */
    FV_LANDED_LATE,      /* by themselves */
    FV_NEVER_LANDED,     /* their region was deregistered before */
    FV_GPU_READS,        /* READs of that memory that were taken in */
    FV_DRIVER_FLUSHES,   /* calls of cuFlushGPUDirectRDMAWrites, of every opened device */
    FV_COUNTS
};

/* What a process holds of a slot's device at this moment. */
enum fv_object {
    FV_PDS,
    FV_MRS,
    FV_MR_BYTES,
    FV_RELAXED, /* regions that may be written in any order */
    FV_GPU_MRS, /* regions of a GPU's memory */
    FV_CHANNELS,
    FV_CQS,
    FV_QPS,
    FV_WRS, /* send requests that were posted and have not ended */
    FV_SRQS,
    FV_RECEIVES, /* that were posted and not consumed */
    FV_OBJECTS
};

struct fv_port {
    _Atomic uint32_t down;
    _Atomic uint32_t moved;            /* times that its address (GID or LID) has changed */
    _Atomic uint32_t pkey;             /* the second of its partition keys; 0: there is none */
    _Atomic uint64_t bytes_per_second; /* 0: as fast as it goes */
    /* Bytes of payload that its interface takes in a packet; 0: any. As with Soft-RoCE, a longer
     * one is tried for ever: that is no loss which would count as a retry, and nobody is told. */
    _Atomic uint32_t narrow;
    _Atomic uint64_t counts[FV_COUNTS];
};

/* Of an ordered pair of ports: what is dropped on the way from one to the other. */
struct fv_link {
    _Atomic uint32_t dropped; /* kinds */
    /* A fuse: when so many packets of `counted` kinds have passed here, more is dropped, this way
     * and the other. */
    _Atomic uint32_t counted, then_dropped, then_dropped_back;
    _Atomic uint32_t whole; /* only the last packets of messages count */
    _Atomic int64_t left;   /* 0: no fuse, or blown */
    _Atomic uint64_t blown; /* times */
};

enum fv_slot_state { FV_FREE, FV_OPENING, FV_OPEN, FV_DEAD };

struct fv_slot {
    _Atomic uint32_t state, generation, port;
    _Atomic int32_t pid;    /* in its own namespace */
    _Atomic uint64_t owner; /* a number that only one process has */
    _Atomic uint32_t doorbell, sleeping;
    _Atomic uint64_t objects[FV_OBJECTS];
    pthread_mutex_t lock; /* of those who put; robust: they may die */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
};

struct fv_shared {
    _Atomic uint64_t magic;
    _Atomic uint32_t
        changes;           /* of what the NICs must look at: ports that went up or down, or moved */
    _Atomic uint32_t next; /* slot to try first */
    struct fv_port ports[FV_PORTS];
    struct fv_link links[FV_PORTS][FV_PORTS]; /* [from][to] */
    struct fv_slot slots[FV_SLOTS];
};

struct fv_fabric {
    struct fv_shared *shared;
    char *rings;
    size_t bytes;
    int fd, alive; /* alive: a file on whose bytes the owners of slots hold locks */
};

/* Maps the fabric at `path` (NULL: one that only this process and its children see), and makes it
 * if it is not there. NULL and errno if that cannot be. */
struct fv_fabric *fv_fabric_open(const char *path);
void fv_fabric_close(struct fv_fabric *);

/* A slot for a device that is being opened, or -1 when all are taken. */
int fv_slot_take(struct fv_fabric *, uint32_t port);
void fv_slot_give(struct fv_fabric *, uint32_t slot);
/* Whether its owner lives; a slot whose owner was killed is marked dead. */
bool fv_slot_alive(struct fv_fabric *, uint32_t slot);
/* Wakes the NIC of a slot, or of all. */
void fv_slot_ring(struct fv_fabric *, uint32_t slot);
void fv_ring_all(struct fv_fabric *);
/* Sleeps until the doorbell is no longer `seen`, at most so long. */
void fv_slot_sleep(struct fv_fabric *, uint32_t slot, uint32_t seen, uint64_t ns);

/* Whether packets of `kind` from one port to another are dropped now. */
bool fv_link_cut(struct fv_fabric *, uint32_t from, uint32_t to, uint32_t kind);
/* A packet of `kind` is on its way: burns the fuse that is there. */
void fv_link_pass(struct fv_fabric *, uint32_t from, uint32_t to, uint32_t kind, bool last);

void fv_count(struct fv_fabric *, uint32_t port, enum fv_count, uint64_t n);
#endif
