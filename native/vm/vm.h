/* The data of the interpreter on any target: counts, edges, and the code of a Program.
 *
 * C11 and CUDA C++, which has neither system headers nor <stdatomic.h>; the layouts agree, since
 * the host writes them and a GPU reads them. */
#ifndef PC_VM_H
#define PC_VM_H
#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif
#if defined(__cplusplus)
#define PC_ALIGNED(nbytes) alignas(nbytes)
#define PC_ATOMIC(type) type
#ifndef _Static_assert
#define _Static_assert static_assert
#endif
#else
#include <stdatomic.h>
#include <stdbool.h>
#define PC_ALIGNED(nbytes) _Alignas(nbytes)
#define PC_ATOMIC(type) _Atomic type
#endif
#include "isa.h"
#include "code.h"

/* Bytes of a message or of one instruction's data, and the number of a tile. 32 bits on a GPU,
 * which has few registers: the image's builder refuses what does not fit. */
#if defined(__cplusplus)
typedef uint32_t pc_size;
typedef uint32_t pc_tile;
#else
typedef uint64_t pc_size;
typedef uint64_t pc_tile;
#endif

#define PC_LINE_BYTES 64u
#define PC_INLINE_BYTES 40u
#define PC_LINES 32u /* per edge: the most small messages in flight */
/* Bytes from one slot for a small message to the next: at whole pages they would all compete for
 * one set of a cache. */
#define pc__small_stride(small_bytes) ((uint64_t)(small_bytes) + PC_LINE_BYTES)

/* A line: one count and what travels with it. The count has a single writer and never goes down.
 * Messages of at most PC_INLINE_BYTES are inline in the line: one cache line moves. The count comes
 * last: a remote write, in ascending order, is complete once its count is seen. */
struct pc_line {
    PC_ALIGNED(PC_LINE_BYTES) uint64_t signature;
    uint32_t place;  /* of a transfer's fragment, in units of 64 bytes of the edge's data */
    uint32_t nbytes; /* of the fragment */
    unsigned char bytes[PC_INLINE_BYTES];
    PC_ATOMIC(uint64_t) count;
};
_Static_assert(sizeof(struct pc_line) == PC_LINE_BYTES, "a count owns one cache line");

/* Signatures of transfers: the top bit, the dtype's code, and the bytes of the whole. */
#define PC_NBYTES_BITS 48
/* The signature of an empty message in place of a refused one: matches only another such, as all
 * others have the top bit set. */
#define PC_REFUSED_MESSAGE 1ull

struct pc_net_edge;

/* The FIFO to one peer and the FIFO back, on one channel. Their counts live as long as the
 * communicator; calls follow one another on them without ever resetting them. */
struct pc_fifo {
    uint64_t sent;              /* messages that this rank has sent */
    uint64_t credit;            /* how many of these the peer had consumed when last read */
    uint64_t received;          /* messages that this rank has consumed */
    struct pc_line *out_lines;  /* in the peer's arena */
    char *out_data;             /* in the peer's arena */
    struct pc_line *out_credit; /* in this rank's arena, raised by the peer */
    struct pc_line *in_lines;   /* in this rank's arena */
    char *in_data;              /* in this rank's arena */
    struct pc_line *in_credit;  /* in the peer's arena, raised by this rank */
    /* Between GPUs, or NULL: slots of LL packets; see gpu/device.h. */
    char *out_packets;        /* in the peer's arena */
    char *in_packets;         /* in this rank's arena */
    struct pc_net_edge *edge; /* of a remote peer, or NULL */
    uint32_t peer;
    uint32_t small_bytes; /* CPU: of a small message, of which PC_LINES may be in flight */
    uint8_t channel;
};

/* A token, a count without slots: LOCAL (between two channels of this rank) or DONE (per peer). */
struct pc_token {
    uint64_t sent;
    uint64_t received;
    struct pc_line *out; /* DONE: in the peer's arena */
    struct pc_line *in;  /* DONE: in this rank's arena */
    uint32_t peer;       /* LOCAL: its row among all of the rank's */
};

/* A decoded instruction: the edge resolved, the opcode split by the kind of its edge. */
enum pc_vm_step {
    PC_STEP_END,
    PC_STEP_REDUCE_COPY,
    PC_STEP_FILL,        /* SIGNAL, sending end of a FIFO */
    PC_STEP_CONSUME,     /* SIGNAL, receiving end */
    PC_STEP_PUT_MESSAGE, /* the same two, for a remote peer */
    PC_STEP_PUT_CREDIT,
    PC_STEP_SIGNAL_LOCAL,
    PC_STEP_SIGNAL_DONE,
    PC_STEP_WAIT_CREDIT,  /* WAIT, sending end of a FIFO */
    PC_STEP_WAIT_MESSAGE, /* WAIT, receiving end */
    PC_STEP_WAIT_LOCAL,
    PC_STEP_WAIT_DONE,
    PC_STEP_LOOP,
    PC_STEP_END_LOOP,
};

/* Flags of a decoded instruction, besides those of enum pc_instruction_flag. */
/* GPU, REDUCE_COPY of the direct form, while all ranks' arrays have the same offset in their heaps;
 * see gpu/kernel/multimem.h. */
#define PC_FLAG_FOLD_ALL 0x04  /* the sources are those of all ranks: the switch folds them */
#define PC_FLAG_STORE_ALL 0x08 /* stores to all ranks, for those that follow as well */
#define PC_FLAG_FOLLOWS 0x10   /* one that stores to all has done what is in whole units */
#define PC_FLAG_FENCE 0x20     /* GPU: data was stored since the last fence, so one before it */
#define PC_FLAG_SYNC 0x40      /* a block barrier before this instruction */
#define PC_FLAG_PIECEWISE 0x80 /* a range of SCRATCH is not contiguous */
#define PC_MAX_OPERANDS (PC_MAX_SOURCES + PC_MAX_DESTINATIONS)

struct pc_probe;

struct pc_vm_instruction {
    uint8_t step; /* enum pc_vm_step */
    uint8_t flags;
    uint8_t nsrc;
    uint8_t ndst;
    uint32_t target; /* END_LOOP: its LOOP. CPU, REDUCE_COPY: how many of its last destinations may
                        be lent; PUT_MESSAGE: 1 + its lender among the operands, or 0. GPU,
                        REDUCE_COPY: PC_SLOTS */
    struct pc_probe *probe; /* CPU: REDUCE_COPY that fills a slot, else NULL */
    union {
        struct pc_fifo *fifo;
        struct pc_token *token;
        const struct pc_vm_operand *operands; /* sources, destinations; PUT_MESSAGE: the slot */
    } at;
};

/* An operand; all operands of one instruction name the same chunks. A Program may have ten thousand
 * of them, so the order of the fields matters. */
struct pc_vm_operand {
    uint8_t space;  /* enum pc_space */
    bool receiving; /* SLOT: which end of the FIFO */
    uint32_t place;
    uint32_t chunk;
    uint32_t nchunks;
    union {
        uint32_t peer;        /* PEER_IN, PEER_OUT */
        struct pc_fifo *fifo; /* SLOT */
    };
};

struct pc_chunk { /* its offset in the message, and its length */
    uint64_t at;
    uint64_t nbytes;
};

/* A Program bound to a plan, in one form: what all its calls have in common. */
struct pc_terms {
    const struct pc_vm_instruction *code;
    const struct pc_chunk *chunks;
    char *scratch;
    uint64_t signature;
    uint64_t ntiles;
    uint32_t tile;
    uint64_t longest; /* CPU: bytes of the longest message */
    uint32_t depth;   /* GPU: messages in flight per edge: slots, or lines if all are inline */
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t nchannels; /* that one thread, or one block, runs */
    uint32_t divisor;   /* for SCALE; 0 when the op is not an average */
    bool spans;         /* a range of chunks is contiguous: adjacent chunks, and one tile */
    bool stream_out;    /* CPU: non-temporal stores to OUT */
    bool packets;       /* GPU: messages are LL packets */
};

struct pc_channel {
    const struct pc_vm_instruction *pc;
    pc_tile tile;
    bool finished;
    /* When it waits: for `line` to reach `want`. */
    struct pc_line *line;
    uint64_t want;
    uint32_t peer;
    uint32_t direction;
};
#endif
