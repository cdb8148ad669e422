/* CPU primitives: counts that wake a sleeper, and polling. */
#ifndef PC_TARGET_CPU_H
#define PC_TARGET_CPU_H
#include "core/internal.h"
#include "core/ticks.h"

static inline uint64_t pc__count(const struct pc_line *line)
{
    return atomic_load_explicit(&line->count, memory_order_acquire) & ~PC_ASLEEP;
}

/* Raises a count. True when its waiter sleeps and must be woken. */
static inline bool pc__raise(struct pc_line *line, uint64_t count)
{
    return atomic_exchange_explicit(&line->count, count, memory_order_acq_rel) & PC_ASLEEP;
}

static inline void pc__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Called between two polls: whether this rank has polled long enough. */
static inline bool pc__spun(struct pc_comm *comm, struct pc_spin *spin)
{
    if (comm->polls_per_yield != 0)
        return pc__yielded_out(comm, spin);
    pc__relax();
    return spin->polls++ % PC_POLLS_PER_CLOCK == 0 && pc__spun_out(comm, spin);
}

#endif
