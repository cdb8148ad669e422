/* What the host and the kernels share. C11 and CUDA C++; see vm.h.
 *
 * A plan runs in instances: instance l moves part l of every chunk, in blocks of its own. Block b
 * of a launch is (channel, instance) with b = channel * instances + instance, which both ends of an
 * edge agree on even where one rank has fewer channels than the other. */
#ifndef PC_GPU_DEVICE_H
#define PC_GPU_DEVICE_H
#include "vm/vm.h"

#define PC_MAX_BLOCKS 16u
#define PC_MAX_INSTANCES 8u
#define PC_LOCALS \
    (PC_MAX_INSTANCES * PC_MAX_CHANNELS * PC_MAX_CHANNELS) /* [instance][from][to] \
                                                            */
#define PC_PROXY_FIFO_ENTRIES 1024u

/* Packets: a message as words of 8 bytes, 4 of data and the flag of the message above them. A
 * reader waits for each word by itself. The last word of a slot says whose call it is. */
#define PC_LL_BYTES (16u << 10) /* of data, per message */
#define PC_LL_SLOT_BYTES (2 * PC_LL_BYTES + 128u)
#define PC_LL_FLAG_PERIOD 0xffffffffull

#define PC_IN_READY 0xffffffffu /* for an instruction: before the first one */
#define PC_NOBODY 0xffffffffu   /* the peer of who waits for another block of its own rank */

/* Mapped host memory; zero: none. Who may write it is settled by block states, on the device: not
 * every bus carries atomics to the host's memory. */
struct pc_device_error {
    uint32_t claimed; /* 1 + block; the fields follow, `code` last (release) */
    uint32_t block;
    uint32_t instruction; /* of the Program */
    uint32_t peer;
    uint64_t slot; /* the number of the message, of the token, or of the ring's entry */
    uint64_t want;
    uint64_t got;
    uint64_t code; /* - enum pc_code: TIMEDOUT, ABORTED, MISMATCH */
};

struct pc_host_control { /* mapped host memory, one per device communicator; each field on lines of
                            its own */
    PC_ALIGNED(128) uint32_t abort; /* the host writes 1: every spin ends */
    PC_ALIGNED(128) struct pc_device_error error;
    PC_ALIGNED(128)
    uint64_t finished[PC_MAX_BLOCKS][8]; /* [b][0]: launches that block b has ended (host reads) */
    uint64_t tail[PC_MAX_BLOCKS][8];     /* [b][0]: entries the proxy has consumed (host writes) */
    uint64_t ring[PC_MAX_BLOCKS][PC_PROXY_FIFO_ENTRIES];
};

/* An entry of a ring: what the proxy is to do for a kernel, namely what the CPU's interpreter does
 * at this instruction. From bit 63: 1 bit that is 1 in even laps (an empty ring is zero), 15 of the
 * plan's number, 24 of the instruction's, 24 of the tile's. */
#define PC_MAX_PLANS (1u << 15)
#define PC_MAX_ENTRY_INSTRUCTIONS (1u << 24)
#define PC_MAX_ENTRY_TILES (1ull << 24)

/* Device memory, per block; lives as long as the device communicator. Zero at first. */
struct pc_block_state {
    PC_ALIGNED(128) uint64_t launches;
    uint64_t head;  /* of its ring */
    uint64_t tail;  /* of its ring, as last seen */
    uint64_t ready; /* launches that have told where their arrays are */
    uint64_t salt;  /* of block 0: what a graph's launches take for theirs; the host writes it */
    uint32_t
        dead; /* a block of this device communicator has given up: so do all, and later launches */
};

/* The direct form: arrays that lie in a rank's heap are read and written by its peers. At the begin
 * of a launch each rank tells where its arrays are, in a READY line of each peer: launch n in line
 * n & 1, as a peer can be one ahead of a rank that has not read yet, never two. */
struct pc_where {
    uint64_t in; /* from the begin of the heap, plus one; 0: not there */
    uint64_t out;
    uint32_t in_first; /* the blocks that the arrays hold */
    uint32_t in_count;
    uint32_t out_first;
    uint32_t out_count;
};
_Static_assert(sizeof(struct pc_where) <= PC_INLINE_BYTES, "READY fits a line");

struct pc_ipc_peer {     /* of a peer */
    struct pc_line *out; /* two lines in its arena */
    struct pc_line *in;  /* two lines in this rank's arena */
    char *heap;
};

struct pc_arrays { /* of a peer: where its message would begin */
    char *in;
    char *out;
};

/* Device memory: what one block runs. */
struct pc_block_image {
    struct pc_terms terms;
    const struct pc_vm_instruction *start;
    struct pc_block_state *state;
    uint64_t *ring;
    const uint64_t *tail;
    uint64_t *finished;
    uint32_t instance;
    uint32_t channel;
};

/* Device memory: a plan and its Program, for all blocks of a launch. */
struct pc_device_image {
    uint64_t nbytes; /* of all that lies behind this */
    uint32_t nblocks;
    uint32_t instances;
    uint32_t plan; /* its number in a ring's entries */
    uint32_t form; /* 1: there is a direct form beside the staged one */
    struct pc_host_control *control;
    struct pc_block_state *states; /* of all blocks of the device communicator */
    /* Of the direct form. */
    uint32_t rank;
    uint32_t size;
    uint32_t nparts; /* blocks of the message */
    uint32_t reserved;
    struct pc_where mine;          /* `in` and `out` are the bytes of the arrays */
    const uint64_t *starts;        /* of the blocks in the message, and its end */
    struct pc_ipc_peer *ipc_peers; /* [peer] */
    struct pc_arrays *arrays;      /* [block][peer] */
    uint64_t heap_bytes;
    struct pc_block_image blocks[2][PC_MAX_BLOCKS]; /* staged, direct */
};

struct pc_kernel_args { /* by value, the only argument of a kernel */
    const struct pc_device_image *image;
    char *in; /* where the message would begin if the array held all of it; see pc_call */
    char *out;
    uint64_t timeout_ns;
    uint64_t salt;     /* of the signature: which calls this rank refused before this one */
    uint32_t in_graph; /* 1: it is launched nobody knows when; its salt is that of the moment */
    uint32_t reserved;
};
#endif
