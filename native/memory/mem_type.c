/* Memory types: computes the span of host memory, and asks the CUDA driver about GPU memory.
 *
 * libcuda is loaded at the first question about GPU memory, and never otherwise: it takes a good
 * part of a second. Source: the CUDA driver API's reference, and how NCCL registers. */
#include <unistd.h>
#include "gpu/driver/cuda.h"
#include "core/internal.h"
#include "memory/mem_type.h"

enum { POINTER_SYNC_MEMOPS = 6 }; /* CUpointer_attribute */
enum {                            /* CUdevice_attribute */
       DEVICE_CAPABILITY_MAJOR = 75,
       DEVICE_USES_HOST_PAGE_TABLES = 100,
       DEVICE_RDMA_SUPPORTED = 116,
       DEVICE_RDMA_FLUSH_OPTIONS = 117,
       DEVICE_RDMA_ORDERING = 118,
       DEVICE_DMA_BUF_SUPPORTED = 124,
};
enum { HANDLE_DMA_BUF = 1 };
enum { FLUSH_OPTION_HOST = 1, FLUSH_CURRENT_CONTEXT = 0 };
enum { ORDERED_FOR_OWNER = 100 };

static uintptr_t page_down(uintptr_t at)
{
    return at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static uintptr_t page_up(uintptr_t at)
{
    return page_down(at + (uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static int gpu_span(uintptr_t from, uintptr_t to, struct pc_error *error, struct pc_mem_span *out)
{
    struct pc_cuda_pointer found;
    int rc = pc_cuda_pointer(from, error, &found);
    if (rc != PC_OK)
        return rc;
    if (found.kind == PC_CUDA_HOST)
        return PC_OK; /* pinned by the driver: like any host memory */
    if (found.kind != PC_CUDA_DEVICE)
        return pc__fail(error, PC_INVALID, -1, "%#zx is not memory that NVIDIA's driver knows",
                        (size_t)from);
    if (found.managed)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "managed memory moves between GPU and host: no NIC can be told of it");
    uintptr_t start = found.base, end = found.base + found.nbytes;
    if (from < start || to > end)
        return pc__fail(error, PC_INVALID, -1,
                        "%zu bytes at %#zx reach beyond their allocation of %zu bytes at %#zx",
                        (size_t)(to - from), (size_t)from, (size_t)(end - start), (size_t)start);
    out->kind = PC_MEM_DMABUF;
    out->device = found.device;
    /* Pools and virtual memory management may map other memory at an address that is still
     * allocated: only memory of cudaMalloc is known to keep its stamp. */
    out->stamp = found.ipc ? found.id : 0;
    out->from = out->from > start ? out->from : start;
    out->to = out->to < end ? out->to : end;
    return PC_OK;
}

int pc__mem_query(const void *address, size_t nbytes, bool gpu, struct pc_error *error,
                  struct pc_mem_span *out)
{
    uintptr_t from = (uintptr_t)address, to = from + nbytes;
    if (nbytes == 0 || to < from || page_up(to) < to)
        return pc__fail(error, PC_INVALID, -1, "%zu bytes at %p are no memory", nbytes, address);
    *out = (struct pc_mem_span){
        .from = page_down(from), .to = page_up(to), .kind = PC_MEM_HOST, .device = -1};
    return gpu ? gpu_span(from, to, error, out) : PC_OK;
}

/* Makes synchronous CUDA calls on this memory complete before they return
 * (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS): else a NIC might read what such a call has yet to write. */
static void set_sync_memops(const struct pc_mem_span *span)
{
    unsigned yes = 1;
    pc__cuda.PointerSetAttribute(&yes, POINTER_SYNC_MEMOPS, span->from);
}

int pc__mem_export_dmabuf(const struct pc_mem_span *span, struct pc_error *error, int *fd,
                          uint64_t *offset)
{
    const char *missing = pc__mem_missing(PC_MEM_DMABUF);
    uintptr_t from = page_down(span->from), to = page_up(span->to);
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    int rc = pc__cuda_enter_base(span->device, error);
    if (rc != PC_OK)
        return rc;
    set_sync_memops(span);
    int result = pc__cuda.MemGetHandleForAddressRange(fd, from, to - from, HANDLE_DMA_BUF, 0);
    *offset = span->from - from;
    rc = pc__cuda_leave(result, error, "cuMemGetHandleForAddressRange(%#zx, %zu bytes)",
                        (size_t)from, (size_t)(to - from));
    if (rc != PC_OK)
        error->code = PC_UNMAPPABLE; /* for any error the caller tries another way */
    return rc == PC_OK ? PC_OK : PC_UNMAPPABLE;
}

int pc__mem_peermem(const struct pc_mem_span *span, struct pc_error *error)
{
    const char *missing = pc__mem_missing(PC_MEM_PEERMEM);
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    set_sync_memops(span);
    return PC_OK;
}

const char *pc__mem_missing(enum pc_mem_type kind)
{
    if (kind != PC_MEM_DMABUF && kind != PC_MEM_PEERMEM)
        return "";
    if (*pc__cuda_library() != 0)
        return pc__cuda_library();
    if (kind == PC_MEM_PEERMEM)
        return access("/sys/module/nvidia_peermem", F_OK) == 0
                       || access("/sys/module/nv_peer_mem", F_OK) == 0 /* its older name */
                   ? ""
                   : "nvidia_peermem is not loaded: modprobe nvidia_peermem";
    if (pc__cuda.MemGetHandleForAddressRange == NULL)
        return "libcuda.so.1 exports no dma-buf: install NVIDIA's driver 515 or later";
    for (int device = 0; device < pc__cuda.devices; device++)
        if (!pc__cuda_attribute(device, DEVICE_DMA_BUF_SUPPORTED))
            return "the GPU's driver exports no dma-buf: install NVIDIA's open kernel modules "
                   "(nvidia-open) on Linux 5.12 or later";
    return "";
}

int pc__mem_query_gpu(int device, struct pc_error *error, struct pc_mem_gpu *out)
{
    if (*pc__cuda_library() != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", pc__cuda_library());
    if (device < 0 || device >= pc__cuda.devices)
        return pc__fail(error, PC_INVALID, -1, "GPU %d: there are %d", device, pc__cuda.devices);
    *out = (struct pc_mem_gpu){.major = pc__cuda_attribute(device, DEVICE_CAPABILITY_MAJOR),
                               .ordering = pc__cuda_attribute(device, DEVICE_RDMA_ORDERING),
                               .options = pc__cuda_attribute(device, DEVICE_RDMA_FLUSH_OPTIONS),
                               .coherent
                               = pc__cuda_attribute(device, DEVICE_USES_HOST_PAGE_TABLES) != 0};
    return PC_OK;
}

enum pc_mem_flush pc__mem_flush_method(const struct pc_mem_gpu *gpu, bool relaxed)
{
    bool ordered = gpu->major >= 9 || gpu->ordering >= ORDERED_FOR_OWNER;
    if (ordered && !relaxed && !gpu->coherent)
        return PC_FLUSH_NONE;
    return gpu->options & FLUSH_OPTION_HOST ? PC_FLUSH_DRIVER : PC_FLUSH_READ;
}

int pc__mem_enter(int device, struct pc_error *error)
{
    return pc__cuda_enter_base(device, error);
}

void pc__mem_leave(void)
{
    struct pc_error none;
    pc__cuda_leave(0, &none, "%s", "");
}

int pc__mem_flush_by_driver(int device, struct pc_error *error)
{
    int rc = pc__cuda_enter_base(device, error);
    if (rc != PC_OK)
        return rc;
    /* Another thread may be capturing a graph: it is no business of this call's. */
    bool kernels = pc__cuda.ThreadExchangeStreamCaptureMode != NULL;
    int mode = kernels ? pc__cuda_relax(PC_CUDA_RELAXED) : 0;
    int result = pc__cuda.FlushGPUDirectRDMAWrites(FLUSH_CURRENT_CONTEXT, ORDERED_FOR_OWNER);
    if (kernels)
        pc__cuda_relax(mode);
    return pc__cuda_leave(result, error, "cuFlushGPUDirectRDMAWrites of GPU %d", device);
}
