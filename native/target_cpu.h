/* What the CPU target gives the interpreter: counts, and the loop over elements. */
#ifndef PC_TARGET_CPU_H
#define PC_TARGET_CPU_H
#include "internal.h"

static inline uint64_t pc__count(const struct pc_line *line)
{
    return atomic_load_explicit(&line->count, memory_order_acquire) & ~PC_ASLEEP;
}

/* Raises a count. True when its waiter sleeps and must be rung. */
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

static inline void pc__span(const struct pc_plan *plan, void *const dst[], uint32_t ndst,
                            const void *const src[], uint32_t nsrc, uint64_t nbytes,
                            uint32_t flags, uint32_t stream)
{
    uint32_t divisor = flags & PC_FLAG_SCALE ? plan->divisor : 0;
    plan->fold(dst, ndst, src, nsrc, nbytes >> plan->itemsize_log2, divisor, stream);
}
#endif
