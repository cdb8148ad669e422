/* Which pieces of a region are taken: first fit, in whole pages, neighbours that are free merged.
 * It knows offsets only, so it serves memory that this process cannot touch as well. */
#ifndef PC_HEAP_H
#define PC_HEAP_H
#include <stdbool.h>
#include <stddef.h>

struct pc_block { /* in order of offset */
    size_t offset;
    size_t bytes;
    bool used;
};

struct pc_heap {
    struct pc_block *blocks;
    size_t nblocks;
    size_t bytes; /* of the region; a multiple of PC_PAGE */
};

/* Finds room for `nbytes`; false when there is none. */
bool pc__heap_take(struct pc_heap *heap, size_t nbytes, size_t *offset);
/* The bytes of the piece that begins at `offset`; 0 when none does that is taken. */
size_t pc__heap_taken(const struct pc_heap *heap, size_t offset);
void pc__heap_give(struct pc_heap *heap, size_t offset);
void pc__heap_drop(struct pc_heap *heap);
#endif
