/* Device memory, pinned and registered host memory, and CUDA IPC. */
#include <string.h>
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { /* CUpointer_attribute */
       POINTER_MEMORY_TYPE = 2,
       POINTER_BUFFER_ID = 7,
       POINTER_IS_MANAGED = 8,
       POINTER_DEVICE_ORDINAL = 9,
       POINTER_IS_LEGACY_IPC_CAPABLE = 10,
       POINTER_RANGE_START = 11,
       POINTER_RANGE_SIZE = 12,
};
/* CU_MEMHOSTALLOC_... and CU_MEMHOSTREGISTER_...: for all contexts, and mapped for kernels. */
enum { HOST_PORTABLE = 1, HOST_MAPPED = 2 };
enum { IPC_LAZY_ENABLE_PEER_ACCESS = 1 }; /* the only flag there is, and it must be given */

int pc_cuda_pointer(uint64_t address, struct pc_error *error, struct pc_cuda_pointer *out)
{
    const char *missing = pc__cuda_library();
    unsigned type = 0, managed = 0, ipc = 0;
    unsigned long long id = 0;
    uint64_t base = 0;
    size_t nbytes = 0;
    int device = -1;
    int which[] = {POINTER_MEMORY_TYPE,    POINTER_IS_MANAGED, POINTER_IS_LEGACY_IPC_CAPABLE,
                   POINTER_DEVICE_ORDINAL, POINTER_BUFFER_ID,  POINTER_RANGE_START,
                   POINTER_RANGE_SIZE};
    void *answers[] = {&type, &managed, &ipc, &device, &id, &base, &nbytes};
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    /* Of memory unknown to the driver all attributes are zero, and that is no error. */
    int result
        = pc__cuda.PointerGetAttributes(sizeof which / sizeof *which, which, answers, address);
    if (result != 0)
        return pc__cuda_fail(result, error, "cuPointerGetAttributes(%#zx)", (size_t)address);
    bool known = type == PC_CUDA_HOST || type == PC_CUDA_DEVICE;
    *out = (struct pc_cuda_pointer){.base = base,
                                    .nbytes = nbytes,
                                    .id = id,
                                    .kind = known ? (int32_t)type : PC_CUDA_UNKNOWN,
                                    .device = known ? device : -1,
                                    .managed = managed != 0,
                                    .ipc = ipc != 0};
    return PC_OK;
}

int pc__cuda_range(uint64_t address, struct pc_error *error, uint64_t *base, uint64_t *nbytes,
                   uint64_t *id)
{
    int which[] = {POINTER_RANGE_START, POINTER_RANGE_SIZE, POINTER_BUFFER_ID};
    uint64_t start = 0;
    size_t length = 0;
    unsigned long long number = 0;
    void *answers[] = {&start, &length, &number};
    int result = pc__cuda.PointerGetAttributes(3, which, answers, address);
    if (result != 0)
        return pc__cuda_fail(result, error, "cuPointerGetAttributes(%#zx)", (size_t)address);
    *base = start;
    *nbytes = length;
    *id = number;
    return PC_OK;
}

int pc_cuda_alloc(int device, size_t nbytes, struct pc_error *error, uint64_t *address)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemAlloc(address, nbytes), error, "cuMemAlloc(%zu) on GPU %d",
                          nbytes, device);
}

int pc_cuda_free(int device, uint64_t address, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemFree(address), error, "cuMemFree(%#zx)", (size_t)address);
}

int pc_cuda_host_alloc(int device, size_t nbytes, struct pc_error *error, void **host,
                       uint64_t *address)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.MemHostAlloc(host, nbytes, HOST_PORTABLE | HOST_MAPPED);
    if (result == 0) {
        result = pc__cuda.MemHostGetDevicePointer(address, *host, 0);
        if (result == 0)
            memset(*host, 0, nbytes);
        else
            pc__cuda.MemFreeHost(*host);
    }
    return pc__cuda_leave(result, error, "cuMemHostAlloc(%zu) for GPU %d", nbytes, device);
}

int pc_cuda_host_free(int device, void *host, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemFreeHost(host), error, "cuMemFreeHost(%p)", host);
}

int pc_cuda_host_register(int device, void *host, size_t nbytes, struct pc_error *error,
                          uint64_t *address)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.MemHostRegister(host, nbytes, HOST_PORTABLE | HOST_MAPPED);
    if (result == 0) {
        result = pc__cuda.MemHostGetDevicePointer(address, host, 0);
        if (result != 0)
            pc__cuda.MemHostUnregister(host);
    }
    return pc__cuda_leave(result, error, "cuMemHostRegister(%p, %zu) for GPU %d", host, nbytes,
                          device);
}

int pc_cuda_host_unregister(int device, void *host, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemHostUnregister(host), error, "cuMemHostUnregister(%p)", host);
}

int pc_cuda_copy(int device, uint64_t to, uint64_t from, size_t nbytes, uintptr_t stream,
                 struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemcpyAsync(to, from, nbytes, (void *)stream), error,
                          "cuMemcpyAsync(%#zx, %#zx, %zu)", (size_t)to, (size_t)from, nbytes);
}

int pc_cuda_fill(int device, uint64_t to, unsigned char byte, size_t nbytes, uintptr_t stream,
                 struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemsetD8Async(to, byte, nbytes, (void *)stream), error,
                          "cuMemsetD8Async(%#zx, %u, %zu)", (size_t)to, byte, nbytes);
}

int pc_cuda_ipc_get(int device, uint64_t address, struct pc_error *error, void *handle)
{
    struct pc_cuda_ipc got;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    rc = pc__cuda_leave(pc__cuda.IpcGetMemHandle(&got, address), error, "cuIpcGetMemHandle(%#zx)",
                        (size_t)address);
    if (rc == PC_OK)
        memcpy(handle, &got, sizeof got);
    return rc;
}

int pc_cuda_ipc_open(int device, const void *handle, struct pc_error *error, uint64_t *address)
{
    struct pc_cuda_ipc given;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    memcpy(&given, handle, sizeof given);
    return pc__cuda_leave(pc__cuda.IpcOpenMemHandle(address, given, IPC_LAZY_ENABLE_PEER_ACCESS),
                          error, "cuIpcOpenMemHandle on GPU %d", device);
}

int pc_cuda_ipc_close(int device, uint64_t address, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.IpcCloseMemHandle(address), error, "cuIpcCloseMemHandle(%#zx)",
                          (size_t)address);
}
