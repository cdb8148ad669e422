/* How a slot is filled: through the cache, or past it by non-temporal stores. */
#ifndef PC_PROBE_H
#define PC_PROBE_H
#include "core/target_cpu.h"

/* A slot's lines lie in its reader's cache. Between cores that share one, storing through the
 * cache is best; between others each line must first be taken back, and storing past the cache is
 * several times faster, though the reader then pays more. Which of the two holds depends on where
 * the ranks run, and that changes: so whoever fills slots (an instruction of a Program, an edge
 * queue of transfers) times both forms on two of every PC_PROBE_PERIOD large fills, and goes by the
 * times in between. */
#define PC_PROBE_PERIOD 64u
#define PC_PROBE_BYTES (16u << 10)

struct pc_probe {
    uint32_t turn;
    bool stream;      /* the present choice: non-temporal stores */
    uint64_t cost[2]; /* clock ticks per KiB: cached, non-temporal */
};

enum pc_form { PC_FORM_CACHED, PC_FORM_STREAMED, PC_FORM_UNTIMED };

static inline enum pc_form pc__probe_begin(struct pc_probe *probe, uint64_t nbytes, bool *stream,
                                           uint64_t *ticks)
{
    *stream = false;
    if (probe == NULL || nbytes < PC_PROBE_BYTES)
        return PC_FORM_UNTIMED;
    uint32_t turn = probe->turn++ % PC_PROBE_PERIOD - 1; /* the first fill may touch new pages */
    *stream = turn < PC_FORM_UNTIMED ? turn == PC_FORM_STREAMED : probe->stream;
    if (turn >= PC_FORM_UNTIMED)
        return PC_FORM_UNTIMED;
    *ticks = pc__ticks();
    return (enum pc_form)turn;
}

/* Takes in what a fill has cost, in ticks per KiB: the choice follows from the costs alone. */
static inline void pc__probe_learn(struct pc_probe *probe, enum pc_form form, uint64_t cost)
{
    uint64_t last = probe->cost[form];
    /* Something else may have run within it: a step up is believed in several times. */
    probe->cost[form] = last != 0 && cost > last + last / 2 ? last + last / 2 + 1 : cost;
    if (form == PC_FORM_STREAMED) /* twice: the reader's cost */
        probe->stream = probe->cost[PC_FORM_CACHED] > 2 * probe->cost[PC_FORM_STREAMED];
}

static inline void pc__probe_end(struct pc_probe *probe, enum pc_form form, uint64_t nbytes,
                                 uint64_t ticks)
{
    if (form != PC_FORM_UNTIMED)
        pc__probe_learn(probe, form, (pc__ticks() - ticks) * 1024 / nbytes);
}

/* Copies into a slot, in the form that the probe says. */
static inline void pc__fill_slot(struct pc_probe *probe, void *slot, const void *from,
                                 uint64_t nbytes)
{
    bool stream;
    uint64_t ticks;
    enum pc_form form = pc__probe_begin(probe, nbytes, &stream, &ticks);
    if (stream)
        pc__copy_streamed(slot, from, nbytes);
    else
        pc__copy(slot, from, nbytes);
    pc__probe_end(probe, form, nbytes, ticks);
}
#endif
