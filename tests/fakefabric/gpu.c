/* What peers write into memory of a GPU, and when that lands: gpu.h. */
#include "gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../fakecuda/peer_memory.h"

struct held {
    struct held *next;
    const void *endpoint;
    const struct gpu_region *region;
    char *to;
    size_t nbytes;
    char bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *first, **last = &first;
/* Of this process: pieces that were held, that landed by a read, and by the driver, and that never
 * did; regions that are open; reads that flush. */
static uint64_t counts[6];
enum { HELD, BY_READ, BY_DRIVER, NEVER, OPEN, READS };

/* As fakecuda_peer_memory, of the stand-in for libcuda if the process has it. */
static int ask(const void *at, size_t nbytes, struct fakecuda_memory *out)
{
    int (*hook)(uint64_t, uint64_t, struct fakecuda_memory *) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (cuda != NULL) {
        *(void **)&hook = dlsym(cuda, "fakecuda_peer_memory");
        dlclose(cuda);
    }
    return hook == NULL ? 0 : hook((uintptr_t)at, nbytes, out);
}

bool gpu_owns(const void *at, size_t nbytes)
{
    struct fakecuda_memory about;
    return nbytes != 0 && ask(at, nbytes, &about) != 0;
}

int gpu_map(const void *at, size_t nbytes, struct gpu_region *out)
{
    struct fakecuda_memory about;
    char path[64];
    struct stat status;
    struct flock mine
        = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FAKECUDA_LOCKED, .l_len = 1};
    if (nbytes == 0 || ask(at, nbytes, &about) <= 0)
        return EINVAL;
    uint64_t before = about.begin % 4096;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)about.pid, (int)about.fd);
    out->fd = open(path, O_RDWR | O_CLOEXEC);
    if (out->fd < 0)
        return EFAULT;
    out->mapped = nbytes + before;
    out->mapping = MAP_FAILED;
    if (!fstat(out->fd, &status) && status.st_ino == about.inode
        && !fcntl(out->fd, F_OFD_SETLK, &mine))
        out->mapping = mmap(NULL, out->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, out->fd,
                            (off_t)(about.begin - before));
    if (out->mapping == MAP_FAILED) {
        close(out->fd);
        return EFAULT;
    }
    out->memory = out->mapping + before;
    out->device = about.device;
    pthread_mutex_lock(&lock);
    counts[OPEN]++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static void drop(struct held **at)
{
    struct held *held = *at;
    *at = held->next;
    if (*at == NULL)
        last = at;
    free(held);
}

void gpu_unmap(struct gpu_region *region)
{
    struct flock none
        = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = FAKECUDA_LOCKED, .l_len = 1};
    if (region->memory == NULL)
        return;
    pthread_mutex_lock(&lock);
    for (struct held **at = &first; *at != NULL;)
        if ((*at)->region == region) {
            counts[NEVER]++;
            drop(at);
        } else {
            at = &(*at)->next;
        }
    counts[OPEN]--;
    pthread_mutex_unlock(&lock);
    munmap(region->mapping, region->mapped);
    fcntl(region->fd, F_OFD_SETLK, &none); /* a child of fork may have the descriptor, too */
    close(region->fd);
    region->memory = NULL;
}

void gpu_write(const void *endpoint, const struct gpu_region *region, char *to, const char *from,
               size_t nbytes)
{
    struct held *held = malloc(sizeof *held + nbytes);
    if (held == NULL)
        abort();
    *held = (struct held){.endpoint = endpoint, .region = region, .to = to, .nbytes = nbytes};
    memcpy(held->bytes, from, nbytes);
    pthread_mutex_lock(&lock);
    *last = held;
    last = &held->next;
    counts[HELD]++;
    pthread_mutex_unlock(&lock);
}

/* Lands what came by this endpoint, or by any. */
static void flush(const void *endpoint, int device, int how)
{
    for (struct held **at = &first; *at != NULL;) {
        struct held *held = *at;
        if ((endpoint != NULL && held->endpoint != endpoint) || held->region->device != device) {
            at = &held->next;
            continue;
        }
        memcpy(held->to, held->bytes, held->nbytes);
        counts[how]++;
        drop(at);
    }
}

void gpu_read(const void *endpoint, int device)
{
    pthread_mutex_lock(&lock);
    counts[READS]++;
    flush(endpoint, device, BY_READ);
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) void fakefabric_flush(int device)
{
    pthread_mutex_lock(&lock);
    flush(NULL, device, BY_DRIVER);
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) void fakefabric_counts(uint64_t out[6])
{
    pthread_mutex_lock(&lock);
    memcpy(out, counts, sizeof counts);
    pthread_mutex_unlock(&lock);
}
