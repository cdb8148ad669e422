/* Memory events: tell listeners when watched memory was unmapped, mapped over, moved, or its pages
 * discarded, by any code of this process.
 *
 * They come from a userfaultfd. Ranges are registered for write-protection, which is the one mode
 * that delivers no fault unless somebody protects a page, and nobody does; the events of the
 * address space come all the same:
 *   - UNMAP (munmap, mmap over it, brk, mremap that shrinks; so also free): comes after the memory
 *     has gone, when another thread may have mapped the same addresses already;
 *   - REMAP (mremap that moves): comes after it;
 *   - REMOVE (madvise with DONTNEED, FREE, REMOVE): comes before the pages go.
 * The call that made the change returns once the event has been *read*. From when the kernel began,
 * under the lock of the address space, until then the kernel counts a change in flight, and others
 * can ask for that: see pc__mem_events_settled. One descriptor serves the process, as memory has
 * one watcher at most.
 *
 * A thread that holds the lock may read and change what was allocated before, and call the
 * functions below that ask for the lock. It must not call malloc, free, munmap, or anything that
 * might: they may give back watched memory, and then wait for an event that is only read with the
 * lock. Listeners are called with the lock.
 *
 * No kernel has events for pages that leave shared memory by its file (ftruncate, or fallocate with
 * PUNCH_HOLE, also from another process), remap_file_pages, and MADV_GUARD_INSTALL. */
#ifndef PC_MEM_EVENTS_H
#define PC_MEM_EVENTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pc_mem_handler {
    /* Memory has changed. With the lock. [from, to) may be larger than what was watched. */
    void (*gone)(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to);
    /* Whether some of [from, to) must still be watched. With the lock. */
    bool (*wants)(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to);
    /* Does what `gone` put off. Without the lock, on the cleanup thread. */
    void (*clean)(struct pc_mem_handler *listener);
    struct pc_mem_handler *next;
    bool cleanup_pending; /* guarded by the lock: `clean` must be called */
};

/* Adds a listener. NULL, or why nothing can be watched here (the listener is added all the same,
 * and the lock works). The text is valid for ever. */
const char *pc__mem_events_subscribe(struct pc_mem_handler *listener);
/* Removes a listener: none of its functions is called from then on. */
void pc__mem_events_unsubscribe(struct pc_mem_handler *listener);

void pc__mem_events_lock(void);
void pc__mem_events_unlock(void);

/* Waits until the listeners know every change made before this call. With the lock, which it may
 * release in between. False when nothing can be watched, or a change takes long: then what is kept
 * of watched memory must not be used for now. */
bool pc__mem_events_settled(void);
/* Watches [from, to), whole pages. With the lock. False: it cannot be watched, and no registration
 * of it must be kept. Private and shared anonymous memory, memfd and tmpfs can; other files,
 * devices, SysV shared memory, and what another userfaultfd has cannot. */
bool pc__mem_events_watch(uintptr_t from, uintptr_t to);
/* Ends watching, unless a listener still wants the range. With the lock. */
void pc__mem_events_unwatch(uintptr_t from, uintptr_t to);
/* Has `clean` called soon. With the lock. */
void pc__mem_events_defer_cleanup(struct pc_mem_handler *listener);

/* Tells the listeners of a change without an event; registrations kept of these bytes are not found
 * any more. Without the lock. */
void pc__mem_changed(const void *at, size_t nbytes);

/* A number that differs in a child of fork. The child inherits neither the watching nor the
 * threads, and its memory is not what was registered. */
uint32_t pc__mem_events_epoch(void);
/* "", or why this host cannot watch memory, and what mends that. */
const char *pc__mem_events_missing(void);
#endif
