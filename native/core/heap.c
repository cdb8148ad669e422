/* The heap: allocates from the tail of the arena, so that a peer knows an array by its offset. */
#include "core/heap.h"
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"

static bool insert(struct pc_heap *heap, size_t at, struct pc_block block)
{
    struct pc_block *blocks = realloc(heap->blocks, (heap->nblocks + 1) * sizeof *blocks);
    if (blocks == NULL)
        return false;
    heap->blocks = blocks;
    memmove(blocks + at + 1, blocks + at, (heap->nblocks - at) * sizeof *blocks);
    blocks[at] = block;
    heap->nblocks++;
    return true;
}

static void drop(struct pc_heap *heap, size_t at)
{
    heap->nblocks--;
    memmove(heap->blocks + at, heap->blocks + at + 1, (heap->nblocks - at) * sizeof *heap->blocks);
}

bool pc__heap_take(struct pc_heap *heap, size_t nbytes, size_t *offset)
{
    if (nbytes > heap->bytes)
        return false;
    size_t want = pc__page_up(nbytes ? nbytes : 1);
    if (heap->nblocks == 0 && !insert(heap, 0, (struct pc_block){0, heap->bytes, false}))
        return false;
    for (size_t i = 0; i < heap->nblocks; i++) {
        const struct pc_block *b = &heap->blocks[i];
        if (b->used || b->bytes < want)
            continue;
        struct pc_block rest = {b->offset + want, b->bytes - want, false};
        if (rest.bytes != 0 && !insert(heap, i + 1, rest))
            return false;
        heap->blocks[i].bytes = want;
        heap->blocks[i].used = true;
        *offset = heap->blocks[i].offset;
        return true;
    }
    return false;
}

size_t pc__heap_taken(const struct pc_heap *heap, size_t offset)
{
    for (size_t i = 0; i < heap->nblocks; i++)
        if (heap->blocks[i].offset == offset && heap->blocks[i].used)
            return heap->blocks[i].bytes;
    return 0;
}

void pc__heap_give(struct pc_heap *heap, size_t offset)
{
    struct pc_block *b = heap->blocks;
    size_t i = 0;
    while (b[i].offset != offset)
        i++;
    b[i].used = false;
    if (i + 1 < heap->nblocks && !b[i + 1].used) {
        b[i].bytes += b[i + 1].bytes;
        drop(heap, i + 1);
    }
    if (i > 0 && !b[i - 1].used) {
        b[i - 1].bytes += b[i].bytes;
        drop(heap, i);
    }
}

void pc__heap_drop(struct pc_heap *heap)
{
    free(heap->blocks);
    *heap = (struct pc_heap){.bytes = heap->bytes};
}

void *pc_heap_alloc(struct pc_comm *comm, size_t nbytes)
{
    size_t offset;
    if (comm->arena == NULL || !pc__heap_take(&comm->heap, nbytes, &offset))
        return NULL;
    return comm->arena + comm->layout.heap + offset;
}

int pc_heap_free(struct pc_comm *comm, void *address)
{
    if (comm->arena == NULL)
        return PC_OK; /* a child of fork: the memory is its parent's */
    size_t offset = (size_t)((char *)address - (comm->arena + comm->layout.heap));
    size_t nbytes = pc__heap_taken(&comm->heap, offset);
    if (nbytes == 0)
        return pc__fail(&comm->error, PC_INVALID, -1, "%p is not a registered array", address);
    pc__mem_changed(address, nbytes);
    int rc = pc__shm_ops.discard(comm->device, comm->layout.heap + offset, nbytes);
    pc__heap_give(&comm->heap, offset);
    return rc;
}
