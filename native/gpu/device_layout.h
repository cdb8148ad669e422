/* The layout of a rank's device arena: one allocation of GPU memory, which the ranks that can reach
 * it open whole.
 *
 *   header | ready lines | done lines | credit lines | slot lines | packets | slots | heap
 *
 * It is like core/layout.h, with PC_MAX_BLOCKS edges where a CPU has channels, and for the ranks of
 * one host only, as GPU memory is allocated whether it is touched or not. So a peer is given by its
 * number among those (local). All but slots and heap begins as zeros. */
#ifndef PC_DEVICE_LAYOUT_H
#define PC_DEVICE_LAYOUT_H
#include "gpu/device.h"
#include "core/layout.h"

#define PC_DEVICE_ARENA_MAGIC 0x50434441u /* "PCDA" */

struct pc_device_header { /* at offset 0: who opens the arena checks it */
    uint32_t magic;
    uint32_t version;
    uint32_t rank;
    uint32_t size;
    uint32_t local;   /* the rank's number among those of its host */
    uint32_t nlocals; /* how many ranks those are */
    uint32_t slots;
    uint32_t slot_bytes;
    uint64_t heap_bytes;
    uint64_t among;    /* a digest of which ranks those are */
    uint64_t token[2]; /* random */
};

struct pc_device_layout {
    uint32_t slots;
    uint32_t slot_bytes;
    size_t ready, done, credit, lines, packets, data, heap, end;
};

static inline struct pc_device_layout pc__device_layout(uint32_t nlocals, uint32_t slots,
                                                        uint32_t slot_bytes, uint64_t heap_bytes)
{
    struct pc_device_layout l = {.slots = slots, .slot_bytes = slot_bytes};
    size_t edges = (size_t)nlocals * PC_MAX_BLOCKS;
    l.ready = pc__page_up(sizeof(struct pc_device_header));
    l.done = l.ready + (size_t)nlocals * 2 * PC_LINE_BYTES; /* two ready lines per peer */
    l.credit = l.done + edges * PC_LINE_BYTES;
    l.lines = l.credit + edges * PC_LINE_BYTES;
    l.packets = pc__page_up(l.lines + edges * PC_LINES * PC_LINE_BYTES);
    l.data = pc__page_up(l.packets + edges * slots * (size_t)PC_LL_SLOT_BYTES);
    l.heap = l.data + edges * slots * (size_t)slot_bytes;
    l.end = l.heap + heap_bytes;
    return l;
}

/* Offsets of an edge; peers are local numbers. In the arena of the receiver: */
static inline size_t pc__device_ready(const struct pc_device_layout *l, uint32_t from)
{
    return l->ready + (size_t)from * 2 * PC_LINE_BYTES;
}

static inline size_t pc__device_done(const struct pc_device_layout *l, uint32_t from,
                                     uint32_t block)
{
    return l->done + ((size_t)from * PC_MAX_BLOCKS + block) * PC_LINE_BYTES;
}

static inline size_t pc__device_lines(const struct pc_device_layout *l, uint32_t from,
                                      uint32_t block)
{
    return l->lines + ((size_t)from * PC_MAX_BLOCKS + block) * PC_LINES * PC_LINE_BYTES;
}

static inline size_t pc__device_ll_slots(const struct pc_device_layout *l, uint32_t from,
                                         uint32_t block)
{
    return l->packets
           + ((size_t)from * PC_MAX_BLOCKS + block) * l->slots * (size_t)PC_LL_SLOT_BYTES;
}

static inline size_t pc__device_data(const struct pc_device_layout *l, uint32_t from,
                                     uint32_t block)
{
    return l->data + ((size_t)from * PC_MAX_BLOCKS + block) * l->slots * (size_t)l->slot_bytes;
}

/* In the arena of the sender: how many of its messages to `to` have been consumed. */
static inline size_t pc__device_credit(const struct pc_device_layout *l, uint32_t to,
                                       uint32_t block)
{
    return l->credit + ((size_t)to * PC_MAX_BLOCKS + block) * PC_LINE_BYTES;
}
#endif
