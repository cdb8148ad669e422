/* Queue pairs: their making, the states they go through, and their end. */
#include <stdio.h>
#include <stdlib.h>
#include "nic.h"

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct fv_context *c = fv_context_of(pd->context);
    const struct ibv_qp_cap *cap = &init->cap;
    errno = EINVAL;
    if (init->qp_type != IBV_QPT_RC || (init->srq && init->srq->context != pd->context)
        || !init->send_cq || !init->recv_cq || init->send_cq->context != pd->context
        || init->recv_cq->context != pd->context || cap->max_send_wr > FV_MAX_WR
        || cap->max_recv_wr > FV_MAX_WR || cap->max_send_sge > FV_MAX_SGE
        || cap->max_recv_sge > FV_MAX_SGE || cap->max_inline_data > fv_options.max_inline)
        return NULL;
    struct fv_qp *qp = calloc(1, sizeof *qp);
    errno = ENOMEM;
    if (!qp || FV_FAILS("create_qp")) {
        free(qp);
        return NULL;
    }
    qp->sends = calloc(cap->max_send_wr + 1, sizeof *qp->sends);
    qp->srq = (struct fv_srq *)init->srq;
    if (qp->srq) /* what is asked for besides is ignored */
        init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
    qp->receives = calloc(cap->max_recv_wr + 1, sizeof *qp->receives);
    qp->inlines = calloc((size_t)cap->max_send_wr + 1, cap->max_inline_data + 1);
    if (!qp->sends || !qp->receives || !qp->inlines)
        fv_fatal("no memory for a queue pair");
    for (uint32_t i = 0; i < cap->max_send_wr; i++)
        qp->sends[i].inlined = qp->inlines + (size_t)i * cap->max_inline_data;
    qp->context = c;
    qp->init = *init;
    qp->attr.cap = *cap;
    qp->base.context = pd->context;
    qp->base.qp_context = init->qp_context;
    qp->base.pd = pd;
    qp->base.send_cq = init->send_cq;
    qp->base.recv_cq = init->recv_cq;
    qp->base.srq = init->srq;
    qp->base.qp_type = IBV_QPT_RC;
    qp->base.state = qp->state = IBV_QPS_RESET;
    pthread_mutex_init(&qp->base.mutex, NULL);
    pthread_cond_init(&qp->base.cond, NULL);
    fv_enter(c);
    uint32_t index = c->next_qp, tries = 0;
    while (c->qps[index % FV_MAX_QPS] && tries++ < FV_MAX_QPS)
        index++;
    if (tries > FV_MAX_QPS)
        fv_fatal("more than %u queue pairs", FV_MAX_QPS);
    index %= FV_MAX_QPS;
    c->next_qp = index + 1; /* a number is used again as late as can be */
    if (c->top_qp <= index)
        c->top_qp = index + 1;
    c->qps[index] = qp;
    qp->base.handle = index;
    qp->base.qp_num = c->slot << FV_QPN_BITS | index;
    qp->random = fv_options.seed * 0x9e3779b97f4a7c15u + c->port * 0x100000001b3u + c->ncreated++;
    ((struct fv_cq *)init->send_cq)->users++;
    ((struct fv_cq *)init->recv_cq)->users++;
    if (qp->srq)
        qp->srq->users++;
    fv_object(c, FV_QPS, 1);
    fv_leave(c);
    return &qp->base;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    struct fv_qp *qp = (struct fv_qp *)base;
    struct fv_context *c = qp->context;
    fv_enter(c); /* what the NIC does with it at this moment is done when the lock is ours */
    fv_responder_stop(qp);
    c->qps[base->handle] = NULL;
    while (c->top_qp && !c->qps[c->top_qp - 1])
        c->top_qp--;
    struct fv_cq *send = (struct fv_cq *)base->send_cq, *receive = (struct fv_cq *)base->recv_cq;
    send->users--;
    receive->users--;
    if (qp->srq)
        qp->srq->users--;
    fv_forget(send, qp);
    if (receive != send)
        fv_forget(receive, qp);
    fv_object(c, FV_QPS, -1);
    fv_object(c, FV_WRS, -(int64_t)(qp->posted - qp->done));
    fv_object(c, FV_RECEIVES, -(int64_t)(qp->r_posted - qp->r_next));
    fv_event_forget(c, qp);
    fv_leave(c);
    pthread_mutex_lock(&base->mutex); /* what was got must be acknowledged */
    while (base->events_completed != qp->events)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    fv_responder_forget(qp);
    free(qp->sends);
    free(qp->receives);
    free(qp->inlines);
    free(qp);
    return 0;
}

/* The attributes that each step needs, and those that it also takes. */
static const struct {
    enum ibv_qp_state from, to;
    int needs, takes;
} steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
         | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

/* Why the NIC refuses these attributes, or NULL. */
static const char *refusal(const struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    enum ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : qp->state;
    if ((mask & IBV_QP_CUR_STATE) && a->cur_qp_state != qp->state)
        return "cur_qp_state is not its state";
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
        return mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE) ? "more than the state is given" : NULL;
    size_t step = 0, nsteps = sizeof steps / sizeof *steps;
    while (step < nsteps && (steps[step].from != qp->state || steps[step].to != to))
        step++;
    if (step == nsteps)
        return "no such transition";
    if (steps[step].needs & ~mask)
        return "an attribute is missing in the mask";
    if (mask & ~(steps[step].needs | steps[step].takes | IBV_QP_STATE))
        return "an attribute in the mask does not belong to this transition";
    const struct ibv_ah_attr *ah = &a->ah_attr;
    union ibv_gid gid = {.raw = {0}};
    if ((mask & IBV_QP_PORT) && a->port_num != 1)
        return "no such port";
    if ((mask & IBV_QP_PKEY_INDEX)
        && (a->pkey_index >= FV_PKEYS || fv_pkey(qp->context->fabric, qp->context->port, a->pkey_index) == 0))
        return "no such pkey_index";
    if ((mask & IBV_QP_AV) && ah->port_num != 1)
        return "no such port in ah_attr";
    if ((mask & IBV_QP_AV) && ah->sl > 15)
        return "service level above 15";
    if ((mask & IBV_QP_AV) && !ah->is_global && !fv_options.infiniband)
        return "RoCE wants a global route";
    if ((mask & IBV_QP_AV) && ah->is_global) {
        if (ah->grh.sgid_index >= FV_GIDS)
            return "no such sgid_index";
        fv_gid(qp->context->port, ah->grh.sgid_index, &gid, NULL);
        if (!gid.global.interface_id)
            return "no GID at sgid_index";
        if (!ah->grh.dgid.global.interface_id && !ah->grh.dgid.global.subnet_prefix)
            return "dgid is zero";
    }
    if ((mask & IBV_QP_PATH_MTU)
        && (a->path_mtu < IBV_MTU_256 || (128u << a->path_mtu) > fv_options.mtu))
        return "path_mtu is above the port's";
    if ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff)
        return "dest_qp_num has more than 24 bits";
    if (((mask & IBV_QP_RQ_PSN) && a->rq_psn > FV_PSN_MASK)
        || ((mask & IBV_QP_SQ_PSN) && a->sq_psn > FV_PSN_MASK))
        return "a PSN has more than 24 bits";
    if (((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > FV_MAX_READS)
        || ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > FV_MAX_READS))
        return "more outstanding reads than the device has";
    if (((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31)
        || ((mask & IBV_QP_TIMEOUT) && a->timeout > 31))
        return "a timer above 31";
    if (((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7)
        || ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7))
        return "a count of retries above 7";
    return NULL;
}

static void reset(struct fv_qp *qp)
{
    fv_object(qp->context, FV_WRS, -(int64_t)(qp->posted - qp->done));
    fv_object(qp->context, FV_RECEIVES, -(int64_t)(qp->r_posted - qp->r_next));
    qp->holds = false;
    qp->posted = qp->next = qp->done = qp->r_posted = qp->r_next = 0;
    atomic_store(&qp->freed, 0);
    atomic_store(&qp->r_freed, 0);
    qp->sent = qp->reading = qp->retries = qp->rnr_retries = 0;
    qp->deadline = qp->quiet = qp->rnr_until = qp->last_due = qp->departed = 0;
    qp->lost = qp->flush = qp->r_flush = qp->refused_sequence = false;
    fv_forget((struct fv_cq *)qp->base.send_cq, qp);
    fv_forget((struct fv_cq *)qp->base.recv_cq, qp);
}

static void take(struct fv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    struct ibv_qp_attr *mine = &qp->attr;
    if (mask & IBV_QP_ACCESS_FLAGS)
        mine->qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_PORT)
        mine->port_num = a->port_num;
    if (mask & IBV_QP_AV) {
        mine->ah_attr = a->ah_attr;
        qp->peer_port = a->ah_attr.is_global ? fv_port_of_gid(&a->ah_attr.grh.dgid)
                                             : (a->ah_attr.dlid - 1u) % FV_PORTS;
    }
    if (mask & IBV_QP_PATH_MTU) {
        mine->path_mtu = a->path_mtu;
        qp->mtu = 128u << a->path_mtu;
    }
    if (mask & IBV_QP_DEST_QPN) {
        mine->dest_qp_num = a->dest_qp_num;
        qp->peer_slot = a->dest_qp_num >> FV_QPN_BITS;
        if (qp->peer_slot < FV_SLOTS)
            qp->peer_generation
                = atomic_load(&qp->context->fabric->shared->slots[qp->peer_slot].generation);
    }
    if (mask & IBV_QP_RQ_PSN)
        mine->rq_psn = qp->expected = a->rq_psn;
    if (mask & IBV_QP_SQ_PSN)
        mine->sq_psn = qp->psn = qp->acked = a->sq_psn;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        mine->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        mine->max_rd_atomic = a->max_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        mine->min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT)
        mine->timeout = a->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        mine->retry_cnt = a->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        mine->rnr_retry = a->rnr_retry;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct fv_qp *qp = (struct fv_qp *)base;
    struct fv_context *c = qp->context;
    if (mask & IBV_QP_STATE && attr->qp_state != IBV_QPS_ERR && FV_FAILS("modify_qp"))
        return ENOMEM;
    fv_enter(c);
    const char *why = refusal(qp, attr, mask);
    if (why) {
        fprintf(stderr, "fakeverbs: ibv_modify_qp of QP %u from state %d to %d, mask %#x: %s\n",
                base->qp_num, qp->state, mask & IBV_QP_STATE ? (int)attr->qp_state : -1,
                (unsigned)mask, why);
        fv_leave(c);
        return EINVAL;
    }
    take(qp, attr, mask);
    if (mask & IBV_QP_STATE) {
        qp->state = base->state = attr->qp_state;
        if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_ERR)
            fv_responder_stop(qp);
        if (qp->state == IBV_QPS_RESET)
            reset(qp);
        qp->flush = qp->r_flush = qp->state == IBV_QPS_ERR;
    }
    fv_leave(c);
    fv_slot_ring(c->fabric, c->slot);
    return 0;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    struct fv_qp *qp = (struct fv_qp *)base;
    (void)mask;
    fv_enter(qp->context);
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = base->state = qp->state;
    attr->rq_psn = qp->expected;
    attr->sq_psn = qp->psn;
    *init = qp->init;
    fv_leave(qp->context);
    return 0;
}
