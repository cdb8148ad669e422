/* The structures that host and kernels share. C11 and CUDA C++; see vm.h.
 *
 * A plan runs in instances: instance l moves part l of every chunk, in blocks of its own. Block b
 * of a launch is (channel, instance) with b = channel * instances + instance: both ends of an edge
 * so use the same b, even where one rank has fewer channels than the other. */
#ifndef PC_GPU_DEVICE_H
#define PC_GPU_DEVICE_H
#include "vm/vm.h"

#define PC_MAX_BLOCKS 32u
#define PC_MAX_INSTANCES PC_MAX_BLOCKS
#define PC_LOCALS \
    (PC_MAX_INSTANCES * PC_MAX_CHANNELS * PC_MAX_CHANNELS) /* [instance][from][to] \
                                                            */
#define PC_PROXY_FIFO_ENTRIES 1024u

/* LL packets: a message as packets of 16 bytes, 12 of data and the message's flag, of which the
 * first one tells which call it belongs to; see gpu/kernel/ll.h. */
#define PC_LL_PACKETS 1032u /* of a slot: 12 KiB of data, and some */
#define PC_LL_SLOT_BYTES (16 * PC_LL_PACKETS)
#define PC_LL_FLAG_PERIOD 0xffffffffull

#define PC_IN_READY 0xffffffffu /* as an instruction: before the first one */
#define PC_NOBODY 0xffffffffu   /* as a peer: another block of the same rank */

/* A kernel's failure, in mapped host memory; zero: none. Block states, in device memory, decide
 * which block writes it: not every bus carries atomics to host memory. */
struct pc_device_error {
    uint32_t claimed; /* 1 + block, written first; `code` is written last (release) */
    uint32_t block;
    uint32_t instruction; /* of the Program */
    uint32_t peer;
    uint64_t slot; /* the number of the message, of the token, or of the entry in the proxy FIFO */
    uint64_t want;
    uint64_t got;
    uint64_t code; /* - enum pc_code: TIMEDOUT, ABORTED, MISMATCH, LOST */
    /* Of a transfer, which `instruction` then counts in its launch. */
    uint64_t transfer; /* its signature, without the tag; 0: it was no transfer */
    uint64_t theirs;   /* MISMATCH: that of the message that came, 0 if none did */
    uint64_t tag;      /* mixed into signatures; 0: a message of two ranks */
    uint64_t timeout_ns;
    uint32_t direction;
};

struct pc_host_control {            /* mapped host memory; each field on cache lines of its own */
    PC_ALIGNED(128) uint32_t abort; /* the host writes 1: every spin ends */
    PC_ALIGNED(128) struct pc_device_error error;
    PC_ALIGNED(128)
    uint64_t finished[PC_MAX_BLOCKS][8]; /* [b][0]: launches that block b has ended (host reads) */
    uint64_t tail[PC_MAX_BLOCKS][8];     /* [b][0]: entries the proxy has consumed (host writes) */
    uint64_t ring[PC_MAX_BLOCKS][PC_PROXY_FIFO_ENTRIES];
};

/* An entry of a proxy FIFO names an instruction; the proxy does what the CPU interpreter would do
 * there. From bit 63: 1 bit that is 1 in even laps (an empty FIFO is zero), 15 of the plan's
 * number, 24 of the instruction's, 24 of the tile's. A transfer's has PC_TRANSFER_ENTRY, the peer,
 * and twice the lane, plus 1 for a credit. */
#define PC_MAX_PLANS ((1u << 15) - 1)
#define PC_TRANSFER_ENTRY PC_MAX_PLANS
#define PC_MAX_ENTRY_INSTRUCTIONS (1u << 24)
#define PC_MAX_ENTRY_TILES (1ull << 24)

/* The state of a block, in device memory; as long-lived as the device communicator. Zero at first.
 */
struct pc_block_state {
    PC_ALIGNED(128) uint64_t launches;
    uint64_t head;   /* of its proxy FIFO */
    uint64_t tail;   /* of its proxy FIFO, as last read */
    uint64_t ready;  /* launches that have sent READY */
    uint64_t salt;   /* of block 0: the salt of launches by a graph; the host writes it */
    uint64_t direct; /* of block 0: launches that ran in the direct form */
    uint32_t dead;   /* a block gave up: all blocks and later launches do */
};

/* What NVLink's switches fold (multimem.ld_reduce of sm_90): sums of all dtypes but bytes, those of
 * floats in an order of their own, and the least and greatest of integers. They fold those of
 * 16-bit floats, too, but by which rules for NaN and -0 is not said. */
#define PC_SWITCH_INTEGER(dtype) ((dtype) >= PC_DTYPE_INT32 && (dtype) <= PC_DTYPE_UINT64)
#define PC_SWITCH_SUM(op) ((op) == PC_REDUCE_SUM || (op) == PC_REDUCE_AVG)
#define PC_SWITCH_FOLDS(dtype, op) \
    (PC_SWITCH_INTEGER(dtype) ? (op) != PC_REDUCE_PROD \
                              : (dtype) <= PC_DTYPE_BFLOAT16 && PC_SWITCH_SUM(op))

/* The direct form: peers read and write the arrays of a rank in its segments, which they reach:
 * segment 0 is its heap, the others are allocations of its user (registration.c). When a launch
 * begins, each rank writes where its arrays are into a READY line of each peer, and into one of its
 * own, as its other blocks must not find another answer: launch n uses line n & 1, as a peer can be
 * one ahead of a rank that has not read yet, never two. */
#define PC_SEGMENTS 32u
#define PC_SEGMENT_SHIFT 56 /* of its number in pc_where; below: the offset in it, plus one */
struct pc_where {
    uint64_t in; /* 0: in no segment */
    uint64_t out;
    uint32_t in_first; /* the blocks that the arrays hold */
    uint32_t in_count;
    uint32_t out_first;
    uint32_t out_count;
};
_Static_assert(sizeof(struct pc_where) <= PC_INLINE_BYTES, "READY fits a line");

struct pc_segment { /* as this rank reaches it; the host changes all but segment 0 while kernels run
                     */
    uint64_t at;    /* 0: not now; written behind `nbytes` */
    uint64_t nbytes;
};

struct pc_ipc_peer {     /* the direct form's view of a peer, and of this rank itself */
    struct pc_line *out; /* two lines in its arena */
    struct pc_line *in;  /* two lines in this rank's arena */
    struct pc_segment segments[PC_SEGMENTS];
};

struct pc_arrays { /* where a peer's message would begin */
    char *in;
    char *out;
};

/* What one block runs, at the head of its package. The addresses of what else is in the package are
 * those of device memory; a kernel moves them to where it has copied it to. */
struct pc_block_image {
    struct pc_terms terms;
    const struct pc_vm_instruction *start; /* NULL: this form has no such block */
    struct pc_block_state *state;
    uint64_t *ring;
    const uint64_t *tail;
    uint64_t *finished;
    struct pc_vm_operand *operands;
    struct pc_fifo *fifos;        /* copies of those at `homes` while a kernel runs */
    struct pc_fifo *const *homes; /* in the memory of the device communicator */
    uint32_t ninstructions;
    uint32_t noperands;
    uint32_t nfifos;
    uint32_t instance;
    uint32_t channel;
};

/* `target` of a REDUCE_COPY in an image: a bit for each operand in a slot; and from PC_PLAIN_BIT on
 * the only source that is in none, or nsrc: all are, or PC_PLAINS: several are not. */
#define PC_SLOTS 0xffffffu
#define PC_PLAIN_BIT 24
#define PC_PLAINS 0xffu
_Static_assert(PC_MAX_OPERANDS <= PC_PLAIN_BIT, "a bit for each operand");

/* The packages of all blocks, of the staged and of the direct form: one for each block, of equal
 * length, a multiple of 16 bytes, with all that the block's interpreter reads:
 *
 *   pc_block_image | chunks | operands | code | homes | fifos */
struct pc_packages {
    char *at[2];
    uint32_t nbytes[2]; /* of one package */
};
/* Which arrays must have the same offset in all heaps for the multicast address to be used. */
enum pc_alike { PC_ALIKE_IN = 1, PC_ALIKE_OUT = 2 };

/* The image: a plan and its Program for all blocks of a launch; in device memory. */
struct pc_device_image {
    uint64_t nbytes; /* of the image, this header included */
    uint32_t nblocks;
    uint32_t instances[2]; /* of each form */
    uint32_t plan;         /* the plan's number in proxy FIFO entries */
    uint32_t form;         /* 1: has a direct form beside the staged one */
    struct pc_packages packages;
    uint64_t signature; /* the plan's */
    struct pc_host_control *control;
    struct pc_block_state *states; /* [block] */
    /* For the direct form. */
    uint32_t rank;
    uint32_t size;
    uint32_t nparts;       /* blocks of the message */
    uint32_t slots;        /* of an edge */
    struct pc_fifo *fifos; /* [peer][PC_MAX_BLOCKS] */
    uint32_t alike;        /* enum pc_alike */
    uint64_t multicast;    /* from this rank's heap to the multicast address; 0: not in this plan */
    struct pc_where mine;  /* the blocks of READY; here `in`, `out` are bytes */
    const uint64_t *starts;        /* where each block begins in the message, and the end */
    struct pc_ipc_peer *ipc_peers; /* [peer] */
    struct pc_arrays *arrays;      /* [block][peer] */
};

struct pc_kernel_args { /* the only parameter of a kernel, by value */
    const struct pc_device_image *image;
    struct pc_packages packages; /* the image's, and the next two: read without a load */
    uint32_t nblocks;
    uint32_t form;
    char *in; /* where the message would begin if the array held it all; see pc_call */
    char *out;
    uint64_t timeout_ns;
    uint64_t salt;     /* mixed into signatures: the calls that this rank refused before */
    uint32_t in_graph; /* 1: launched by a graph; the salt is read at run time */
    uint32_t proxied;  /* 1: what a block pushed for the proxy is there when it says it has ended */
    uint32_t in_segment; /* of this rank, in which `in` may lie */
    uint32_t out_segment;
};
#endif
