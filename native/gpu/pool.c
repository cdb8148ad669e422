/* Memory on the device for plans: pieces of a few large allocations; see device_comm.h. */
#include <stdlib.h>
#include "gpu/device_comm.h"

#define PC_POOL_BYTES ((size_t)4 << 20)

static int grow(struct pc_device_comm *plane, size_t nbytes)
{
    struct pc_pool *pools = realloc(plane->pools, (plane->npools + 1) * sizeof *pools);
    if (pools == NULL)
        return pc__fail(plane->error, PC_NOMEM, -1, "no memory for plans on GPU %d", plane->device);
    plane->pools = pools;
    struct pc_pool *pool = &pools[plane->npools];
    *pool = (struct pc_pool){.heap.bytes
                             = nbytes > PC_POOL_BYTES ? pc__page_up(nbytes) : PC_POOL_BYTES};
    int rc = pc_cuda_alloc(plane->device, pool->heap.bytes, plane->error, &pool->at);
    plane->npools += rc == PC_OK;
    return rc;
}

int pc__pool_open(struct pc_device_comm *plane)
{
    return grow(plane, PC_POOL_BYTES);
}

void pc__pool_close(struct pc_device_comm *plane)
{
    struct pc_error ignored;
    for (uint32_t i = 0; i < plane->npools; i++) {
        pc__heap_drop(&plane->pools[i].heap);
        pc_cuda_free(plane->device, plane->pools[i].at, &ignored);
    }
    free(plane->pools);
    plane->pools = NULL;
    plane->npools = 0;
}

int pc__pool_take(struct pc_device_comm *plane, size_t nbytes, uint64_t *address)
{
    size_t offset;
    for (uint32_t i = 0;; i++) {
        if (i == plane->npools) {
            int rc = grow(plane, nbytes);
            if (rc != PC_OK)
                return rc;
        }
        if (pc__heap_take(&plane->pools[i].heap, nbytes, &offset)) {
            *address = plane->pools[i].at + offset;
            return PC_OK;
        }
        if (i + 1 == plane->npools && plane->pools[i].heap.blocks == NULL) /* no memory here */
            return pc__fail(plane->error, PC_NOMEM, -1, "no memory for a plan");
    }
}

void pc__pool_give(struct pc_device_comm *plane, uint64_t address)
{
    for (uint32_t i = 0; i < plane->npools; i++) {
        struct pc_pool *pool = &plane->pools[i];
        if (address >= pool->at && address - pool->at < pool->heap.bytes)
            pc__heap_give(&pool->heap, (size_t)(address - pool->at));
    }
}
