// Memory of the devices, which is memory of this machine, and of other processes' devices.
//
// Each allocation is a memfd, so that another process can map it. Addresses come from one reserved
// range, the lowest that is free: what is freed and allocated again has the same address, as with
// the driver's, and another number. Nothing is mapped where nothing is allocated: whoever touches
// freed memory dies. New memory is not zero.
#include "driver.h"
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fake;

enum { PAGE = 4096 };
enum { HOST = 1, DEVICE = 2 }; // CUmemorytype
static const size_t RANGE = (size_t)64 << 30;

struct Range {
    size_t nbytes, mapped;
    int type, device;
    uint64_t id;
    int fd = -1;           // of a device's memory
    bool opened = false;   // another process's
    int users = 1;         // of that
    ino_t inode = 0;       // of the memfd
    int owner = 0;         // opened: that process
    uint64_t there = 0;    // opened: its address there
    bool allocated = true; // HOST: by cuMemHostAlloc; else registered
    bool virtual_ = false; // DEVICE: of cuMemMap, which CUDA IPC does not share
};
static std::map<uint64_t, Range> ranges; // by their begin
static uint64_t next_id = 1, begin;
static size_t used[16];

struct Handle { // as CUipcMemHandle
    char magic[8];
    int32_t pid, fd, device, reserved;
    uint64_t inode, nbytes, address;
    char padding[16];
};
static_assert(sizeof(Handle) == 64, "as the driver's");

static std::map<uint64_t, Range>::iterator find(uint64_t at)
{
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin())
        return ranges.end();
    auto found = std::prev(next);
    return at < found->first + found->second.nbytes ? found : ranges.end();
}

bool fake::known(uint64_t at, size_t nbytes, bool device_only)
{
    auto found = find(at);
    return found != ranges.end() && at + nbytes <= found->first + found->second.nbytes
           && (!device_only || found->second.type == DEVICE);
}

static size_t pages(size_t nbytes)
{
    return (nbytes + PAGE - 1) / PAGE * PAGE;
}

bool fake::device_memory(uint64_t at, size_t nbytes)
{
    for (auto &[start, range] : ranges)
        if (range.type == DEVICE && start < at + nbytes && at < start + range.mapped)
            return true;
    return false;
}

// An allocation has whole pages: what lies behind its last byte in them is its own.
bool fake::part_of(uint64_t at, size_t nbytes, Part *out)
{
    auto found = find(at);
    if (found == ranges.end())
        return false;
    const auto &[start, range] = *found;
    if (range.type != DEVICE || range.opened || range.virtual_
        || nbytes > range.mapped - (at - start))
        return false;
    *out = {range.fd, physical_device(range.device), range.inode, at - start, nbytes};
    return true;
}

// The lowest room in the range; 0: there is none.
static uint64_t room(size_t nbytes)
{
    if (!begin) {
        void *got
            = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED)
            return 0;
        begin = (uint64_t)got;
    }
    uint64_t at = begin;
    for (auto &[start, range] : ranges) {
        if (start < begin || start >= begin + RANGE)
            continue;
        if (start >= at + nbytes + PAGE) // or the next search would begin within this neighbour
            return at;
        at = start + range.mapped + PAGE; // a page of nothing between neighbours
    }
    return at + nbytes <= begin + RANGE ? at : 0;
}

static uint64_t place(int fd, size_t nbytes)
{
    uint64_t at = room(nbytes);
    if (!at
        || mmap((void *)at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0)
               == MAP_FAILED)
        return 0;
    return at;
}

static void vacate(uint64_t at, size_t nbytes)
{
    mmap((void *)at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
}

// With the option STRICT the host itself cannot touch a device's memory, as it cannot with a real
// one: while no stream works, nothing of it is accessible. (While one does, it all is.)
static int working;

static bool closed()
{
    static const bool strict = option("STRICT", 0) != 0;
    return strict && working == 0;
}

void fake::work_begins()
{
    bool was_closed = closed();
    working++;
    if (was_closed)
        for (auto &[at, range] : ranges)
            if (range.type == DEVICE)
                mprotect((void *)at, range.mapped, PROT_READ | PROT_WRITE);
}

void fake::work_ends()
{
    working--;
    if (closed())
        for (auto &[at, range] : ranges)
            if (range.type == DEVICE)
                mprotect((void *)at, range.mapped, PROT_NONE);
}

// Memory protection keys, where the processor has them: other than STRICT, kernels of the GPU work
// while the host's own threads are kept out.
static std::atomic<int> guard_key = -1;
static thread_local bool passes;

void fake::pass_guard()
{
    if (guard_key >= 0 && !passes)
        pkey_set(guard_key, 0);
    passes = guard_key >= 0;
}

static void guard(uint64_t at, const Range &range)
{
    if (guard_key >= 0 && range.type == DEVICE)
        pkey_mprotect((void *)at, range.mapped, PROT_READ | PROT_WRITE, guard_key);
}

// From now on threads of the host die if they touch a device's memory. What a driver of a NIC has
// pinned before it reaches all the same; it cannot pin more. 0, or an errno: EBUSY, a stream works.
extern "C" __attribute__((visibility("default"))) int fakecuda_guard(void)
{
    std::lock_guard held(lock);
    if (working != 0)
        return EBUSY;
    if (guard_key < 0 && (guard_key = pkey_alloc(0, PKEY_DISABLE_ACCESS)) < 0)
        return errno;
    for (auto &[at, range] : ranges)
        guard(at, range);
    return 0;
}

static void added(uint64_t at, const Range &range)
{
    ranges[at] = range;
    guard(at, range);
    if (closed())
        mprotect((void *)at, range.mapped, PROT_NONE);
}

bool fake::charge(int device, int64_t nbytes)
{
    if ((int64_t)used[device] + nbytes > (int64_t)option("MEMORY_MIB", 4096) << 20)
        return false;
    used[device] = (size_t)((int64_t)used[device] + nbytes);
    return true;
}

// A range without a byte that anybody knows of.
uint64_t fake::reserve(size_t nbytes, size_t alignment)
{
    uint64_t at = room(nbytes + alignment);
    if (!at)
        return 0;
    at = (at + alignment - 1) / alignment * alignment;
    ranges[at] = {0, nbytes, 0, 0, 0};
    return at;
}

void fake::unreserve(uint64_t at)
{
    ranges.erase(at);
}

bool fake::occupy(uint64_t at, size_t nbytes, int fd, int device)
{
    if (mmap((void *)at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0)
        == MAP_FAILED)
        return false;
    Range range = {nbytes, nbytes, DEVICE, device, next_id++};
    range.virtual_ = true;
    added(at, range);
    return true;
}

void fake::leave(uint64_t at)
{
    size_t nbytes = ranges[at].mapped;
    vacate(at, nbytes);
    ranges[at] = {0, nbytes, 0, 0, 0};
}

API cuMemAlloc_v2(uint64_t *out, size_t nbytes)
{
    Call call("cuMemAlloc", CONTEXT | UNSAFE, "%zu", nbytes);
    int device = current_device();
    if (!call || !nbytes) // nothing to allocate is an invalid value
        return call(INVALID_VALUE);
    if (int result = call.settle(device))
        return call(result);
    size_t mapped = pages(nbytes);
    if (used[device] + mapped > (size_t)option("MEMORY_MIB", 4096) << 20)
        return call(OUT_OF_MEMORY);
    int fd = memfd_create("fakecuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct stat about = {};
    uint64_t at = 0;
    if (fd < 0 || ftruncate(fd, (off_t)mapped) != 0 || fstat(fd, &about) != 0
        || !(at = place(fd, mapped))) {
        if (fd >= 0)
            close(fd);
        return call(OUT_OF_MEMORY);
    }
    size_t limit = (size_t)option("POISON", 1 << 20);
    memset((void *)at, 0xa5, mapped < limit ? mapped : limit);
    Range range = {nbytes, mapped, DEVICE, device, next_id++};
    range.fd = fd;
    range.inode = about.st_ino;
    added(at, range);
    used[device] += mapped;
    *out = at;
    return call();
}

API cuMemFree_v2(uint64_t at)
{
    Call call("cuMemFree", CONTEXT | UNSAFE, "%#llx", (unsigned long long)at);
    auto found = ranges.find(at);
    if (!call || found == ranges.end() || found->second.type != DEVICE || found->second.opened
        || found->second.virtual_)
        return call(INVALID_VALUE);
    int device = found->second.device;
    if (int result = call.settle(device))
        return call(result);
    found = ranges.find(at);
    if (found == ranges.end())
        return call(INVALID_VALUE);
    fail_if_registered(at, found->second.fd);
    // Undefined while another process has it open: that holds a lock of the file. What it reads
    // there from now on is nonsense.
    if (flock(found->second.fd, LOCK_EX | LOCK_NB) != 0) {
        note("undefined: cuMemFree(%#llx) of memory that another process has open",
             (unsigned long long)at);
        mprotect((void *)at, found->second.mapped, PROT_READ | PROT_WRITE);
        memset((void *)at, 0x5a, found->second.mapped);
    }
    vacate(at, found->second.mapped);
    fail_if_pinned(at, found->second.fd);
    close(found->second.fd);
    used[device] -= found->second.mapped;
    ranges.erase(found);
    return call();
}

API cuMemGetAddressRange_v2(uint64_t *base, size_t *nbytes, uint64_t at)
{
    Call call("cuMemGetAddressRange", CONTEXT | UNLOGGED);
    auto found = find(at);
    if (!call || found == ranges.end())
        return call(NOT_FOUND);
    if (base)
        *base = found->first;
    if (nbytes)
        *nbytes = found->second.nbytes;
    return call();
}

API cuMemHostAlloc(void **out, size_t nbytes, unsigned flags)
{
    Call call("cuMemHostAlloc", CONTEXT | UNSAFE, "%zu, %u", nbytes, flags);
    if (!call || !nbytes || flags > 7)
        return call(INVALID_VALUE);
    if (int result = call.settle(current_device()))
        return call(result);
    void *got
        = mmap(nullptr, pages(nbytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED)
        return call(OUT_OF_MEMORY);
    memset(got, 0xa5, pages(nbytes) < (1 << 16) ? pages(nbytes) : 1 << 16);
    ranges[(uint64_t)got] = {nbytes, pages(nbytes), HOST, current_device(), next_id++};
    *out = got;
    return call();
}

API cuMemFreeHost(void *host)
{
    Call call("cuMemFreeHost", CONTEXT | UNSAFE, "%p", host);
    auto found = ranges.find((uint64_t)host);
    if (!call || found == ranges.end() || found->second.type != HOST || !found->second.allocated)
        return call(INVALID_VALUE);
    if (int result = call.settle(found->second.device))
        return call(result);
    found = ranges.find((uint64_t)host);
    if (found == ranges.end())
        return call(INVALID_VALUE);
    munmap(host, found->second.mapped);
    ranges.erase(found);
    return call();
}

API cuMemHostRegister_v2(void *host, size_t nbytes, unsigned flags)
{
    Call call("cuMemHostRegister", CONTEXT | UNSAFE, "%p, %zu, %u", host, nbytes, flags);
    uint64_t from = (uint64_t)host / PAGE * PAGE, to = pages((uint64_t)host + nbytes);
    if (!call || !nbytes || !host || flags > 15)
        return call(INVALID_VALUE);
    if (int result = call.settle(current_device()))
        return call(result);
    for (auto &[start, range] : ranges)
        if (start < to && from < start + range.mapped)
            return call(HOST_MEMORY_ALREADY_REGISTERED);
    unsigned char there[1];
    for (uint64_t at = from; at < to; at += PAGE)
        if (mincore((void *)at, PAGE, there) != 0) // nothing is mapped there
            return call(INVALID_VALUE);
    Range range = {nbytes, to - from, HOST, current_device(), next_id++};
    range.allocated = false;
    ranges[(uint64_t)host] = range;
    return call();
}

API cuMemHostUnregister(void *host)
{
    Call call("cuMemHostUnregister", CONTEXT | UNSAFE, "%p", host);
    auto found = ranges.find((uint64_t)host);
    if (!call || found == ranges.end() || found->second.type != HOST || found->second.allocated)
        return call(HOST_MEMORY_NOT_REGISTERED);
    if (int result = call.settle(found->second.device))
        return call(result);
    ranges.erase((uint64_t)host);
    return call();
}

API cuMemHostGetDevicePointer_v2(uint64_t *out, void *host, unsigned flags)
{
    Call call("cuMemHostGetDevicePointer", CONTEXT | UNLOGGED);
    auto found = find((uint64_t)host);
    if (!call || flags || found == ranges.end() || found->second.type != HOST)
        return call(INVALID_VALUE);
    *out = (uint64_t)host;
    return call();
}

// Of a pointer that it does not know every attribute is zero, and that is no error.
API cuPointerGetAttributes(unsigned n, const int *which, void **out, uint64_t at)
{
    Call call("cuPointerGetAttributes", INITIALIZED | UNLOGGED);
    auto found = find(at);
    Range none = {0, 0, 0, 0, 0}, &range = found == ranges.end() ? none : found->second;
    uint64_t start = found == ranges.end() ? 0 : found->first;
    for (unsigned i = 0; call && i < n; i++) {
        if (which[i] == 2)
            *(unsigned *)out[i] = (unsigned)range.type;
        else if (which[i] == 7)
            *(unsigned long long *)out[i] = range.id;
        else if (which[i] == 8)
            *(unsigned *)out[i] = 0;
        else if (which[i] == 9)
            *(int *)out[i] = range.device;
        else if (which[i] == 10)
            *(unsigned *)out[i] = range.type == DEVICE && !range.opened && !range.virtual_;
        else if (which[i] == 11)
            *(uint64_t *)out[i] = start;
        else if (which[i] == 12)
            *(size_t *)out[i] = range.nbytes;
        else
            return call(INVALID_VALUE);
    }
    return call();
}

API cuPointerSetAttribute(const void *, int which, uint64_t at)
{
    Call call("cuPointerSetAttribute", INITIALIZED);
    return call(which == 6 && known(at, 1, true) ? SUCCESS : INVALID_VALUE);
}

// The handle is that of the whole allocation, wherever in it the address lies.
API cuIpcGetMemHandle(Handle *out, uint64_t at)
{
    Call call("cuIpcGetMemHandle", CONTEXT | UNSAFE, "%#llx", (unsigned long long)at);
    auto found = find(at);
    if (!call || found == ranges.end() || found->second.type != DEVICE || found->second.opened
        || found->second.virtual_)
        return call(INVALID_VALUE);
    const Range &range = found->second;
    *out = Handle{"fakecud",    getpid(),     range.fd, range.device, 0, range.inode,
                  range.nbytes, found->first, {}};
    return call();
}

// The other process's memory, by its descriptor there, while that is still the same memory.
static int descriptor(const Handle &handle)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &about) != 0 || about.st_ino != handle.inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

API cuIpcOpenMemHandle_v2(uint64_t *out, Handle handle, unsigned flags)
{
    Call call("cuIpcOpenMemHandle", CONTEXT | UNSAFE, "of %d, %u", handle.pid, flags);
    if (!call || flags != 1) // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS must be given
        return call(INVALID_VALUE);
    if (memcmp(handle.magic, "fakecud", 8) != 0)
        return call(INVALID_HANDLE);
    if (handle.pid == getpid()) // a process cannot open what it has itself
        return call(INVALID_CONTEXT);
    // It may wait for all kernels, as it maps memory.
    if (int result = call.settle(current_device()))
        return call(result);
    for (auto &[start, range] : ranges) // opened again: counted
        if (range.opened && range.inode == handle.inode) {
            range.users++;
            *out = start;
            return call();
        }
    // What is at an address where that process had something else, which is still open here.
    for (auto &[start, range] : ranges)
        if (range.opened && range.owner == handle.pid
            && range.there < handle.address + handle.nbytes
            && handle.address < range.there + range.nbytes)
            return call(ALREADY_MAPPED);
    int fd = descriptor(handle);
    if (fd < 0) { // its owner has freed it, or is gone
        note("undefined: cuIpcOpenMemHandle of memory that is freed");
        return call(MAP_FAILED_HERE);
    }
    flock(fd, LOCK_SH | LOCK_NB);
    uint64_t at = place(fd, pages(handle.nbytes));
    if (!at) {
        close(fd);
        return call(MAP_FAILED_HERE);
    }
    Range range = {handle.nbytes, pages(handle.nbytes), DEVICE, current_device(), next_id++};
    range.fd = fd;
    range.opened = true;
    range.inode = handle.inode;
    range.owner = handle.pid;
    range.there = handle.address;
    added(at, range);
    *out = at;
    return call();
}

API cuIpcCloseMemHandle(uint64_t at)
{
    Call call("cuIpcCloseMemHandle", CONTEXT | UNSAFE, "%#llx", (unsigned long long)at);
    auto found = ranges.find(at);
    if (!call || found == ranges.end() || !found->second.opened)
        return call(INVALID_VALUE);
    if (int result = call.settle(current_device()))
        return call(result);
    found = ranges.find(at);
    if (found == ranges.end() || !found->second.opened)
        return call(INVALID_VALUE);
    if (--found->second.users == 0) {
        vacate(at, found->second.mapped);
        close(found->second.fd);
        ranges.erase(found);
    }
    return call();
}
