/* The engine's own code for a GPU's memory, on the GPU that is there: spans, the two ways by which
 * a NIC reaches it, and the flush rule. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memory/mem_type.h"

static struct pc_error error;

static void must(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "%s: %d: %s\n", what, rc, error.text);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int device = argc > 1 ? atoi(argv[1]) : 0, fd = -1;
    uint64_t address, offset;
    struct pc_mem_span whole, part;
    struct pc_mem_gpu gpu;
    must(pc_cuda_alloc(device, 4 << 20, &error, &address), "alloc");
    void *begin = (void *)(uintptr_t)address;
    must(pc__mem_query(begin, 4 << 20, true, &error, &whole), "span");
    must(pc__mem_query((char *)begin + 12345, 1000, true, &error, &part), "span of a part");
    if (part.from > address + 12345 || part.to < address + 13345 || part.stamp != whole.stamp
        || part.device != device || part.from % 4096 || part.to % 4096) {
        fprintf(stderr, "the span of a part is wrong\n");
        return 1;
    }
    if (pc__mem_query(begin, (size_t)1 << 40, true, &error, &part) >= 0) {
        fprintf(stderr, "a span past the allocation was not refused\n");
        return 1;
    }
    int rc = pc__mem_export_dmabuf(&whole, &error, &fd, &offset);
    if (rc < 0)
        printf("dma-buf: %s\n", error.text);
    else
        printf("dma-buf: descriptor %d, offset %llu\n", fd, (unsigned long long)offset);
    if (fd >= 0)
        close(fd);
    rc = pc__mem_peermem(&whole, &error);
    printf("peermem: %s\n", rc < 0 ? error.text : "there");
    must(pc__mem_query_gpu(device, &error, &gpu), "gpu");
    printf("flush: ordering %d, options %d, coherent %d: %s\n", gpu.ordering, gpu.options,
           gpu.coherent,
           (const char *[]){"none", "by the driver", "by a read"}[pc__mem_flush_method(&gpu, false)]);
    if (pc__mem_flush_method(&gpu, false) == PC_FLUSH_DRIVER)
        must(pc__mem_flush_by_driver(device, &error), "flush");
    must(pc_cuda_free(device, address, &error), "free");
    must(pc_cuda_alloc(device, 4 << 20, &error, &address), "alloc");
    must(pc__mem_query((void *)(uintptr_t)address, 4096, true, &error, &part), "span");
    if (part.stamp == whole.stamp) {
        fprintf(stderr, "another allocation has the stamp of one that was freed\n");
        return 1;
    }
    must(pc_cuda_free(device, address, &error), "free");
    return 0;
}
