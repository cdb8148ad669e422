/* Registered memory: pieces of the arena's tail, so that a peer knows an array by its offset. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static int insert(struct pc_comm *comm, size_t at, struct pc_block block)
{
    struct pc_block *blocks = realloc(comm->blocks, (comm->nblocks + 1) * sizeof *blocks);
    if (blocks == NULL)
        return PC_NOMEM;
    comm->blocks = blocks;
    memmove(blocks + at + 1, blocks + at, (comm->nblocks - at) * sizeof *blocks);
    blocks[at] = block;
    comm->nblocks++;
    return PC_OK;
}

static void drop(struct pc_comm *comm, size_t at)
{
    comm->nblocks--;
    memmove(comm->blocks + at, comm->blocks + at + 1, (comm->nblocks - at) * sizeof *comm->blocks);
}

void *pc_heap_alloc(struct pc_comm *comm, size_t nbytes)
{
    if (comm->arena == NULL || nbytes > comm->options.heap_bytes)
        return NULL;
    size_t want = pc__page_up(nbytes ? nbytes : 1);
    if (comm->nblocks == 0
        && insert(comm, 0, (struct pc_block){0, comm->options.heap_bytes, false}) != PC_OK)
        return NULL;
    for (size_t i = 0; i < comm->nblocks; i++) { /* first fit */
        struct pc_block *b = &comm->blocks[i];
        if (b->used || b->bytes < want)
            continue;
        struct pc_block rest = {b->offset + want, b->bytes - want, false};
        if (rest.bytes != 0 && insert(comm, i + 1, rest) != PC_OK)
            return NULL;
        comm->blocks[i].bytes = want;
        comm->blocks[i].used = true;
        return comm->arena + comm->layout.heap + comm->blocks[i].offset;
    }
    return NULL;
}

int pc_heap_free(struct pc_comm *comm, void *address)
{
    if (comm->arena == NULL)
        return PC_OK; /* a fork's child: the memory is its parent's */
    size_t offset = (size_t)((char *)address - (comm->arena + comm->layout.heap));
    for (size_t i = 0; i < comm->nblocks; i++) {
        struct pc_block *b = comm->blocks;
        if (b[i].offset != offset || !b[i].used)
            continue;
        b[i].used = false;
        if (comm->remote != NULL && comm->remote->forget != NULL)
            comm->remote->forget(comm->wire, address, b[i].bytes);
        int rc = pc__shm.discard(comm->device, comm->layout.heap + offset, b[i].bytes);
        if (i + 1 < comm->nblocks && !b[i + 1].used) {
            b[i].bytes += b[i + 1].bytes;
            drop(comm, i + 1);
        }
        if (i > 0 && !b[i - 1].used) {
            b[i - 1].bytes += b[i].bytes;
            drop(comm, i);
        }
        return rc;
    }
    return pc__fail(&comm->error, PC_INVALID, -1, "%p is not a registered array", address);
}
