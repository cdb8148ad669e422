/* Loads libcuda; errors, devices and primary contexts. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "gpu/driver/cuda.h"
#include "core/internal.h"

#define PC_CUDA_MAX_DEVICES 64

enum { /* CUdevice_attribute */
       DEVICE_THREADS_PER_BLOCK = 1,
       DEVICE_SHARED_PER_BLOCK = 8,
       DEVICE_WARP = 10,
       DEVICE_REGISTERS_PER_BLOCK = 12,
       DEVICE_MULTIPROCESSORS = 16,
       DEVICE_THREADS_PER_MULTIPROCESSOR = 39,
       DEVICE_CAPABILITY_MAJOR = 75,
       DEVICE_CAPABILITY_MINOR = 76,
       DEVICE_SHARED_PER_MULTIPROCESSOR = 81,
       DEVICE_REGISTERS_PER_MULTIPROCESSOR = 82,
       DEVICE_SAME_HOST_POINTER = 91,
       DEVICE_COOPERATIVE = 95,
       DEVICE_SHARED_PER_BLOCK_OPTIN = 97,
       DEVICE_HOST_REGISTER = 99,
       DEVICE_BLOCKS_PER_MULTIPROCESSOR = 106,
       DEVICE_SHARED_RESERVED = 111,
       DEVICE_RDMA = 116,
       DEVICE_SYNC_DOMAINS = 126,
};

struct pc_cuda pc__cuda;

static const struct {
    const char *symbol;
    size_t at;
} base[] = {
#define PC_SYMBOL(name, symbol, arguments) {symbol, offsetof(struct pc_cuda, name)},
    PC_CUDA_BASE(PC_SYMBOL)
}, kernels[] = {
    PC_CUDA_KERNELS(PC_SYMBOL)
}, newer[] = {
    PC_CUDA_NEWER(PC_SYMBOL) PC_CUDA_MULTICAST(PC_SYMBOL) PC_CUDA_GREEN(PC_SYMBOL)
    PC_CUDA_GREEN_STREAM(PC_SYMBOL) PC_CUDA_MEMOPS(PC_SYMBOL)
#undef PC_SYMBOL
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded, forked; /* loading was tried; the parent of fork had used CUDA */
static char missing[240], no_kernels[240];

static void *contexts[PC_CUDA_MAX_DEVICES]; /* primary ones, retained until this process ends */

static bool find(void *library, const char *symbol, size_t at)
{
    void *found = dlsym(library, symbol);
    memcpy((char *)&pc__cuda + at, &found, sizeof found);
    return found != NULL;
}

/* In a child of fork: CUDA does not survive a fork, but a failed load may be tried again. */
static void forget(void)
{
    pthread_mutex_init(&lock, NULL);
    forked |= pc__cuda.devices > 0;
    pc__cuda.devices = 0;
    missing[0] = no_kernels[0] = 0;
    memset(contexts, 0, sizeof contexts);
    __atomic_store_n(&loaded, false, __ATOMIC_RELAXED);
}

static void load(void)
{
    if (forked) {
        snprintf(missing, sizeof missing,
                 "CUDA cannot be used in a child of a process that has used it: start processes "
                 "that are not forked, or before CUDA is first used");
        return;
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(missing, sizeof missing, "libcuda.so.1 was not found: install NVIDIA's driver");
        return;
    }
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        if (!find(library, base[i].symbol, base[i].at)) {
            snprintf(missing, sizeof missing,
                     "libcuda.so.1 has no %s: install NVIDIA's driver 465 or later",
                     base[i].symbol);
            return;
        }
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!find(library, kernels[i].symbol, kernels[i].at))
            snprintf(no_kernels, sizeof no_kernels,
                     "libcuda.so.1 has no %s: install NVIDIA's driver 520 or later",
                     kernels[i].symbol);
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
        find(library, newer[i].symbol, newer[i].at);
    int result = pc__cuda.Init(0);
    if (result == 0)
        result = pc__cuda.DeviceGetCount(&pc__cuda.devices);
    if (result != 0) {
        const char *text = NULL;
        pc__cuda.GetErrorString(result, &text);
        pc__cuda.devices = 0;
        snprintf(missing, sizeof missing, "cuInit: %s: see nvidia-smi",
                 text != NULL ? text : "an unknown error");
    } else if (pc__cuda.devices == 0)
        snprintf(missing, sizeof missing, "NVIDIA's driver has no GPU: see nvidia-smi");
    else if (pc__cuda.devices > PC_CUDA_MAX_DEVICES)
        pc__cuda.devices = PC_CUDA_MAX_DEVICES;
}

const char *pc__cuda_library(void)
{
    static bool watching;
    if (__atomic_load_n(&loaded, __ATOMIC_ACQUIRE))
        return missing;
    pthread_mutex_lock(&lock);
    if (!watching)
        pthread_atfork(NULL, NULL, forget);
    watching = true;
    if (!loaded)
        load();
    __atomic_store_n(&loaded, true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return missing;
}

const char *pc_cuda_missing(void)
{
    return *pc__cuda_library() != 0 ? missing : no_kernels;
}

int pc_cuda_devices(void)
{
    return *pc_cuda_missing() != 0 ? 0 : pc__cuda.devices;
}

static int code(int result)
{
    switch (result) {
    case 0:
        return PC_OK;
    case CUDA_OUT_OF_MEMORY:
        return PC_NOMEM;
    case CUDA_NOT_READY:
        return PC_AGAIN;
    case CUDA_INVALID_VALUE:
    case CUDA_INVALID_DEVICE:
    case CUDA_INVALID_IMAGE:
    case CUDA_INVALID_HANDLE:
    case CUDA_NOT_FOUND:
        return PC_INVALID;
    default:
        return PC_SYSTEM;
    }
}

static int fail(int result, struct pc_error *error, const char *format, va_list args)
{
    char what[128];
    const char *name = NULL, *text = NULL;
    vsnprintf(what, sizeof what, format, args);
    if (pc__cuda.GetErrorName != NULL)
        pc__cuda.GetErrorName(result, &name);
    pc__cuda.GetErrorString(result, &text);
    pc__fail(error, code(result), -1, "%s: %s%s%s", what, name != NULL ? name : "",
             name != NULL ? ": " : "", text != NULL ? text : "an unknown error");
    error->errnum = result;
    return error->code;
}

int pc__cuda_fail(int result, struct pc_error *error, const char *format, ...)
{
    va_list args;
    if (result == 0)
        return PC_OK;
    va_start(args, format);
    int rc = fail(result, error, format, args);
    va_end(args);
    return rc;
}

int pc__cuda_leave(int result, struct pc_error *error, const char *format, ...)
{
    void *context;
    va_list args;
    pc__cuda.CtxPopCurrent(&context);
    if (result == 0)
        return PC_OK;
    va_start(args, format);
    int rc = fail(result, error, format, args);
    va_end(args);
    return rc;
}

static int retain(int device, void **out)
{
    int handle, result = 0;
    pthread_mutex_lock(&lock);
    if (contexts[device] == NULL) {
        result = pc__cuda.DeviceGet(&handle, device);
        if (result == 0)
            result = pc__cuda.DevicePrimaryCtxRetain(&contexts[device], handle);
    }
    *out = contexts[device];
    pthread_mutex_unlock(&lock);
    return result;
}

static int no_device(int device, const char *lacking, struct pc_error *error)
{
    if (*lacking != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", lacking);
    if (device < 0 || device >= pc__cuda.devices)
        return pc__fail(error, PC_INVALID, -1, "GPU %d: there are %d", device, pc__cuda.devices);
    return PC_OK;
}

static int enter(int device, const char *lacking, struct pc_error *error)
{
    void *context = NULL;
    int rc = no_device(device, lacking, error);
    if (rc != PC_OK)
        return rc;
    rc = retain(device, &context);
    if (rc == 0)
        rc = pc__cuda.CtxPushCurrent(context);
    return pc__cuda_fail(rc, error, "cuDevicePrimaryCtxRetain of GPU %d", device);
}

int pc__cuda_enter(int device, struct pc_error *error)
{
    return enter(device, pc_cuda_missing(), error);
}

int pc__cuda_enter_base(int device, struct pc_error *error)
{
    return enter(device, pc__cuda_library(), error);
}

int pc__cuda_attribute(int device, int which)
{
    int handle, value = 0;
    if (pc__cuda.DeviceGet(&handle, device) != 0
        || pc__cuda.DeviceGetAttribute(&value, which, handle) != 0)
        return 0;
    return value;
}

int pc_cuda_device(int device, struct pc_error *error, struct pc_cuda_device *out)
{
    const struct {
        int which;
        int32_t *out;
    } wanted[] = {
        {DEVICE_CAPABILITY_MAJOR, &out->major},
        {DEVICE_CAPABILITY_MINOR, &out->minor},
        {DEVICE_MULTIPROCESSORS, &out->multiprocessors},
        {DEVICE_WARP, &out->warp},
        {DEVICE_THREADS_PER_BLOCK, &out->threads_per_block},
        {DEVICE_THREADS_PER_MULTIPROCESSOR, &out->threads_per_multiprocessor},
        {DEVICE_BLOCKS_PER_MULTIPROCESSOR, &out->blocks_per_multiprocessor},
        {DEVICE_REGISTERS_PER_BLOCK, &out->registers_per_block},
        {DEVICE_REGISTERS_PER_MULTIPROCESSOR, &out->registers_per_multiprocessor},
        {DEVICE_SHARED_PER_BLOCK, &out->shared_per_block},
        {DEVICE_SHARED_PER_BLOCK_OPTIN, &out->shared_per_block_optin},
        {DEVICE_SHARED_PER_MULTIPROCESSOR, &out->shared_per_multiprocessor},
        {DEVICE_SHARED_RESERVED, &out->shared_reserved_per_block},
        {DEVICE_COOPERATIVE, &out->cooperative},
        {DEVICE_SYNC_DOMAINS, &out->sync_domains},
        {DEVICE_HOST_REGISTER, &out->host_register},
        {DEVICE_SAME_HOST_POINTER, &out->same_host_pointer},
        {DEVICE_RDMA, &out->rdma},
    };
    int handle = 0, version = 0;
    size_t nbytes = 0;
    int rc = no_device(device, pc_cuda_missing(), error);
    if (rc != PC_OK)
        return rc;
    memset(out, 0, sizeof *out);
    rc = pc__cuda.DeviceGet(&handle, device);
    if (rc == 0)
        rc = pc__cuda.DeviceGetName(out->name, sizeof out->name, handle);
    if (rc == 0)
        rc = pc__cuda.DeviceGetUuid(out->uuid, handle);
    if (rc == 0)
        rc = pc__cuda.DeviceGetPCIBusId(out->bus, sizeof out->bus, handle);
    if (rc == 0)
        rc = pc__cuda.DeviceTotalMem(&nbytes, handle);
    if (rc == 0)
        rc = pc__cuda.DriverGetVersion(&version);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        *wanted[i].out = pc__cuda_attribute(device, wanted[i].which);
    if (out->sync_domains < 1)
        out->sync_domains = 1;
    out->nbytes = nbytes;
    out->driver = version;
    return pc__cuda_fail(rc, error, "the attributes of GPU %d", device);
}

int pc_cuda_peer(int device, int peer, struct pc_error *error)
{
    void *context = NULL;
    int reaches = 0, one, other;
    int rc = no_device(peer, pc_cuda_missing(), error);
    if (rc != PC_OK || device == peer)
        return rc;
    rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    int result = pc__cuda.DeviceGet(&one, device);
    if (result == 0)
        result = pc__cuda.DeviceGet(&other, peer);
    if (result == 0)
        result = pc__cuda.DeviceCanAccessPeer(&reaches, one, other);
    if (result == 0 && reaches)
        result = retain(peer, &context);
    if (result == 0 && reaches)
        result = pc__cuda.CtxEnablePeerAccess(context, 0);
    if (result == CUDA_PEER_ACCESS_ALREADY_ENABLED)
        result = 0;
    rc = pc__cuda_leave(result, error, "cuCtxEnablePeerAccess of GPU %d to GPU %d", device, peer);
    if (rc == PC_OK && !reaches)
        return pc__fail(error, PC_UNMAPPABLE, -1,
                        "GPU %d cannot reach the memory of GPU %d: see nvidia-smi topo -p2p r",
                        device, peer);
    return rc;
}

int pc_cuda_thread_mode(int device, uint32_t mode, struct pc_error *error)
{
    int exchanged = (int)mode;
    int rc = pc__cuda_enter(device, error);
    if (rc != PC_OK)
        return rc;
    return pc__cuda_leave(pc__cuda.ThreadExchangeStreamCaptureMode(&exchanged), error,
                          "cuThreadExchangeStreamCaptureMode(%u)", mode);
}

int pc_cuda_push(int device, struct pc_error *error)
{
    return pc__cuda_enter(device, error);
}

void pc_cuda_pop(void)
{
    void *context;
    pc__cuda.CtxPopCurrent(&context);
}

int pc__cuda_relax(int mode)
{
    return pc__cuda.ThreadExchangeStreamCaptureMode(&mode) == 0 ? mode : PC_CUDA_GLOBAL;
}
