/* The layout of a rank's arena: one sparse memfd that every mapped peer maps whole.
 *
 *   header | ready lines | done lines | credit lines | slot lines | slots | heap
 *
 * Every address is arithmetic on (rank, channel, slot), so no edge is ever negotiated, and memory
 * appears when it is first touched. New pages are zero, which is the first value of every count. */
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
    uint32_t reserved;
    uint64_t address; /* of this header, in its owner's address space */
    uint64_t token;   /* random: a peer that reads it there has found this header */
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
    size_t ready, done, credit, lines, data, heap, end;
};

static inline size_t pc__page_up(size_t n)
{
    return (n + PC_PAGE - 1) / PC_PAGE * PC_PAGE;
}

static inline struct pc_layout pc__layout(const struct pc_options *o)
{
    struct pc_layout l = {.size = o->size, .slots = o->slots, .slot_bytes = o->slot_bytes};
    size_t edges = (size_t)o->size * PC_EDGE_CHANNELS;
    l.ready = pc__page_up(sizeof(struct pc_arena));
    l.done = l.ready + (size_t)o->size * 2 * PC_LINE_BYTES; /* two ready lines per peer */
    l.credit = l.done + (size_t)o->size * PC_LINE_BYTES;
    l.lines = l.credit + edges * PC_LINE_BYTES;
    l.data = pc__page_up(l.lines + edges * PC_LINES * PC_LINE_BYTES);
    l.heap = l.data + edges * o->slots * (size_t)o->slot_bytes;
    l.end = l.heap + o->heap_bytes;
    return l;
}

static inline struct pc_line *pc__line(char *arena, size_t offset, size_t index)
{
    return (struct pc_line *)(arena + offset) + index;
}

/* In the arena of the receiver. Call n uses READY line n & 1: a peer can be one call ahead of a
 * rank that has not read yet, never two. */
static inline struct pc_line *pc__ready_line(char *a, const struct pc_layout *l, uint32_t from,
                                             uint64_t n)
{
    return pc__line(a, l->ready, (size_t)from * 2 + (n & 1));
}

static inline struct pc_line *pc__done_line(char *a, const struct pc_layout *l, uint32_t from)
{
    return pc__line(a, l->done, from);
}

static inline struct pc_line *pc__slot_lines(char *a, const struct pc_layout *l, uint32_t from,
                                             uint32_t channel)
{
    return pc__line(a, l->lines, ((size_t)from * PC_EDGE_CHANNELS + channel) * PC_LINES);
}

static inline char *pc__slot_data(char *a, const struct pc_layout *l, uint32_t from,
                                  uint32_t channel)
{
    return a + l->data
           + ((size_t)from * PC_EDGE_CHANNELS + channel) * l->slots * (size_t)l->slot_bytes;
}

/* In the arena of the sender: how many of its messages to `to` have been consumed. */
static inline struct pc_line *pc__credit_line(char *a, const struct pc_layout *l, uint32_t to,
                                              uint32_t channel)
{
    return pc__line(a, l->credit, (size_t)to * PC_EDGE_CHANNELS + channel);
}
#endif
