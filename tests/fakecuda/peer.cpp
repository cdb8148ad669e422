// Memory that a NIC reaches (GPUDirect RDMA): its export as a dma-buf, its address as
// nvidia_peermem resolves it, and the driver's flush of what NICs have written.
//
// The stand-ins for libibverbs (tests/fakeverbs) and libfabric (tests/fakefabric) are the NIC. They
// map the memory by themselves, and keep back what comes in until a flush: see their gpu.c.
#include "driver.h"
#include "peer_memory.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace fake;

enum { PAGE = 4096, DMA_BUF = 1 };
enum { CURRENT_CONTEXT = 0, TO_OWNER = 100, TO_ALL_DEVICES = 200 };
enum { OPTION_HOST = 1 };

// As native/memory/mem_type.h has the rule, and NCCL: compute capability 9.0 and later on PCIe, or
// what the driver says of its ordering.
static int ordering()
{
    if (option("CAPABILITY", 90) >= 90 && !option("COHERENT", 0))
        return FAKECUDA_ALWAYS;
    return option("ORDERING", 0) >= TO_OWNER ? FAKECUDA_UNLESS_RELAXED : FAKECUDA_NEVER;
}

static void describe(const Part &part, fakecuda_memory *out)
{
    *out = {FAKECUDA_DMABUF, getpid(),    part.fd,     part.inode,
            part.begin,      part.nbytes, part.device, ordering()};
}

extern "C" __attribute__((visibility("default"))) int
fakecuda_peer_memory(uint64_t at, uint64_t nbytes, struct fakecuda_memory *out)
{
    if (!initialized()) // a child of fork: it may not even take the lock
        return 0;
    std::lock_guard held(lock);
    Part part;
    if (!device_memory(at, nbytes))
        return 0;
    if (!option("RDMA", 1) || !part_of(at, nbytes, &part))
        return -1;
    describe(part, out);
    return 1;
}

API cuMemGetHandleForAddressRange(void *out, uint64_t at, size_t nbytes, int type,
                                  unsigned long long flags)
{
    Call call("cuMemGetHandleForAddressRange", CONTEXT, "%#llx, %zu, %d", (unsigned long long)at,
              nbytes, type);
    Part part;
    if (!call || flags || type != DMA_BUF || !nbytes || at % PAGE || nbytes % PAGE
        || !part_of(at, nbytes, &part))
        return call(INVALID_VALUE);
    if (!option("DMABUF", 1))
        return call(NOT_SUPPORTED);
    fakecuda_memory about;
    describe(part, &about);
    int fd = memfd_create("fakecuda-dmabuf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &about, sizeof about) != (ssize_t)sizeof about) {
        if (fd >= 0)
            close(fd);
        return call(OUT_OF_MEMORY);
    }
    *(int *)out = fd;
    return call();
}

// Of a stand-in for a NIC's library, if this process has loaded it.
static void flush_of(const char *library, const char *function, int device)
{
    void *found = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (!found)
        return;
    auto flush = (void (*)(int))dlsym(found, function);
    if (flush)
        flush(device);
    dlclose(found);
}

// What NICs have written so far is in memory when this returns. The lock of this library is not
// held while the other one takes its own.
API cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    int device;
    {
        Call call("cuFlushGPUDirectRDMAWrites", CONTEXT, "%d, %d", target, scope);
        if (!call || target != CURRENT_CONTEXT || (scope != TO_OWNER && scope != TO_ALL_DEVICES))
            return call(INVALID_VALUE);
        if (!(option("FLUSH", OPTION_HOST) & OPTION_HOST))
            return call(NOT_SUPPORTED);
        device = physical_device(current_device());
        call();
    }
    flush_of("libibverbs.so.1", "fakeverbs_flush", device);
    flush_of("libfabric.so.1", "fakefabric_flush", device);
    return SUCCESS;
}

// "The driver revokes it" or "the dma-buf keeps it", says the real one; whose memory it becomes is
// another matter. Freeing what is registered is the wrong order of an end, and ends the process.
void fake::fail_if_registered(uint64_t at, int fd)
{
    struct flock taken = {};
    taken.l_type = F_WRLCK;
    taken.l_whence = SEEK_SET;
    taken.l_start = FAKECUDA_LOCKED;
    taken.l_len = 1;
    if (fcntl(fd, F_OFD_GETLK, &taken) != 0 || taken.l_type == F_UNLCK)
        return;
    note("undefined: cuMemFree(%#llx) of memory that a NIC has registered", (unsigned long long)at);
    fprintf(stderr, "fakecuda: cuMemFree(%#llx) of memory that a NIC has registered\n",
            (unsigned long long)at);
    abort();
}

// With the option PINNED, of a driver of the kernel: its pages cannot be sealed while it has them.
// Nor while another process maps them, so that a child of fork may not live then.
void fake::fail_if_pinned(uint64_t at, int fd)
{
    if (!option("PINNED", 0) || fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0 || errno != EBUSY)
        return;
    note("undefined: cuMemFree(%#llx) of memory that a driver has pinned", (unsigned long long)at);
    fprintf(stderr, "fakecuda: cuMemFree(%#llx) of memory that a driver has pinned\n",
            (unsigned long long)at);
    abort();
}
