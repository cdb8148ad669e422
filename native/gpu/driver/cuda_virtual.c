/* Virtual memory management, and multicast objects of NVLink's switches. */
#include "gpu/driver/cuda.h"
#include "core/internal.h"

enum { /* CUdevice_attribute */
       DEVICE_VIRTUAL_MEMORY = 102,
       DEVICE_POSIX_DESCRIPTOR = 103,
       DEVICE_MULTICAST = 132,
};
enum { ALLOCATION_PINNED = 1 };              /* CUmemAllocationType */
enum { LOCATION_DEVICE = 1 };                /* CUmemLocationType */
enum { HANDLE_POSIX_DESCRIPTOR = 1 };        /* CUmemAllocationHandleType */
enum { ACCESS_READ_WRITE = 3 };              /* CUmemAccess_flags */
enum { ALLOCATION_GRANULARITY_MINIMUM = 0 }; /* CUmemAllocationGranularity_flags */
enum { MULTICAST_GRANULARITY_MINIMUM = 0 };  /* CUmulticastGranularity_flags */

int pc_cuda_multicast(int device, struct pc_error *error)
{
    static const struct {
        int which;
        const char *what;
    } wanted[] = {
        {DEVICE_VIRTUAL_MEMORY, "virtual memory management"},
        {DEVICE_POSIX_DESCRIPTOR, "memory shared by file descriptors"},
        {DEVICE_MULTICAST, "switch with multicast objects (NVSwitch, from Hopper on)"},
    };
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    pc__cuda_leave(0, error, "%s", "");
#define PC_LACK(name, symbol, arguments) \
    if (pc__cuda.name == NULL) \
        return pc__fail(error, PC_UNMAPPABLE, -1, \
                        "libcuda.so.1 has no %s: install NVIDIA's " \
                        "driver 530 or later", \
                        symbol);
    PC_CUDA_MULTICAST(PC_LACK)
#undef PC_LACK
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (pc__cuda_attribute(device, wanted[i].which) == 0)
            return pc__fail(error, PC_UNMAPPABLE, -1, "GPU %d has no %s", device, wanted[i].what);
    return PC_OK;
}

/* Places are named by the driver's handle of a device, which is not the ordinal by contract. */
static struct pc_cuda_location location(int device)
{
    int handle = device;
    pc__cuda.DeviceGet(&handle, device);
    return (struct pc_cuda_location){.type = LOCATION_DEVICE, .id = handle};
}

static struct pc_cuda_allocation allocation(int device)
{
    return (struct pc_cuda_allocation){.type = ALLOCATION_PINNED,
                                       .handle_types = HANDLE_POSIX_DESCRIPTOR,
                                       .location = location(device)};
}

static struct pc_cuda_multicast object_of(uint32_t ndevices, size_t nbytes)
{
    return (struct pc_cuda_multicast){
        .ndevices = ndevices, .nbytes = nbytes, .handle_types = HANDLE_POSIX_DESCRIPTOR};
}

int pc__cuda_granularity(int device, uint32_t ndevices, size_t nbytes, struct pc_error *error,
                         size_t *out)
{
    size_t memory = 0, object = 0;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    const struct pc_cuda_allocation a = allocation(device);
    const struct pc_cuda_multicast m = object_of(ndevices, nbytes);
    int result = pc__cuda.MemGetAllocationGranularity(&memory, &a, ALLOCATION_GRANULARITY_MINIMUM);
    if (result == 0)
        result = pc__cuda.MulticastGetGranularity(&object, &m, MULTICAST_GRANULARITY_MINIMUM);
    *out = memory > object ? memory : object; /* both are powers of two */
    return pc__cuda_leave(result, error, "cuMulticastGetGranularity of %u GPUs", ndevices);
}

int pc__cuda_memory_create(int device, size_t nbytes, struct pc_error *error, uint64_t *handle)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    const struct pc_cuda_allocation a = allocation(device);
    return pc__cuda_leave(pc__cuda.MemCreate(handle, nbytes, &a, 0), error,
                          "cuMemCreate(%zu) on GPU %d", nbytes, device);
}

int pc__cuda_memory_export(int device, uint64_t handle, struct pc_error *error, int *fd)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(
        pc__cuda.MemExportToShareableHandle(fd, handle, HANDLE_POSIX_DESCRIPTOR, 0), error,
        "cuMemExportToShareableHandle on GPU %d", device);
}

int pc__cuda_memory_import(int device, int fd, struct pc_error *error, uint64_t *handle)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MemImportFromShareableHandle(handle, (void *)(intptr_t)fd,
                                                                HANDLE_POSIX_DESCRIPTOR),
                          error, "cuMemImportFromShareableHandle on GPU %d", device);
}

int pc__cuda_memory_map(int device, uint64_t handle, size_t nbytes, size_t unit,
                        struct pc_error *error, uint64_t *at)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    const struct pc_cuda_access access = {location(device), ACCESS_READ_WRITE};
    const char *what = "cuMemAddressReserve";
    int result = pc__cuda.MemAddressReserve(at, nbytes, unit, 0, 0);
    if (result == 0) {
        what = "cuMemMap";
        result = pc__cuda.MemMap(*at, nbytes, 0, handle, 0);
        if (result == 0) {
            what = "cuMemSetAccess";
            result = pc__cuda.MemSetAccess(*at, nbytes, &access, 1);
            if (result != 0)
                pc__cuda.MemUnmap(*at, nbytes);
        }
        if (result != 0)
            pc__cuda.MemAddressFree(*at, nbytes);
    }
    return pc__cuda_leave(result, error, "%s of %zu bytes on GPU %d", what, nbytes, device);
}

void pc__cuda_memory_unmap(int device, uint64_t at, size_t nbytes)
{
    struct pc_error ignored;
    if (pc__cuda_enter(device, &ignored) != PC_OK)
        return;
    int result = pc__cuda.MemUnmap(at, nbytes);
    if (result == 0)
        result = pc__cuda.MemAddressFree(at, nbytes);
    pc__cuda_leave(result, &ignored, "cuMemUnmap(%#zx)", (size_t)at);
}

void pc__cuda_memory_release(int device, uint64_t handle)
{
    struct pc_error ignored;
    if (pc__cuda_enter(device, &ignored) == PC_OK)
        pc__cuda_leave(pc__cuda.MemRelease(handle), &ignored, "cuMemRelease");
}

int pc__cuda_multicast_create(int device, uint32_t ndevices, size_t nbytes, struct pc_error *error,
                              uint64_t *handle)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    const struct pc_cuda_multicast m = object_of(ndevices, nbytes);
    return pc__cuda_leave(pc__cuda.MulticastCreate(handle, &m), error,
                          "cuMulticastCreate of %u GPUs, %zu bytes", ndevices, nbytes);
}

int pc__cuda_multicast_add(int device, uint64_t object, struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MulticastAddDevice(object, location(device).id), error,
                          "cuMulticastAddDevice of GPU %d", device);
}

int pc__cuda_multicast_bind(int device, uint64_t object, uint64_t memory, size_t nbytes,
                            struct pc_error *error)
{
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.MulticastBindMem(object, 0, memory, 0, nbytes, 0), error,
                          "cuMulticastBindMem of %zu bytes on GPU %d", nbytes, device);
}

void pc__cuda_multicast_unbind(int device, uint64_t object, size_t nbytes)
{
    struct pc_error ignored;
    if (pc__cuda_enter(device, &ignored) == PC_OK)
        pc__cuda_leave(pc__cuda.MulticastUnbind(object, location(device).id, 0, nbytes), &ignored,
                       "cuMulticastUnbind on GPU %d", device);
}
