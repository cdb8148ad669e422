/* The registration cache while memory changes under it. See rcache.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "rcache.h"

static char *shared(size_t pages)
{
    char *memory
        = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    want(memory != MAP_FAILED);
    fill(memory, pages);
    return memory;
}

/* munmap, then mmap at the same address; mmap over it; by halves; of shared memory too. */
static void remap(void)
{
    for (int kind = 0; kind < 2; kind++) {
        int before = atomic_load(&dropped);
        char *a = kind ? shared(4) : fresh(NULL, 4);
        touch(a, 4 * PAGE);
        touch(a, 4 * PAGE);
        want(counters().hits == (kind ? 2 : 1));
        munmap(a + PAGE, PAGE);
        until_dropped(before + 1); /* with no call of the cache's */
        fresh(a + PAGE, 1);
        touch(a, 4 * PAGE);
        void *over = mmap(a, 4 * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        want(over == a);
        fill(a, 4);
        touch(a, 4 * PAGE);
        munmap(a, 4 * PAGE);
        until_dropped(before + 3);
    }
    want(counters().invalidations == 6 && counters().misses == 6);
}

static void discard(void)
{
    static const int advice[] = {MADV_DONTNEED, MADV_FREE, MADV_REMOVE};
    for (int i = 0; i < 3; i++) {
        char *a = advice[i] == MADV_REMOVE ? shared(4) : fresh(NULL, 4);
        touch(a, 4 * PAGE);
        want(madvise(a + PAGE, PAGE, advice[i]) == 0);
        fill(a + PAGE, 1);
        touch(a, 4 * PAGE);
        munmap(a, 4 * PAGE);
    }
    want(counters().invalidations == 6 && counters().hits == 0);
}

static void move(void)
{
    char *a = fresh(NULL, 4), *b = fresh(NULL, 8);
    munmap(b, 8 * PAGE);
    touch(a, 4 * PAGE);
    want(mremap(a, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b);
    fresh(a, 4);
    touch(a, 4 * PAGE);
    touch(b, 4 * PAGE);
    want(counters().hits == 0 && counters().misses == 3);
    want(mremap(b, 4 * PAGE, 2 * PAGE, 0) == b); /* shrinks */
    fresh(b + 2 * PAGE, 2);
    touch(b, 4 * PAGE);
    want(counters().misses == 4);
    want(mremap(a, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | 4 /* DONTUNMAP */, b) == b);
    fill(a, 4);
    touch(a, 4 * PAGE);
    want(counters().hits == 0 && counters().misses == 5);
    /* Fails, and must not hold anything up. */
    want(mremap(b, 3 * PAGE, 6 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, a + 1) == MAP_FAILED);
    touch(b, 4 * PAGE);
    munmap(a, 4 * PAGE);
    munmap(b, 4 * PAGE);
}

static void heap(void)
{
    size_t n = 64 << 20;
    for (int i = 0; i < 4; i++) { /* mostly at the same address, unless free keeps it */
        char *a = malloc(n);
        fill(a + PAGE - (uintptr_t)a % PAGE, n / PAGE - 1);
        touch(a + PAGE, n - 2 * PAGE);
        free(a);
    }
    for (int i = 0; i < 3; i++) {
        char *a = sbrk((intptr_t)(16 * PAGE));
        a += PAGE - (uintptr_t)a % PAGE;
        fill(a, 15);
        touch(a, 15 * PAGE);
        sbrk(-(intptr_t)(16 * PAGE));
    }
    for (int i = 0; i < 50; i++) { /* what the cache itself allocates lies between these */
        char *small[64];
        for (int k = 0; k < 64; k++) {
            small[k] = malloc(3000);
            pc__rcache_put(pins, pc__rcache_get(pins, small[k], 3000, false, &error));
        }
        for (int k = 0; k < 64; k++)
            free(small[k]);
        malloc_trim(0);
    }
}

static void ended(pid_t child)
{
    int status;
    want(waitpid(child, &status, 0) == child);
    want(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forks(void)
{
    char *a = fresh(NULL, 4);
    void *handle = touch(a, 4 * PAGE);
    struct pc_rcache_region *p = pin(a, PAGE);
    pid_t child = fork();
    if (child == 0) {
        munmap(a, 4 * PAGE); /* nobody is told */
        fresh(a, 4);
        want(pc__rcache_get(pins, a, 1, false, &error) == NULL && error.code == PC_INVALID);
        pc__rcache_put(pins, p);
        pc__rcache_close(pins);
        _exit(atomic_load(&dropped));
    }
    ended(child);
    want(system("! ls -l /proc/self/fd | grep userfaultfd") == 0);
    want(touch(a, 4 * PAGE) == handle && counters().invalidations == 0);
    pc__rcache_put(pins, p);
    /* A child that stays must not keep the watching alive: nobody would read. */
    int ends[2];
    char byte;
    want(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    char *b = fresh(NULL, 4);
    munmap(b, 4 * PAGE);
    want(mremap(a, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b);
    pc__rcache_close(pins);
    munmap(b, 4 * PAGE); /* was still watched after it had moved */
    close(ends[1]);
    ended(child);
    pins = pc__rcache_open(&registrar, NULL, LIMIT);
}

static char *neighbour;

static void discard_neighbour(void)
{
    want(madvise(neighbour, PAGE, MADV_DONTNEED) == 0);
    fill(neighbour, 1);
}

/* Memory that only the merged entry has, not the pin, changes while it is being registered. */
static void midway(void)
{
    char *a = neighbour = fresh(NULL, 4);
    touch(a, 2 * PAGE);
    atomic_store(&during, discard_neighbour);
    touch(a + PAGE, 3 * PAGE);
    want(counters().merges == 1 && counters().unkept == 1 && counters().entries == 0);
    touch(a, 4 * PAGE);
    munmap(a, 4 * PAGE);
}

static void unmap_neighbour(void)
{
    munmap(neighbour, PAGE);
}

static void pin_all(void)
{
    touch(neighbour, 4 * PAGE);
}

/* It goes altogether, so that only what was asked for can be registered; and meanwhile another
 * thread registers the same memory. */
static void meanwhile(void)
{
    char *a = neighbour = fresh(NULL, 4);
    touch(a, 2 * PAGE);
    atomic_store(&before, unmap_neighbour);
    struct pc_rcache_region *p = pin(a + PAGE, 3 * PAGE);
    want(p->span.from == (uintptr_t)a + PAGE && p->span.to == (uintptr_t)a + 4 * PAGE);
    pc__rcache_put(pins, p);
    fresh(a, 1);
    atomic_store(&during, pin_all);
    touch(a + PAGE, 2 * PAGE);
    want(counters().entries == 1 && counters().bytes == 4 * PAGE);
    munmap(a, 4 * PAGE);
}

/* Mappings of the kernel's that are watched. */
static int watched(void)
{
    char line[512];
    int n = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file) != NULL)
        n += strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " uw") != NULL;
    fclose(file);
    return n;
}

/* What is no longer kept is no longer watched, and costs who unmaps it nothing. */
static void unwatched(void)
{
    char *a = fresh(NULL, 8);
    touch(a, 2 * PAGE);
    touch(a + 4 * PAGE, 2 * PAGE);
    want(watched() == 2);
    munmap(a, PAGE);
    until_dropped(1);
    want(watched() == 1);
    pc__mem_changed(a + 4 * PAGE, 1);
    until_dropped(2);
    want(watched() == 0);
    munmap(a, 8 * PAGE);
}

static void *unmapper(void *a)
{
    munmap(a, 2 * PAGE);
    return NULL;
}

/* Another thread's munmap has taken effect, and nobody has read its event. */
static void late(void)
{
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        char *a = fresh(NULL, 2);
        touch(a, 2 * PAGE);
        pc__mem_events_lock();
        want(pthread_create(&thread, NULL, unmapper, a) == 0);
        while (mmap(a, 2 * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
               == MAP_FAILED)
            want(errno == EEXIST);
        fill(a, 2);
        pc__mem_events_unlock();
        touch(a, 2 * PAGE);
        pthread_join(thread, NULL);
        munmap(a, 2 * PAGE);
    }
    want(counters().hits == 0);
}

/* The same before its event is there at all: the kernel tells another watcher first, the owner of
 * the page in front, and that one does not read yet. */
static void window(void)
{
    int other = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* USER_MODE_ONLY */);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_UNMAP};
    char *a = fresh(NULL, 2);
    struct uffdio_register range = {{(uintptr_t)a, PAGE}, UFFDIO_REGISTER_MODE_WP, 0};
    struct uffd_msg event;
    pthread_t thread;
    want(ioctl(other, UFFDIO_API, &api) == 0 && ioctl(other, UFFDIO_REGISTER, &range) == 0);
    touch(a + PAGE, PAGE);
    want(pthread_create(&thread, NULL, unmapper, a) == 0);
    while (mmap(a + PAGE, PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
           == MAP_FAILED)
        want(errno == EEXIST);
    fill(a + PAGE, 1);
    touch(a + PAGE, PAGE);
    want(counters().hits == 0 && counters().unkept == 1);
    while (read(other, &event, sizeof event) != sizeof event)
        want(errno == EAGAIN);
    pthread_join(thread, NULL);
    close(other);
    touch(a + PAGE, PAGE); /* all is quiet: this one is kept */
    touch(a + PAGE, PAGE);
    want(counters().hits == 1 && counters().invalidations == 1);
    munmap(a + PAGE, PAGE);
}

/* Anything in any order, with little room and a registrar that refuses at times. */
static void mixed(void)
{
    enum { PAGES = 48, HELD = 6 };
    unsigned state = 1;
    char *a = fresh(NULL, PAGES);
    struct pc_rcache_region *held[HELD] = {NULL};
    pc__rcache_close(pins);
    pins = pc__rcache_open(&registrar, NULL, 24 * PAGE);
    for (int turn = 0; turn < 20000; turn++) {
        size_t page = (size_t)rand_r(&state) % PAGES, rest = PAGES - page;
        size_t n = 1 + (size_t)rand_r(&state) % (rest < 10 ? rest : 10);
        char *at = a + page * PAGE;
        int slot = rand_r(&state) % HELD;
        uint64_t in_use = 0;
        switch (rand_r(&state) % 16) {
        case 0:
            munmap(at, n * PAGE);
            fresh(at, n);
            break;
        case 1:
            want(madvise(at, n * PAGE, MADV_DONTNEED) == 0);
            fill(at, n);
            break;
        case 2:
            pc__mem_changed(at, n * PAGE);
            break;
        case 3:
            atomic_store(&refuse, 1);
            /* fall through */
        default:
            if (held[slot] != NULL)
                pc__rcache_put(pins, held[slot]);
            held[slot]
                = rand_r(&state) % 4 == 0 ? NULL : pin(at + rand_r(&state) % 64, n * PAGE - 64);
            atomic_store(&refuse, 0);
        }
        for (int i = 0; i < HELD; i++)
            in_use += held[i] != NULL ? held[i]->span.to - held[i]->span.from : 0;
        want(counters().bytes <= 24 * PAGE + in_use);
    }
    want(counters().hits > 1000 && counters().merges > 1000 && counters().invalidations > 1000);
    for (int i = 0; i < HELD; i++)
        if (held[i] != NULL)
            pc__rcache_put(pins, held[i]);
    want(counters().bytes <= 24 * PAGE);
    munmap(a, PAGES * PAGE);
}

#define SLOTS 6
static char *slots;

/* Takes a slot that nobody has at the moment, which another thread may have unmapped just now. */
static void *worker(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument;
    for (int turn = 0; turn < 400;) {
        size_t pages = 1 + (size_t)rand_r(&state) % 3;
        char *a = slots + (size_t)rand_r(&state) % SLOTS * 3 * PAGE;
        if (mmap(a, pages * PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
            == MAP_FAILED)
            continue;
        turn++;
        fill(a, pages);
        for (int k = 0; k < 3; k++)
            touch(a + (size_t)rand_r(&state) % (pages * PAGE - 8), 8);
        touch(a, pages * PAGE);
        if (rand_r(&state) % 3 == 0) {
            want(madvise(a, PAGE, MADV_DONTNEED) == 0);
            fill(a, 1);
        }
        struct pc_rcache_region *p = pin(a, pages * PAGE);
        if (rand_r(&state) % 2 == 0)
            pc__mem_changed(a, PAGE);
        pc__rcache_put(pins, p);
        munmap(a, pages * PAGE);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    slots = fresh(NULL, 3 * SLOTS);
    munmap(slots, 3 * SLOTS * PAGE);
    for (uintptr_t i = 0; i < 4; i++)
        want(pthread_create(&all[i], NULL, worker, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

int main(int argc, char **argv)
{
    static const struct scenario all[] = {
        {"remap", remap},         {"discard", discard}, {"move", move},
        {"heap", heap},           {"forks", forks},     {"late", late},
        {"window", window},       {"midway", midway},   {"unwatched", unwatched},
        {"meanwhile", meanwhile}, {"mixed", mixed},     {"threads", threads},
    };
    return run(argc, argv, all, sizeof all / sizeof *all);
}
