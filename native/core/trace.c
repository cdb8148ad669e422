/* Reading the event ring, and what its signatures stand for. The rank's own threads read it, and
 * through its memory whoever watches the job. A writer never waits for a reader: an event that
 * changes meanwhile is left out. */
#include "core/trace.h"
#include <stddef.h>
#include <string.h>

#define MAGIC UINT64_C(0x3165636172744350) /* "PCtrace1" */
#define PROBES 8u

void pc__trace_begin(struct pc_comm *comm)
{
    comm->trace = (struct pc_trace *)(comm->arena + comm->layout.trace);
    comm->event = &comm->trace->events[0];
    comm->trace->magic = MAGIC;
}

/* The label of a signature, or of none (0) the first place that is free for it; NULL: neither. */
static struct pc_trace_label *find(struct pc_trace *trace, uint64_t signature, uint64_t otherwise)
{
    for (uint64_t k = 0; k < PROBES; k++) {
        struct pc_trace_label *label = &trace->labels[(signature + k) % PC_TRACE_LABELS];
        uint64_t there = __atomic_load_n(&label->signature, __ATOMIC_RELAXED);
        if (there == signature || there == otherwise)
            return label;
    }
    return NULL;
}

void pc__trace_count(struct pc_trace *trace, uint64_t signature)
{
    struct pc_trace_label *label = find(trace, signature, signature);
    if (label != NULL)
        PC_NOTE(label->calls, label->calls + 1);
    else /* one thread calls while another has labels give way */
        __atomic_fetch_add(&trace->unlabelled, 1, __ATOMIC_RELAXED);
}

struct pc_trace *pc_comm_trace(struct pc_comm *comm)
{
    return comm->trace;
}

const struct pc_trace *pc_trace_find(const void *arena, size_t nbytes)
{
    const struct pc_arena *a = arena;
    if (nbytes < sizeof *a || a->magic != PC_ARENA_MAGIC || a->version != PC_VERSION)
        return NULL;
    /* Read once: whoever writes there may be anybody, and may change it after it was checked. */
    uint64_t at = __atomic_load_n(&a->trace, __ATOMIC_RELAXED);
    if (at > nbytes || nbytes - at < sizeof(struct pc_trace) || at % sizeof(uint64_t) != 0)
        return NULL;
    const struct pc_trace *trace = (const void *)((const char *)arena + at);
    return trace->magic == MAGIC ? trace : NULL;
}

typedef uint64_t __attribute__((may_alias)) word;
_Static_assert(offsetof(struct pc_trace, events) % PC_LINE_BYTES == 0, "an event is two lines");
_Static_assert(sizeof(struct pc_trace_event) % sizeof(word) == 0
                   && sizeof(struct pc_trace_label) % sizeof(word) == 0
                   && PC_TRACE_TEXT % sizeof(word) == 0,
               "they are read and written by words");

/* Copies what its first word names, and is 0 while it is written; false: it changed meanwhile. */
static bool read_entry(const void *from, void *out, size_t nbytes)
{
    const word *words = from;
    word *copied = out;
    uint64_t name = __atomic_load_n(words, __ATOMIC_ACQUIRE);
    for (size_t i = 0; name != 0 && i < nbytes / sizeof *words; i++)
        copied[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return name != 0 && __atomic_load_n(words, __ATOMIC_RELAXED) == name && copied[0] == name;
}

uint32_t pc_trace_read(const struct pc_trace *trace, struct pc_trace_event *out)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < PC_TRACE_EVENTS; k++)
        n += read_entry(&trace->events[k], &out[n], sizeof *out);
    return n;
}

uint32_t pc_trace_labels(const struct pc_trace *trace, struct pc_trace_label *out)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < PC_TRACE_LABELS; k++)
        n += read_entry(&trace->labels[k], &out[n], sizeof *out);
    return n;
}

static void copy(char *to, const char *text, size_t room)
{
    size_t n = strnlen(text, room - 1);
    memcpy(to, text, n);
    memset(to + n, 0, room - n);
}

void pc_trace_label(struct pc_trace *trace, uint64_t signature, const char *text)
{
    struct pc_trace_label *label = find(trace, signature, signature);
    if (label != NULL)
        return;
    label = find(trace, signature, 0);
    if (label == NULL) { /* the table is crowded there: the kind that was first gives way */
        label = &trace->labels[signature % PC_TRACE_LABELS];
        PC_NOTE(label->signature, 0);
        __atomic_fetch_add(&trace->unlabelled, label->calls, __ATOMIC_RELAXED);
    }
    __atomic_thread_fence(__ATOMIC_RELEASE); /* who reads it meanwhile leaves it out */
    PC_NOTE(label->calls, 0);
    word words[sizeof label->text / sizeof(word)];
    copy((char *)words, text, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        PC_NOTE(((word *)label->text)[i], words[i]);
    __atomic_store_n(&label->signature, signature, __ATOMIC_RELEASE);
}

void pc_trace_about(struct pc_trace *trace, const char *text)
{
    copy(trace->about, text, sizeof trace->about);
}

void pc_trace_clock(uint64_t *ticks, uint64_t *ns)
{
    uint64_t before = pc__ticks();
    *ns = pc__now();
    *ticks = before + (pc__ticks() - before) / 2;
}
