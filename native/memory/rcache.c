/* The registration cache: an array of entries that do not overlap, sorted by address.
 *
 * A registration that overlaps entries merges them into one range. Entries that it only touches
 * stay apart, or a walk through a large array would register it all again at each step.
 *
 * Nothing here allocates, frees or registers while it holds the lock of mem_events.h. */
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"
#include "memory/rcache.h"

/* Each watched range may split a mapping (VMA) in three, of which a process has 65530
 * (vm.max_map_count). */
#define PC_RCACHE_MAX_REGIONS 4096

/* Lists are circular; the head is an entry. */
struct pc_rcache {
    struct pc_mem_handler listener; /* must be first */
    const struct pc_rcache_ops *registrar;
    void *context;
    uint64_t limit;
    const char *missing; /* NULL: host memory can be watched */
    uint32_t epoch;
    uint32_t nkept;
    uint64_t bytes;
    struct pc_rcache_region idle;    /* kept and unused, the least recently used first */
    struct pc_rcache_region pending; /* being registered; a change sets `stale` */
    struct pc_rcache_region dead;    /* removed from the cache, to be deregistered */
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

static void unlink_region(struct pc_rcache_region *p)
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

/* Removes n entries from `i` on from the cache; those not in use go to `dead`. */
static void unkeep(struct pc_rcache *c, uint32_t i, uint32_t n)
{
    for (uint32_t k = i; k < i + n; k++) {
        struct pc_rcache_region *p = c->kept[k];
        p->kept = false;
        c->bytes -= p->span.to - p->span.from;
        if (p->references == 0) {
            unlink_region(p);
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

/* Deregisters the entries in `dead`. Without the lock. */
static void clean(struct pc_mem_handler *listener)
{
    struct pc_rcache *c = (struct pc_rcache *)listener;
    for (;;) {
        pc__mem_events_lock();
        struct pc_rcache_region *p = c->dead.next;
        if (p != &c->dead) {
            unlink_region(p);
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

/* Releases the lock, then deregisters what is dead. */
static void unlock_and_clean(struct pc_rcache *c)
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
    if (!forked(c)) { /* else the registrations are the parent's */
        pc__mem_events_lock();
        unkeep(c, 0, c->nkept);
        pc__mem_events_unlock();
        clean(&c->listener);
        pc__mem_events_unsubscribe(&c->listener);
    }
    free(c);
}

/* The kept entry that covers the span, or NULL. With the lock. */
static struct pc_rcache_region *lookup(struct pc_rcache *c, const struct pc_mem_span *span)
{
    uint32_t i = find(c, span->from);
    if (i == c->nkept)
        return NULL;
    struct pc_rcache_region *p = c->kept[i];
    if (p->span.from > span->from || p->span.to < span->to)
        return NULL;
    if (p->span.stamp != span->stamp) { /* another allocation has these addresses now */
        c->counters.invalidations++;
        unkeep(c, i, 1);
        return NULL;
    }
    if (p->references++ == 0)
        unlink_region(p);
    c->counters.hits++;
    return p;
}

/* Sets p's span to `span` merged with the entries that it overlaps, removes these, and watches p's
 * memory. With the lock. False when p cannot be kept. */
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

/* Adds p, now registered, to the cache; false: it serves one use only. With the lock. */
static bool try_keep(struct pc_rcache *c, struct pc_rcache_region *p)
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

/* Registers p. Where that fails, evicts what is idle and registers only what was asked for. */
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
    unlock_and_clean(c);
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
    unlock_and_clean(c);
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
    append(&c->pending, p); /* before it is watched: a change sets p->stale from now on */
    known = known && widen(c, p, &span);
    unlock_and_clean(c);
    int rc = make(c, p, &span, error);
    pc__mem_events_lock();
    unlink_region(p);
    if (rc == PC_OK)
        c->counters.unkept += !(known && try_keep(c, p));
    else if (p->watched)
        pc__mem_events_unwatch(p->span.from, p->span.to);
    unlock_and_clean(c);
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
    unlock_and_clean(c);
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
