/* GPUDirect RDMA: data of remote edges in memory of a GPU, and the flush that makes it visible.
 *
 * A completion says that a write has left the NIC for the GPU. It goes to memory of the host, by
 * another way, and may overtake the write. So a message that came into memory of a GPU is counted
 * only after a flush that began when its completion had been polled (see memory/mem_type.h): none,
 * a call of the driver, or an RDMA read of that memory by the same NIC, which pushes the NIC's
 * writes before it. One flush serves all that came before it, and a read never blocks: what comes
 * while it is in flight waits for the next. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memory/mem_type.h"

#define PC_FLUSH_PAUSE_NS UINT64_C(10000000) /* after a failed one */
#define PC_FLUSH_PATIENCE_NS UINT64_C(20000000000)

/* Registers what a flush reads, with every rail or with none. */
static int register_read(struct pc_verbs_net *w, struct pc_error *error)
{
    const struct pc_net_gpu *gpu = &w->base.gpu;
    struct pc_mr_domains domains = {.n = w->nrails, .access = IBV_ACCESS_REMOTE_READ};
    struct pc_mem_span span = {.from = gpu->at, .to = gpu->at + PC_PAGE, .device = gpu->device};
    struct pc_mr made = {0};
    for (uint32_t i = 0; i < w->nrails; i++)
        domains.domains[i] = w->rails[i].pd;
    int rc = pc__mr_gpu(&domains, &span, gpu->ways, error, &made);
    for (uint32_t i = 0; i < w->nrails && rc == PC_OK; i++)
        w->gpu[i].memory = made.with[i];
    w->base.state.regions += rc == PC_OK ? w->nrails : 0;
    return rc;
}

/* Makes the queue pair by which a rail reads: it is connected to itself. */
static int make_pair(struct pc_verbs_net *w, uint32_t rail, struct pc_error *error)
{
    struct pc_gpu_rail *g = &w->gpu[rail];
    struct pc_qp_info self;
    int rc = pc__qp_create(&w->rails[rail], w->rails[rail].pd, NULL, PC_FLUSH_WRS, 1, error, &g->qp,
                           &self);
    if (rc != PC_OK) {
        g->qp = NULL;
        return rc;
    }
    g->turn++;
    rc = pc__qp_connect(&w->rails[rail], g->qp, &self, &self, error);
    if (rc != PC_OK) {
        pc__ib.destroy_qp(g->qp);
        g->qp = NULL;
        return rc;
    }
    w->base.state.queue_pairs++;
    return PC_OK;
}

/* Whether a queue pair could not be made because the port is down, or was a moment ago; the
 * addresses of an Ethernet port come and go with its interface. */
static bool is_down(const struct pc_ib_device *rail, const struct pc_error *error)
{
    return error->errnum == ENETDOWN || error->errnum == EADDRNOTAVAIL
           || !pc__ib_device_active(rail);
}

static int open_rail(struct pc_verbs_net *w, uint32_t rail, struct pc_error *error)
{
    struct pc_gpu_rail *g = &w->gpu[rail];
    g->word = aligned_alloc(PC_PAGE, PC_PAGE);
    if (g->word == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory to flush a GPU's");
    g->into = pc__mr_register(w->rails[rail].pd, g->word, PC_PAGE, IBV_ACCESS_LOCAL_WRITE);
    if (g->into == NULL)
        return pc__ib_device_refused(&w->rails[rail], "ibv_reg_mr", PC_PAGE, error);
    w->base.state.regions++;
    int rc = make_pair(w, rail, error);
    /* Nothing comes by a port that is down. Once something has, `begin_read` makes the pair; to
     * stage for this would be for good. */
    return rc != PC_OK && is_down(&w->rails[rail], error) ? PC_OK : rc;
}

int pc__verbs_register_gpu(struct pc_net *net, struct pc_error *error)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    struct pc_mem_gpu gpu;
    int rc = pc__mem_query_gpu(net->gpu.device, error, &gpu);
    if (rc == PC_OK) /* where strict ordering saves the flush, it is the better one */
        net->state.gpu_flush = pc__mem_flush_method(&gpu, false);
    if (rc == PC_OK && net->state.gpu_flush == PC_FLUSH_READ) {
        rc = register_read(w, error);
        for (uint32_t i = 0; i < w->nrails && rc == PC_OK; i++)
            rc = open_rail(w, i, error);
    }
    if (rc == PC_OK) /* last: without a flush no peer's could be used */
        rc = pc__net_register_gpu(net, pc__verbs_register_slots, error);
    if (rc == PC_OK)
        return PC_OK;
    pc__verbs_unregister_gpu(w);
    error->code = PC_UNMAPPABLE; /* whatever it is, the memory can be staged */
    return PC_UNMAPPABLE;
}

static void end_read(struct pc_verbs_net *w, struct pc_gpu_rail *g)
{
    w->base.in_flight -= g->covered != 0;
    w->reads -= g->covered != 0;
    g->covered = 0;
}

static void drop_pair(struct pc_verbs_net *w, struct pc_gpu_rail *g)
{
    end_read(w, g);
    if (g->qp == NULL)
        return;
    pc__ib.destroy_qp(g->qp);
    g->qp = NULL;
    w->base.state.queue_pairs--;
}

void pc__verbs_unregister_gpu(struct pc_verbs_net *w)
{
    for (uint32_t i = 0; i < w->nrails; i++) {
        struct pc_gpu_rail *g = &w->gpu[i];
        drop_pair(w, g);
        w->base.state.regions -= (g->into != NULL) + (g->memory != NULL);
        if (g->into != NULL)
            pc__ib.dereg_mr(g->into);
        if (g->memory != NULL)
            pc__ib.dereg_mr(g->memory);
        free(g->word);
        free(g->arrived);
        *g = (struct pc_gpu_rail){0};
    }
    w->base.state.gpu_memory = 0;
    w->base.state.gpu_flush = PC_FLUSH_NONE;
}

int pc__gpu_arrived(struct pc_verbs_net *w, uint32_t rail, struct pc_net_edge *edge,
                    const struct pc_event *event)
{
    struct pc_gpu_rail *g = &w->gpu[rail];
    if (g->narrived == g->room) {
        uint32_t room = g->room == 0 ? PC_LINES : 2 * g->room;
        struct pc_arrival *more = realloc(g->arrived, room * sizeof *more);
        if (more == NULL)
            return PC_NOMEM;
        g->arrived = more;
        g->room = room;
    }
    g->arrived[g->narrived++] = (struct pc_arrival){
        .edge = edge, .line = event->line, .frag = event->frag, .frags = event->frags};
    return PC_OK;
}

/* Counts the first `n` that came: kernels can see them. */
static bool release(struct pc_verbs_net *w, struct pc_gpu_rail *g, uint32_t n)
{
    bool came = false;
    for (uint32_t k = 0; k < n; k++) {
        const struct pc_arrival *a = &g->arrived[k];
        w->base.state.gpu_flushed++;
        came = pc__edge_frag(a->edge, a->line, a->frag, a->frags) || came;
    }
    if (n == 0)
        return false; /* and maybe no row */
    memmove(g->arrived, g->arrived + n, (g->narrived - n) * sizeof *g->arrived);
    g->narrived -= n;
    return came;
}

/* What came by this rail will not be seen: those who sent it are lost. */
static void give_up(struct pc_verbs_net *w, struct pc_gpu_rail *g, const char *what)
{
    char why[256];
    snprintf(why, sizeof why, "what %.60s wrote into memory of GPU %d cannot be flushed: %.130s",
             w->rails[g - w->gpu].spec.device, w->base.gpu.device, what);
    while (g->narrived > 0)
        pc__verbs_peer_give_up(w, (struct pc_verbs_peer *)g->arrived[--g->narrived].edge->peer,
                               why);
}

/* A read failed, as its port may be down; it is tried again for as long as a peer may be without a
 * connection. Nobody else can say that what came is visible, and nobody would send it again. */
static void failed(struct pc_verbs_net *w, struct pc_gpu_rail *g, const char *why)
{
    uint64_t now = pc__now();
    drop_pair(w, g);
    g->attempt = now + PC_FLUSH_PAUSE_NS;
    pc__net_schedule(&w->base, g->attempt);
    if (g->failing == 0)
        g->failing = now;
    if (now - g->failing >= PC_FLUSH_PATIENCE_NS)
        give_up(w, g, why);
}

/* Reads the memory, which what the rail has written so far comes before. */
static void begin_read(struct pc_verbs_net *w, uint32_t rail)
{
    struct pc_gpu_rail *g = &w->gpu[rail];
    struct pc_error error;
    if (g->attempt != 0 && pc__now() < g->attempt)
        return;
    g->attempt = 0;
    if (g->qp == NULL && make_pair(w, rail, &error) != PC_OK) {
        failed(w, g, error.text);
        return;
    }
    struct ibv_sge span
        = {.addr = (uintptr_t)g->word, .length = sizeof *g->word, .lkey = g->into->lkey};
    struct ibv_send_wr *bad,
        request = {.wr_id = (uint64_t)g->turn << 20 | PC_EVENT_FLUSHED,
                   .opcode = IBV_WR_RDMA_READ,
                   .send_flags = IBV_SEND_SIGNALED,
                   .sg_list = &span,
                   .num_sge = 1,
                   .wr.rdma = {.remote_addr = w->base.gpu.at, .rkey = g->memory->rkey}};
    int errnum = ibv_post_send(g->qp, &request, &bad);
    if (errnum != 0) {
        failed(w, g, strerror(errnum));
        return;
    }
    g->covered = g->narrived;
    g->since = pc__now();
    w->base.in_flight++;
    w->reads++;
    w->base.state.gpu_flushes++;
}

bool pc__gpu_flushed(struct pc_verbs_net *w, uint32_t rail, const struct pc_event *event)
{
    struct pc_gpu_rail *g = &w->gpu[rail];
    uint32_t covered = g->covered;
    if (event->turn != g->turn || g->qp == NULL)
        return false; /* its queue pair is gone */
    if (event->status != IBV_WC_SUCCESS) {
        failed(w, g, pc__ib.wc_status_str(event->status));
        return false;
    }
    end_read(w, g);
    g->failing = 0;
    return release(w, g, covered);
}

static bool flush_by_driver(struct pc_verbs_net *w)
{
    struct pc_error error;
    uint32_t n = 0;
    bool came = false;
    for (uint32_t i = 0; i < w->nrails; i++)
        n += w->gpu[i].narrived;
    if (n == 0)
        return false;
    int rc = pc__mem_flush_by_driver(w->base.gpu.device, &error);
    w->base.state.gpu_flushes++;
    for (uint32_t i = 0; i < w->nrails; i++) {
        if (rc == PC_OK)
            came = release(w, &w->gpu[i], w->gpu[i].narrived) || came;
        else
            give_up(w, &w->gpu[i], error.text);
    }
    return came;
}

bool pc__gpu_flush(struct pc_verbs_net *w)
{
    if (w->base.state.gpu_flush == PC_FLUSH_DRIVER)
        return flush_by_driver(w);
    for (uint32_t i = 0; i < w->nrails; i++)
        if (w->gpu[i].narrived != 0 && w->gpu[i].covered == 0)
            begin_read(w, i);
    return false;
}

void pc__gpu_check(struct pc_verbs_net *w, uint64_t patience)
{
    char why[64];
    for (uint32_t i = 0; i < w->nrails; i++) {
        struct pc_gpu_rail *g = &w->gpu[i];
        if (g->attempt != 0)
            pc__net_schedule(&w->base, g->attempt);
        if (g->covered == 0 || pc__now() - g->since < patience)
            continue;
        snprintf(why, sizeof why, "an RDMA read did not end within %.1f s",
                 (double)(pc__now() - g->since) * 1e-9);
        failed(w, g, why);
    }
}

void pc__gpu_received(const struct pc_verbs_peer *peer, struct pc_wireup_received *out)
{
    const struct pc_verbs_net *w = (const struct pc_verbs_net *)peer->base.net;
    for (uint32_t i = 0; i < w->nrails; i++)
        for (uint32_t k = 0; k < w->gpu[i].narrived; k++) {
            const struct pc_arrival *a = &w->gpu[i].arrived[k];
            uint32_t at = a->edge->fifo->channel * PC_LINES + a->line;
            if (a->edge->peer != &peer->base)
                continue;
            out->frags[at] |= (uint8_t)(1u << a->frag);
            if (out->frags[at] != (1u << a->frags) - 1)
                continue;
            out->frags[at] = 0;
            out->counts[at] += out->counts[at] == 0 ? a->line + 1u : PC_LINES;
        }
}
#endif
