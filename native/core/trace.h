/* The event ring: what a rank notes of each call. A call of few bytes that never waits costs a look
 * at the clock, at its end, and the stores of one line; see trace.c for who reads it. */
#ifndef PC_TRACE_H
#define PC_TRACE_H
#include "core/internal.h"
#include "core/ticks.h"

/* From so many bytes on a call notes when it began; a shorter one when it first waits, as a look at
 * the clock takes longer than what came before. */
#define PC_TRACE_FROM_BYTES 4096u

#define PC_NOTE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

static inline void pc__trace_enter(struct pc_comm *comm, uint64_t sequence, uint64_t signature,
                                   uint64_t nbytes)
{
    struct pc_trace_event *e = &comm->trace->events[sequence % PC_TRACE_EVENTS];
    comm->event = e;
    PC_NOTE(e->sequence, 0); /* who reads meanwhile leaves it out */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    PC_NOTE(e->signature, signature);
    PC_NOTE(e->entered, nbytes < PC_TRACE_FROM_BYTES ? 0 : pc__ticks());
    PC_NOTE(e->finished, 0);
    PC_NOTE(e->waited_ns, 0);
    PC_NOTE(e->place, comm->place);
    comm->place = 0;
    PC_NOTE(e->waits, 0);
    PC_NOTE(e->peer, -1);
    __atomic_store_n(&e->sequence, sequence, __ATOMIC_RELEASE);
}

/* Nothing can be done: a call is late for the first time, or once more. */
static inline void pc__trace_wait(struct pc_comm *comm)
{
    struct pc_trace_event *e = comm->event;
    if (e->entered == 0)
        PC_NOTE(e->entered, pc__ticks());
    PC_NOTE(e->waits, e->waits + 1);
}

void pc__trace_sent(struct pc_comm *comm); /* trace.c */

static inline void pc__trace_leave(struct pc_comm *comm, int code)
{
    struct pc_trace_event *e = comm->event;
    PC_NOTE(e->code, (uint32_t)-code);
    if (pc__has_net(comm))
        pc__trace_sent(comm);
    __atomic_store_n(&e->finished, pc__ticks(), __ATOMIC_RELEASE);
}

/* After a wait that took `ns` for `peer`. */
static inline void pc__trace_waited(struct pc_comm *comm, uint64_t ns, int32_t peer)
{
    struct pc_trace_event *e = comm->event;
    PC_NOTE(e->waited_ns, e->waited_ns + ns);
    PC_NOTE(e->peer, peer);
}
#endif
