/* The receives that connections of a rail share: one queue, in place of one in each queue pair.
 *
 * A connection's own receives outnumber all that its peer can have in flight. Among hundreds of
 * peers that is memory for what never comes at once, so those after the first few take from one
 * queue, which can run empty. A sender that meets it empty is told so (RNR NAK) and tries again
 * until a receive is there: its messages wait, and none is lost. So that it does not wait for a
 * rank that computes, the device tells when half of the receives are consumed, and the event thread
 * posts them again.
 *
 * A receive names no connection; the number of the queue pair that consumed it does. Numbers of
 * destroyed queue pairs come back late, after what they consumed was polled. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct pc_verbs_connection **owner_of(const struct pc_srq *srq, uint32_t qpn)
{
    struct pc_verbs_connection **lower = srq->owners[qpn >> PC_QPN_HALF & ((1 << PC_QPN_HALF) - 1)];
    return lower == NULL ? NULL : &lower[qpn & ((1 << PC_QPN_HALF) - 1)];
}

/* Posts at most `n` receives. ENOMEM: the queue is full, which is as good. Some versions of the
 * provider of Soft-RoCE return the negative number. */
static int post(struct pc_srq *srq, uint32_t n)
{
    struct ibv_recv_wr requests[PC_REPOST_BATCH], *bad;
    int error = 0;
    for (uint32_t posted = 0; posted < n && error == 0; posted += PC_REPOST_BATCH) {
        uint32_t k = n - posted < PC_REPOST_BATCH ? n - posted : PC_REPOST_BATCH;
        for (uint32_t i = 0; i < k; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = PC_EVENT_SHARED,
                                               .next = i + 1 < k ? &requests[i + 1] : NULL};
        error = ibv_post_srq_recv(srq->queue, requests, &bad);
    }
    return abs(error) == ENOMEM ? 0 : abs(error);
}

static int arm(const struct pc_srq *srq)
{
    struct ibv_srq_attr attr = {.srq_limit = (srq->max_wr + 1) / 2};
    return pc__ib.modify_srq(srq->queue, &attr, IBV_SRQ_LIMIT);
}

/* Whether a queue pair of a peer can take from the queue, which is of another protection domain:
 * the receives have no memory, so that no key is looked up in it. */
static int try_pair(struct pc_ib_device *rail, struct ibv_srq *queue, struct pc_error *error)
{
    struct ibv_pd *pd = pc__ib_device_pd(rail, error);
    if (pd == NULL)
        return error->code;
    struct ibv_qp *qp = pc__ib_device_create_qp(rail, pd, queue, 1, 0, PC_MIN_INLINE);
    int rc = qp != NULL ? PC_OK
                        : pc__ib_device_refused(rail, "ibv_create_qp with a shared receive queue",
                                                0, error);
    if (qp != NULL)
        pc__ib.destroy_qp(qp);
    pc__ib.dealloc_pd(pd);
    return rc;
}

/* Receives that the queue is to hold: its completions shall take a quarter of the completion queue
 * that the device has, at most. */
static uint32_t wanted(const struct pc_ib_device *rail)
{
    uint32_t most = rail->max_cqe / 8;
    if (most > rail->max_shared)
        most = rail->max_shared;
    return most < PC_SRQ_WRS ? most : PC_SRQ_WRS;
}

/* Creates the queue itself and posts all receives. */
static int create(struct pc_ib_device *rail, struct pc_srq *srq, struct pc_error *error)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = wanted(rail), .max_sge = 1}};
    if (attr.attr.max_wr < 2 * PC_REPOST_BATCH)
        return pc__fail(error, PC_SYSTEM, -1,
                        "%s has no shared receive queue of %u work requests: its max_srq_wr is %u",
                        rail->spec.device, 2 * PC_REPOST_BATCH, rail->max_shared);
    srq->queue = pc__ib.create_srq(rail->pd, &attr);
    if (srq->queue == NULL)
        return pc__ib_device_fail(rail, errno, "ibv_create_srq", rail->max_shared, error);
    srq->max_wr = attr.attr.max_wr;
    srq->spent = 0;
    srq->unsure = false;
    int rc = try_pair(rail, srq->queue, error), errnum;
    if (rc == PC_OK && (errnum = post(srq, srq->max_wr)) != 0)
        rc = pc__ib_device_fail(rail, errnum, "ibv_post_srq_recv", 0, error);
    if (rc == PC_OK && (errnum = arm(srq)) != 0)
        rc = pc__ib_device_fail(rail, errnum, "ibv_modify_srq", 0, error);
    if (rc != PC_OK) {
        pc__ib.destroy_srq(srq->queue);
        srq->queue = NULL;
    }
    srq->failed = rc != PC_OK;
    return rc;
}

bool pc__srq_open(struct pc_verbs_net *w, uint32_t rail)
{
    struct pc_error error = {.text = "no memory"};
    if (w->srqs[rail] != NULL)
        return true;
    if (w->base.state.unshared[0] != 0)
        return false; /* it is not tried again for each connection */
    struct pc_srq *srq = calloc(1, sizeof *srq);
    if (srq != NULL && create(&w->rails[rail], srq, &error) == PC_OK) {
        w->srqs[rail] = srq;
        return true;
    }
    free(srq);
    memcpy(w->base.state.unshared, error.text, sizeof w->base.state.unshared - 1);
    return false;
}

void pc__srq_close(struct pc_verbs_net *w, uint32_t rail)
{
    struct pc_srq *srq = w->srqs[rail];
    if (srq == NULL)
        return;
    if (srq->queue != NULL)
        pc__ib.destroy_srq(srq->queue);
    for (uint32_t i = 0; i < 1 << PC_QPN_HALF; i++)
        free(srq->owners[i]);
    free(srq);
    w->srqs[rail] = NULL;
}

int pc__srq_usable(struct pc_verbs_net *w, uint32_t rail, struct pc_error *error)
{
    struct pc_srq *srq = w->srqs[rail];
    if (srq->failed && srq->pairs == 0) {
        if (srq->queue != NULL)
            pc__ib.destroy_srq(srq->queue);
        srq->queue = NULL;
        return create(&w->rails[rail], srq, error);
    }
    return srq->failed ? pc__fail(error, PC_SYSTEM, -1, "its shared receive queue has failed")
                       : PC_OK;
}

int pc__srq_add(struct pc_verbs_net *w, struct pc_verbs_connection *conn, struct pc_error *error)
{
    struct pc_srq *srq = w->srqs[conn->rail];
    uint32_t qpn = conn->qp->qp_num;
    struct pc_verbs_connection ***lower = &srq->owners[qpn >> PC_QPN_HALF];
    if (*lower == NULL)
        *lower = calloc(1 << PC_QPN_HALF, sizeof **lower);
    if (*lower == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a connection");
    *owner_of(srq, qpn) = conn;
    srq->pairs++;
    return PC_OK;
}

void pc__srq_remove(struct pc_verbs_net *w, uint32_t rail, uint32_t qpn)
{
    struct pc_srq *srq = w->srqs[rail];
    *owner_of(srq, qpn) = NULL;
    srq->pairs--;
    srq->unsure = true; /* its completions may have gone with it */
}

struct pc_verbs_connection *pc__srq_consumed(struct pc_verbs_net *w, uint32_t rail, uint32_t qpn)
{
    struct pc_srq *srq = w->srqs[rail];
    struct pc_verbs_connection **owner = owner_of(srq, qpn);
    srq->spent++;
    return owner == NULL ? NULL : *owner;
}

/* To fill the queue up may post again what was consumed and is not polled yet, so that there are
 * more completions to come than it holds receives. But no more than these have been consumed since
 * the completion queue was empty, and twice as many fit there. */
void pc__srq_refill(struct pc_verbs_net *w, uint32_t rail, bool empty)
{
    struct pc_srq *srq = w->srqs[rail];
    if (srq == NULL || srq->failed)
        return;
    bool all = srq->unsure && empty;
    if (!all && srq->spent < PC_REPOST_BATCH)
        return;
    int errnum = post(srq, all ? srq->max_wr : srq->spent);
    srq->spent = 0;
    srq->unsure = srq->unsure && !all;
    if (errnum != 0)
        pc__srq_fail(w, rail, strerror(errnum));
}

void pc__srq_arm(struct pc_verbs_net *w, uint32_t rail)
{
    struct pc_srq *srq = w->srqs[rail];
    int errnum = srq == NULL || srq->failed ? 0 : arm(srq);
    if (errnum != 0)
        pc__srq_fail(w, rail, strerror(errnum));
}

void pc__srq_fail(struct pc_verbs_net *w, uint32_t rail, const char *why)
{
    if (w->srqs[rail] == NULL)
        return;
    w->srqs[rail]->failed = true;
    for (uint32_t p = 0; p < w->base.comm->options.size; p++) {
        struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
        for (uint32_t i = 0; peer != NULL && i < peer->nconns; i++)
            if (peer->conns[i].shares && peer->conns[i].rail == rail)
                pc__connection_fail(w, &peer->conns[i], why);
    }
}
#endif
