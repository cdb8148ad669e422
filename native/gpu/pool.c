/* The memory pool for plans, made of a few large device allocations; see device_comm.h. */
#include <stdlib.h>
#include "gpu/device_comm.h"

#define PC_POOL_BYTES ((size_t)4 << 20)

static int grow(struct pc_device_comm *dc, size_t nbytes)
{
    struct pc_pool *pools = realloc(dc->pools, (dc->npools + 1) * sizeof *pools);
    if (pools == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1, "no memory for plans on GPU %d", dc->device);
    dc->pools = pools;
    struct pc_pool *pool = &pools[dc->npools];
    *pool = (struct pc_pool){.heap.bytes
                             = nbytes > PC_POOL_BYTES ? pc__page_up(nbytes) : PC_POOL_BYTES};
    int rc = pc_cuda_alloc(dc->device, pool->heap.bytes, dc->error, &pool->at);
    dc->npools += rc == PC_OK;
    return rc;
}

int pc__pool_open(struct pc_device_comm *dc)
{
    return grow(dc, PC_POOL_BYTES);
}

void pc__pool_close(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    for (uint32_t i = 0; i < dc->npools; i++) {
        pc__heap_drop(&dc->pools[i].heap);
        pc_cuda_free(dc->device, dc->pools[i].at, &ignored);
    }
    free(dc->pools);
    dc->pools = NULL;
    dc->npools = 0;
}

int pc__pool_take(struct pc_device_comm *dc, size_t nbytes, uint64_t *address)
{
    size_t offset;
    for (uint32_t i = 0;; i++) {
        if (i == dc->npools) {
            int rc = grow(dc, nbytes);
            if (rc != PC_OK)
                return rc;
        }
        if (pc__heap_take(&dc->pools[i].heap, nbytes, &offset)) {
            *address = dc->pools[i].at + offset;
            return PC_OK;
        }
        if (i + 1 == dc->npools && dc->pools[i].heap.blocks == NULL) /* out of host memory */
            return pc__fail(dc->error, PC_NOMEM, -1, "no memory for a plan");
    }
}

void pc__pool_give(struct pc_device_comm *dc, uint64_t address)
{
    for (uint32_t i = 0; i < dc->npools; i++) {
        struct pc_pool *pool = &dc->pools[i];
        if (address >= pool->at && address - pool->at < pool->heap.bytes)
            pc__heap_give(&pool->heap, (size_t)(address - pool->at));
    }
}
