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

/* What a remote peer is to get: a message that lies in its shadow, the news of one consumed. */
static inline int pc__put_message(struct pc_call *call, struct pc_fifo *f, const char *data,
                                  uint64_t nbytes)
{
    return call->comm->remote->message(call->comm->wire, f, data, nbytes, &call->error);
}

static inline void pc__put_credit(struct pc_call *call, struct pc_fifo *f, uint64_t received)
{
    call->comm->remote->credit(call->comm->wire, f, received);
}

static inline void pc__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint64_t pc__ticks(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return pc__now();
#endif
}

/* A slot's lines lie in its reader's cache. Between cores that share one, storing through the
 * cache is best; between others each line must first be taken back, and storing past the cache is
 * several times faster, though the reader then pays more. Which of the two holds depends on where
 * the ranks run, and that changes: so each instruction that fills a slot times both forms on two
 * of every PC_PROBE_PERIOD large fills, and goes by the times in between. */
#define PC_PROBE_PERIOD 64u
#define PC_PROBE_BYTES (16u << 10)

enum pc_form { PC_FORM_CACHED, PC_FORM_STREAMED, PC_FORM_UNTIMED };

static inline enum pc_form pc__probe_begin(struct pc_probe *probe, uint64_t nbytes, bool *stream,
                                           uint64_t *ticks)
{
    *stream = false;
    if (probe == NULL || nbytes < PC_PROBE_BYTES)
        return PC_FORM_UNTIMED;
    uint32_t turn = probe->turn++ % PC_PROBE_PERIOD;
    *stream = turn < PC_FORM_UNTIMED ? turn == PC_FORM_STREAMED : probe->stream;
    if (turn >= PC_FORM_UNTIMED)
        return PC_FORM_UNTIMED;
    *ticks = pc__ticks();
    return (enum pc_form)turn;
}

static inline void pc__probe_end(struct pc_probe *probe, enum pc_form form, uint64_t nbytes,
                                 uint64_t ticks)
{
    if (form == PC_FORM_UNTIMED)
        return;
    probe->cost[form] = (pc__ticks() - ticks) * 1024 / nbytes;
    if (form == PC_FORM_STREAMED) /* twice: the reader's share of the bill */
        probe->stream = probe->cost[PC_FORM_CACHED] > 2 * probe->cost[PC_FORM_STREAMED];
}

static inline void pc__span(const struct pc_plan *plan, void *const dst[], uint32_t ndst,
                            const void *const src[], uint32_t nsrc, uint64_t nbytes, uint32_t flags,
                            uint32_t stream)
{
    uint32_t divisor = flags & PC_FLAG_SCALE ? plan->divisor : 0;
    plan->fold(dst, ndst, src, nsrc, nbytes >> plan->itemsize_log2, divisor, stream);
}
#endif
