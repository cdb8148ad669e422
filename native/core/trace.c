/* Reading the event ring, and what its signatures stand for. The rank's own threads read it, and
 * through its memory whoever watches the job. A writer never waits for a reader: an event that
 * changes meanwhile is left out. */
#include <string.h>
#include "core/trace.h"

void pc__trace_sent(struct pc_comm *comm)
{
    for (uint32_t rail = 0; rail < PC_MAX_RAILS; rail++)
        PC_NOTE(comm->event->bytes[rail], comm->net->state.bytes[rail]);
}

static bool read_event(const struct pc_trace_event *from, uint64_t sequence,
                       struct pc_trace_event *out)
{
    if (__atomic_load_n(&from->sequence, __ATOMIC_ACQUIRE) != sequence)
        return false;
    memcpy(out, from, sizeof *out);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&from->sequence, __ATOMIC_RELAXED) == sequence
           && out->sequence == sequence;
}

uint32_t pc_trace_read(struct pc_comm *comm, struct pc_trace_event *out)
{
    const struct pc_arena *a = (const struct pc_arena *)comm->arena;
    uint64_t last = atomic_load_explicit(&a->sequence, memory_order_acquire);
    uint64_t first = last >= PC_TRACE_EVENTS ? last - PC_TRACE_EVENTS + 1 : 1;
    uint32_t n = 0;
    for (uint64_t sequence = first; sequence <= last; sequence++)
        n += read_event(&comm->trace->events[sequence % PC_TRACE_EVENTS], sequence, &out[n]);
    return n;
}

int pc_trace_label(struct pc_comm *comm, uint64_t signature, const char *text)
{
    struct pc_trace *t = comm->trace;
    uint32_t n = atomic_load_explicit(&t->nlabels, memory_order_relaxed);
    struct pc_trace_label *label = &t->labels[n % PC_TRACE_LABELS];
    if (strlen(text) >= PC_TRACE_TEXT)
        return PC_INVALID;
    for (uint32_t k = 0; k < n && k < PC_TRACE_LABELS; k++)
        if (t->labels[k].signature == signature)
            return PC_OK;
    label->signature = 0;
    strcpy(label->text, text);
    __atomic_store_n(&label->signature, signature, __ATOMIC_RELEASE);
    atomic_store_explicit(&t->nlabels, n + 1, memory_order_release);
    return PC_OK;
}

uint32_t pc_trace_labels(struct pc_comm *comm, struct pc_trace_label *out)
{
    const struct pc_trace *t = comm->trace;
    uint32_t n = atomic_load_explicit(&t->nlabels, memory_order_acquire);
    n = n < PC_TRACE_LABELS ? n : PC_TRACE_LABELS;
    memcpy(out, t->labels, n * sizeof *out);
    return n;
}

void pc_trace_clock(uint64_t *ticks, uint64_t *ns)
{
    uint64_t before = pc__ticks();
    *ns = pc__now();
    *ticks = before + (pc__ticks() - before) / 2;
}
