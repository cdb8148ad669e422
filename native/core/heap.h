/* An allocator of whole pages: first fit, and free neighbours are merged. It knows offsets only, so
 * it serves memory that this process cannot touch as well. */
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

/* Allocates `nbytes`; false when there is no room. */
bool pc__heap_take(struct pc_heap *heap, size_t nbytes, size_t *offset);
/* The size of the block allocated at `offset`; 0 when there is none. */
size_t pc__heap_taken(const struct pc_heap *heap, size_t offset);
void pc__heap_give(struct pc_heap *heap, size_t offset);
void pc__heap_drop(struct pc_heap *heap);
#endif
