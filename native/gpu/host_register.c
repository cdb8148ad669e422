/* Registers the host memory that kernels touch (cuMemHostRegister): the control block, and in
 * arenas and shadows the edges of peers whose GPU memory is not reached. Registering pins memory,
 * so no more than that. */
#include <stdlib.h>
#include <string.h>
#include "gpu/device_comm.h"

static int add(struct pc_device_comm *dc, const void *from, size_t nbytes)
{
    struct pc_host_range *spans = realloc(dc->spans, (dc->nspans + 1) * sizeof *spans);
    if (spans == NULL)
        return pc__fail(dc->error, PC_NOMEM, -1, "no memory for a device communicator");
    uintptr_t at = (uintptr_t)from & ~((uintptr_t)PC_PAGE - 1), end = (uintptr_t)from + nbytes;
    dc->spans = spans;
    spans[dc->nspans++]
        = (struct pc_host_range){.host = (char *)at, .nbytes = pc__page_up(end - at)};
    return PC_OK;
}

/* Adds the lines of a record, its credit lines where the kernel uses them, and its slots where
 * those of `other` are not in memory of the GPU. */
static int add_record(struct pc_device_comm *dc, char *record, uint32_t peer, uint32_t other,
                      bool credit)
{
    const struct pc_layout *l = &dc->comm->layout;
    int rc = add(dc, pc__slot_lines(record, peer, 0),
                 (size_t)PC_MAX_CHANNELS * PC_LINES * PC_LINE_BYTES);
    if (rc == PC_OK && pc__gpudirect_data(dc, other, 0, true) == 0)
        rc = add(dc, pc__slot_data(record, l, 0), PC_MAX_CHANNELS * l->channel);
    if (rc == PC_OK && credit)
        rc = add(dc, pc__credit_line(record, peer, 0), PC_MAX_CHANNELS * PC_LINE_BYTES);
    return rc;
}

/* Adds what kernels write for `peer`, in its arena or shadow. */
static int add_theirs(struct pc_device_comm *dc, uint32_t peer)
{
    /* To a remote peer the proxy sends the credit. */
    return add_record(dc, dc->comm->peers[peer].record, dc->comm->options.rank, peer,
                      dc->peers[peer].route != PC_ROUTE_NET);
}

/* Adds what `peer` writes for this rank's kernels, in this rank's arena. */
static int add_mine(struct pc_device_comm *dc, uint32_t peer)
{
    char *record = pc__record(dc->comm->arena, &dc->comm->layout, peer);
    return add_record(dc, record, peer, peer, true);
}

static int by_address(const void *a, const void *b)
{
    const struct pc_host_range *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

/* Merges spans that share a page, as the driver registers no page twice. */
static void merge(struct pc_device_comm *dc)
{
    struct pc_host_range *spans = dc->spans;
    uint32_t n = 0;
    if (dc->nspans == 0)
        return;
    qsort(spans, dc->nspans, sizeof *spans, by_address);
    for (uint32_t i = 1; i < dc->nspans; i++) {
        char *end = spans[n].host + spans[n].nbytes, *other = spans[i].host + spans[i].nbytes;
        if (spans[i].host >= end)
            spans[++n] = spans[i];
        else if (other > end)
            spans[n].nbytes = (size_t)(other - spans[n].host);
    }
    dc->nspans = n + 1;
}

int pc__host_register_open(struct pc_device_comm *dc)
{
    int rc = PC_OK;
    for (uint32_t p = 0; p < dc->comm->options.size && rc == PC_OK; p++)
        if (dc->peers[p].route == PC_ROUTE_SHM || dc->peers[p].route == PC_ROUTE_NET) {
            rc = add_theirs(dc, p);
            if (rc == PC_OK)
                rc = add_mine(dc, p);
        }
    if (rc != PC_OK)
        return rc;
    merge(dc);
    for (uint32_t i = 0; i < dc->nspans; i++) {
        struct pc_host_range *span = &dc->spans[i];
        rc = pc_cuda_host_register(dc->device, span->host, span->nbytes, dc->error, &span->device);
        if (rc != PC_OK) {
            dc->nspans = i;
            return rc;
        }
    }
    return PC_OK;
}

void pc__host_register_close(struct pc_device_comm *dc)
{
    struct pc_error ignored;
    for (uint32_t i = 0; i < dc->nspans; i++)
        pc_cuda_host_unregister(dc->device, dc->spans[i].host, &ignored);
    free(dc->spans);
    dc->spans = NULL;
    dc->nspans = 0;
}

uint64_t pc__host_register_address(const struct pc_device_comm *dc, const void *at)
{
    for (uint32_t i = 0; i < dc->nspans; i++) {
        const struct pc_host_range *span = &dc->spans[i];
        if ((const char *)at >= span->host && (const char *)at < span->host + span->nbytes)
            return span->device + (uint64_t)((const char *)at - span->host);
    }
    return 0;
}
