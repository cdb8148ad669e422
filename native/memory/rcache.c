/* The registration cache: ranges that do not overlap, in the order of their addresses.
 *
 * A registration that reaches beyond what is kept merges the entries that it overlaps into one
 * range. Those that it only touches stay apart, or a walk through a large array would register it
 * all again at each step.
 *
 * With the lock of mem_events.h nothing here allocates, frees or registers. */
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"
#include "memory/rcache.h"

/* Each range that is watched may part a mapping of the kernel's in three, of which a process has
 * 65530 (vm.max_map_count). */
#define PC_RCACHE_MAX_REGIONS 4096

/* Lists are rings; a head is an entry of its own. */
struct pc_rcache {
    struct pc_mem_handler listener; /* first */
    const struct pc_rcache_ops *registrar;
    void *context;
    uint64_t limit;
    const char *missing; /* NULL: host memory can be watched */
    uint32_t epoch;
    uint32_t nkept;
    uint64_t bytes;
    struct pc_rcache_region idle;    /* kept and not in use, the least recently used first */
    struct pc_rcache_region pending; /* being registered: changes are marked there */
    struct pc_rcache_region dead;    /* to be deregistered */
    struct pc_rcache_counters counters;
    struct pc_rcache_region *kept[PC_RCACHE_MAX_REGIONS];
};

static void ring_init(struct pc_rcache_region *head)
{
    head->next = head->before = head;
}

static void append(struct pc_rcache_region *head, struct pc_rcache_region *p)
{
    p->next = head;
    p->before = head->before;
    head->before->next = p;
    head->before = p;
}

static void take_out(struct pc_rcache_region *p)
{
    p->next->before = p->before;
    p->before->next = p->next;
}

/* The first kept entry that ends behind `address`. */
static uint32_t find(const struct pc_rcache *c, uintptr_t address)
{
    uint32_t low = 0, high = c->nkept;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (c->kept[middle]->span.to <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* How many kept entries from `i` on begin before `to`. */
static uint32_t overlapping(const struct pc_rcache *c, uint32_t i, uintptr_t to)
{
    uint32_t n = 0;
    while (i + n < c->nkept && c->kept[i + n]->span.from < to)
        n++;
    return n;
}

/* Lookups find n entries from `i` on no more. */
static void unkeep(struct pc_rcache *c, uint32_t i, uint32_t n)
{
    for (uint32_t k = i; k < i + n; k++) {
        struct pc_rcache_region *p = c->kept[k];
        p->kept = false;
        c->bytes -= p->span.to - p->span.from;
        if (p->references == 0) {
            take_out(p);
            append(&c->dead, p);
        }
    }
    c->nkept -= n;
    memmove(c->kept + i, c->kept + i + n, (c->nkept - i) * sizeof *c->kept);
}

static void evict(struct pc_rcache *c, struct pc_rcache_region *p)
{
    c->counters.evictions++;
    unkeep(c, find(c, p->span.from), 1);
}

static void keep(struct pc_rcache *c, struct pc_rcache_region *p)
{
    uint32_t i = find(c, p->span.from);
    memmove(c->kept + i + 1, c->kept + i, (c->nkept - i) * sizeof *c->kept);
    c->kept[i] = p;
    c->nkept++;
    c->bytes += p->span.to - p->span.from;
    p->kept = true;
}

static void trim(struct pc_rcache *c, uint64_t limit)
{
    while (c->bytes > limit && c->idle.next != &c->idle)
        evict(c, c->idle.next);
}

/* Deregisters what is dead. Without the lock. */
static void clean(struct pc_mem_handler *listener)
{
    struct pc_rcache *c = (struct pc_rcache *)listener;
    for (;;) {
        pc__mem_events_lock();
        struct pc_rcache_region *p = c->dead.next;
        if (p != &c->dead) {
            take_out(p);
            if (p->watched)
                pc__mem_events_unwatch(p->span.from, p->span.to);
        }
        pc__mem_events_unlock();
        if (p == &c->dead)
            return;
        c->registrar->drop(c->context, p->handle);
        free(p);
    }
}

/* Lets the lock go, and cleans up if there is something. */
static void leave(struct pc_rcache *c)
{
    bool cleanup_pending = c->dead.next != &c->dead;
    pc__mem_events_unlock();
    if (cleanup_pending)
        clean(&c->listener);
}

static void gone(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to)
{
    struct pc_rcache *c = (struct pc_rcache *)listener;
    uint32_t i = find(c, from), n = overlapping(c, i, to);
    c->counters.invalidations += n;
    unkeep(c, i, n);
    for (struct pc_rcache_region *p = c->pending.next; p != &c->pending; p = p->next)
        p->stale |= p->span.from < to && from < p->span.to;
    if (c->dead.next != &c->dead)
        pc__mem_events_defer_cleanup(&c->listener);
}

static bool wants(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to)
{
    struct pc_rcache *c = (struct pc_rcache *)listener;
    if (overlapping(c, find(c, from), to) > 0)
        return true;
    for (struct pc_rcache_region *p = c->pending.next; p != &c->pending; p = p->next)
        if (p->span.from < to && from < p->span.to)
            return true;
    return false;
}

struct pc_rcache *pc__rcache_open(const struct pc_rcache_ops *registrar, void *context,
                                  uint64_t limit)
{
    struct pc_rcache *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->listener = (struct pc_mem_handler){.gone = gone, .wants = wants, .clean = clean};
    c->registrar = registrar;
    c->context = context;
    c->limit = limit;
    c->epoch = pc__mem_events_epoch();
    ring_init(&c->idle);
    ring_init(&c->pending);
    ring_init(&c->dead);
    c->missing = pc__mem_events_subscribe(&c->listener);
    return c;
}

static bool forked(const struct pc_rcache *c)
{
    return c->epoch != pc__mem_events_epoch();
}

void pc__rcache_close(struct pc_rcache *c)
{
    if (c == NULL)
        return;
    if (!forked(c)) { /* else what is registered is the parent's */
        pc__mem_events_lock();
        unkeep(c, 0, c->nkept);
        pc__mem_events_unlock();
        clean(&c->listener);
        pc__mem_events_unsubscribe(&c->listener);
    }
    free(c);
}

/* What is kept and covers the span. With the lock. */
static struct pc_rcache_region *lookup(struct pc_rcache *c, const struct pc_mem_span *span)
{
    uint32_t i = find(c, span->from);
    if (i == c->nkept)
        return NULL;
    struct pc_rcache_region *p = c->kept[i];
    if (p->span.from > span->from || p->span.to < span->to)
        return NULL;
    if (p->span.stamp != span->stamp) { /* the addresses are another allocation's by now */
        c->counters.invalidations++;
        unkeep(c, i, 1);
        return NULL;
    }
    if (p->references++ == 0)
        take_out(p);
    c->counters.hits++;
    return p;
}

/* Makes p what is to be registered: the span and what it overlaps, which is not found any more.
 * With the lock. False when p cannot be kept. */
static bool widen(struct pc_rcache *c, struct pc_rcache_region *p, const struct pc_mem_span *span)
{
    uint32_t i = find(c, span->from), n = overlapping(c, i, span->to);
    struct pc_mem_span all = *span;
    uint64_t *counter = &c->counters.merges;
    for (uint32_t k = i; k < i + n; k++) {
        const struct pc_mem_span *s = &c->kept[k]->span;
        if (s->stamp != span->stamp)
            counter = &c->counters.invalidations;
        all.from = s->from < all.from ? s->from : all.from;
        all.to = s->to > all.to ? s->to : all.to;
    }
    if (all.to - all.from > c->limit)
        counter = &c->counters.evictions;
    if (counter != &c->counters.merges)
        all = *span;
    if (all.to - all.from > c->limit)
        return false;
    p->watched = span->stamp == 0 && pc__mem_events_watch(all.from, all.to);
    if (span->stamp == 0 && !p->watched)
        return false;
    p->span = all;
    *counter += n;
    unkeep(c, i, n);
    return true;
}

/* Whether p, which is registered now, is found from now on. With the lock. */
static bool settle(struct pc_rcache *c, struct pc_rcache_region *p)
{
    if (p->stale || overlapping(c, find(c, p->span.from), p->span.to) > 0)
        return false;
    if (c->nkept == PC_RCACHE_MAX_REGIONS && c->idle.next != &c->idle)
        evict(c, c->idle.next);
    if (c->nkept == PC_RCACHE_MAX_REGIONS)
        return false;
    keep(c, p);
    trim(c, c->limit);
    return true;
}

/* Registers p; where that fails, once more, no more than was asked for and without what is idle. */
static int make(struct pc_rcache *c, struct pc_rcache_region *p, const struct pc_mem_span *span,
                struct pc_error *error)
{
    int rc = c->registrar->make(c->context, &p->span, error, &p->handle);
    bool wide = p->span.to - p->span.from > span->to - span->from;
    if (rc == PC_OK || (rc != PC_NOMEM && !wide))
        return rc;
    pc__mem_events_lock();
    if (rc == PC_NOMEM)
        trim(c, 0);
    p->span = *span;
    leave(c);
    return c->registrar->make(c->context, &p->span, error, &p->handle);
}

struct pc_rcache_region *pc__rcache_get(struct pc_rcache *c, const void *address, size_t nbytes,
                                        bool gpu, struct pc_error *error)
{
    struct pc_mem_span span;
    if (forked(c)) {
        pc__fail(error, PC_INVALID, -1, "this process was forked: its parent has the device");
        return NULL;
    }
    if (pc__mem_query(address, nbytes, gpu, error, &span) != PC_OK)
        return NULL;

    pc__mem_events_lock();
    bool host = span.kind == PC_MEM_HOST;
    bool known = c->limit > 0 && (host ? pc__mem_events_settled() : span.stamp != 0);
    struct pc_rcache_region *p = known ? lookup(c, &span) : NULL;
    c->counters.misses += p == NULL;
    leave(c);
    if (p != NULL)
        return p;

    p = calloc(1, sizeof *p);
    if (p == NULL) {
        pc__fail(error, PC_NOMEM, -1, "no memory for a registration");
        return NULL;
    }
    p->span = span;
    p->references = 1;
    pc__mem_events_lock();
    append(&c->pending, p); /* before it is watched: from now on a change makes it stale */
    known = known && widen(c, p, &span);
    leave(c);
    int rc = make(c, p, &span, error);
    pc__mem_events_lock();
    take_out(p);
    if (rc == PC_OK)
        c->counters.unkept += !(known && settle(c, p));
    else if (p->watched)
        pc__mem_events_unwatch(p->span.from, p->span.to);
    leave(c);
    if (rc != PC_OK) {
        free(p);
        return NULL;
    }
    return p;
}

void pc__rcache_put(struct pc_rcache *c, struct pc_rcache_region *p)
{
    if (forked(c))
        return;
    pc__mem_events_lock();
    if (--p->references == 0) {
        append(p->kept ? &c->idle : &c->dead, p);
        trim(c, c->limit);
    }
    leave(c);
}

void pc__rcache_query(struct pc_rcache *c, struct pc_rcache_counters *out)
{
    pc__mem_events_lock();
    *out = c->counters;
    out->entries = c->nkept;
    out->bytes = c->bytes;
    pc__mem_events_unlock();
}

const char *pc__rcache_missing(const struct pc_rcache *c)
{
    return c->missing == NULL ? "" : c->missing;
}
