/* What the stand-ins for libcuda and libibverbs tell each other about a GPU's memory that a NIC
 * reaches. Each finds the other, if the process has loaded it, by dlopen with RTLD_NOLOAD. */
#ifndef FAKECUDA_PEER_MEMORY_H
#define FAKECUDA_PEER_MEMORY_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Part of an allocation. The descriptor of a dma-buf is that of a small file with this in it; the
 * memory itself is a file of the process that allocated it. */
struct fakecuda_memory {
    char magic[8];          /* FAKECUDA_DMABUF */
    int32_t pid, fd;        /* the process, and the memory's descriptor there */
    uint64_t inode;         /* of the memory, while that descriptor is still the same memory */
    uint64_t begin, nbytes; /* in the memory */
    int32_t device;         /* its number on the machine */
    int32_t ordering;       /* when a NIC's writes are in order with its completions: */
};
enum { FAKECUDA_NEVER, FAKECUDA_UNLESS_RELAXED, FAKECUDA_ALWAYS };
#define FAKECUDA_DMABUF "dma-buf"

/* A registration holds a read lock (F_OFD_SETLK) of this byte of the memory's file, by a descriptor
 * of its own, for as long as it lasts. */
enum { FAKECUDA_LOCKED = 0 };

/* Of libcuda. 0: no byte of that is a GPU's memory. 1: it lies in one allocation that NICs may
 * reach, as `out` says. -1: it is a GPU's memory, and cannot be reached. */
int fakecuda_peer_memory(uint64_t at, uint64_t nbytes, struct fakecuda_memory *out);

/* Of libibverbs, and fakefabric_flush of libfabric: cuFlushGPUDirectRDMAWrites of that device, by
 * its number on the machine. */
void fakeverbs_flush(int device);

#ifdef __cplusplus
}
#endif
#endif
