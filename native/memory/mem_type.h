/* Memory types (enum pc_mem_type): where memory lies, and how an RDMA device reaches it.
 *
 * DMABUF and PEERMEM have not run on hardware: they are tested with a stand-in for the driver. */
#ifndef PC_MEM_TYPE_H
#define PC_MEM_TYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pycoll.h"

/* Whole pages of one allocation. */
struct pc_mem_span {
    uintptr_t from, to;
    uint64_t stamp; /* of a GPU allocation, unique; 0: host memory, or no stamp is known */
    uint32_t kind;  /* enum pc_mem_type */
    int32_t device; /* CUDA ordinal of the GPU, or -1 */
};

/* A GPU's attributes about writes of other devices. */
struct pc_mem_gpu {
    int major;     /* compute capability */
    int ordering;  /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING */
    int options;   /* ..._FLUSH_WRITES_OPTIONS */
    bool coherent; /* shares the CPU's page tables: a link beside PCIe (Grace-Hopper) */
};

/* The span of host memory, or with `gpu` of GPU memory, that covers [address, address + nbytes).
 * INVALID when that is no memory, or not of one allocation. The kind of GPU memory is DMABUF here,
 * also where only PEERMEM works: pc__mem_export_dmabuf finds that out. */
int pc__mem_query(const void *address, size_t nbytes, bool gpu, struct pc_error *error,
                  struct pc_mem_span *out);

/* Exports GPU memory as a dma-buf; `offset` is where the span begins in it. The caller closes `fd`
 * right after registering. UNMAPPABLE where that is not possible. */
int pc__mem_export_dmabuf(const struct pc_mem_span *span, struct pc_error *error, int *fd,
                          uint64_t *offset);
/* Whether nvidia_peermem can register GPU memory by its address: OK or UNMAPPABLE. */
int pc__mem_peermem(const struct pc_mem_span *span, struct pc_error *error);

/* "", or why this host cannot register memory of this type, and what mends that. Loads the driver's
 * library. The text is valid for ever. */
const char *pc__mem_missing(enum pc_mem_type kind);

int pc__mem_query_gpu(int device, struct pc_error *error, struct pc_mem_gpu *out);

/* The flush rule. The completion of a remote write says that its bytes have left the NIC for the
 * GPU; it goes to host memory, by another way, and may overtake them. Before anybody reads them (a
 * kernel that runs, or one that is launched now, or a copy), do this, once for all writes of
 * that NIC that have completed:
 *
 *   nothing, where the GPU orders such writes before what its owner does next: its driver says so
 *   (ordering of at least OWNER), or it is of compute capability 9.0 or later, as in NCCL. Not
 *   where the registration is `relaxed` (with IBV_ACCESS_RELAXED_ORDERING), as long as no run on
 *   hardware has shown that it makes no difference; nor with a coherent link beside PCIe: a NIC on
 *   one of the two bypasses the other;
 *   pc__mem_flush_by_driver, where the driver offers it to the CPU;
 *   else an RDMA READ of a byte of that memory, by a queue pair of the same NIC to itself: a read
 *   does not overtake writes on PCIe, so when it completes they have arrived.
 *
 * A kernel that polls a flag in GPU memory, with nothing on the CPU in between, is safe only where
 * the answer is NONE, and the flag's own registration is not relaxed. */
enum pc_mem_flush pc__mem_flush_method(const struct pc_mem_gpu *gpu, bool relaxed);
int pc__mem_flush_by_driver(int device, struct pc_error *error);

/* Makes the GPU's context current, for a library that asks the driver about its memory by itself,
 * until pc__mem_leave. */
int pc__mem_enter(int device, struct pc_error *error);
void pc__mem_leave(void);
#endif
