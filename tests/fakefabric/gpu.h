/* Memory of a GPU (FI_HMEM), whose other half is the stand-in for libcuda (tests/fakecuda).
 *
 * A region of it is a mapping of the NIC's own. What a peer writes there is kept back, while what
 * tells of the write is delivered at once. It lands when this process reads that GPU's memory by
 * the same endpoint from itself: of what was here when the read arrived; or when it calls
 * cuFlushGPUDirectRDMAWrites of that GPU. What is left when its region is closed never lands. */
#ifndef FAKEFABRIC_GPU_H
#define FAKEFABRIC_GPU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_region {
    char *memory; /* as the NIC maps it; NULL: it is memory of the host */
    char *mapping;
    size_t mapped;
    int fd, device;
};

bool gpu_owns(const void *at, size_t nbytes);
/* 0, or an errno. */
int gpu_map(const void *at, size_t nbytes, struct gpu_region *out);
void gpu_unmap(struct gpu_region *region);
void gpu_write(const void *endpoint, const struct gpu_region *region, char *to, const char *from,
               size_t nbytes);
/* The endpoint has read the GPU's memory from itself. */
void gpu_read(const void *endpoint, int device);
#endif
