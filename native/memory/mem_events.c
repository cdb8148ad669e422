/* Memory events by a userfaultfd: the thread that reads it, and the thread that cleans up.
 *
 * Two threads, as the reader must never wait: deregistering frees memory, free may give back memory
 * that is watched, and that would wait for the reader. For the same reason whatever allocates
 * stands outside the lock, thread creation too. */
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
/* EXACT_ADDRESS is not used; it shows that the kernel is 5.18 or later. Before 5.15 the end of one
 * change hid another that was in flight; before 5.12 a fork could part a process from pages that a
 * device holds. */
#define PC_UFFD_FEATURES \
    (UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP \
     | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EXACT_ADDRESS)

/* How often a lookup yields to a change in flight before it does without the cache. */
#define PC_PATIENCE 1000

static struct {
    pthread_mutex_t subscribing; /* of (un)subscribe; held while threads start and end */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* cleanup_pending, cleaning or stopping */
    struct pc_mem_handler *listeners;
    struct pc_mem_handler *cleaning; /* the listener whose `clean` runs */
    int fd;                          /* the userfaultfd, or -1 */
    int wakeup_fd;                   /* an eventfd that wakes the reader */
    uint32_t patience;
    bool stopping;
    bool running;
    pthread_t reader, cleaner;
} monitor = {.subscribing = PTHREAD_MUTEX_INITIALIZER,
             .lock = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER,
             .fd = -1,
             .wakeup_fd = -1,
             .patience = PC_PATIENCE};

static _Atomic uint32_t epoch;

uint32_t pc__mem_events_epoch(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed);
}

void pc__mem_events_lock(void)
{
    pthread_mutex_lock(&monitor.lock);
}

void pc__mem_events_unlock(void)
{
    pthread_mutex_unlock(&monitor.lock);
}

static void notify(uintptr_t from, uintptr_t to)
{
    for (struct pc_mem_handler *l = monitor.listeners; l != NULL; l = l->next)
        l->gone(l, from, to);
}

void pc__mem_changed(const void *at, size_t nbytes)
{
    pc__mem_events_lock();
    notify((uintptr_t)at, (uintptr_t)at + nbytes);
    pc__mem_events_unlock();
}

/* Reads and applies all events. With the lock: who finds no change in flight finds it applied. */
static void drain(void)
{
    struct uffd_msg events[8];
    ssize_t n;
    while ((n = read(monitor.fd, events, sizeof events)) > 0) {
        for (size_t i = 0; i < (size_t)n / sizeof *events; i++) {
            const struct uffd_msg *e = &events[i];
            if (e->event == UFFD_EVENT_UNMAP || e->event == UFFD_EVENT_REMOVE)
                notify((uintptr_t)e->arg.remove.start, (uintptr_t)e->arg.remove.end);
            else if (e->event == UFFD_EVENT_REMAP)
                notify((uintptr_t)e->arg.remap.from,
                       (uintptr_t)(e->arg.remap.from + e->arg.remap.len));
        }
    }
}

/* Whether a change has begun whose event has not been read. The kernel then refuses every ioctl on
 * pages with EAGAIN before it looks at the arguments; this one's range is empty (EINVAL). */
static bool change_in_flight(int fd)
{
    struct uffdio_writeprotect nothing = {.range = {0, 0}, .mode = 0};
    return ioctl(fd, UFFDIO_WRITEPROTECT, &nothing) == 0 || errno != EINVAL;
}

bool pc__mem_events_settled(void)
{
    if (monitor.fd < 0)
        return false;
    for (uint32_t i = 0; change_in_flight(monitor.fd); i++) {
        drain();
        /* The thread that made the change has yet to wake up and lower the kernel's count. After an
         * mremap that failed some kernels never do; then later calls do not wait again. */
        if (i >= monitor.patience) {
            monitor.patience = 1;
            return false;
        }
        pthread_mutex_unlock(&monitor.lock);
        sched_yield();
        pthread_mutex_lock(&monitor.lock);
    }
    monitor.patience = PC_PATIENCE;
    return true;
}

static bool watch(int fd, uintptr_t from, uintptr_t to)
{
    struct uffdio_register range = {.range = {from, to - from}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(fd, UFFDIO_REGISTER, &range) == 0;
}

bool pc__mem_events_watch(uintptr_t from, uintptr_t to)
{
    return monitor.fd >= 0 && watch(monitor.fd, from, to);
}

void pc__mem_events_unwatch(uintptr_t from, uintptr_t to)
{
    struct uffdio_range range = {from, to - from};
    if (monitor.fd < 0)
        return;
    for (struct pc_mem_handler *l = monitor.listeners; l != NULL; l = l->next)
        if (l->wants(l, from, to))
            return;
    /* This may fail: something else may be mapped there by now. */
    ioctl(monitor.fd, UFFDIO_UNREGISTER, &range);
}

void pc__mem_events_defer_cleanup(struct pc_mem_handler *listener)
{
    listener->cleanup_pending = true;
    pthread_cond_broadcast(&monitor.changed);
}

static void *reader(void *unused)
{
    (void)unused;
    struct pollfd fds[2] = {{monitor.fd, POLLIN, 0}, {monitor.wakeup_fd, POLLIN, 0}};
    for (;;) {
        poll(fds, 2, -1);
        pthread_mutex_lock(&monitor.lock);
        drain();
        if (monitor.stopping)
            break;
        pthread_mutex_unlock(&monitor.lock);
    }
    /* The reader closes the descriptor, so that somebody reads until the end: the kernel then ends
     * all watching, and wakes threads that wait for their event. */
    close(monitor.fd);
    monitor.fd = -1;
    pthread_mutex_unlock(&monitor.lock);
    return NULL;
}

static void *cleaner(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&monitor.lock);
    while (!monitor.stopping) {
        struct pc_mem_handler *l = monitor.listeners;
        while (l != NULL && !l->cleanup_pending)
            l = l->next;
        if (l == NULL) {
            pthread_cond_wait(&monitor.changed, &monitor.lock);
            continue;
        }
        l->cleanup_pending = false;
        monitor.cleaning = l;
        pthread_mutex_unlock(&monitor.lock);
        l->clean(l);
        pthread_mutex_lock(&monitor.lock);
        monitor.cleaning = NULL;
        pthread_cond_broadcast(&monitor.changed);
    }
    pthread_mutex_unlock(&monitor.lock);
    return NULL;
}

/* In the child of fork. Its copy of the descriptor watches the parent's memory: it would take the
 * parent's events, and keep the watching alive when the parent has ended it. Only async-signal-safe
 * calls are allowed here. */
static void forked(void)
{
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    if (monitor.fd >= 0)
        close(monitor.fd);
    if (monitor.wakeup_fd >= 0)
        close(monitor.wakeup_fd);
    monitor.fd = monitor.wakeup_fd = -1;
    monitor.listeners = monitor.cleaning = NULL;
    monitor.running = monitor.stopping = false;
    monitor.subscribing = monitor.lock = mutex;
    monitor.changed = condition;
    atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}

static void handle_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* Opens a userfaultfd; -1: `missing` says why not. */
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

/* Probes the kernel: whether it can watch private memory, and reports changes in flight. */
static const char *probe_features(int fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return "no memory";
    bool watched = watch(fd, (uintptr_t)at, (uintptr_t)at + page);
    bool reports_changes = !change_in_flight(fd);
    struct uffdio_range range = {(uintptr_t)at, page};
    /* before munmap, which would wait for a reader */
    if (watched && ioctl(fd, UFFDIO_UNREGISTER, &range) != 0)
        return "userfaultfd does not end watching";
    munmap(at, page);
    return !watched           ? "userfaultfd cannot watch memory (CONFIG_HAVE_ARCH_USERFAULTFD_WP)"
           : !reports_changes ? "userfaultfd does not say whether changes are in flight"
                              : NULL;
}

/* Starts a thread without signals: a handler that unmaps something would wait for the thread. */
static int start_thread(pthread_t *thread, void *(*main)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* With `subscribing` held. The reader closes the descriptor: until then somebody must read it. */
static void stop(bool reads)
{
    uint64_t one = 1;
    pthread_mutex_lock(&monitor.lock);
    monitor.stopping = true;
    pthread_cond_broadcast(&monitor.changed);
    if (!reads) {
        close(monitor.fd);
        monitor.fd = -1;
    }
    pthread_mutex_unlock(&monitor.lock);
    while (reads && write(monitor.wakeup_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    if (reads)
        pthread_join(monitor.reader, NULL);
    if (monitor.running)
        pthread_join(monitor.cleaner, NULL);
    close(monitor.wakeup_fd);
    monitor.wakeup_fd = -1;
    monitor.running = monitor.stopping = false;
}

/* With `subscribing` held. */
static const char *start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *missing = NULL;
    pthread_once(&once, handle_forks);
    int fd = open_descriptor(&missing);
    if (fd < 0)
        return missing;
    missing = probe_features(fd);
    int wakeup_fd = missing == NULL ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (wakeup_fd < 0) {
        close(fd);
        return missing != NULL ? missing : "no descriptor is left to wake who reads a userfaultfd";
    }
    pthread_mutex_lock(&monitor.lock); /* a listener may exist whose watching failed to start */
    monitor.fd = fd;
    monitor.wakeup_fd = wakeup_fd;
    monitor.patience = PC_PATIENCE;
    pthread_mutex_unlock(&monitor.lock);
    bool reads = start_thread(&monitor.reader, reader) == 0;
    monitor.running = reads && start_thread(&monitor.cleaner, cleaner) == 0;
    if (monitor.running)
        return NULL;
    stop(reads);
    return "no thread can be started to read a userfaultfd";
}

const char *pc__mem_events_subscribe(struct pc_mem_handler *listener)
{
    const char *missing = NULL;
    pthread_mutex_lock(&monitor.subscribing);
    if (!monitor.running)
        missing = start();
    pthread_mutex_lock(&monitor.lock);
    listener->next = monitor.listeners;
    monitor.listeners = listener;
    pthread_mutex_unlock(&monitor.lock);
    pthread_mutex_unlock(&monitor.subscribing);
    return missing;
}

void pc__mem_events_unsubscribe(struct pc_mem_handler *listener)
{
    pthread_mutex_lock(&monitor.subscribing);
    pthread_mutex_lock(&monitor.lock);
    while (monitor.cleaning == listener)
        pthread_cond_wait(&monitor.changed, &monitor.lock);
    for (struct pc_mem_handler **at = &monitor.listeners; *at != NULL; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            break;
        }
    bool last = monitor.listeners == NULL && monitor.running;
    pthread_mutex_unlock(&monitor.lock);
    if (last)
        stop(true);
    pthread_mutex_unlock(&monitor.subscribing);
}

const char *pc__mem_events_missing(void)
{
    const char *missing = NULL;
    int fd = open_descriptor(&missing);
    if (fd < 0)
        return missing;
    missing = probe_features(fd);
    close(fd);
    return missing == NULL ? "" : missing;
}
