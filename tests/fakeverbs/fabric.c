#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "fabric.h"

#define MAGIC (0x66616b6576657262u ^ sizeof(struct fv_shared))

static size_t rings_at(void)
{
    return (sizeof(struct fv_shared) + 4095) & ~(size_t)4095;
}

static int create(struct fv_shared *shared)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (uint32_t i = 0; i < FV_SLOTS; i++)
        if (pthread_mutex_init(&shared->slots[i].lock, &attributes))
            return -1;
    pthread_mutexattr_destroy(&attributes);
    atomic_store(&shared->magic, MAGIC);
    return 0;
}

struct fv_fabric *fv_fabric_open(const char *path)
{
    struct fv_fabric *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->bytes = rings_at() + (size_t)FV_SLOTS * FV_RING_BYTES;
    f->fd = f->alive = -1;
    if (path) {
        char alive[PATH_MAX];
        snprintf(alive, sizeof alive, "%s.alive", path);
        f->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        /* a file of its own: closing any descriptor of a file gives up all of a process's locks */
        f->alive = open(alive, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    } else {
        f->fd = memfd_create("fakeverbs", MFD_CLOEXEC);
        f->alive = memfd_create("fakeverbs.alive", MFD_CLOEXEC);
    }
    struct stat status;
    if (f->fd < 0 || f->alive < 0 || flock(f->fd, LOCK_EX) || fstat(f->fd, &status)
        || (status.st_size == 0 && ftruncate(f->fd, (off_t)f->bytes)))
        goto failed;
    if (status.st_size != 0 && status.st_size != (off_t)f->bytes) {
        errno = EPROTO; /* made by another version */
        goto failed;
    }
    f->shared = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    if (f->shared == MAP_FAILED)
        goto failed;
    f->rings = (char *)f->shared + rings_at();
    if (atomic_load(&f->shared->magic) == 0 && create(f->shared))
        goto failed;
    if (atomic_load(&f->shared->magic) != MAGIC) {
        errno = EPROTO;
        goto failed;
    }
    flock(f->fd, LOCK_UN);
    return f;
failed:;
    int error = errno;
    fv_fabric_close(f);
    errno = error;
    return NULL;
}

void fv_fabric_close(struct fv_fabric *f)
{
    if (f->shared && f->shared != MAP_FAILED)
        munmap(f->shared, f->bytes);
    if (f->fd >= 0)
        close(f->fd);
    if (f->alive >= 0)
        close(f->alive);
    free(f);
}

/* Who this process is; a process ID will not do, where processes have namespaces of their own. The
 * library and the control of one process agree on it; a child is somebody else. */
static uint64_t self(void)
{
    uint64_t random[2];
    memcpy(random, (const void *)getauxval(AT_RANDOM), sizeof random);
    return random[1] ^ (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
}

/* POSIX locks: the kernel drops them when the process ends, and no child has them. */
static bool lock_byte(struct fv_fabric *f, uint32_t slot, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(f->alive, F_SETLK, &lock) == 0;
}

bool fv_slot_alive(struct fv_fabric *f, uint32_t slot)
{
    struct fv_slot *s = &f->shared->slots[slot];
    uint32_t state = FV_OPEN;
    if (atomic_load(&s->state) != FV_OPEN)
        return false;
    if (atomic_load(&s->owner) == self())
        return true;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(f->alive, F_GETLK, &lock) || lock.l_type != F_UNLCK)
        return true;
    atomic_compare_exchange_strong(&s->state, &state, FV_DEAD);
    return false;
}

int fv_slot_take(struct fv_fabric *f, uint32_t port)
{
    for (uint32_t tries = 0; tries < 2 * FV_SLOTS; tries++) {
        uint32_t slot = atomic_fetch_add(&f->shared->next, 1) % FV_SLOTS;
        struct fv_slot *s = &f->shared->slots[slot];
        if (tries >= FV_SLOTS)
            fv_slot_alive(f, slot); /* none is free: those of the dead, then */
        uint32_t from = tries < FV_SLOTS ? FV_FREE : FV_DEAD;
        if (!atomic_compare_exchange_strong(&s->state, &from, FV_OPENING))
            continue;
        lock_byte(f, slot, F_WRLCK);
        atomic_store(&s->port, port);
        atomic_store(&s->pid, getpid());
        atomic_store(&s->owner, self());
        atomic_fetch_add(&s->generation, 1);
        for (int i = 0; i < FV_OBJECTS; i++)
            atomic_store(&s->objects[i], 0);
        atomic_store(&s->tail, atomic_load(&s->head)); /* what is left there is for nobody */
        atomic_store(&s->state, FV_OPEN);
        return (int)slot;
    }
    return -1;
}

void fv_slot_give(struct fv_fabric *f, uint32_t slot)
{
    struct fv_slot *s = &f->shared->slots[slot];
    lock_byte(f, slot, F_UNLCK);
    atomic_store(&s->pid, 0);
    atomic_store(&s->state, FV_FREE);
    fv_ring_all(f); /* who waits for an answer from here need not wait */
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void fv_slot_ring(struct fv_fabric *f, uint32_t slot)
{
    struct fv_slot *s = &f->shared->slots[slot];
    atomic_fetch_add(&s->doorbell, 1);
    if (atomic_load(&s->sleeping))
        futex(&s->doorbell, FUTEX_WAKE, 1, NULL);
}

void fv_ring_all(struct fv_fabric *f)
{
    for (uint32_t slot = 0; slot < FV_SLOTS; slot++)
        if (atomic_load(&f->shared->slots[slot].state) == FV_OPEN)
            fv_slot_ring(f, slot);
}

void fv_slot_sleep(struct fv_fabric *f, uint32_t slot, uint32_t seen, uint64_t ns)
{
    struct fv_slot *s = &f->shared->slots[slot];
    struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    atomic_store(&s->sleeping, 1);
    if (atomic_load(&s->doorbell) == seen)
        futex(&s->doorbell, FUTEX_WAIT, seen, &timeout);
    atomic_store(&s->sleeping, 0);
}

bool fv_link_cut(struct fv_fabric *f, uint32_t from, uint32_t to, uint32_t kind)
{
    return atomic_load(&f->shared->ports[from].down) || atomic_load(&f->shared->ports[to].down)
           || (atomic_load(&f->shared->links[from][to].dropped) & kind);
}

void fv_link_pass(struct fv_fabric *f, uint32_t from, uint32_t to, uint32_t kind, bool last)
{
    struct fv_link *link = &f->shared->links[from][to];
    if (atomic_load(&link->left) <= 0 || !(atomic_load(&link->counted) & kind)
        || (!last && atomic_load(&link->whole)) || atomic_fetch_sub(&link->left, 1) != 1)
        return;
    atomic_fetch_or(&link->dropped, atomic_load(&link->then_dropped));
    atomic_fetch_or(&f->shared->links[to][from].dropped, atomic_load(&link->then_dropped_back));
    atomic_fetch_add(&link->blown, 1);
}

void fv_count(struct fv_fabric *f, uint32_t port, enum fv_count what, uint64_t n)
{
    atomic_fetch_add_explicit(&f->shared->ports[port].counts[what], n, memory_order_relaxed);
}
