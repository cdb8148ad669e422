/* Hears when memory that was watched stops being what it was: unmapped, mapped over, moved, or its
 * pages discarded, by whatever in this process did so.
 *
 * The kernel tells, through a userfaultfd. Ranges are registered for write-protection, which is the
 * one mode that delivers no fault unless somebody protects a page, and nobody does; the events of
 * the address space come all the same:
 *   - UNMAP (munmap, mmap over it, brk, mremap that shrinks; so also free): told after the memory
 *     has gone, when another thread may have mapped the same addresses already;
 *   - REMAP (mremap that moves): told after it;
 *   - REMOVE (madvise with DONTNEED, FREE, REMOVE): told before the pages go.
 * The call that did it returns once the event has been *read*. From when the kernel began, under
 * the lock of the address space, until then it counts a change in flight, and lets others ask:
 * that is pc__mem_events_settled. One descriptor serves the process, as memory has one watcher at
 * most.
 *
 * What may be done with the lock held: look at and change what was allocated before, and the calls
 * below that ask for it. What may not: malloc, free, munmap, or any call that might. They may give
 * back memory that is watched, and then wait for an event that is only read with the lock. Whoever
 * hears an event holds it.
 *
 * Not told, for no kernel does: pages that leave shared memory by its file (ftruncate, or fallocate
 * with PUNCH_HOLE, also from another process), remap_file_pages, and MADV_GUARD_INSTALL. */
#ifndef PC_MEM_EVENTS_H
#define PC_MEM_EVENTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pc_mem_handler {
    /* With the lock. [from, to) may be larger than what was watched. */
    void (*gone)(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to);
    /* With the lock: whether some of [from, to) still must be watched. */
    bool (*wants)(struct pc_mem_handler *listener, uintptr_t from, uintptr_t to);
    /* Without the lock, on a thread for it: what hearing left to do. */
    void (*clean)(struct pc_mem_handler *listener);
    struct pc_mem_handler *next;
    bool cleanup_pending; /* with the lock: clean is to be called */
};

/* Joins those who hear; NULL, or why nothing can be watched here (the listener has joined all the
 * same, and the lock works). The text is valid for ever. */
const char *pc__mem_events_subscribe(struct pc_mem_handler *listener);
/* Leaves: no function of it is called from then on. */
void pc__mem_events_unsubscribe(struct pc_mem_handler *listener);

void pc__mem_events_lock(void);
void pc__mem_events_unlock(void);

/* With the lock, which it may let go in between: whoever changed memory before this call has been
 * heard. False when that cannot be said, for there is no watching, or a change takes long: then
 * what is known of watched memory must not be used for now. */
bool pc__mem_events_settled(void);
/* With the lock: changes of [from, to), whole pages, are told from now on; false if they cannot be,
 * and then nothing must be kept of it. Private and shared anonymous memory, memfd, tmpfs; not other
 * files, devices, SysV shared memory, nor what another userfaultfd has. */
bool pc__mem_events_watch(uintptr_t from, uintptr_t to);
/* With the lock: nobody needs it any more, but those who say so. */
void pc__mem_events_unwatch(uintptr_t from, uintptr_t to);
/* With the lock: see to it that clean is called. */
void pc__mem_events_defer_cleanup(struct pc_mem_handler *listener);

/* Without the lock. Tells all who hear of a change that no kernel tells of; what they kept of these
 * bytes is not found any more. */
void pc__mem_changed(const void *at, size_t nbytes);

/* Differs in the child of a fork, where nothing of before can be used: the child inherits neither
 * the watching nor the threads, and its memory is not what was registered. */
uint32_t pc__mem_events_epoch(void);
/* "", or what keeps this machine from watching, and what mends it. */
const char *pc__mem_events_missing(void);
#endif
