/* Where a piece of memory lies, and by which way an RDMA device reaches it.
 *
 *   HOST     memory of this process, by its address;
 *   DMABUF   a GPU's memory, as a dma-buf that the driver exports and the NIC imports;
 *   PEERMEM  a GPU's memory by its address, which nvidia_peermem explains to the NIC;
 *   STAGED   a GPU's memory that no NIC here reaches: the caller copies through host memory.
 *
 * The two ways to a GPU have not run on hardware: they are tried with a stand-in for the driver. */
#ifndef PC_MEM_TYPE_H
#define PC_MEM_TYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pycoll.h"

enum pc_mem_type {
    PC_MEM_HOST = 0,
    PC_MEM_DMABUF = 1,
    PC_MEM_PEERMEM = 2,
    PC_MEM_STAGED = 3,
};

/* How what was written into memory by a NIC becomes visible to who reads it there, after the
 * completion of the write has been seen; see pc__mem_flush_method. */
enum pc_mem_flush {
    PC_FLUSH_NONE = 0,
    PC_FLUSH_DRIVER = 1, /* call pc__mem_flush_by_driver */
    PC_FLUSH_READ = 2,   /* RDMA READ of a byte of that memory, by the NIC that wrote it */
};

/* Whole pages of one allocation. */
struct pc_mem_span {
    uintptr_t from, to;
    uint64_t stamp; /* of a GPU's allocation, never used again; 0: host memory, or it has none */
    uint32_t kind;  /* enum pc_mem_type */
    int32_t device; /* ordinal of the GPU, or -1 */
};

/* What a GPU says about the writes of other devices. */
struct pc_mem_gpu {
    int major;    /* compute capability */
    int ordering; /* of writes by RDMA: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING */
    int options;  /* to flush them: ..._FLUSH_WRITES_OPTIONS */
    bool
        coherent; /* it shares the CPU's page tables: a link beside PCIe (Grace-Hopper and later) */
};

/* The span of host memory, or with `gpu` of a GPU's, that covers [address, address + nbytes).
 * INVALID when that is no memory, or not of one allocation. Kind DMABUF stands for either way to a
 * GPU: pc__mem_export_dmabuf finds out. */
int pc__mem_query(const void *address, size_t nbytes, bool gpu, struct pc_error *error,
                  struct pc_mem_span *out);

/* The two ways to a GPU's memory: OK, or UNMAPPABLE where the span cannot be had so.
 * A dma-buf, and where in it the span begins. Whoever got it closes it, right after registering. */
int pc__mem_export_dmabuf(const struct pc_mem_span *span, struct pc_error *error, int *fd,
                          uint64_t *offset);
/* By its address. */
int pc__mem_peermem(const struct pc_mem_span *span, struct pc_error *error);

/* "", or why memory is not reached in this way on this machine, and what mends it. Loads the
 * driver's library. The text is valid for ever. */
const char *pc__mem_missing(enum pc_mem_type kind);

int pc__mem_query_gpu(int device, struct pc_error *error, struct pc_mem_gpu *out);

/* The flush rule. The completion of a remote write says that its bytes have left the NIC for the
 * GPU; it goes to host memory, by another way, and may overtake them. Before anybody reads them (a
 * kernel that runs, or one that is launched now, or a copy), this is to be done, once for all
 * writes of that NIC that have completed:
 *
 *   nothing, where the GPU keeps such writes in order before what its owner does next: its driver
 *   says so (ordering of at least OWNER) and the registration is not `relaxed` (with
 *   IBV_ACCESS_RELAXED_ORDERING), or it is of compute capability 9.0 or later on PCIe, as NCCL has
 *   it. Not with a coherent link beside PCIe: a NIC behind that one passes by the other;
 *   pc__mem_flush_by_driver, where the driver offers it to the CPU;
 *   else an RDMA READ of a byte of that memory, by a queue pair of the same NIC to itself: a read
 *   does not overtake writes on PCIe, so when it completes they have arrived.
 *
 * A kernel that polls a flag in GPU memory, with nothing on the CPU in between, is safe only where
 * the answer is NONE, and the flag's own registration is not relaxed. */
enum pc_mem_flush pc__mem_flush_method(const struct pc_mem_gpu *gpu, bool relaxed);
int pc__mem_flush_by_driver(int device, struct pc_error *error);
#endif
