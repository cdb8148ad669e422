/* Posting requests. Nothing but inline data is read here: the NIC does that, later. */
#include <stdlib.h>
#include "nic.h"

static uint64_t jitter(struct fv_qp *qp)
{
    if (!fv_options.jitter_us)
        return 0;
    uint64_t x = qp->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % (fv_options.jitter_us * 1000ull + 1);
}

static int post_one(struct fv_qp *qp, const struct ibv_send_wr *wr)
{
    const struct ibv_qp_cap *cap = &qp->init.cap;
    bool inlined = wr->send_flags & IBV_SEND_INLINE;
    uint64_t length = 0;
    if (qp->state < IBV_QPS_RTS || wr->num_sge < 0 || (uint32_t)wr->num_sge > cap->max_send_sge)
        return EINVAL;
    if (wr->opcode > IBV_WR_RDMA_READ || (inlined && wr->opcode == IBV_WR_RDMA_READ))
        return EINVAL;
    for (int i = 0; i < wr->num_sge; i++)
        length += wr->sg_list[i].length;
    if (length > FV_MAX_MESSAGE || (inlined && length > cap->max_inline_data))
        return EINVAL;
    for (int i = 0; inlined && i < wr->num_sge; i++) /* which the CPU copies, now */
        if (fv_gpu_owns((const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length))
            return EFAULT;
    if (qp->posted - atomic_load_explicit(&qp->freed, memory_order_acquire) >= cap->max_send_wr)
        return ENOMEM;
    struct fv_send *s = &qp->sends[qp->posted % cap->max_send_wr];
    char *space = s->inlined;
    *s = (struct fv_send){.wr = *wr, .nsge = (uint32_t)wr->num_sge, .length = (uint32_t)length};
    s->wr.next = NULL;
    s->wr.sg_list = NULL;
    s->inlined = space;
    if (inlined) {
        s->data = space;
        for (int i = 0; i < wr->num_sge; i++) {
            if (wr->sg_list[i].length)
                memcpy(space, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
            space += wr->sg_list[i].length;
        }
    } else if (wr->num_sge) {
        memcpy(s->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *s->sge);
    }
    uint64_t delay = jitter(qp);
    if (delay) {
        s->due = fv_now() + delay;
        if (s->due < qp->last_due)
            s->due = qp->last_due;
        qp->last_due = s->due;
    }
    qp->posted++;
    fv_object(qp->context, FV_WRS, 1);
    fv_count(qp->context->fabric, qp->context->port, FV_SENDS, 1);
    if (qp->state == IBV_QPS_ERR)
        qp->flush = true;
    return 0;
}

int fv_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fv_qp *qp = (struct fv_qp *)base;
    int error = 0;
    fv_enter(qp->context);
    for (; wr && !(error = post_one(qp, wr)); wr = wr->next)
        ;
    fv_leave(qp->context);
    if (error)
        *bad = wr;
    fv_slot_ring(qp->context->fabric, qp->context->slot);
    return error;
}

void fv_receive_fill(struct fv_receive *r, const struct ibv_recv_wr *wr)
{
    r->wr_id = wr->wr_id;
    r->nsge = (uint32_t)wr->num_sge;
    r->length = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        r->sge[i] = wr->sg_list[i];
        r->length += wr->sg_list[i].length;
    }
}

static int receive_one(struct fv_qp *qp, const struct ibv_recv_wr *wr)
{
    const struct ibv_qp_cap *cap = &qp->init.cap;
    if (qp->srq || qp->state == IBV_QPS_RESET || wr->num_sge < 0
        || (uint32_t)wr->num_sge > cap->max_recv_sge)
        return EINVAL;
    if (qp->r_posted - atomic_load_explicit(&qp->r_freed, memory_order_acquire) >= cap->max_recv_wr)
        return ENOMEM;
    fv_receive_fill(&qp->receives[qp->r_posted % cap->max_recv_wr], wr);
    qp->r_posted++;
    fv_object(qp->context, FV_RECEIVES, 1);
    if (qp->state == IBV_QPS_ERR && fv_options.like != FV_RXE) /* which forgets it */
        qp->r_flush = true;
    return 0;
}

int fv_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fv_qp *qp = (struct fv_qp *)base;
    int error = 0;
    fv_enter(qp->context);
    for (; wr && !(error = receive_one(qp, wr)); wr = wr->next)
        ;
    bool wake = qp->r_flush;
    fv_leave(qp->context);
    if (error)
        *bad = wr;
    if (wake)
        fv_slot_ring(qp->context->fabric, qp->context->slot);
    return error;
}
