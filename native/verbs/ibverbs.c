/* Loads libibverbs, and says what is missing for RDMA. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "verbs/ibverbs.h"

#define PC_DEVICES "/sys/class/infiniband"
#define PC_DEVICE_FILES "/dev/infiniband"
#define PC_INSTALL "apt-get install libibverbs1 ibverbs-providers (or dnf install libibverbs)"
#define PC_CONTAINER \
    "docker run --device=" PC_DEVICE_FILES " --cap-add=IPC_LOCK --ulimit memlock=-1"
/* With less, not even the queues of a device that keeps them in user memory can be created. */
#define PC_LEAST_LOCKED (UINT64_C(64) << 10)

static _Thread_local char remedy[240];

/* The kernel checks CAP_IPC_LOCK in the initial user namespace: root of another has it in vain. */
static bool may_lock_all(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    unsigned long inside = 1, outside = 1, length = 0;
    if (syscall(SYS_capget, &header, data) != 0 || !(data[0].effective >> CAP_IPC_LOCK & 1))
        return false;
    FILE *f = fopen("/proc/self/uid_map", "re");
    bool first = f == NULL
                 || (fscanf(f, "%lu %lu %lu", &inside, &outside, &length) == 3 && inside == 0
                     && outside == 0 && length == UINT32_MAX);
    if (f != NULL)
        fclose(f);
    return first;
}

/* RLIMIT_MEMLOCK in bytes; UINT64_MAX: no limit. */
static uint64_t limit_of_locked(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_lock_all())
        return UINT64_MAX;
    return limit.rlim_cur;
}

/* Bytes registered so far. They count as pinned (VmPin), not as locked (VmLck). */
static uint64_t pinned_bytes(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmPin: %lu kB", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return (uint64_t)kib << 10;
}

uint64_t pc__ib_lockable(void)
{
    uint64_t limit = limit_of_locked();
    if (limit == UINT64_MAX)
        return limit;
    uint64_t taken = pinned_bytes();
    return limit > taken ? limit - taken : 0;
}

const char *pc__ib_remedy(int errnum)
{
    uint64_t bytes = limit_of_locked();
    if (errnum == ENOMEM && bytes != UINT64_MAX) {
        snprintf(remedy, sizeof remedy,
                 ": this process may lock %" PRIu64 " KiB of memory: ulimit -l unlimited (or "
                 "memlock in limits.conf, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)",
                 bytes >> 10);
        return remedy;
    }
    if (errnum == EACCES || errnum == EPERM)
        return ": give this user read and write access to " PC_DEVICE_FILES "/uverbs*";
    if (errnum == ENOENT || errnum == ENODEV || errnum == ENXIO)
        return ": a container needs " PC_CONTAINER;
    return "";
}

#ifndef PC_VERBS
const char *pc__ib_library(void)
{
    return "pycoll was built without libibverbs-dev: apt-get install libibverbs-dev "
           "(or dnf install rdma-core-devel), then build again";
}

const char *pc__ib_load(void)
{
    return pc__ib_library();
}
#else

struct pc_ibverbs pc__ib;

static const struct {
    const char *name, *version;
    size_t at;
    bool optional;
} symbols[] = {
#define PC_SYMBOL(name, version) {"ibv_" #name, version, offsetof(struct pc_ibverbs, name), false},
    PC_IBVERBS(PC_SYMBOL)
#undef PC_SYMBOL
        {"ibv_reg_mr_iova2", "IBVERBS_1.8", offsetof(struct pc_ibverbs, reg_mr_iova2), true},
    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12", offsetof(struct pc_ibverbs, reg_dmabuf_mr), true},
    {"_ibv_query_gid_table", "IBVERBS_1.11", offsetof(struct pc_ibverbs, query_gid_table), true},
};

static pthread_once_t loading = PTHREAD_ONCE_INIT;
static char unloadable[300];
static _Thread_local char reason[400];

static void load(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(unloadable, sizeof unloadable, "libibverbs cannot be loaded (%.140s): " PC_INSTALL,
                 dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        /* By version: the library still exports the functions of version 1.0, with other structs.
         */
        void *found = dlvsym(library, symbols[i].name, symbols[i].version);
        if (found == NULL)
            found = dlsym(library, symbols[i].name);
        if (found == NULL && !symbols[i].optional) {
            snprintf(unloadable, sizeof unloadable,
                     "libibverbs.so.1 has no %s (%s): a newer one is wanted: " PC_INSTALL,
                     symbols[i].name, symbols[i].version);
            return;
        }
        memcpy((char *)&pc__ib + symbols[i].at, &found, sizeof found);
    }
    /* Before any memory is registered: a kernel before 5.12 does not copy registered pages for the
     * child of a fork, and the next write would then give this process a page that the device does
     * not know. */
    int rc = pc__ib.fork_init();
    if (rc != 0)
        snprintf(unloadable, sizeof unloadable,
                 "ibv_fork_init: %s: something else in this process has registered memory "
                 "before: set RDMAV_FORK_SAFE=1",
                 strerror(rc));
}

const char *pc__ib_library(void)
{
    pthread_once(&loading, load);
    return *unloadable ? unloadable : NULL;
}

bool pc__ib_usable(const struct ibv_device *device)
{
    return device->transport_type == IBV_TRANSPORT_IB && device->node_type == IBV_NODE_CA;
}

static bool has_entries(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *entry = NULL;
    while (d != NULL && (entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.')
            break;
    if (d != NULL)
        closedir(d);
    return entry != NULL;
}

static const char *no_device(void)
{
    if (access("/sys/class/infiniband_verbs/abi_version", F_OK) != 0)
        return "there is no RDMA device and no driver (" PC_DEVICES "): modprobe ib_uverbs and the "
               "driver of the NIC; a container shows what its host has";
    if (!has_entries(PC_DEVICES))
        return "there is no RDMA device in " PC_DEVICES ": load the driver of the NIC, or make a "
               "software device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev <NIC>";
    if (!has_entries(PC_DEVICE_FILES))
        return PC_DEVICE_FILES " is not there: modprobe ib_uverbs; a container needs " PC_CONTAINER;
    return "libibverbs has no provider for the RDMA devices in " PC_DEVICES
           ": apt-get install ibverbs-providers (or dnf install libibverbs)";
}

/* NULL, or why none of the devices can be opened. Checks the files in /dev, as opening a device
 * takes milliseconds. */
static const char *unopenable(struct ibv_device **list, int n)
{
    const char *other = NULL, *shut = NULL;
    char conn[sizeof list[0]->dev_path];
    int error = 0;
    for (int i = 0; i < n; i++) {
        const char *name = pc__ib.get_device_name(list[i]);
        if (!pc__ib_usable(list[i])) {
            other = name;
            continue;
        }
        snprintf(conn, sizeof conn, PC_DEVICES "/%.63s", name);
        if (access(conn, F_OK) != 0)
            return NULL; /* not a kernel device: it has no file in /dev */
        snprintf(conn, sizeof conn, PC_DEVICE_FILES "/%.63s", list[i]->dev_name);
        if (access(conn, R_OK | W_OK) == 0)
            return NULL;
        error = errno;
        shut = name;
    }
    if (shut != NULL)
        snprintf(reason, sizeof reason, "%s cannot be opened: %s: %s%s", shut, conn,
                 strerror(error), pc__ib_remedy(error));
    else
        snprintf(reason, sizeof reason,
                 "no RDMA device speaks InfiniBand or RoCE; %s speaks another protocol", other);
    return reason;
}

const char *pc__ib_load(void)
{
    const char *missing = pc__ib_library();
    if (missing != NULL)
        return missing;
    int n = 0;
    struct ibv_device **list = pc__ib.get_device_list(&n);
    if (list == NULL || n == 0)
        missing = no_device();
    else
        missing = unopenable(list, n);
    if (list != NULL)
        pc__ib.free_device_list(list);
    if (missing == NULL && limit_of_locked() < PC_LEAST_LOCKED)
        missing = pc__ib_remedy(ENOMEM) + strlen(": ");
    return missing;
}
#endif
