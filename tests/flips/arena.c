/* Where a peer's messages lie in the arena of a rank, told from the header of that arena. */
#include "core/layout.h"

/* The slot of a peer, from the begin of the arena on; 0: this is the arena of another rank. */
size_t flips_slot(const struct pc_arena *arena, uint32_t rank, uint32_t peer, uint32_t channel,
                  uint32_t slot)
{
    struct pc_options o = {.size = arena->size,
                           .slots = arena->slots,
                           .slot_bytes = arena->slot_bytes,
                           .small_bytes = arena->small_bytes,
                           .heap_bytes = arena->heap_bytes};
    struct pc_layout l = pc__layout(&o);
    char *begin = (char *)arena;
    if (arena->magic != PC_ARENA_MAGIC || arena->rank != rank || slot >= arena->slots)
        return 0;
    char *data = pc__slot_data(pc__record(begin, &l, peer), &l, channel);
    return (size_t)(data - begin) + (size_t)slot * arena->slot_bytes;
}
