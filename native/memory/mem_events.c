/* The userfaultfd, the thread that reads it, and the thread that cleans up.
 *
 * Two threads, as the one that reads must never wait: deregistering frees memory, free may give
 * back memory that is watched, and that would wait for the reader. For the same reason whatever
 * allocates stands outside the lock, thread creation too. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "memory/mem_events.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_EXACT_ADDRESS
#define UFFD_FEATURE_EXACT_ADDRESS (1 << 11)
#endif
/* EXACT_ADDRESS is of no use here; it says that the kernel is 5.18 or later. Before 5.15 the end of
 * one change hid another that was in flight; before 5.12 a fork could part a process from pages
 * that a device holds. */
#define PC_UFFD_FEATURES \
    (UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP \
     | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EXACT_ADDRESS)

/* How often a lookup gives way to a change in flight, before it does without the cache. */
#define PC_PATIENCE 1000

static struct {
    pthread_mutex_t joining; /* of listen and leave; held while threads start and end */
    pthread_mutex_t lock;
    pthread_cond_t moved; /* soiled, cleaned, stopping */
    struct pc_mem_handler *listeners;
    struct pc_mem_handler *cleaning; /* whose clean runs */
    int fd;                          /* the userfaultfd, or -1 */
    int bell;                        /* wakes the reader */
    uint32_t patience;
    bool stopping;
    bool running;
    pthread_t reader, cleaner;
} unmap = {.joining = PTHREAD_MUTEX_INITIALIZER,
           .lock = PTHREAD_MUTEX_INITIALIZER,
           .moved = PTHREAD_COND_INITIALIZER,
           .fd = -1,
           .bell = -1,
           .patience = PC_PATIENCE};

static _Atomic uint32_t epoch;

uint32_t pc__mem_events_epoch(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed);
}

void pc__mem_events_lock(void)
{
    pthread_mutex_lock(&unmap.lock);
}

void pc__mem_events_unlock(void)
{
    pthread_mutex_unlock(&unmap.lock);
}

static void tell(uintptr_t from, uintptr_t to)
{
    for (struct pc_mem_handler *l = unmap.listeners; l != NULL; l = l->next)
        l->gone(l, from, to);
}

void pc__mem_changed(const void *at, size_t nbytes)
{
    pc__mem_events_lock();
    tell((uintptr_t)at, (uintptr_t)at + nbytes);
    pc__mem_events_unlock();
}

/* With the lock, so that whoever finds no change in flight also finds it applied. */
static void drain(void)
{
    struct uffd_msg events[8];
    ssize_t n;
    while ((n = read(unmap.fd, events, sizeof events)) > 0) {
        for (size_t i = 0; i < (size_t)n / sizeof *events; i++) {
            const struct uffd_msg *e = &events[i];
            if (e->event == UFFD_EVENT_UNMAP || e->event == UFFD_EVENT_REMOVE)
                tell((uintptr_t)e->arg.remove.start, (uintptr_t)e->arg.remove.end);
            else if (e->event == UFFD_EVENT_REMAP)
                tell((uintptr_t)e->arg.remap.from,
                     (uintptr_t)(e->arg.remap.from + e->arg.remap.len));
        }
    }
}

/* Whether a change has begun whose event has not been read. Every ioctl that works on pages is
 * refused with EAGAIN then, before it looks at its arguments; this one has none. */
static bool changing(int fd)
{
    struct uffdio_writeprotect nothing = {.range = {0, 0}, .mode = 0};
    return ioctl(fd, UFFDIO_WRITEPROTECT, &nothing) == 0 || errno != EINVAL;
}

bool pc__mem_events_settled(void)
{
    if (unmap.fd < 0)
        return false;
    for (uint32_t i = 0; changing(unmap.fd); i++) {
        drain();
        /* The one who made the change has yet to wake up and take it off the count. Some kernels
         * never do after an mremap that failed: then this is not waited for again. */
        if (i >= unmap.patience) {
            unmap.patience = 1;
            return false;
        }
        pthread_mutex_unlock(&unmap.lock);
        sched_yield();
        pthread_mutex_lock(&unmap.lock);
    }
    unmap.patience = PC_PATIENCE;
    return true;
}

static bool watch(int fd, uintptr_t from, uintptr_t to)
{
    struct uffdio_register range = {.range = {from, to - from}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(fd, UFFDIO_REGISTER, &range) == 0;
}

bool pc__mem_events_watch(uintptr_t from, uintptr_t to)
{
    return unmap.fd >= 0 && watch(unmap.fd, from, to);
}

void pc__mem_events_unwatch(uintptr_t from, uintptr_t to)
{
    struct uffdio_range range = {from, to - from};
    if (unmap.fd < 0)
        return;
    for (struct pc_mem_handler *l = unmap.listeners; l != NULL; l = l->next)
        if (l->wants(l, from, to))
            return;
    /* Where something else is mapped by now this fails, and may. */
    ioctl(unmap.fd, UFFDIO_UNREGISTER, &range);
}

void pc__mem_events_defer_cleanup(struct pc_mem_handler *listener)
{
    listener->cleanup_pending = true;
    pthread_cond_broadcast(&unmap.moved);
}

static void *reader(void *unused)
{
    (void)unused;
    struct pollfd fds[2] = {{unmap.fd, POLLIN, 0}, {unmap.bell, POLLIN, 0}};
    for (;;) {
        poll(fds, 2, -1);
        pthread_mutex_lock(&unmap.lock);
        drain();
        if (unmap.stopping)
            break;
        pthread_mutex_unlock(&unmap.lock);
    }
    /* Here, so that there is no moment when nobody reads: the kernel forgets what is still watched,
     * and lets go whoever waits. */
    close(unmap.fd);
    unmap.fd = -1;
    pthread_mutex_unlock(&unmap.lock);
    return NULL;
}

static void *cleaner(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&unmap.lock);
    while (!unmap.stopping) {
        struct pc_mem_handler *l = unmap.listeners;
        while (l != NULL && !l->cleanup_pending)
            l = l->next;
        if (l == NULL) {
            pthread_cond_wait(&unmap.moved, &unmap.lock);
            continue;
        }
        l->cleanup_pending = false;
        unmap.cleaning = l;
        pthread_mutex_unlock(&unmap.lock);
        l->clean(l);
        pthread_mutex_lock(&unmap.lock);
        unmap.cleaning = NULL;
        pthread_cond_broadcast(&unmap.moved);
    }
    pthread_mutex_unlock(&unmap.lock);
    return NULL;
}

/* The child has a copy of the descriptor, of this process's memory: it would hear for its parent,
 * and keep the watching alive when the parent has ended it. Only what a signal handler may do. */
static void forked(void)
{
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    if (unmap.fd >= 0)
        close(unmap.fd);
    if (unmap.bell >= 0)
        close(unmap.bell);
    unmap.fd = unmap.bell = -1;
    unmap.listeners = unmap.cleaning = NULL;
    unmap.running = unmap.stopping = false;
    unmap.joining = unmap.lock = mutex;
    unmap.moved = condition;
    atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}

static void handle_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* The descriptor, or -1 and why not. */
static int open_descriptor(const char **missing)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) {
        *missing = errno == ENOSYS   ? "this kernel has no userfaultfd (CONFIG_USERFAULTFD)"
                   : errno == EPERM  ? "userfaultfd is not permitted: let the container's seccomp "
                                       "profile allow it"
                   : errno == EINVAL ? "userfaultfd needs Linux 5.18 or later"
                                     : "userfaultfd failed: too many open files";
        return -1;
    }
    struct uffdio_api api = {.api = UFFD_API, .features = PC_UFFD_FEATURES};
    if (ioctl(fd, UFFDIO_API, &api) != 0) {
        *missing = "userfaultfd lacks what is needed: Linux 5.18 or later on x86-64, 6.10 on Arm";
        close(fd);
        return -1;
    }
    return fd;
}

/* Asks the kernel for what it will have to do: private memory can be watched, and it says whether
 * changes are in flight. */
static const char *try_out(int fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return "no memory";
    bool watched = watch(fd, (uintptr_t)at, (uintptr_t)at + page);
    bool quiet = !changing(fd);
    struct uffdio_range range = {(uintptr_t)at, page};
    /* Not by munmap: that would wait for a reader. */
    if (watched && ioctl(fd, UFFDIO_UNREGISTER, &range) != 0)
        return "userfaultfd does not end watching";
    munmap(at, page);
    return !watched ? "userfaultfd cannot watch memory (CONFIG_HAVE_ARCH_USERFAULTFD_WP)"
           : !quiet ? "userfaultfd does not say whether changes are in flight"
                    : NULL;
}

/* Signals are for the user's threads: a handler that unmaps something would wait for this one. */
static int start_thread(pthread_t *thread, void *(*main)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* With `joining`. What is still watched is so until the descriptor is closed, and somebody must
 * read until then: the reader closes it. */
static void stop(bool reads)
{
    uint64_t one = 1;
    pthread_mutex_lock(&unmap.lock);
    unmap.stopping = true;
    pthread_cond_broadcast(&unmap.moved);
    if (!reads) {
        close(unmap.fd);
        unmap.fd = -1;
    }
    pthread_mutex_unlock(&unmap.lock);
    while (reads && write(unmap.bell, &one, sizeof one) < 0 && errno == EINTR) {
    }
    if (reads)
        pthread_join(unmap.reader, NULL);
    if (unmap.running)
        pthread_join(unmap.cleaner, NULL);
    close(unmap.bell);
    unmap.bell = -1;
    unmap.running = unmap.stopping = false;
}

/* With `joining`. */
static const char *start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *missing = NULL;
    pthread_once(&once, handle_forks);
    int fd = open_descriptor(&missing);
    if (fd < 0)
        return missing;
    missing = try_out(fd);
    int bell = missing == NULL ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (bell < 0) {
        close(fd);
        return missing != NULL ? missing : "no descriptor is left to wake who reads a userfaultfd";
    }
    pthread_mutex_lock(&unmap.lock); /* who listens in vain may ask meanwhile */
    unmap.fd = fd;
    unmap.bell = bell;
    unmap.patience = PC_PATIENCE;
    pthread_mutex_unlock(&unmap.lock);
    bool reads = start_thread(&unmap.reader, reader) == 0;
    unmap.running = reads && start_thread(&unmap.cleaner, cleaner) == 0;
    if (unmap.running)
        return NULL;
    stop(reads);
    return "no thread can be started to read a userfaultfd";
}

const char *pc__mem_events_subscribe(struct pc_mem_handler *listener)
{
    const char *missing = NULL;
    pthread_mutex_lock(&unmap.joining);
    if (!unmap.running)
        missing = start();
    pthread_mutex_lock(&unmap.lock);
    listener->next = unmap.listeners;
    unmap.listeners = listener;
    pthread_mutex_unlock(&unmap.lock);
    pthread_mutex_unlock(&unmap.joining);
    return missing;
}

void pc__mem_events_unsubscribe(struct pc_mem_handler *listener)
{
    pthread_mutex_lock(&unmap.joining);
    pthread_mutex_lock(&unmap.lock);
    while (unmap.cleaning == listener)
        pthread_cond_wait(&unmap.moved, &unmap.lock);
    for (struct pc_mem_handler **at = &unmap.listeners; *at != NULL; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            break;
        }
    bool last = unmap.listeners == NULL && unmap.running;
    pthread_mutex_unlock(&unmap.lock);
    if (last)
        stop(true);
    pthread_mutex_unlock(&unmap.joining);
}

const char *pc__mem_events_missing(void)
{
    const char *missing = NULL;
    int fd = open_descriptor(&missing);
    if (fd < 0)
        return missing;
    missing = try_out(fd);
    close(fd);
    return missing == NULL ? "" : missing;
}
