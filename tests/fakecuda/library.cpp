// Beginning, errors, devices and contexts; what every call goes through; the log.
#include "driver.h"
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fake
{

std::mutex &lock = *new std::mutex; // never destroyed: streams run on while a process ends
std::condition_variable &changed = *new std::condition_variable;

static std::atomic<int>
    initialized_in; // the process; a child of it has no driver, as with the real one
static int log_file = -1;
static int retained[16];
static int poisoned[16];
static std::set<std::pair<int, int>> peers;

// Has nothing to destroy: a thread's end reads what is to be destroyed, and the C library frees the
// thread's variables in a way that ThreadSanitizer takes for a race with that.
struct ContextStack {
    int devices[64], depth;
    void *greens[64]; // the converted green context that was made current, or null

    bool empty() const
    {
        return depth == 0;
    }

    int back() const
    {
        return devices[depth - 1];
    }

    bool push(int device, void *green = nullptr)
    {
        if (depth == 64)
            return false;
        devices[depth] = device;
        greens[depth++] = green;
        return true;
    }

    void pop()
    {
        depth--;
    }
};
static thread_local ContextStack contexts; // of this thread, the last one current
static std::vector<int> visible;
thread_local bool orphan;
static std::map<std::string, int> counts; // calls so far
struct Failure {
    int call, result;
};
static std::map<std::string, std::vector<Failure>> failures;

int option(const char *name, int fallback)
{
    const char *set = getenv((std::string("FAKECUDA_") + name).c_str());
    return set && *set ? atoi(set) : fallback;
}

uint64_t this_thread()
{
    return (uint64_t)syscall(SYS_gettid);
}

void note(const char *format, ...)
{
    char line[320];
    va_list args;
    if (log_file < 0)
        return;
    int n = snprintf(line, sizeof line, "%d %llu ", getpid(), (unsigned long long)this_thread());
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(log_file, line, (size_t)n) < 0)
        perror("fakecuda: its log");
}

// "cuMemAlloc:2,kernel:1=719": the second of these fails with OUT_OF_MEMORY, the first with 719.
static void plan(const char *text)
{
    char name[64];
    int call, result, length;
    while (text && *text) {
        result = OUT_OF_MEMORY;
        if (sscanf(text, "%63[^:]:%d%n=%d%n", name, &call, &length, &result, &length) < 2) {
            fprintf(stderr, "fakecuda: FAKECUDA_FAIL: %s\n", text);
            abort();
        }
        failures[name].push_back({counts[name] + call, result});
        text += length;
        text += *text == ',';
    }
}

bool fails(const char *name, int *result)
{
    int call = ++counts[name];
    auto wanted = failures.find(name);
    if (wanted == failures.end())
        return false;
    for (const Failure &failure : wanted->second)
        if (failure.call == call) {
            *result = failure.result;
            return true;
        }
    return false;
}

int devices()
{
    return (int)visible.size();
}

int physical_device(int device)
{
    return visible[(size_t)device];
}

bool initialized()
{
    return initialized_in == getpid();
}

int current_device()
{
    return contexts.empty() ? -1 : contexts.back();
}

std::shared_ptr<Green> current_green()
{
    return contexts.empty() ? nullptr : green_of(contexts.greens[contexts.depth - 1]);
}

void poison(int device, int result)
{
    if (!poisoned[device])
        poisoned[device] = result;
}

int poisoned_now(int device)
{
    return device < 0 ? SUCCESS : poisoned[device];
}

Call::Call(const char *name, int needs, const char *format, ...)
    : held(lock), name(name), logged(!(needs & UNLOGGED))
{
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    orphan = false;
    int device = current_device(), given = SUCCESS;
    if ((needs & INITIALIZED) && initialized_in != getpid())
        refused = NOT_INITIALIZED;
    else if (fails(name, &given))
        refused = given;
    else if ((needs & CONTEXT) == CONTEXT && device < 0)
        refused = INVALID_CONTEXT;
    // An error of a kernel stays: only the end of the process takes it away.
    else if ((needs & CONTEXT) == CONTEXT && poisoned[device])
        refused = poisoned[device];
    else if (needs & UNSAFE)
        refused = forbidden();
}

int Call::operator()(int result)
{
    if (refused)
        result = refused;
    if (orphan && result == INVALID_HANDLE) // of a context that is gone
        result = CONTEXT_IS_DESTROYED;
    if (logged)
        note("%s(%s) = %d", name, arguments, result);
    return result;
}

} // namespace fake
using namespace fake;

// What a test does to the driver while it runs: more of FAKECUDA_FAIL, counted from now.
extern "C" __attribute__((visibility("default"))) void fakecuda_fail(const char *what)
{
    std::lock_guard held(lock);
    plan(what);
}

API cuInit(unsigned flags)
{
    Call call("cuInit", NOTHING, "%u", flags);
    if (!call || flags)
        return call(INVALID_VALUE);
    if (initialized_in == getpid())
        return call();
    if (initialized_in) // forked: the real one cannot be used there either
        return call(NOT_INITIALIZED);
    const char *path = getenv("FAKECUDA_LOG"), *chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (path && *path)
        log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    int n = option("DEVICES", 1);
    if (chosen)
        for (const char *at = chosen; *at && atoi(at) < n; at += strcspn(at, ","), at += *at == ',')
            visible.push_back(atoi(at));
    else
        for (int i = 0; i < n; i++)
            visible.push_back(i);
    if (visible.empty())
        return call(NO_DEVICE);
    initialized_in = getpid();
    plan(getenv("FAKECUDA_FAIL"));
    return call();
}

API cuDriverGetVersion(int *out)
{
    *out = 12040;
    return SUCCESS;
}

API cuDeviceGetCount(int *out)
{
    Call call("cuDeviceGetCount", INITIALIZED | UNLOGGED);
    *out = devices();
    return call();
}

API cuDeviceGet(int *out, int ordinal)
{
    Call call("cuDeviceGet", INITIALIZED | UNLOGGED);
    if (!call || ordinal < 0 || ordinal >= devices())
        return call(INVALID_DEVICE);
    *out = ordinal;
    return call();
}

API cuDeviceGetName(char *out, int length, int device)
{
    Call call("cuDeviceGetName", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    snprintf(out, (size_t)length, "Stand-in GPU");
    return call();
}

API cuDeviceGetUuid_v2(void *out, int device)
{
    Call call("cuDeviceGetUuid", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    memcpy(out, "fakecuda stand-", 15);
    ((char *)out)[15] = (char)('0' + visible[(size_t)device]);
    return call();
}

API cuDeviceGetPCIBusId(char *out, int length, int device)
{
    Call call("cuDeviceGetPCIBusId", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    snprintf(out, (size_t)length, "0000:%02x:00.0", 16 + visible[(size_t)device]);
    return call();
}

API cuDeviceTotalMem_v2(size_t *out, int device)
{
    Call call("cuDeviceTotalMem", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    *out = (size_t)option("MEMORY_MIB", 4096) << 20;
    return call();
}

API cuDeviceGetAttribute(int *out, int which, int device)
{
    static const std::map<int, int> values = {
        {8, SHARED_PER_BLOCK},
        {10, WARP},
        {12, REGISTERS},
        {16, MULTIPROCESSORS},
        {19, 1}, // can map host memory
        {31, 1}, // runs kernels concurrently
        {39, THREADS_PER_MULTIPROCESSOR},
        {41, 1}, // unified addressing
        {78, 1}, // stream priorities
        {81, SHARED},
        {82, REGISTERS},
        {91, 1}, // the host's pointer for registered memory
        {95, 1}, // cooperative launch
        {97, SHARED_OPTIN},
        {99, 1}, // host register
        {106, BLOCKS_PER_MULTIPROCESSOR},
        {111, SHARED_RESERVED},
        {125, 1}, // IPC
        {126, 4}, // memory synchronisation domains
    };
    Call call("cuDeviceGetAttribute", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    auto found = values.find(which);
    // Few threads: each one is a thread of this machine.
    *out = which == 1                     ? option("THREADS", 4)
           : which == 75                  ? option("CAPABILITY", 90) / 10
           : which == 76                  ? option("CAPABILITY", 90) % 10
           : which == 100                 ? option("COHERENT", 0) // the host's page tables
           : which == 116                 ? option("RDMA", 1)
           : which == 117                 ? option("FLUSH", 1)
           : which == 118                 ? option("ORDERING", 0) // of NICs' writes
           : which == 124                 ? option("DMABUF", 1)
           : which == 102 || which == 103 ? option("VIRTUAL", 1) // memory management, descriptors
           : which == 122                 ? option("MEMOPS", 1)
           : which == 132                 ? option("MULTICAST", 0)
           : found == values.end()        ? 0
                                          : found->second;
    return call();
}

// A context's handle is the address of its device's place here.
static char handles[16];

static int of_context(void *context)
{
    char *at = (char *)context;
    return at >= handles && at < handles + devices() ? (int)(at - handles) : -1;
}

API cuDevicePrimaryCtxRetain(void **out, int device)
{
    Call call("cuDevicePrimaryCtxRetain", INITIALIZED, "%d", device);
    if (!call || device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    retained[device]++;
    *out = handles + device;
    return call();
}

API cuDevicePrimaryCtxRelease_v2(int device)
{
    Call call("cuDevicePrimaryCtxRelease", INITIALIZED, "%d", device);
    if (!call || device < 0 || device >= devices() || !retained[device])
        return call(device < 0 || device >= devices() ? INVALID_DEVICE : INVALID_CONTEXT);
    retained[device]--;
    return call();
}

API cuCtxPushCurrent_v2(void *context)
{
    Call call("cuCtxPushCurrent", INITIALIZED | UNLOGGED);
    auto green = green_of(context);
    int device = green ? green->device : of_context(context);
    if (!call || device < 0 || (!green && !retained[device]))
        return call(INVALID_CONTEXT);
    return call(contexts.push(device, green ? context : nullptr) ? SUCCESS : OUT_OF_MEMORY);
}

API cuCtxPopCurrent_v2(void **out)
{
    Call call("cuCtxPopCurrent", INITIALIZED | UNLOGGED);
    if (!call || contexts.empty())
        return call(INVALID_CONTEXT);
    *out = handles + contexts.back();
    contexts.pop();
    return call();
}

API cuCtxGetCurrent(void **out)
{
    Call call("cuCtxGetCurrent", INITIALIZED | UNLOGGED);
    *out = contexts.empty() ? nullptr : handles + contexts.back();
    return call();
}

API cuCtxSetCurrent(void *context)
{
    Call call("cuCtxSetCurrent", INITIALIZED | UNLOGGED);
    int device = of_context(context);
    if (!call || (context && (device < 0 || !retained[device])))
        return call(INVALID_CONTEXT);
    if (!contexts.empty())
        contexts.pop();
    if (context)
        contexts.push(device);
    return call();
}

API cuCtxGetDevice(int *out)
{
    Call call("cuCtxGetDevice", CONTEXT | UNLOGGED);
    *out = current_device();
    return call();
}

API cuDeviceCanAccessPeer(int *out, int device, int peer)
{
    Call call("cuDeviceCanAccessPeer", INITIALIZED | UNLOGGED);
    if (!call || device < 0 || device >= devices() || peer < 0 || peer >= devices())
        return call(INVALID_DEVICE);
    *out = device != peer && option("PEERS", 1);
    return call();
}

API cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    Call call("cuCtxEnablePeerAccess", CONTEXT, "%d", of_context(context));
    int peer = of_context(context);
    if (!call || flags)
        return call(INVALID_VALUE);
    if (peer < 0 || peer == current_device())
        return call(INVALID_CONTEXT);
    if (!option("PEERS", 1))
        return call(PEER_ACCESS_UNSUPPORTED);
    return call(peers.insert({current_device(), peer}).second ? SUCCESS
                                                              : PEER_ACCESS_ALREADY_ENABLED);
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    Call call("cuCtxGetStreamPriorityRange", CONTEXT | UNLOGGED);
    *least = LEAST_PRIORITY;
    *greatest = GREATEST_PRIORITY;
    return call();
}

/* NVRTC asks for a table that tools may have there, and takes it for granted that it is told. */
API cuGetExportTable(const void **out, const void *)
{
    *out = nullptr;
    return INVALID_VALUE;
}
