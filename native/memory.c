/* Memory kinds: host memory by arithmetic, a GPU's by asking its driver.
 *
 * The driver's library is loaded when somebody first asks for GPU memory, and never otherwise: it
 * takes a good part of a second. Constants and types are written out, as there is no header of it
 * where pycoll is built. Source: the CUDA driver API's reference, and how NCCL registers. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "internal.h"
#include "memory.h"

enum { /* CUpointer_attribute */
       POINTER_MEMORY_TYPE = 2,
       POINTER_SYNC_MEMOPS = 6,
       POINTER_BUFFER_ID = 7,
       POINTER_IS_MANAGED = 8,
       POINTER_DEVICE_ORDINAL = 9,
       POINTER_IS_LEGACY_IPC_CAPABLE = 10,
       POINTER_RANGE_START = 11,
       POINTER_RANGE_SIZE = 12,
};
enum { /* CUdevice_attribute */
       DEVICE_CAPABILITY_MAJOR = 75,
       DEVICE_USES_HOST_PAGE_TABLES = 100,
       DEVICE_RDMA_SUPPORTED = 116,
       DEVICE_RDMA_FLUSH_OPTIONS = 117,
       DEVICE_RDMA_ORDERING = 118,
       DEVICE_DMA_BUF_SUPPORTED = 124,
};
enum { MEMORY_TYPE_HOST = 1, MEMORY_TYPE_DEVICE = 2 };
enum { HANDLE_DMA_BUF = 1 };
enum { FLUSH_OPTION_HOST = 1, FLUSH_CURRENT_CONTEXT = 0 };
enum { ORDERED_FOR_OWNER = 100 };

/* Without a trailing underscore in the name: every driver since CUDA 11.3 has it. */
#define PC_CUDA(X) \
    X(Init, "cuInit", (unsigned)) \
    X(DeviceGet, "cuDeviceGet", (int *, int)) \
    X(DeviceGetCount, "cuDeviceGetCount", (int *)) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int)) \
    X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned, int *, void **, uintptr_t)) \
    X(PointerSetAttribute, "cuPointerSetAttribute", (const void *, int, uintptr_t)) \
    X(ContextRetain, "cuDevicePrimaryCtxRetain", (void **, int)) \
    X(ContextRelease, "cuDevicePrimaryCtxRelease_v2", (int)) \
    X(ContextPush, "cuCtxPushCurrent_v2", (void *)) \
    X(ContextPop, "cuCtxPopCurrent_v2", (void **)) \
    X(GetErrorString, "cuGetErrorString", (int, const char **)) \
    X(FlushWrites, "cuFlushGPUDirectRDMAWrites", (int, int))

static struct {
#define PC_MEMBER(name, symbol, arguments) int(*name) arguments;
    PC_CUDA(PC_MEMBER)
#undef PC_MEMBER
    /* NULL before CUDA 11.7. */
    int (*MemGetHandleForAddressRange)(void *, uintptr_t, size_t, int, unsigned long long);
    int devices;
    char missing[240];
} cuda;

static const char *explain(int result)
{
    const char *text = NULL;
    cuda.GetErrorString(result, &text);
    return text != NULL ? text : "an unknown error";
}

static void load(void)
{
    const char *absent = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(cuda.missing, sizeof cuda.missing,
                 "libcuda.so.1 was not found: install NVIDIA's driver");
        return;
    }
#define PC_SYMBOL(name, symbol, arguments) \
    if ((*(void **)&cuda.name = dlsym(library, symbol)) == NULL) \
        absent = symbol;
    PC_CUDA(PC_SYMBOL)
#undef PC_SYMBOL
    *(void **)&cuda.MemGetHandleForAddressRange = dlsym(library, "cuMemGetHandleForAddressRange");
    if (absent != NULL) {
        snprintf(cuda.missing, sizeof cuda.missing,
                 "libcuda.so.1 has no %s: install NVIDIA's driver 465 or later", absent);
        return;
    }
    int rc = cuda.Init(0);
    if (rc == 0)
        rc = cuda.DeviceGetCount(&cuda.devices);
    if (rc != 0)
        snprintf(cuda.missing, sizeof cuda.missing, "cuInit: %s: see nvidia-smi", explain(rc));
    else if (cuda.devices == 0)
        snprintf(cuda.missing, sizeof cuda.missing, "NVIDIA's driver has no GPU: see nvidia-smi");
}

static const char *cuda_missing(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return cuda.missing;
}

static int attribute(int device, int which)
{
    int handle, value = 0;
    if (cuda.DeviceGet(&handle, device) != 0 || cuda.DeviceGetAttribute(&value, which, handle) != 0)
        return 0; /* a driver that does not know it lacks it */
    return value;
}

static uintptr_t page_down(uintptr_t at)
{
    return at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static uintptr_t page_up(uintptr_t at)
{
    return page_down(at + (uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static int gpu_span(uintptr_t from, uintptr_t to, struct pc_error *error, struct pc_span *out)
{
    unsigned type = 0, managed = 0, ipc = 0;
    int device = -1;
    unsigned long long id = 0;
    uintptr_t start = 0;
    size_t size = 0;
    int which[] = {POINTER_MEMORY_TYPE,    POINTER_IS_MANAGED, POINTER_IS_LEGACY_IPC_CAPABLE,
                   POINTER_DEVICE_ORDINAL, POINTER_BUFFER_ID,  POINTER_RANGE_START,
                   POINTER_RANGE_SIZE};
    void *answers[] = {&type, &managed, &ipc, &device, &id, &start, &size};
    if (*cuda_missing() != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", cuda.missing);
    int rc = cuda.PointerGetAttributes(sizeof which / sizeof *which, which, answers, from);
    if (rc != 0)
        return pc__fail(error, PC_INVALID, -1, "cuPointerGetAttributes(%#zx): %s", (size_t)from,
                        explain(rc));
    if (type == MEMORY_TYPE_HOST)
        return PC_OK; /* pinned by the driver: as any other */
    if (type != MEMORY_TYPE_DEVICE)
        return pc__fail(error, PC_INVALID, -1, "%#zx is not memory that NVIDIA's driver knows",
                        (size_t)from);
    if (managed)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "managed memory moves between GPU and host: no NIC can be told of it");
    if (from < start || to > start + size)
        return pc__fail(error, PC_INVALID, -1,
                        "%zu bytes at %#zx reach beyond their allocation of %zu bytes at %#zx",
                        (size_t)(to - from), (size_t)from, size, (size_t)start);
    out->kind = PC_MEMORY_DMABUF;
    out->device = device;
    /* Pools and virtual memory management map other memory at an address that is still allocated:
     * only what cudaMalloc gives is known to keep its stamp as long as its memory. */
    out->stamp = ipc ? id : 0;
    out->from = out->from > start ? out->from : start;
    out->to = out->to < start + size ? out->to : start + size;
    return PC_OK;
}

int pc__memory_span(const void *address, size_t nbytes, bool gpu, struct pc_error *error,
                    struct pc_span *out)
{
    uintptr_t from = (uintptr_t)address, to = from + nbytes;
    if (nbytes == 0 || to < from || page_up(to) < to)
        return pc__fail(error, PC_INVALID, -1, "%zu bytes at %p are no memory", nbytes, address);
    *out = (struct pc_span){
        .from = page_down(from), .to = page_up(to), .kind = PC_MEMORY_HOST, .device = -1};
    return gpu ? gpu_span(from, to, error, out) : PC_OK;
}

/* Copies and kernels that the driver would let run past a synchronous call do not, for this memory:
 * else a NIC might read what such a call has yet to write. */
static void synchronous(const struct pc_span *span)
{
    unsigned yes = 1;
    cuda.PointerSetAttribute(&yes, POINTER_SYNC_MEMOPS, span->from);
}

int pc__memory_export(const struct pc_span *span, struct pc_error *error, int *fd, uint64_t *offset)
{
    const char *missing = pc__memory_missing(PC_MEMORY_DMABUF);
    uintptr_t from = page_down(span->from), to = page_up(span->to);
    void *context;
    int handle;
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    int rc = cuda.DeviceGet(&handle, span->device);
    if (rc == 0)
        rc = cuda.ContextRetain(&context, handle);
    if (rc == 0) {
        rc = cuda.ContextPush(context);
        if (rc == 0) {
            synchronous(span);
            rc = cuda.MemGetHandleForAddressRange(fd, from, to - from, HANDLE_DMA_BUF, 0);
            cuda.ContextPop(&context);
        }
        cuda.ContextRelease(handle);
    }
    *offset = span->from - from;
    return rc == 0 ? PC_OK
                   : pc__fail(error, PC_UNMAPPABLE, -1,
                              "cuMemGetHandleForAddressRange(%#zx, %zu bytes): %s", (size_t)from,
                              (size_t)(to - from), explain(rc));
}

int pc__memory_peermem(const struct pc_span *span, struct pc_error *error)
{
    const char *missing = pc__memory_missing(PC_MEMORY_PEERMEM);
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    synchronous(span);
    return PC_OK;
}

const char *pc__memory_missing(enum pc_memory_kind kind)
{
    if (kind != PC_MEMORY_DMABUF && kind != PC_MEMORY_PEERMEM)
        return "";
    if (*cuda_missing() != 0)
        return cuda.missing;
    if (kind == PC_MEMORY_PEERMEM)
        return access("/sys/module/nvidia_peermem", F_OK) == 0
                   ? ""
                   : "nvidia_peermem is not loaded: modprobe nvidia_peermem";
    if (cuda.MemGetHandleForAddressRange == NULL)
        return "libcuda.so.1 exports no dma-buf: install NVIDIA's driver 515 or later";
    for (int device = 0; device < cuda.devices; device++)
        if (!attribute(device, DEVICE_DMA_BUF_SUPPORTED))
            return "the GPU's driver exports no dma-buf: install NVIDIA's open kernel modules "
                   "(nvidia-open) on Linux 5.12 or later";
    return "";
}

int pc__memory_gpu(int device, struct pc_error *error, struct pc_gpu *out)
{
    if (*cuda_missing() != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", cuda.missing);
    if (device < 0 || device >= cuda.devices)
        return pc__fail(error, PC_INVALID, -1, "GPU %d: there are %d", device, cuda.devices);
    *out = (struct pc_gpu){.major = attribute(device, DEVICE_CAPABILITY_MAJOR),
                           .ordering = attribute(device, DEVICE_RDMA_ORDERING),
                           .options = attribute(device, DEVICE_RDMA_FLUSH_OPTIONS),
                           .coherent = attribute(device, DEVICE_USES_HOST_PAGE_TABLES) != 0};
    return PC_OK;
}

enum pc_flush pc__memory_flush(const struct pc_gpu *gpu, bool relaxed)
{
    if (gpu->major >= 9 && !gpu->coherent)
        return PC_FLUSH_NONE;
    if (gpu->ordering >= ORDERED_FOR_OWNER && !relaxed)
        return PC_FLUSH_NONE;
    return gpu->options & FLUSH_OPTION_HOST ? PC_FLUSH_DRIVER : PC_FLUSH_READ;
}

int pc__memory_flush_driver(int device, struct pc_error *error)
{
    void *context;
    int handle;
    if (*cuda_missing() != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", cuda.missing);
    int rc = cuda.DeviceGet(&handle, device);
    if (rc == 0)
        rc = cuda.ContextRetain(&context, handle);
    if (rc == 0) {
        rc = cuda.ContextPush(context);
        if (rc == 0) {
            rc = cuda.FlushWrites(FLUSH_CURRENT_CONTEXT, ORDERED_FOR_OWNER);
            cuda.ContextPop(&context);
        }
        cuda.ContextRelease(handle);
    }
    return rc == 0 ? PC_OK
                   : pc__fail(error, PC_SYSTEM, -1, "cuFlushGPUDirectRDMAWrites of GPU %d: %s",
                              device, explain(rc));
}
