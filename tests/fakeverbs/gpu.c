/* Memory of a GPU (GPUDirect RDMA), whose other half is the stand-in for libcuda: peer_memory.h.
 *
 * A region of it is a mapping of the NIC's own. What the NIC writes there is kept back, while the
 * completion or the immediate that tells of it is delivered at once, as on hardware, where the data
 * go to the GPU's BAR, and the completion to the host's memory by a shorter way. It lands when
 * a READ of that GPU's memory by the same NIC is answered: of what was here when the READ arrived;
 * or when the process calls cuFlushGPUDirectRDMAWrites of that GPU. What is left when its region is
 * deregistered never lands. Nothing is kept back from a GPU that orders such writes itself.
 *
 * With OVERTAKE a READ is answered only once a receive has completed that tells of what was written
 * behind it: who takes such a READ for a flush of that is wrong each time, and not now and then.
 *
 * A real NIC is one, however often it is opened; here a READ by one context lands what the same
 * context has written. And a real one's reads for what it sends would push the writes ahead, too:
 * these do not. Who relies on neither is right on both. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "nic.h"
#include "../fakecuda/peer_memory.h"

#define LATE_NS 20000000u /* HOLD=late: until a write lands by itself */

struct fv_held {
    struct fv_held *next;
    const struct fv_mr *mr;
    char *to;
    uint64_t number, due;
    uint32_t length;
    char bytes[];
};

/* Contexts of this process, for the driver's flush. Taken before a context's lock. */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fv_context *contexts;

void fv_gpu_opened(struct fv_context *c)
{
    c->held_end = &c->held;
    pthread_mutex_lock(&contexts_lock);
    c->next = contexts;
    contexts = c;
    pthread_mutex_unlock(&contexts_lock);
}

void fv_gpu_closed(struct fv_context *c)
{
    pthread_mutex_lock(&contexts_lock);
    struct fv_context **at = &contexts;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&contexts_lock);
}

typedef int peer_memory(uint64_t, uint64_t, struct fakecuda_memory *);

static int count_loaded(struct dl_phdr_info *info, size_t nbytes, void *out)
{
    (void)nbytes;
    *(unsigned long long *)out = info->dlpi_adds;
    return 1;
}

/* The other library's function, or NULL: it is not loaded, yet. */
static peer_memory *other(void)
{
    static peer_memory *_Atomic known;
    static _Atomic unsigned long long looked; /* when so many libraries had been loaded */
    peer_memory *found = atomic_load(&known);
    unsigned long long loaded = 0;
    if (found)
        return found;
    dl_iterate_phdr(count_loaded,
                    &loaded); /* quick: this is asked as each inline data are posted */
    if (loaded == atomic_load(&looked))
        return NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); /* and kept */
    if (cuda)
        *(void **)&found = dlsym(cuda, "fakecuda_peer_memory");
    atomic_store(&known, found);
    atomic_store(&looked, loaded);
    return found;
}

/* As fakecuda_peer_memory. Called without a lock, or with a context's: the other library never
 * calls this one with its own. */
static int ask(const void *at, size_t nbytes, struct fakecuda_memory *out)
{
    peer_memory *hook = other();
    return hook ? hook((uintptr_t)at, nbytes, out) : 0;
}

bool fv_gpu_owns(const void *at, size_t nbytes)
{
    struct fakecuda_memory about;
    return nbytes && ask(at, nbytes, &about) != 0;
}

/* Opens and maps what `about` says, and says so to who would free it. 0, or an errno. */
static int map(struct fv_mr *mr, const struct fakecuda_memory *about)
{
    char path[64];
    struct stat status;
    struct flock mine
        = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FAKECUDA_LOCKED, .l_len = 1};
    uint64_t before = about->begin % 4096;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)about->pid, (int)about->fd);
    mr->fd = open(path, O_RDWR | O_CLOEXEC);
    if (mr->fd < 0)
        return EFAULT;
    mr->mapped = about->nbytes + before;
    mr->mapping = MAP_FAILED;
    if (!fstat(mr->fd, &status) && status.st_ino == about->inode
        && about->begin + about->nbytes <= (uint64_t)status.st_size
        && !fcntl(mr->fd, F_OFD_SETLK, &mine))
        mr->mapping = mmap(NULL, mr->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, mr->fd,
                           (off_t)(about->begin - before));
    if (mr->mapping == MAP_FAILED) {
        close(mr->fd);
        return EFAULT;
    }
    mr->memory = mr->mapping + before;
    mr->gpu = about->device;
    mr->holds = fv_options.hold != FV_HOLD_NOTHING
                && (about->ordering == FAKECUDA_NEVER
                    || (about->ordering == FAKECUDA_UNLESS_RELAXED
                        && (mr->access & IBV_ACCESS_RELAXED_ORDERING)));
    return 0;
}

int fv_gpu_by_address(struct fv_mr *mr, const void *at, size_t nbytes)
{
    struct fakecuda_memory about;
    int found = nbytes ? ask(at, nbytes, &about) : 0;
    if (found == 0)
        return 0;
    if (FV_FAILS("reg_peermem_mr"))
        return ENOMEM;
    return found > 0 && fv_options.peermem ? map(mr, &about) : EFAULT;
}

int fv_gpu_by_dmabuf(struct fv_mr *mr, int fd, uint64_t offset, size_t nbytes)
{
    struct fakecuda_memory about;
    char path[64], name[64] = "";
    if (!fv_options.dmabuf)
        return EOPNOTSUPP;
    if (fcntl(fd, F_GETFD) < 0)
        return EBADF;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, name, sizeof name - 1) < 0
        || strncmp(name, "/memfd:fakecuda-dmabuf", 22) != 0
        || pread(fd, &about, sizeof about, 0) != (ssize_t)sizeof about
        || memcmp(about.magic, FAKECUDA_DMABUF, sizeof about.magic) != 0)
        return EINVAL;
    if (!nbytes || offset + nbytes < offset || offset + nbytes > about.nbytes
        || offset % 4096 != mr->iova % 4096)
        return EINVAL;
    int error = map(mr, &about);
    if (!error)
        mr->memory += offset;
    return error;
}

void fv_gpu_unmap(struct fv_mr *mr)
{
    struct flock none
        = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = FAKECUDA_LOCKED, .l_len = 1};
    if (mr->gpu < 0)
        return;
    munmap(mr->mapping, mr->mapped);
    fcntl(mr->fd, F_OFD_SETLK, &none); /* a child that was forked may have the descriptor too */
    close(mr->fd);
}

void fv_write(struct fv_context *c, const struct fv_mr *mr, char *to, const char *from, uint32_t n)
{
    if (!mr->holds) {
        fv_land(to, from, n);
        return;
    }
    struct fv_held *held = malloc(sizeof *held + n);
    if (!held)
        fv_fatal("no memory for a packet");
    *held = (struct fv_held){.mr = mr, .to = to, .length = n, .number = c->nheld++};
    held->due = fv_options.hold == FV_HOLD_A_WHILE ? fv_now() + LATE_NS : UINT64_MAX;
    memcpy(held->bytes, from, n);
    *c->held_end = held;
    c->held_end = &held->next;
    fv_wake_at(c, held->due);
    fv_count(c->fabric, c->port, FV_HELD, 1);
}

static void drop(struct fv_context *c, struct fv_held **at)
{
    struct fv_held *held = *at;
    *at = held->next;
    if (!*at)
        c->held_end = at;
    free(held);
}

/* Lands, in their order, those before `number` of a GPU, or of any (-1) those that are due. */
static uint64_t land(struct fv_context *c, int gpu, uint64_t number, enum fv_count how)
{
    uint64_t landed = 0;
    for (struct fv_held **at = &c->held, *held; (held = *at) != NULL;) {
        bool now = gpu < 0 ? held->due <= c->now : held->mr->gpu == gpu && held->number < number;
        if (!now) {
            at = &held->next;
            continue;
        }
        fv_land(held->to, held->bytes, held->length);
        drop(c, at);
        landed++;
    }
    if (landed)
        fv_count(c->fabric, c->port, how, landed);
    return landed;
}

bool fv_gpu_read_waits(struct fv_context *c, const struct fv_answer *read)
{
    if (read->due <= c->now || c->ntold > read->nheld)
        return false;
    fv_wake_at(c, read->due);
    return true;
}

void fv_gpu_read(struct fv_context *c, const struct fv_mr *mr, uint64_t number)
{
    if (mr->gpu >= 0)
        land(c, mr->gpu, number, FV_LANDED_BY_READ);
}

bool fv_gpu_turn(struct fv_context *c)
{
    if (land(c, -1, 0, FV_LANDED_LATE))
        return true;
    for (const struct fv_held *held = c->held; held; held = held->next)
        fv_wake_at(c, held->due);
    return false;
}

void fv_gpu_forget(struct fv_context *c, const struct fv_mr *mr)
{
    for (struct fv_held **at = &c->held, *held; (held = *at) != NULL;) {
        if (held->mr != mr) {
            at = &held->next;
            continue;
        }
        drop(c, at);
        fv_count(c->fabric, c->port, FV_NEVER_LANDED, 1);
    }
}

void fakeverbs_flush(int device)
{
    pthread_mutex_lock(&contexts_lock);
    for (struct fv_context *c = contexts; c; c = c->next) {
        fv_enter(c);
        land(c, device, UINT64_MAX, FV_LANDED_BY_DRIVER);
        fv_count(c->fabric, c->port, FV_DRIVER_FLUSHES, 1);
        fv_leave(c);
    }
    pthread_mutex_unlock(&contexts_lock);
}
