/* What the drivers of the registration cache share: a registrar that notes what lay in each page
 * when it was registered. A registration is stale when something else lies there now.
 *
 *   DRIVER SCENARIO
 *
 * prints the scenario, or what was not as it should be. */
#ifndef PC_TEST_PINS_H
#define PC_TEST_PINS_H
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include "memory/rcache.h"

#define PAGE ((size_t)4096)
#define LIMIT (1024 * PAGE)

#define want(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

struct registration {
    struct pc_mem_span span;
    uint64_t *words; /* the first of each page */
};

static _Atomic int made, dropped, refuse;
/* Called once: before a registration looks at memory, and when it has. */
static void (*_Atomic before)(void), (*_Atomic during)(void);
static struct pc_error error;

static uint64_t word_at(uintptr_t at, bool *there)
{
    uint64_t word = 0;
    struct iovec mine = {&word, sizeof word}, theirs = {(void *)at, sizeof word};
    *there = process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) == sizeof word;
    return word;
}

static void call(void (*_Atomic *hook)(void))
{
    void (*f)(void) = atomic_exchange(hook, NULL);
    if (f != NULL)
        f();
}

static int make(void *context, struct pc_mem_span *span, struct pc_error *e, void **handle)
{
    (void)context;
    if (atomic_load(&refuse) > 0 && atomic_fetch_sub(&refuse, 1) > 0) {
        e->code = PC_NOMEM;
        return PC_NOMEM;
    }
    call(&before);
    size_t n = (span->to - span->from) / PAGE;
    struct registration *r = calloc(1, sizeof *r);
    *r = (struct registration){*span, calloc(n, sizeof *r->words)};
    *handle = r;
    for (size_t i = 0; i < n; i++) {
        bool there;
        r->words[i] = word_at(span->from + i * PAGE, &there);
        if (!there) { /* a neighbour has gone */
            free(r->words);
            free(r);
            e->code = PC_SYSTEM;
            return PC_SYSTEM;
        }
    }
    call(&during);
    atomic_fetch_add(&made, 1);
    return PC_OK;
}

static void drop(void *context, void *handle)
{
    (void)context;
    struct registration *r = handle;
    free(r->words);
    free(r);
    atomic_fetch_add(&dropped, 1);
}

static const struct pc_rcache_ops registrar = {make, drop};
static struct pc_rcache *pins;

static struct pc_rcache_counters counters(void)
{
    struct pc_rcache_counters out;
    pc__rcache_query(pins, &out);
    return out;
}

/* A pin whose registration covers it and is of what lies there now. */
static struct pc_rcache_region *pin(const void *at, size_t nbytes)
{
    struct pc_rcache_region *p = pc__rcache_get(pins, at, nbytes, false, &error);
    want(p != NULL);
    const struct registration *r = p->handle;
    uintptr_t from = (uintptr_t)at & ~(PAGE - 1), to = (uintptr_t)at + nbytes;
    want(p->span.from <= from && p->span.to >= to);
    want(r->span.from == p->span.from && r->span.to == p->span.to);
    for (uintptr_t page = from; page < to; page += PAGE) {
        bool there;
        want(word_at(page, &there) == r->words[(page - r->span.from) / PAGE] && there);
    }
    return p;
}

static void *touch(const void *at, size_t nbytes)
{
    struct pc_rcache_region *p = pin(at, nbytes);
    void *handle = p->handle;
    pc__rcache_put(pins, p);
    return handle;
}

/* Another thread deregisters. */
static void until_dropped(int n)
{
    while (atomic_load(&dropped) < n)
        sched_yield();
    want(atomic_load(&dropped) == n);
}

static void fill(void *at, size_t pages)
{
    static _Atomic uint64_t token = 1;
    for (size_t i = 0; i < pages; i++)
        *(uint64_t *)((char *)at + i * PAGE) = atomic_fetch_add(&token, 1);
}

/* `pages` of new memory that nothing else was before, at `at` if that is not NULL. It lies far
 * below all else, so that no other thread's mmap gets what is unmapped here. */
static char *fresh(void *at, size_t pages)
{
    static char *free_below;
    if (free_below == NULL) {
        free_below = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        free_below -= (size_t)64 << 30;
    }
    if (at == NULL)
        at = free_below -= (pages + 1) * PAGE;
    char *memory = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    want(memory == at);
    fill(memory, pages);
    return memory;
}

struct scenario {
    const char *name;
    void (*run)(void);
};

static int run(int argc, char **argv, const struct scenario *scenarios, size_t n)
{
    for (size_t i = 0; argc == 2 && i < n; i++) {
        if (strcmp(argv[1], scenarios[i].name) != 0)
            continue;
        pins = pc__rcache_open(&registrar, NULL, LIMIT);
        scenarios[i].run();
        pc__rcache_close(pins);
        want(atomic_load(&made) == atomic_load(&dropped));
        printf("%s\n", argv[1]);
        return 0;
    }
    fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
    return 2;
}
#endif
