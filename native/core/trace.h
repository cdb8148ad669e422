/* The event ring: what a rank notes of each call. A call of few bytes that never waits costs a look
 * at the clock, at its end, and the stores of one line; see trace.c for who reads it. */
#ifndef PC_TRACE_H
#define PC_TRACE_H
#include "core/internal.h"
#include "core/ticks.h"

/* From so many bytes on a call notes when it began; a shorter one when it first waits, as a look at
 * the clock takes longer than what came before. */
#define PC_TRACE_FROM_BYTES 4096u

/* Without it a build keeps no events: bench/trace_cost.py holds the one against the other. */
#ifdef PC_NO_TRACE
#define PC_TRACED 0
#else
#define PC_TRACED 1
#endif

#define PC_NOTE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* trace.c */
void pc__trace_begin(struct pc_comm *comm); /* in the new arena */
void pc__trace_count(struct pc_trace *trace, uint64_t signature);

static inline void pc__trace_enter(struct pc_comm *comm, uint64_t sequence, uint64_t signature,
                                   uint64_t nbytes)
{
    if (!PC_TRACED)
        return;
    struct pc_trace_event *e = &comm->trace->events[sequence % PC_TRACE_EVENTS];
    struct pc_trace_label *label = &comm->trace->labels[signature % PC_TRACE_LABELS];
    comm->event = e;
    /* Most are at their first place. */
    if (__atomic_load_n(&label->signature, __ATOMIC_RELAXED) == signature)
        PC_NOTE(label->calls, label->calls + 1);
    else
        pc__trace_count(comm->trace, signature);
    PC_NOTE(e->sequence, 0); /* who reads meanwhile leaves it out */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    PC_NOTE(e->signature, signature);
    PC_NOTE(e->entered, nbytes < PC_TRACE_FROM_BYTES ? 0 : pc__ticks());
    PC_NOTE(e->finished, 0);
    PC_NOTE(e->waited_ns, 0);
    PC_NOTE(e->place, atomic_load_explicit(&comm->place, memory_order_relaxed));
    PC_NOTE(e->waits, 0);
    PC_NOTE(e->peer, -1);
    PC_NOTE(e->longest, 0);
    __atomic_store_n(&e->sequence, sequence, __ATOMIC_RELEASE);
}

/* Nothing can be done: a call is late for the first time, or once more. */
static inline void pc__trace_wait(struct pc_comm *comm)
{
    if (!PC_TRACED)
        return;
    struct pc_trace_event *e = comm->event;
    if (e->entered == 0)
        PC_NOTE(e->entered, pc__ticks());
    PC_NOTE(e->waits, e->waits + 1);
    PC_NOTE(comm->trace->waits, comm->trace->waits + 1);
}

/* A call of the queue has begun, which came in from Python earlier than the last one. */
static inline void pc__trace_queued(struct pc_comm *comm, const struct pc_work *work)
{
    if (PC_TRACED)
        PC_NOTE(comm->event->place, work->place);
}

static inline void pc__trace_leave(struct pc_comm *comm, int code)
{
    if (!PC_TRACED)
        return;
    struct pc_trace_event *e = comm->event;
    PC_NOTE(e->code, (uint32_t)-code);
    if (pc__has_net(comm))
        pc__net_sent(comm->net, e->bytes);
    __atomic_store_n(&e->finished, pc__ticks(), __ATOMIC_RELEASE);
}

/* After a wait that took `ns` for `peer`. */
static inline void pc__trace_waited(struct pc_comm *comm, uint64_t ns, int32_t peer)
{
    if (!PC_TRACED)
        return;
    struct pc_trace_event *e = comm->event;
    uint32_t us = ns < UINT64_C(1000) * UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
    PC_NOTE(e->waited_ns, e->waited_ns + ns);
    PC_NOTE(comm->trace->waited_ns, comm->trace->waited_ns + ns);
    if (peer >= 0 && us >= e->longest) {
        PC_NOTE(e->peer, peer);
        PC_NOTE(e->longest, us);
    }
}
#endif
