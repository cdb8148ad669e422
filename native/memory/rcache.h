/* The registration cache: keeps memory registrations for the next call. Registering costs from
 * microseconds to milliseconds, for every page is looked up, pinned, and told to the device.
 *
 * The trap is memory that was freed: the device keeps the pages it was told of, and the program
 * gets others at the same address. So every kept range of host memory is watched (mem_events.h),
 * and what cannot be watched is not kept.
 *
 * The guarantee. Say pc__rcache_get begins after a change of memory (munmap, mmap over it, mremap,
 * brk, free) has taken effect, on any thread. The call that made the change need not have returned:
 * another thread may have got these addresses already, between the unmapping and its event. Then
 * pc__rcache_get returns a registration of what lies at these addresses now. For the kernel counts
 * the change before anybody can map there again, and pc__rcache_get asks for that count; while it
 * is not zero, and the event does not arrive soon, memory is registered for this one use. Pages
 * that are discarded (madvise) go after their event: for these the change has taken effect when the
 * call returns. A registration of memory that another thread discards at that moment may be kept as
 * it was: what the program itself reads there is uncertain too. For changes without an event
 * (mem_events.h), call pc__mem_changed.
 *
 * An entry in use whose memory changes is not found again, and is deregistered when its last user
 * puts it: until then the device reads and writes the old pages, which nobody else gets meanwhile.
 *
 * GPU memory has no events. The driver gives each allocation a number once (`stamp`), which each
 * lookup compares. */
#ifndef PC_RCACHE_H
#define PC_RCACHE_H
#include "memory/mem_type.h"
#include "memory/mem_events.h"

/* How a network registers memory with its devices. Called on any thread, without a lock. */
struct pc_rcache_ops {
    /* Registers; span->kind DMABUF stands for any way to a GPU, and is set to the one used. NOMEM:
     * the cache evicts what is idle and tries again. UNMAPPABLE: this memory must be staged. */
    int (*make)(void *context, struct pc_mem_span *span, struct pc_error *error, void **handle);
    void (*drop)(void *context, void *handle);
};

struct pc_rcache_region {
    void *handle;            /* the registrar's handle */
    struct pc_mem_span span; /* covers at least what was asked for */
    /* The cache's own members. */
    uint32_t references;
    bool kept;    /* in the cache: lookups find it */
    bool watched; /* memory events are on, or were */
    bool stale;   /* its memory changed while it was being registered */
    struct pc_rcache_region *next, *before;
};

struct pc_rcache_counters {
    uint64_t hits, misses;
    uint64_t merges;         /* entries merged into a larger one */
    uint64_t invalidations;  /* entries whose memory changed */
    uint64_t evictions;      /* idle entries deregistered to make room */
    uint64_t unkept;         /* misses registered for one use */
    uint64_t entries, bytes; /* in the cache now, idle or in use */
};

struct pc_rcache;

/* Opens a cache. Above `limit` bytes it evicts idle entries, the least recently used first; 0 keeps
 * nothing. `context` and `registrar` must outlive it. NULL: out of memory. */
struct pc_rcache *pc__rcache_open(const struct pc_rcache_ops *registrar, void *context,
                                  uint64_t limit);
/* Deregisters all; every registration must have been put. Deregisters nothing in a child of fork.
 */
void pc__rcache_close(struct pc_rcache *rcache);

/* A registration that covers [address, address + nbytes), at least one byte, of host memory or with
 * `gpu` of GPU memory; or NULL: UNMAPPABLE (this memory must be staged), SYSTEM, NOMEM, INVALID.
 * Any thread. */
struct pc_rcache_region *pc__rcache_get(struct pc_rcache *rcache, const void *address,
                                        size_t nbytes, bool gpu, struct pc_error *error);
void pc__rcache_put(struct pc_rcache *rcache, struct pc_rcache_region *region);

void pc__rcache_query(struct pc_rcache *rcache, struct pc_rcache_counters *out);
/* "", or why no host memory is kept. */
const char *pc__rcache_missing(const struct pc_rcache *rcache);
#endif
