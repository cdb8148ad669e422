/* The registration cache: what is kept, for how long, and where nothing can be. See rcache.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "rcache.h"

static void hit(void)
{
    char *a = fresh(NULL, 4);
    struct pc_rcache_region *p = pin(a + 10, 3 * PAGE), *q = pin(a + PAGE, 1);
    want(p == q && p->references == 2);
    want(p->span.from == (uintptr_t)a && p->span.to == (uintptr_t)a + 4 * PAGE);
    pc__rcache_put(pins, p);
    pc__rcache_put(pins, q);
    want(touch(a, 4 * PAGE) == p->handle);
    struct pc_rcache_counters c = counters();
    want(c.hits == 2 && c.misses == 1 && c.unkept == 0 && c.entries == 1 && c.bytes == 4 * PAGE);
    want(pc__rcache_get(pins, a, 0, false, &error) == NULL && error.code == PC_INVALID);
    want(pc__rcache_get(pins, a, SIZE_MAX, false, &error) == NULL && error.code == PC_INVALID);
    pc__mem_changed(a, 1);
    want(counters().entries == 0);
    until_dropped(1);
    munmap(a, 4 * PAGE);
}

static void merge(void)
{
    char *a = fresh(NULL, 8);
    struct pc_rcache_region *p = pin(a, 2 * PAGE);
    touch(a + 2 * PAGE, PAGE); /* touches the first only: stays apart */
    want(counters().entries == 2 && counters().merges == 0);
    touch(a + 5 * PAGE, PAGE);
    touch(a + 4 * PAGE, PAGE);
    want(counters().entries == 4 && counters().merges == 0);
    struct pc_rcache_region *q = pin(a + PAGE, 3 * PAGE);
    want(q->span.from == (uintptr_t)a && q->span.to == (uintptr_t)a + 4 * PAGE);
    want(counters().entries == 3 && counters().merges == 2 && counters().bytes == 6 * PAGE);
    want(atomic_load(&dropped) == 1); /* the one that nobody uses */
    pc__rcache_put(pins, p);
    want(atomic_load(&dropped) == 2);
    want(touch(a, 1) == q->handle);
    pc__rcache_put(pins, q);
    munmap(a, 8 * PAGE);
}

static void limit(void)
{
    char *a = fresh(NULL, 16);
    pc__rcache_close(pins);
    pins = pc__rcache_open(&registrar, NULL, 4 * PAGE);
    touch(a, 2 * PAGE);
    touch(a + 2 * PAGE, 2 * PAGE);
    touch(a, PAGE); /* the other is the older one now */
    touch(a + 4 * PAGE, PAGE);
    want(counters().evictions == 1 && counters().bytes == 3 * PAGE);
    touch(a, PAGE);
    want(counters().hits == 2);
    struct pc_rcache_region *p = pin(a + 8 * PAGE, 4 * PAGE), *q = pin(a + 12 * PAGE, 4 * PAGE);
    want(counters().entries == 2 && counters().bytes == 8 * PAGE); /* nothing in use goes */
    pc__rcache_put(pins, p);
    want(counters().entries == 1 && counters().bytes == 4 * PAGE);
    pc__rcache_put(pins, q);
    touch(a, 5 * PAGE); /* too large to be kept */
    want(counters().unkept == 1 && counters().entries == 1);
    pc__rcache_close(pins);
    want(atomic_load(&made) == atomic_load(&dropped));
    pins = pc__rcache_open(&registrar, NULL, 0);
    touch(a, 1);
    touch(a, 1);
    want(counters().unkept == 2 && counters().entries == 0);
    munmap(a, 16 * PAGE);
}

/* More than there may be entries, each of which parts a mapping of the kernel's. */
static void many(void)
{
    char *a = fresh(NULL, 10000);
    pc__rcache_close(pins);
    pins = pc__rcache_open(&registrar, NULL, 10000 * PAGE);
    for (size_t i = 0; i < 5000; i++)
        touch(a + 2 * i * PAGE, PAGE);
    struct pc_rcache_counters c = counters();
    want(c.entries == 4096 && c.evictions == 5000 - 4096 && c.unkept == 0);
    touch(a + 2 * 4999 * PAGE, PAGE);
    touch(a, PAGE);
    want(counters().hits == 1 && counters().misses == 5001);
    munmap(a, 10000 * PAGE);
    until_dropped(5001);
    want(counters().entries == 0);
}

static void use(void)
{
    char *a = fresh(NULL, 2);
    struct pc_rcache_region *p = pin(a, 2 * PAGE), *q = pin(a, PAGE);
    munmap(a, 2 * PAGE);
    fresh(a, 2);
    struct pc_rcache_region *other = pin(a, 2 * PAGE);
    want(other != p && counters().invalidations == 1 && counters().entries == 1);
    pc__rcache_put(pins, p);
    want(atomic_load(&dropped) == 0);
    pc__rcache_put(pins, q);
    want(atomic_load(&dropped) == 1);
    pc__rcache_put(pins, other);
    munmap(a, 2 * PAGE);
}

static void several(void)
{
    char *a = fresh(NULL, 4);
    struct pc_rcache *first = pins, *second = pc__rcache_open(&registrar, NULL, LIMIT);
    touch(a, 4 * PAGE);
    pins = second;
    touch(a, 4 * PAGE);
    touch(a, 4 * PAGE);
    want(counters().hits == 1 && atomic_load(&made) == 2);
    pins = first;
    pc__rcache_close(second); /* the first still needs the watching */
    munmap(a, 4 * PAGE);
    fresh(a, 4);
    touch(a, 4 * PAGE);
    want(counters().invalidations == 1 && counters().hits == 0);
    munmap(a, 4 * PAGE);
}

/* What cannot be watched is not kept. */
static void file(void)
{
    int fd = open("/proc/self/exe", O_RDONLY);
    char *a = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    want(a != MAP_FAILED);
    touch(a, 2 * PAGE);
    touch(a, 2 * PAGE);
    want(counters().unkept == 2 && atomic_load(&dropped) == 2);
    munmap(a, 2 * PAGE);
    close(fd);
}

/* No memory can be locked any more: what is idle goes. */
static void refused(void)
{
    char *a = fresh(NULL, 4);
    touch(a, PAGE);
    atomic_store(&refuse, 1);
    touch(a + 2 * PAGE, PAGE);
    want(counters().evictions == 1 && counters().entries == 1);
    atomic_store(&refuse, 2);
    want(pc__rcache_get(pins, a, 1, false, &error) == NULL && error.code == PC_NOMEM);
    touch(a, PAGE);
    munmap(a, 4 * PAGE);
}

/* As in a container whose filter does not let it through. */
static void without(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    pc__rcache_close(pins);
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    want(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    want(strstr(pc__mem_events_missing(), "seccomp") != NULL);
    pins = pc__rcache_open(&registrar, NULL, LIMIT);
    want(strstr(pc__rcache_missing(pins), "not permitted") != NULL);
    char *a = fresh(NULL, 2);
    struct pc_rcache_region *p = pin(a, 1), *q = pin(a, 1);
    want(p != q);
    pc__rcache_put(pins, p);
    want(atomic_load(&dropped) == 1);
    pc__rcache_put(pins, q);
    want(atomic_load(&dropped) == 2 && counters().unkept == 2 && counters().entries == 0);
    munmap(a, 2 * PAGE);
}

/* "" where the kernel has what it takes, for who decides whether to skip. */
static void missing(void)
{
    printf("%s\n", pc__mem_events_missing());
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct scenario all[] = {
        {"hit", hit},         {"merge", merge},     {"limit", limit}, {"many", many},
        {"use", use},         {"several", several}, {"file", file},   {"refused", refused},
        {"without", without}, {"missing", missing},
    };
    return run(argc, argv, all, sizeof all / sizeof *all);
}
