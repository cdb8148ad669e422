/* Shared receive queues: their making, posting to them, and taking from them. */
#include <stdlib.h>
#include "nic.h"

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
    struct fv_context *c = fv_context_of(pd->context);
    uint32_t room = 1;
    errno = fv_options.srq_wr ? EINVAL : EOPNOTSUPP;
    if (!init->attr.max_wr || init->attr.max_wr > fv_options.srq_wr
        || init->attr.max_sge > FV_MAX_SGE)
        return NULL;
    while (room < init->attr.max_wr + 1)
        room *= 2;
    struct fv_srq *srq = FV_FAILS("create_srq") ? NULL : calloc(1, sizeof *srq);
    if (!srq || !(srq->receives = calloc(room - 1, sizeof *srq->receives))) {
        free(srq);
        errno = ENOMEM;
        return NULL;
    }
    init->attr.max_wr = srq->max_wr = room - 1; /* as providers do that leave one slot free */
    srq->max_sge = init->attr.max_sge;
    srq->context = c;
    srq->base.context = pd->context;
    srq->base.srq_context = init->srq_context;
    srq->base.pd = pd;
    pthread_mutex_init(&srq->base.mutex, NULL);
    pthread_cond_init(&srq->base.cond, NULL);
    fv_enter(c);
    srq->later = c->srqs;
    c->srqs = srq;
    fv_object(c, FV_SRQS, 1);
    fv_leave(c);
    return &srq->base;
}

int ibv_destroy_srq(struct ibv_srq *base)
{
    struct fv_srq *srq = (struct fv_srq *)base;
    struct fv_context *c = srq->context;
    fv_enter(c);
    bool used = srq->users != 0;
    struct fv_srq **at = &c->srqs;
    while (!used && *at != srq)
        at = &(*at)->later;
    if (!used) {
        *at = srq->later;
        fv_event_forget(c, srq);
    }
    fv_leave(c);
    if (used)
        return EBUSY;
    pthread_mutex_lock(&base->mutex); /* what was got must be acknowledged */
    while (base->events_completed != srq->events)
        pthread_cond_wait(&base->cond, &base->mutex);
    pthread_mutex_unlock(&base->mutex);
    fv_object(c, FV_SRQS, -1);
    fv_object(c, FV_RECEIVES, -(int64_t)(srq->posted - srq->next));
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    free(srq->receives);
    free(srq);
    return 0;
}

/* The event comes once; who wants another arms it again. */
static void tell_if_low(struct fv_srq *srq)
{
    if (srq->posted - srq->next >= srq->limit)
        return;
    srq->limit = 0;
    fv_event(srq->context, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
}

int ibv_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *attr, int mask)
{
    struct fv_srq *srq = (struct fv_srq *)base;
    if (FV_FAILS("modify_srq"))
        return ENOMEM;
    if (mask != IBV_SRQ_LIMIT || attr->srq_limit > srq->max_wr) /* its size stays */
        return EINVAL;
    fv_enter(srq->context);
    srq->limit = attr->srq_limit;
    if (fv_options.like == FV_MLX5) /* rxe looks when a receive is taken */
        tell_if_low(srq);
    fv_leave(srq->context);
    return 0;
}

int ibv_query_srq(struct ibv_srq *base, struct ibv_srq_attr *attr)
{
    struct fv_srq *srq = (struct fv_srq *)base;
    fv_enter(srq->context);
    *attr = (struct ibv_srq_attr){
        .max_wr = srq->max_wr, .max_sge = srq->max_sge, .srq_limit = srq->limit};
    fv_leave(srq->context);
    return 0;
}

static int post_one(struct fv_srq *srq, const struct ibv_recv_wr *wr)
{
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->max_sge)
        return EINVAL;
    if (atomic_load(&srq->used) == srq->max_wr)
        return ENOMEM;
    atomic_fetch_add(&srq->used, 1);
    fv_receive_fill(&srq->receives[srq->posted++ % srq->max_wr], wr);
    fv_object(srq->context, FV_RECEIVES, 1);
    return 0;
}

int fv_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fv_srq *srq = (struct fv_srq *)base;
    int error = FV_FAILS("post_srq_recv") ? EIO : 0;
    fv_enter(srq->context);
    for (; wr && !error && !(error = post_one(srq, wr)); wr = wr->next)
        ;
    fv_leave(srq->context);
    if (error)
        *bad = wr;
    return error;
}

const struct fv_receive *fv_srq_take(struct fv_qp *qp)
{
    struct fv_srq *srq = qp->srq;
    if (!qp->holds && srq->posted == srq->next)
        return NULL;
    if (!qp->holds) {
        qp->held = srq->receives[srq->next++ % srq->max_wr];
        qp->holds = true;
        if (fv_options.like == FV_RXE)
            atomic_fetch_sub(&srq->used, 1);
        fv_object(srq->context, FV_RECEIVES, -1);
        tell_if_low(srq);
    }
    return &qp->held;
}
