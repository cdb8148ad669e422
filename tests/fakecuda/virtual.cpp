// Virtual memory management, and multicast objects.
//
// Memory of cuMemCreate is a memfd whose name says on which device; to export it duplicates the
// descriptor. A multicast object is a memfd, too, that all processes map: which devices were added
// and what is bound. Bound memory is opened by its descriptor in the process that bound it, when a
// kernel first touches the object's addresses, at which nothing is mapped. A range is mapped whole.
#include "driver.h"
#include "gpu/kernel/target_simt.h"
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fake;

enum { POSIX_DESCRIPTOR = 1, PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3 };
static const size_t GRANULE = (size_t)2 << 20, RECOMMENDED = (size_t)512 << 20;
enum { MOST = 16 };

struct Location {
    int type, id;
};

struct AllocationProp { // as CUmemAllocationProp
    int type, handle_types;
    Location location;
    void *win32;
    unsigned char flags[8];
};

struct AccessDesc { // as CUmemAccessDesc
    Location location;
    int flags;
};

struct MulticastProp { // as CUmulticastObjectProp
    unsigned ndevices;
    size_t nbytes;
    unsigned long long handle_types, flags;
};
static_assert(sizeof(AllocationProp) == 32 && sizeof(AccessDesc) == 12, "as the driver's");
static_assert(sizeof(MulticastProp) == 32, "as the driver's");

struct Binding {
    int device, pid, fd; // device: its number on the machine
    uint64_t inode, at, in_memory, nbytes;
};

struct Control { // shared by all processes that have the object
    std::atomic<uint32_t> busy;
    uint32_t ndevices, nadded, nbound, shareable;
    uint64_t nbytes;
    int added[MOST];
    Binding bindings[MOST];
};

struct Physical { // what a handle stands for
    int device = -1, fd = -1;
    size_t nbytes = 0;
    bool shareable = false, owned = false; // owned: takes memory of this process's device
    Control *control = nullptr;            // of a multicast object
    ~Physical()
    {
        if (owned)
            charge(device, -(int64_t)nbytes);
        if (control)
            munmap(control, sizeof *control);
        if (fd >= 0)
            close(fd);
    }
};

struct Reserved { // a range of addresses
    size_t nbytes;
    std::shared_ptr<Physical> mapped;
    bool accessible = false;
    pc_simt_multicast *played = nullptr;
};
static std::map<uint64_t, std::shared_ptr<Physical>> &handles
    = *new std::map<uint64_t, std::shared_ptr<Physical>>;
static std::map<uint64_t, Reserved> &reservations = *new std::map<uint64_t, Reserved>;
static uint64_t next_handle = 0x1000;

// The object's own lock; never held together with a wait.
struct Holding {
    Control *control;
    explicit Holding(Control *control) : control(control)
    {
        while (control->busy.exchange(1))
            sched_yield();
    }
    ~Holding()
    {
        control->busy = 0;
    }
};

static std::shared_ptr<Physical> physical(uint64_t handle, bool multicast)
{
    auto found = handles.find(handle);
    if (found == handles.end() || (found->second->control != nullptr) != multicast)
        return nullptr;
    return found->second;
}

static uint64_t given(std::shared_ptr<Physical> what)
{
    handles[++next_handle] = std::move(what);
    return next_handle;
}

static bool granular(uint64_t n)
{
    return n % GRANULE == 0;
}

static bool complete(Control *control)
{
    Holding held(control);
    return control->nadded == control->ndevices;
}

// What the driver would wait for until the last device is added, maybe for ever.
static int waits(Call &call, const char *name)
{
    note("hang: %s before all devices were added to the multicast object", name);
    return call(ILLEGAL_STATE);
}

API cuMemGetAllocationGranularity(size_t *out, const AllocationProp *prop, int option)
{
    Call call("cuMemGetAllocationGranularity", INITIALIZED | UNLOGGED);
    if (!call || prop->type != PINNED || prop->location.type != ON_DEVICE || option < 0
        || option > 1)
        return call(INVALID_VALUE);
    *out = GRANULE;
    return call();
}

API cuMemCreate(uint64_t *out, size_t nbytes, const AllocationProp *prop, unsigned long long flags)
{
    Call call("cuMemCreate", INITIALIZED | UNSAFE, "%zu", nbytes);
    if (!call || flags || !nbytes || !granular(nbytes) || prop->type != PINNED
        || prop->location.type != ON_DEVICE)
        return call(INVALID_VALUE);
    if (prop->location.id < 0 || prop->location.id >= devices())
        return call(INVALID_DEVICE);
    if (!option("VIRTUAL", 1) || (prop->handle_types & ~POSIX_DESCRIPTOR))
        return call(NOT_SUPPORTED);
    auto made = std::make_shared<Physical>();
    char name[64];
    snprintf(name, sizeof name, "fakecuda-memory-%d", physical_device(prop->location.id));
    made->fd = memfd_create(name, MFD_CLOEXEC);
    made->device = prop->location.id;
    made->nbytes = nbytes;
    made->shareable = prop->handle_types & POSIX_DESCRIPTOR;
    if (!charge(made->device, (int64_t)nbytes))
        return call(OUT_OF_MEMORY);
    made->owned = true;
    if (made->fd < 0 || ftruncate(made->fd, (off_t)nbytes) != 0)
        return call(OUT_OF_MEMORY);
    size_t poisoned = (size_t)option("POISON", 1 << 20);
    poisoned = poisoned < nbytes ? poisoned : nbytes;
    void *there = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (there == MAP_FAILED)
        return call(OUT_OF_MEMORY);
    memset(there, 0xa5, poisoned);
    munmap(there, nbytes);
    *out = given(made);
    return call();
}

// The memory stays while it is mapped or bound.
API cuMemRelease(uint64_t handle)
{
    Call call("cuMemRelease", INITIALIZED | UNSAFE, "%#llx", (unsigned long long)handle);
    return call(handles.erase(handle) ? SUCCESS : INVALID_VALUE);
}

API cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags)
{
    Call call("cuMemExportToShareableHandle", INITIALIZED, "%#llx", (unsigned long long)handle);
    auto found = handles.find(handle);
    if (!call || flags || found == handles.end() || type != POSIX_DESCRIPTOR
        || !found->second->shareable)
        return call(INVALID_VALUE);
    int fd = fcntl(found->second->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return call(OUT_OF_MEMORY);
    *(int *)out = fd;
    return call();
}

API cuMemImportFromShareableHandle(uint64_t *out, void *handle, int type)
{
    int from = (int)(intptr_t)handle, device = -1;
    Call call("cuMemImportFromShareableHandle", INITIALIZED | UNSAFE, "%d", from);
    char path[64], name[128] = "";
    struct stat about;
    snprintf(path, sizeof path, "/proc/self/fd/%d", from);
    if (!call || type != POSIX_DESCRIPTOR || readlink(path, name, sizeof name - 1) < 0
        || fstat(from, &about) != 0)
        return call(INVALID_VALUE);
    auto made = std::make_shared<Physical>();
    made->shareable = true;
    if (strncmp(name, "/memfd:fakecuda-multicast", 25) == 0) {
        void *control = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
        if (control == MAP_FAILED)
            return call(INVALID_VALUE);
        made->control = (Control *)control;
        made->nbytes = made->control->nbytes;
    } else if (sscanf(name, "/memfd:fakecuda-memory-%d", &device) == 1) {
        made->nbytes = (size_t)about.st_size;
    } else {
        return call(INVALID_VALUE);
    }
    made->device = device; // of the machine: what is imported is not this process's to charge
    made->fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
    *out = given(made);
    return call();
}

API cuMemAddressReserve(uint64_t *out, size_t nbytes, size_t alignment, uint64_t,
                        unsigned long long flags)
{
    Call call("cuMemAddressReserve", INITIALIZED | UNSAFE, "%zu", nbytes);
    if (!call || flags || !nbytes || !granular(nbytes) || (alignment & (alignment - 1)))
        return call(INVALID_VALUE);
    size_t unit = alignment > GRANULE ? alignment : GRANULE;
    uint64_t at = reserve(nbytes, unit);
    if (!at)
        return call(OUT_OF_MEMORY);
    reservations[at] = {nbytes, nullptr};
    *out = at;
    return call();
}

API cuMemAddressFree(uint64_t at, size_t nbytes)
{
    Call call("cuMemAddressFree", INITIALIZED | UNSAFE, "%#llx", (unsigned long long)at);
    auto found = reservations.find(at);
    if (!call || found == reservations.end() || found->second.nbytes != nbytes
        || found->second.mapped)
        return call(INVALID_VALUE);
    reservations.erase(found);
    unreserve(at);
    return call();
}

API cuMemMap(uint64_t at, size_t nbytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    Call call("cuMemMap", INITIALIZED | UNSAFE, "%#llx, %zu", (unsigned long long)at, nbytes);
    auto found = reservations.find(at);
    auto what = handles.find(handle);
    if (!call || flags || offset || found == reservations.end() || what == handles.end()
        || found->second.nbytes != nbytes || found->second.mapped || nbytes > what->second->nbytes)
        return call(INVALID_VALUE);
    if (what->second->control && !complete(what->second->control))
        return waits(call, "cuMemMap");
    found->second.mapped = what->second;
    return call();
}

// Opens what is bound, for a kernel that touches the object for the first time.
static bool resolved(pc_simt_multicast *m)
{
    static std::mutex &one = *new std::mutex;
    if (__atomic_load_n(&m->nmembers, __ATOMIC_ACQUIRE))
        return true;
    std::lock_guard alone(one);
    if (m->nmembers)
        return true;
    Control *control = (Control *)m->user;
    Holding held(control);
    if (control->nbound != control->ndevices)
        return false;
    for (uint32_t k = 0; k < control->nbound; k++) {
        const Binding &b = control->bindings[k];
        char path[64];
        struct stat about;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", b.pid, b.fd);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *there = MAP_FAILED;
        if (fd >= 0 && fstat(fd, &about) == 0 && about.st_ino == b.inode && b.at == 0
            && b.nbytes == m->nbytes)
            there = mmap(nullptr, b.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                         (off_t)b.in_memory);
        if (fd >= 0)
            close(fd);
        if (there == MAP_FAILED)
            return false;
        m->members[k] = (char *)there;
    }
    __atomic_store_n(&m->nmembers, control->nbound, __ATOMIC_RELEASE);
    return true;
}

static void play(uint64_t at, Reserved &r)
{
    auto m = new pc_simt_multicast(); // for ever: kernels walk the list without a lock
    m->at = (char *)at;
    m->user = r.mapped->control;
    m->resolve = resolved;
    m->nbytes = r.nbytes;
    m->next = pc_simt_multicasts;
    pc_simt_multicasts = m;
    r.played = m;
}

API cuMemSetAccess(uint64_t at, size_t nbytes, const AccessDesc *desc, size_t count)
{
    Call call("cuMemSetAccess", INITIALIZED | UNSAFE, "%#llx, %zu", (unsigned long long)at, nbytes);
    auto found = reservations.find(at);
    if (!call || found == reservations.end() || !found->second.mapped
        || found->second.nbytes != nbytes || count != 1 || desc->location.type != ON_DEVICE
        || desc->flags != READ_WRITE)
        return call(INVALID_VALUE);
    if (desc->location.id < 0 || desc->location.id >= devices())
        return call(INVALID_DEVICE);
    Reserved &r = found->second;
    int mine = physical_device(desc->location.id);
    if (Control *control = r.mapped->control) {
        bool member = false;
        Holding held(control);
        for (uint32_t k = 0; k < control->nadded; k++)
            member |= control->added[k] == mine;
        if (!member)
            return call(INVALID_DEVICE);
        if (!r.accessible)
            play(at, r);
    } else {
        int theirs = r.mapped->owned ? physical_device(r.mapped->device) : r.mapped->device;
        if (mine != theirs && !option("PEERS", 1))
            return call(INVALID_DEVICE);
        if (!r.accessible && !occupy(at, nbytes, r.mapped->fd, desc->location.id))
            return call(OUT_OF_MEMORY);
    }
    r.accessible = true;
    return call();
}

API cuMemUnmap(uint64_t at, size_t nbytes)
{
    Call call("cuMemUnmap", INITIALIZED | UNSAFE, "%#llx, %zu", (unsigned long long)at, nbytes);
    auto found = reservations.find(at);
    if (!call || found == reservations.end() || !found->second.mapped
        || found->second.nbytes != nbytes)
        return call(INVALID_VALUE);
    Reserved &r = found->second;
    if (pc_simt_multicast *m = r.played) {
        m->nbytes = 0;
        for (uint32_t k = 0; k < m->nmembers; k++)
            munmap(m->members[k], nbytes);
    } else if (r.accessible) {
        leave(at);
    }
    r = {nbytes, nullptr};
    return call();
}

static bool sound(const MulticastProp *prop)
{
    return prop->ndevices >= 1 && prop->ndevices <= MOST && prop->nbytes && prop->flags == 0
           && (prop->handle_types & ~(unsigned long long)POSIX_DESCRIPTOR) == 0;
}

API cuMulticastGetGranularity(size_t *out, const MulticastProp *prop, int option)
{
    Call call("cuMulticastGetGranularity", INITIALIZED | UNLOGGED);
    if (!call || !sound(prop) || option < 0 || option > 1)
        return call(INVALID_VALUE);
    *out = option ? RECOMMENDED : GRANULE;
    return call();
}

API cuMulticastCreate(uint64_t *out, const MulticastProp *prop)
{
    Call call("cuMulticastCreate", INITIALIZED | UNSAFE, "%u, %zu", prop->ndevices, prop->nbytes);
    if (!call || !sound(prop) || !granular(prop->nbytes))
        return call(INVALID_VALUE);
    if (!option("MULTICAST", 0))
        return call(NOT_SUPPORTED);
    auto made = std::make_shared<Physical>();
    made->fd = memfd_create("fakecuda-multicast", MFD_CLOEXEC);
    if (made->fd < 0 || ftruncate(made->fd, sizeof(Control)) != 0)
        return call(OUT_OF_MEMORY);
    void *at = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (at == MAP_FAILED)
        return call(OUT_OF_MEMORY);
    made->control = (Control *)at;
    made->nbytes = made->control->nbytes = prop->nbytes;
    made->shareable = prop->handle_types & POSIX_DESCRIPTOR;
    made->control->shareable = made->shareable;
    made->control->ndevices = prop->ndevices;
    *out = given(made);
    return call();
}

API cuMulticastAddDevice(uint64_t handle, int device)
{
    Call call("cuMulticastAddDevice", INITIALIZED | UNSAFE, "%#llx, %d", (unsigned long long)handle,
              device);
    auto object = physical(handle, true);
    if (!call || !object)
        return call(INVALID_VALUE);
    if (device < 0 || device >= devices())
        return call(INVALID_DEVICE);
    if (!option("MULTICAST", 0))
        return call(NOT_SUPPORTED);
    Control *c = object->control;
    Holding held(c);
    for (uint32_t k = 0; k < c->nadded; k++)
        if (c->added[k] == physical_device(device)) // a device is one member, whose rank it may be
            return call(INVALID_VALUE);
    if (c->nadded == c->ndevices)
        return call(INVALID_VALUE);
    c->added[c->nadded++] = physical_device(device);
    return call();
}

API cuMulticastBindMem(uint64_t handle, size_t at, uint64_t memory, size_t in_memory, size_t nbytes,
                       unsigned long long flags)
{
    Call call("cuMulticastBindMem", INITIALIZED | UNSAFE, "%#llx, %zu, %#llx, %zu, %zu",
              (unsigned long long)handle, at, (unsigned long long)memory, in_memory, nbytes);
    auto object = physical(handle, true), bound = physical(memory, false);
    if (!call || !object || !bound || flags || !nbytes || !granular(at) || !granular(in_memory)
        || !granular(nbytes) || at + nbytes > object->nbytes || in_memory + nbytes > bound->nbytes)
        return call(INVALID_VALUE);
    Control *c = object->control;
    if (!complete(c))
        return waits(call, "cuMulticastBindMem");
    if (c->shareable && !bound->shareable)
        return call(INVALID_VALUE);
    int device = bound->owned ? physical_device(bound->device) : bound->device;
    struct stat about;
    if (fstat(bound->fd, &about) != 0)
        return call(INVALID_VALUE);
    Holding held(c);
    bool member = false;
    for (uint32_t k = 0; k < c->nadded; k++)
        member |= c->added[k] == device;
    for (uint32_t k = 0; k < c->nbound; k++)
        if (c->bindings[k].device == device && at < c->bindings[k].at + c->bindings[k].nbytes
            && c->bindings[k].at < at + nbytes)
            return call(INVALID_VALUE);
    if (!member || c->nbound == MOST)
        return call(member ? OUT_OF_MEMORY : INVALID_DEVICE);
    c->bindings[c->nbound++]
        = {device,    getpid(), fcntl(bound->fd, F_DUPFD_CLOEXEC, 0), about.st_ino, at,
           in_memory, nbytes};
    return call();
}

API cuMulticastUnbind(uint64_t handle, int device, size_t at, size_t nbytes)
{
    Call call("cuMulticastUnbind", INITIALIZED | UNSAFE, "%#llx, %d", (unsigned long long)handle,
              device);
    auto object = physical(handle, true);
    if (!call || !object || device < 0 || device >= devices())
        return call(INVALID_VALUE);
    Control *c = object->control;
    Holding held(c);
    for (uint32_t k = 0; k < c->nbound; k++) {
        const Binding b = c->bindings[k];
        if (b.device != physical_device(device) || b.at != at || b.nbytes != nbytes)
            continue;
        if (b.pid == getpid())
            close(b.fd);
        c->bindings[k] = c->bindings[--c->nbound];
        return call();
    }
    return call(INVALID_VALUE);
}

// How many units of 16 bytes kernels of this process have had folded, and stored to all members.
extern "C" __attribute__((visibility("default"))) void fakecuda_switched(uint64_t *out)
{
    out[0] = pc_simt_folded;
    out[1] = pc_simt_stored;
}
