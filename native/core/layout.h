/* The layout of a rank's arena: one sparse memfd that mapped peers map whole, or where there are
 * many by a window: the header and their own record.
 *
 *   header | a record per rank: lines, slots | trace | heap
 *
 * A peer's record is all that this peer writes here: READY and DONE, the credit of what it has
 * consumed, and its messages. So a peer that a rank talks to costs it pages that lie together, and
 * one that it never talks to costs nothing: memory, and the page tables of a mapping, appear at the
 * first touch. Every address is arithmetic on (rank, channel, slot), and no edge is ever
 * negotiated. New pages are zero, which is the first value of every count. */
#ifndef PC_LAYOUT_H
#define PC_LAYOUT_H
#include "vm/vm.h"
#include "pycoll.h"

#define PC_PAGE 4096u
/* The channels of an edge: those of Programs, and two for transfers. */
#define PC_CHANNEL_P2P PC_MAX_CHANNELS
#define PC_CHANNEL_PAIRWISE (PC_MAX_CHANNELS + 1)
#define PC_EDGE_CHANNELS (PC_MAX_CHANNELS + 2)
#define PC_WAKEUP_NAME 32u
#define PC_IN_LINE UINT32_MAX         /* pc_line.place: the fragment is inline in the line */
#define PC_IN_SENDER (UINT32_MAX - 1) /* rendezvous: the reader gets it from the sender */
#define PC_ARENA_MAGIC 0x50434152u    /* "PCAR" */

/* Bit 63 of a count: its waiter sleeps, and whoever raises the count wakes it. One atomic exchange
 * raises the count and reads the bit, so a signal needs no memory fence of its own. */
#define PC_ASLEEP (UINT64_C(1) << 63)

/* The payload of a READY line: offsets of the caller's arrays in its heap, plus one (0: not in the
 * heap), and the blocks that they hold. */
struct pc_ready {
    uint64_t in;
    uint64_t out;
    struct pc_extent in_blocks;
    struct pc_extent out_blocks;
};
_Static_assert(sizeof(struct pc_ready) <= PC_INLINE_BYTES, "READY fits a line");

struct pc_arena {
    uint32_t magic;
    uint32_t version;
    uint32_t rank;
    uint32_t size;
    uint32_t slots;
    uint32_t slot_bytes;
    uint64_t heap_bytes;
    int32_t pid; /* with the next two: for peers that read this rank's memory (CMA) */
    uint32_t ring_bytes;
    uint64_t address; /* of this header, in its owner's address space */
    uint64_t token;   /* random: a peer that reads it there has found this header */
    uint32_t small_bytes;
    uint64_t trace; /* where struct pc_trace is: no peer reads it, but who watches the job */
    _Alignas(PC_LINE_BYTES) _Atomic uint32_t wakeup; /* futex: the wakeup counter */
    _Atomic uint32_t wakeup_name_bytes;              /* of the rank's wakeup socket; 0: none */
    char wakeup_name[PC_WAKEUP_NAME];
    _Alignas(PC_LINE_BYTES) _Atomic uint32_t core;     /* where the rank last waited, plus one */
    _Alignas(PC_LINE_BYTES) _Atomic uint64_t sequence; /* the rank's status; see struct pc_status */
    _Atomic uint32_t state;
    _Atomic uint32_t described;
    _Atomic uint32_t withdrawn; /* it broke off transfers: memory that it exposed may change */
    _Atomic uint64_t
        signatures[PC_STATUS_CALLS]; /* of the last calls; call n's at n mod that many */
    char text[232];
};

struct pc_layout {
    uint32_t size;
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t small_bytes;
    bool windows;   /* of a peer's arena only the header and this rank's record are mapped */
    size_t channel; /* bytes of its slots: those of a mapped peer, or of transfers, are not small */
    size_t record;  /* bytes of one */
    size_t records, trace, heap, end;
};

/* Up to so many bytes a message between hosts is small. A signal takes long there, so that many
 * should be in flight; in memory that a reader shares, only few slots stay in its cache. */
static inline uint32_t pc__net_small(const struct pc_options *o)
{
    return o->small_bytes > PC_INLINE_BYTES ? o->small_bytes : PC_INLINE_BYTES;
}

static inline size_t pc__page_up(size_t n)
{
    return (n + PC_PAGE - 1) / PC_PAGE * PC_PAGE;
}

/* The lines at the begin of a record: READY, two per peer; DONE; credit and slot lines by channel.
 */
enum {
    PC_RECORD_READY = 0,
    PC_RECORD_DONE = 2,
    PC_RECORD_CREDIT = 3,
    PC_RECORD_SLOTS = PC_RECORD_CREDIT + PC_EDGE_CHANNELS,
    PC_RECORD_LINES = PC_RECORD_SLOTS + PC_EDGE_CHANNELS * PC_LINES,
};
/* Records follow each other at whole pages: without an offset of their own, lines that a rank polls
 * for many peers would all compete for one set of its cache. */
#define PC_RECORD_OFFSETS 16u
#define PC_RECORD_DATA pc__page_up((PC_RECORD_LINES + PC_RECORD_OFFSETS) * (size_t)PC_LINE_BYTES)

static inline struct pc_layout pc__layout(const struct pc_options *o)
{
    struct pc_layout l = {.size = o->size, .slots = o->slots, .slot_bytes = o->slot_bytes};
    l.windows = o->windows;
    l.small_bytes = o->small_bytes;
    l.channel = pc__page_up((size_t)o->slots * o->slot_bytes
                            + (o->small_bytes ? PC_LINES * pc__small_stride(o->small_bytes) : 0));
    l.record = PC_RECORD_DATA + PC_EDGE_CHANNELS * l.channel;
    l.records = pc__page_up(sizeof(struct pc_arena));
    l.trace = l.records + o->size * l.record;
    l.heap = l.trace + pc__page_up(sizeof(struct pc_trace));
    l.end = l.heap + o->heap_bytes;
    return l;
}

/* A peer's record in an arena. */
static inline char *pc__record(char *arena, const struct pc_layout *l, uint32_t peer)
{
    return arena + l->records + peer * l->record;
}

/* What follows is in the record of `peer`, which begins at `r`. */
static inline struct pc_line *pc__record_line(char *r, uint32_t peer, uint32_t index)
{
    return (struct pc_line *)r + peer % PC_RECORD_OFFSETS + index;
}

/* In the arena of the receiver; `peer` sends. Call n uses READY line n & 1: a peer can be one call
 * ahead of a rank that has not read yet, never two. */
static inline struct pc_line *pc__ready_line(char *r, uint32_t peer, uint64_t n)
{
    return pc__record_line(r, peer, PC_RECORD_READY + (uint32_t)(n & 1));
}

static inline struct pc_line *pc__done_line(char *r, uint32_t peer)
{
    return pc__record_line(r, peer, PC_RECORD_DONE);
}

static inline struct pc_line *pc__slot_lines(char *r, uint32_t peer, uint32_t channel)
{
    return pc__record_line(r, peer, PC_RECORD_SLOTS + channel * PC_LINES);
}

static inline char *pc__slot_data(char *r, const struct pc_layout *l, uint32_t channel)
{
    return r + PC_RECORD_DATA + channel * l->channel;
}

/* In the arena of the sender: how many of its messages `peer` has consumed. */
static inline struct pc_line *pc__credit_line(char *r, uint32_t peer, uint32_t channel)
{
    return pc__record_line(r, peer, PC_RECORD_CREDIT + channel);
}
#endif
