/* What an interpreter sees, whatever it runs on: counts, edges, and the code of a Program.
 *
 * C11 and CUDA C++, which has neither headers of the system nor <stdatomic.h>; the layouts agree,
 * since the host writes them and a GPU reads them. */
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

/* Bytes of a message or of what one instruction moves, and the number of a tile. A GPU has few
 * registers: what does not fit there, the image's builder refuses. */
#if defined(__cplusplus)
typedef uint32_t pc_size;
typedef uint32_t pc_tile;
#else
typedef uint64_t pc_size;
typedef uint64_t pc_tile;
#endif

#define PC_LINE_BYTES 64u
#define PC_INLINE_BYTES 40u
#define PC_LINES 32u /* per edge: so many small messages may be on their way */

/* One count and what travels with it. It has a single signaller and never goes down. Messages of
 * at most PC_INLINE_BYTES lie in the line itself: one cache line moves. The count comes last: what
 * is written there from afar, in ascending order, is whole once its count is seen. */
struct pc_line {
    PC_ALIGNED(PC_LINE_BYTES) uint64_t signature;
    uint32_t place;  /* of a transfer's piece: in units of 64 bytes of the edge's data */
    uint32_t nbytes; /* of the piece */
    unsigned char bytes[PC_INLINE_BYTES];
    PC_ATOMIC(uint64_t) count;
};
_Static_assert(sizeof(struct pc_line) == PC_LINE_BYTES, "a count owns one cache line");

struct pc_net_edge;

/* Both directions between this rank and one peer on one channel. The counts live as long as the
 * communicator; calls follow one another on them without ever resetting them. */
struct pc_fifo {
    uint64_t sent;              /* messages this rank has signalled */
    uint64_t credit;            /* of those, consumed as last seen */
    uint64_t received;          /* messages this rank has consumed */
    struct pc_line *out_lines;  /* in the peer's arena */
    char *out_data;             /* in the peer's arena */
    struct pc_line *out_credit; /* in this rank's arena, raised by the peer */
    struct pc_line *in_lines;   /* in this rank's arena */
    char *in_data;              /* in this rank's arena */
    struct pc_line *in_credit;  /* in the peer's arena, raised by this rank */
    /* Between GPUs, or NULL: slots of packets; see device.h. */
    char *out_packets;        /* in the peer's arena */
    char *in_packets;         /* in this rank's arena */
    struct pc_net_edge *edge; /* of a peer whose memory is not mapped, or NULL */
    uint32_t peer;
    uint8_t channel;
};

/* Counts without slots: LOCAL (two channels of this rank) and DONE (per peer). */
struct pc_token {
    uint64_t sent;
    uint64_t received;
    struct pc_line *out; /* DONE: in the peer's arena */
    struct pc_line *in;  /* DONE: in this rank's arena */
    uint32_t peer;       /* LOCAL: which; its row among all of a rank's */
};

/* An instruction as the interpreter likes it: the edge resolved, the opcode split by its kind. */
enum pc_vm_step {
    PC_STEP_END,
    PC_STEP_REDUCE_COPY,
    PC_STEP_FILL,        /* SIGNAL, sending end of a FIFO */
    PC_STEP_CONSUME,     /* SIGNAL, receiving end */
    PC_STEP_PUT_MESSAGE, /* the same two, of a peer whose memory is not mapped */
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

/* Flags of a code line, beside those of an instruction (enum pc_instruction_flag). */
#define PC_FLAG_SYNC 0x40      /* the threads of a block meet before this line */
#define PC_FLAG_PIECEWISE 0x80 /* a range of SCRATCH is not one span */
#define PC_MAX_OPERANDS (PC_MAX_SOURCES + PC_MAX_DESTINATIONS)

struct pc_probe;

struct pc_vm_instruction {
    uint8_t step; /* enum pc_vm_step */
    uint8_t flags;
    uint8_t nsrc;
    uint8_t ndst;
    uint32_t target;
    struct pc_probe *probe; /* CPU: REDUCE_COPY that fills a slot, else NULL */
    union {
        struct pc_fifo *fifo;
        struct pc_token *token;
        const struct pc_vm_operand *operands; /* REDUCE_COPY: sources, then destinations;
                                          PUT_MESSAGE: the slot as it was filled */
    } at;
};

/* An operand; all operands of one instruction name the same chunks. */
struct pc_vm_operand {
    uint8_t space; /* enum pc_space */
    uint32_t place;
    uint32_t chunk;
    uint32_t nchunks;
    uint32_t peer;        /* PEER_IN, PEER_OUT */
    bool receiving;       /* SLOT: which end of the FIFO */
    struct pc_fifo *fifo; /* SLOT */
};

struct pc_chunk { /* where it lies in the message, and its length */
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
    uint32_t depth; /* messages on their way per edge: slots, or lines if all fit */
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t nchannels; /* that one thread, or one block, steps in turns */
    uint32_t divisor;   /* of SCALE; 0 when the op is not an average */
    bool spans;      /* a range of chunks is one span: there is one tile, and they are adjacent */
    bool stream_out; /* CPU: write OUT past the cache */
    bool packets;    /* GPU: messages lie in packets */
};

struct pc_channel {
    const struct pc_vm_instruction *pc;
    pc_tile tile;
    bool finished;
    /* Where it waits, when it does. */
    struct pc_line *line;
    uint64_t want;
    uint32_t peer;
    uint32_t direction;
};
#endif
