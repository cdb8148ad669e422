/* Registrations of memory that are kept for the next call: registering costs from microseconds to
 * milliseconds, for every page is looked up, pinned, and told to the device.
 *
 * The trap is memory that was freed: the device keeps the pages it was told of, and the program
 * gets others at the same address. So every kept range of host memory is watched (mem_events.h),
 * and what cannot be watched is not kept.
 *
 * The guarantee. Say a registration begins after some change of memory (munmap, mmap over it,
 * mremap, brk, free) has taken effect, on any thread and even where the call that made it has not
 * returned yet: when another thread got these addresses already, in between the unmapping and its
 * event. Then pc__rcache_get returns a registration made of what lies at these addresses now. For
 * the kernel counts the change before anybody can map there again, and pc__rcache_get asks for that
 * count; while it is not zero, and the event does not arrive soon, memory is registered for this
 * one use. Pages that are discarded (madvise) go after their event: for these the change has taken
 * effect when the call returns. A registration of memory that another thread discards at that
 * moment may be kept as it was: what the program itself reads there is uncertain too. Of what no
 * event tells (mem_events.h), pc__mem_changed must be told.
 *
 * An entry in use whose memory changes is not found again, and is deregistered at its last unpin:
 * until then the device reads and writes the pages of before, which nobody else gets meanwhile.
 *
 * A GPU's memory has a stamp in place of events, which the driver gives to each allocation once: it
 * is compared at each registration. */
#ifndef PC_RCACHE_H
#define PC_RCACHE_H
#include "memory/mem_type.h"
#include "memory/mem_events.h"

/* Registers memory with a device, or several. Any thread calls these, without a lock. */
struct pc_rcache_ops {
    /* `span` may name DMABUF; span->kind is set to what was used. NOMEM: asked again once the
     * cache has given up what is idle. UNMAPPABLE: this memory is to be staged. */
    int (*make)(void *context, struct pc_mem_span *span, struct pc_error *error, void **handle);
    void (*drop)(void *context, void *handle);
};

struct pc_rcache_region {
    void *handle;            /* the registrar's */
    struct pc_mem_span span; /* at least what was asked for */
    /* The cache's own. */
    uint32_t references;
    bool kept;    /* lookups find it */
    bool watched; /* or was */
    bool stale;   /* changed while it was being registered */
    struct pc_rcache_region *next, *before;
};

struct pc_rcache_counters {
    uint64_t hits, misses;
    uint64_t merges;         /* entries that became part of a larger one */
    uint64_t invalidations;  /* entries whose memory changed */
    uint64_t evictions;      /* idle entries that made room */
    uint64_t unkept;         /* misses that were registered for one use */
    uint64_t entries, bytes; /* that are kept now, idle or in use */
};

struct pc_rcache;

/* A cache of registrations by one registrar. Of what it keeps, as much as is idle goes, the least
 * recently used first, so that it is not more than `limit` bytes; 0 keeps nothing. `context` and
 * `registrar` outlive it. NULL: out of memory. */
struct pc_rcache *pc__rcache_open(const struct pc_rcache_ops *registrar, void *context,
                                  uint64_t limit);
/* Deregisters all; every registration has been given back. In the child of a fork it deregisters
 * nothing. */
void pc__rcache_close(struct pc_rcache *rcache);

/* A registration that covers [address, address + nbytes), at least one byte, of host memory or with
 * `gpu` of a GPU's; or NULL: UNMAPPABLE when this memory is to be staged, SYSTEM, NOMEM, INVALID.
 * Any thread. */
struct pc_rcache_region *pc__rcache_get(struct pc_rcache *rcache, const void *address,
                                        size_t nbytes, bool gpu, struct pc_error *error);
void pc__rcache_put(struct pc_rcache *rcache, struct pc_rcache_region *region);

void pc__rcache_query(struct pc_rcache *rcache, struct pc_rcache_counters *out);
/* "", or why nothing is kept. */
const char *pc__rcache_missing(const struct pc_rcache *rcache);
#endif
