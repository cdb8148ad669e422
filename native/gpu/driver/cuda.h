/* The CUDA driver API (libcuda.so.1), loaded by dlopen at first use: a machine without it runs
 * everything else.
 *
 * No CUDA header is needed to build: the few types and constants of its ABI are written out here,
 * and tests/fakecuda compares them with cuda.h where there is one. A device address is a uint64_t,
 * every handle a pointer. The rest of the engine uses kernels, streams and the like as Python does,
 * by the functions pc_cuda_* of pycoll.h. */
#ifndef PC_CUDA_H
#define PC_CUDA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pycoll.h"

enum { /* CUresult: the values that the engine tells apart */
       CUDA_INVALID_VALUE = 1,
       CUDA_OUT_OF_MEMORY = 2,
       CUDA_INVALID_DEVICE = 101,
       CUDA_INVALID_IMAGE = 200,
       CUDA_INVALID_HANDLE = 400,
       CUDA_NOT_FOUND = 500,
       CUDA_NOT_READY = 600,
       CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
       CUDA_NOT_SUPPORTED = 801,
       CUDA_INVALID_RESOURCE_TYPE = 914,
       CUDA_INVALID_RESOURCE_CONFIGURATION = 915,
};

struct pc_cuda_ipc { /* CUipcMemHandle, passed by value */
    char bytes[PC_CUDA_HANDLE];
};

enum { /* CUlaunchAttributeID */
       CUDA_LAUNCH_COOPERATIVE = 2,
       CUDA_LAUNCH_PRIORITY = 8,
       CUDA_LAUNCH_SYNC_DOMAIN = 10,
};
enum { CUDA_SYNC_DOMAIN_REMOTE = 1 };

struct pc_cuda_launch_attribute { /* CUlaunchAttribute */
    int id;
    char padding[4];
    union {
        char bytes[64];
        int cooperative;
        int priority;
        int sync_domain;
    } value;
};

struct pc_cuda_launch_config { /* CUlaunchConfig */
    unsigned blocks[3];
    unsigned threads[3];
    unsigned shared;
    void *stream;
    struct pc_cuda_launch_attribute *attributes;
    unsigned nattributes;
};

struct pc_cuda_location { /* CUmemLocation */
    int type;
    int id;
};

struct pc_cuda_allocation { /* CUmemAllocationProp */
    int type;
    int handle_types;
    struct pc_cuda_location location;
    void *win32;
    unsigned char flags[8];
};

struct pc_cuda_access { /* CUmemAccessDesc */
    struct pc_cuda_location location;
    int flags;
};

struct pc_cuda_multicast { /* CUmulticastObjectProp */
    unsigned ndevices;
    size_t nbytes;
    unsigned long long handle_types;
    unsigned long long flags;
};

struct pc_cuda_resource { /* CUdevResource: written by the driver alone */
    int type;
    unsigned char internal[92];
    union {
        struct { /* CUdevSmResource; drivers of CUDA 12 leave the last two 0 */
            unsigned count;
            unsigned least;
            unsigned unit;
        } sm;
        unsigned char external[48];
    };
};

/* Member, symbol, arguments. Required of every driver: CUDA 11.3, driver 465. Suffixes such as _v2
 * are those that the headers of CUDA 11 and 12 choose. */
#define PC_CUDA_BASE(X) \
    X(Init, "cuInit", (unsigned)) \
    X(DeviceGet, "cuDeviceGet", (int *, int)) \
    X(DeviceGetCount, "cuDeviceGetCount", (int *)) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int)) \
    X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned, int *, void **, uint64_t)) \
    X(PointerSetAttribute, "cuPointerSetAttribute", (const void *, int, uint64_t)) \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int)) \
    X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int)) \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (void *)) \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (void **)) \
    X(GetErrorString, "cuGetErrorString", (int, const char **)) \
    X(FlushGPUDirectRDMAWrites, "cuFlushGPUDirectRDMAWrites", (int, int))

/* Required for kernels: CUDA 11.8, driver 520, for cuLaunchKernelEx; all else is older. */
#define PC_CUDA_KERNELS(X) \
    X(GetErrorName, "cuGetErrorName", (int, const char **)) \
    X(DriverGetVersion, "cuDriverGetVersion", (int *)) \
    X(DeviceGetName, "cuDeviceGetName", (char *, int, int)) \
    X(DeviceGetUuid, "cuDeviceGetUuid_v2", (void *, int)) \
    X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, int)) \
    X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, int)) \
    X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *, int, int)) \
    X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (void *, unsigned)) \
    X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *, int *)) \
    X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *)) \
    X(MemAlloc, "cuMemAlloc_v2", (uint64_t *, size_t)) \
    X(MemFree, "cuMemFree_v2", (uint64_t)) \
    X(MemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned)) \
    X(MemFreeHost, "cuMemFreeHost", (void *)) \
    X(MemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned)) \
    X(MemHostUnregister, "cuMemHostUnregister", (void *)) \
    X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (uint64_t *, void *, unsigned)) \
    X(MemcpyAsync, "cuMemcpyAsync", (uint64_t, uint64_t, size_t, void *)) \
    X(MemsetD8Async, "cuMemsetD8Async", (uint64_t, unsigned char, size_t, void *)) \
    X(IpcGetMemHandle, "cuIpcGetMemHandle", (struct pc_cuda_ipc *, uint64_t)) \
    X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (uint64_t *, struct pc_cuda_ipc, unsigned)) \
    X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (uint64_t)) \
    X(StreamCreateWithPriority, "cuStreamCreateWithPriority", (void **, unsigned, int)) \
    X(StreamDestroy, "cuStreamDestroy_v2", (void *)) \
    X(StreamQuery, "cuStreamQuery", (void *)) \
    X(StreamSynchronize, "cuStreamSynchronize", (void *)) \
    X(StreamWaitEvent, "cuStreamWaitEvent", (void *, void *, unsigned)) \
    X(EventCreate, "cuEventCreate", (void **, unsigned)) \
    X(EventDestroy, "cuEventDestroy_v2", (void *)) \
    X(EventRecord, "cuEventRecord", (void *, void *)) \
    X(EventQuery, "cuEventQuery", (void *)) \
    X(EventSynchronize, "cuEventSynchronize", (void *)) \
    X(EventElapsedTime, "cuEventElapsedTime", (float *, void *, void *)) \
    X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2", \
      (void *, int *, uint64_t *, void **, void *, size_t *)) \
    X(UserObjectCreate, "cuUserObjectCreate", \
      (void **, void *, void (*)(void *), unsigned, unsigned)) \
    X(UserObjectRelease, "cuUserObjectRelease", (void *, unsigned)) \
    X(GraphRetainUserObject, "cuGraphRetainUserObject", (void *, void *, unsigned, unsigned)) \
    X(ModuleLoadData, "cuModuleLoadData", (void **, const void *)) \
    X(ModuleUnload, "cuModuleUnload", (void *)) \
    X(ModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *)) \
    X(FuncGetAttribute, "cuFuncGetAttribute", (int *, int, void *)) \
    X(FuncSetAttribute, "cuFuncSetAttribute", (void *, int, int)) \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", \
      (int *, void *, int, size_t)) \
    X(OccupancyAvailableDynamicSMemPerBlock, "cuOccupancyAvailableDynamicSMemPerBlock", \
      (size_t *, void *, int, int)) \
    X(LaunchKernelEx, "cuLaunchKernelEx", \
      (const struct pc_cuda_launch_config *, void *, void **, void **))

/* NULL before CUDA 11.7, driver 515. */
#define PC_CUDA_NEWER(X) \
    X(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", \
      (void *, uint64_t, size_t, int, unsigned long long))

/* All NULL before CUDA 12.1, driver 530: pc_cuda_multicast asks. */
#define PC_CUDA_MULTICAST(X) \
    X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", \
      (size_t *, const struct pc_cuda_allocation *, int)) \
    X(MemCreate, "cuMemCreate", \
      (uint64_t *, size_t, const struct pc_cuda_allocation *, unsigned long long)) \
    X(MemRelease, "cuMemRelease", (uint64_t)) \
    X(MemExportToShareableHandle, "cuMemExportToShareableHandle", \
      (void *, uint64_t, int, unsigned long long)) \
    X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", (uint64_t *, void *, int)) \
    X(MemAddressReserve, "cuMemAddressReserve", \
      (uint64_t *, size_t, size_t, uint64_t, unsigned long long)) \
    X(MemAddressFree, "cuMemAddressFree", (uint64_t, size_t)) \
    X(MemMap, "cuMemMap", (uint64_t, size_t, size_t, uint64_t, unsigned long long)) \
    X(MemUnmap, "cuMemUnmap", (uint64_t, size_t)) \
    X(MemSetAccess, "cuMemSetAccess", (uint64_t, size_t, const struct pc_cuda_access *, size_t)) \
    X(MulticastGetGranularity, "cuMulticastGetGranularity", \
      (size_t *, const struct pc_cuda_multicast *, int)) \
    X(MulticastCreate, "cuMulticastCreate", (uint64_t *, const struct pc_cuda_multicast *)) \
    X(MulticastAddDevice, "cuMulticastAddDevice", (uint64_t, int)) \
    X(MulticastBindMem, "cuMulticastBindMem", \
      (uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long)) \
    X(MulticastUnbind, "cuMulticastUnbind", (uint64_t, int, size_t, size_t))

/* All NULL before CUDA 12.4, driver 550: pc_cuda_sms asks. */
#define PC_CUDA_GREEN(X) \
    X(DeviceGetDevResource, "cuDeviceGetDevResource", (int, struct pc_cuda_resource *, int)) \
    X(DevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", \
      (struct pc_cuda_resource *, unsigned *, const struct pc_cuda_resource *, \
       struct pc_cuda_resource *, unsigned, unsigned)) \
    X(DevResourceGenerateDesc, "cuDevResourceGenerateDesc", \
      (void **, struct pc_cuda_resource *, unsigned)) \
    X(GreenCtxCreate, "cuGreenCtxCreate", (void **, void *, int, unsigned)) \
    X(GreenCtxDestroy, "cuGreenCtxDestroy", (void *)) \
    X(CtxFromGreenCtx, "cuCtxFromGreenCtx", (void **, void *))

/* NULL before CUDA 12.5, driver 555, too. */
#define PC_CUDA_GREEN_STREAM(X) \
    X(GreenCtxStreamCreate, "cuGreenCtxStreamCreate", (void **, void *, unsigned, int))

/* NULL before CUDA 11.7, driver 515: pc_cuda_memops asks. */
#define PC_CUDA_MEMOPS(X) \
    X(StreamWriteValue64, "cuStreamWriteValue64_v2", (void *, uint64_t, uint64_t, unsigned)) \
    X(StreamWaitValue64, "cuStreamWaitValue64_v2", (void *, uint64_t, uint64_t, unsigned))

struct pc_cuda {
#define PC_DEVICE_MEMBER(name, symbol, arguments) int(*name) arguments;
    PC_CUDA_BASE(PC_DEVICE_MEMBER)
    PC_CUDA_KERNELS(PC_DEVICE_MEMBER)
    PC_CUDA_NEWER(PC_DEVICE_MEMBER)
    PC_CUDA_MULTICAST(PC_DEVICE_MEMBER)
    PC_CUDA_GREEN(PC_DEVICE_MEMBER)
    PC_CUDA_GREEN_STREAM(PC_DEVICE_MEMBER)
    PC_CUDA_MEMOPS(PC_DEVICE_MEMBER)
#undef PC_DEVICE_MEMBER
    int devices;
};

extern struct pc_cuda pc__cuda; /* filled by pc__cuda_library */

/* Loads the library once. "", or why there is no GPU memory here and what mends that; valid for
 * ever. The members of PC_CUDA_KERNELS are set if pc_cuda_missing() is "" too. */
const char *pc__cuda_library(void);

/* Makes the device's primary context current, until pc__cuda_leave. UNMAPPABLE without a driver
 * that has kernels, INVALID without that device. */
int pc__cuda_enter(int device, struct pc_error *error);
/* The same for calls of PC_CUDA_BASE alone. */
int pc__cuda_enter_base(int device, struct pc_error *error);
/* Restores the context that was current before. `result`: of the call in between; OK, or its code,
 * with a text: what was called, CUDA's name for the error, and CUDA's text. */
int pc__cuda_leave(int result, struct pc_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets this thread's capture mode (cuThreadExchangeStreamCaptureMode); returns the one before. */
int pc__cuda_relax(int mode);
/* As pc__cuda_leave, for a call that needs no context. */
int pc__cuda_fail(int result, struct pc_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A device's attribute by CUDA's number; 0 where the driver does not know it. */
int pc__cuda_attribute(int device, int which);

/* cuda_memory.c: the allocation in which an address lies, and its unique number; zeros: unknown.
 * Once libcuda is loaded; the part of pc_cuda_pointer that each launch asks for. */
int pc__cuda_range(uint64_t address, struct pc_error *error, uint64_t *base, uint64_t *nbytes,
                   uint64_t *id);

/* cuda_virtual.c: memory by a handle, which other processes open by a descriptor, and multicast
 * objects, which have such handles, too. Only where pc_cuda_multicast says OK. */
/* The unit in which memory is allocated and bound, for `nbytes` of each of `ndevices`. */
int pc__cuda_granularity(int device, uint32_t ndevices, size_t nbytes, struct pc_error *error,
                         size_t *out);
int pc__cuda_memory_create(int device, size_t nbytes, struct pc_error *error, uint64_t *handle);
/* fd: the caller's to close. */
int pc__cuda_memory_export(int device, uint64_t handle, struct pc_error *error, int *fd);
int pc__cuda_memory_import(int device, int fd, struct pc_error *error, uint64_t *handle);
/* Maps the whole of it at an address of the device's own, a multiple of `unit`. */
int pc__cuda_memory_map(int device, uint64_t handle, size_t nbytes, size_t unit,
                        struct pc_error *error, uint64_t *at);
void pc__cuda_memory_unmap(int device, uint64_t at, size_t nbytes);
/* The memory is freed when it is neither mapped nor bound either. */
void pc__cuda_memory_release(int device, uint64_t handle);
int pc__cuda_multicast_create(int device, uint32_t ndevices, size_t nbytes, struct pc_error *error,
                              uint64_t *handle);
int pc__cuda_multicast_add(int device, uint64_t object, struct pc_error *error);
/* These wait until all devices were added, as does pc__cuda_memory_map of the object. */
int pc__cuda_multicast_bind(int device, uint64_t object, uint64_t memory, size_t nbytes,
                            struct pc_error *error);
void pc__cuda_multicast_unbind(int device, uint64_t object, size_t nbytes);
#endif
