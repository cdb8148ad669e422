/* When calls ran on the GPU: an event before each kernel and one behind it, for the last of them.
 * An event says nothing by itself, but how long it lies before another one; so who asks records one
 * more, on an idle stream, and looks at the host's clock around that. */
#include "gpu/timeline.h"
#include <stdlib.h>
#include <time.h>

#define LAST 128u /* calls */
#define PATIENCE_NS 200000000u

struct pc_timeline {
    uint64_t sequence[LAST]; /* call n's at n mod that many; 0: none */
    uintptr_t begins[LAST], ends[LAST];
    uintptr_t now, stream;
};

int pc_device_comm_time(struct pc_device_comm *dc)
{
    struct pc_timeline *t = dc->timeline;
    if (t != NULL)
        return PC_OK;
    t = dc->timeline = calloc(1, sizeof *t); /* pc__timeline_close frees what there is of it */
    if (t == NULL)
        return PC_NOMEM;
    int rc = pc_cuda_stream(dc->device, 0, dc->error, &t->stream);
    if (rc == PC_OK)
        rc = pc_cuda_event(dc->device, 1, dc->error, &t->now);
    for (uint32_t k = 0; rc == PC_OK && k < LAST; k++) {
        rc = pc_cuda_event(dc->device, 1, dc->error, &t->begins[k]);
        if (rc == PC_OK)
            rc = pc_cuda_event(dc->device, 1, dc->error, &t->ends[k]);
    }
    if (rc != PC_OK)
        pc__timeline_close(dc);
    return rc;
}

void pc__timeline_close(struct pc_device_comm *dc)
{
    struct pc_timeline *t = dc->timeline;
    struct pc_error ignored;
    if (t == NULL)
        return;
    for (uint32_t k = 0; k < LAST; k++) {
        if (t->begins[k] != 0)
            pc_cuda_event_free(dc->device, t->begins[k], &ignored);
        if (t->ends[k] != 0)
            pc_cuda_event_free(dc->device, t->ends[k], &ignored);
    }
    if (t->now != 0)
        pc_cuda_event_free(dc->device, t->now, &ignored);
    if (t->stream != 0)
        pc_cuda_stream_free(dc->device, t->stream, &ignored);
    free(t);
    dc->timeline = NULL;
}

int pc__timeline_begins(struct pc_device_comm *dc, uint64_t sequence, uintptr_t stream)
{
    struct pc_timeline *t = dc->timeline;
    t->sequence[sequence % LAST] = 0;
    return pc_cuda_event_record(dc->device, t->begins[sequence % LAST], stream, dc->error);
}

int pc__timeline_ends(struct pc_device_comm *dc, uint64_t sequence, uintptr_t stream)
{
    struct pc_timeline *t = dc->timeline;
    t->sequence[sequence % LAST] = sequence;
    return pc_cuda_event_record(dc->device, t->ends[sequence % LAST], stream, dc->error);
}

/* Records `now`, and tells the host's time of it; AGAIN: the GPU does not come to it. */
static int mark(struct pc_device_comm *dc, uint64_t *ns)
{
    struct pc_timeline *t = dc->timeline;
    struct pc_error error;
    uint64_t from = pc__now();
    int rc = pc_cuda_event_record(dc->device, t->now, t->stream, &error);
    while (rc == PC_OK) {
        rc = pc_cuda_event_query(dc->device, t->now, &error);
        uint64_t at = pc__now();
        *ns = from + (at - from) / 2;
        if (rc != PC_AGAIN || at - from > PATIENCE_NS)
            return rc;
        const struct timespec nap = {0, 2000};
        nanosleep(&nap, NULL);
        rc = PC_OK;
    }
    return rc;
}

/* How long before `now` an event was; 0: it has not been. */
static uint64_t before(struct pc_device_comm *dc, uintptr_t event)
{
    struct pc_error error;
    double seconds = 0;
    if (pc_cuda_event_query(dc->device, event, &error) != PC_OK
        || pc_cuda_event_seconds(dc->device, event, dc->timeline->now, &error, &seconds) != PC_OK
        || seconds < 0)
        return 0;
    return (uint64_t)(seconds * 1e9) + 1;
}

uint32_t pc_device_comm_times(struct pc_device_comm *dc, struct pc_device_time *out,
                              uint32_t capacity)
{
    struct pc_timeline *t = dc->timeline;
    uint64_t now;
    uint32_t n = 0;
    if (t == NULL || mark(dc, &now) != PC_OK)
        return 0;
    for (uint32_t k = 0; k < LAST && n < capacity; k++) {
        uint64_t began = t->sequence[k] != 0 ? before(dc, t->begins[k]) : 0;
        if (began == 0)
            continue;
        uint64_t ended = before(dc, t->ends[k]);
        out[n++] = (struct pc_device_time){.sequence = t->sequence[k],
                                           .began_ns = now - began,
                                           .ended_ns = ended != 0 ? now - ended : 0};
    }
    return n;
}
