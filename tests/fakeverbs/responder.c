/* What a QP does for its peer: executes requests once and in order, and answers. */
#include <stdlib.h>
#include <unistd.h>
#include "nic.h"

static bool room(const struct fv_qp *qp)
{
    return qp->nanswers < FV_ANSWERS;
}

static void answer(struct fv_qp *qp, struct fv_answer what)
{
    struct fv_answer *last = &qp->answers[(qp->first_answer + qp->nanswers - 1) % FV_ANSWERS];
    if (qp->nanswers && last->kind == FV_ACK && last->code == FV_GOOD && what.kind == FV_ACK
        && what.code == FV_GOOD) {
        last->psn = what.psn; /* acknowledges what comes before, too */
        return;
    }
    if (!room(qp))
        fv_fatal("QP %u owes more answers than its peer may have asked for", qp->base.qp_num);
    qp->answers[(qp->first_answer + qp->nanswers++) % FV_ANSWERS] = what;
}

static void acknowledge(struct fv_qp *qp, uint32_t psn, uint8_t code)
{
    answer(qp, (struct fv_answer){.kind = FV_ACK, .code = code, .psn = psn & FV_PSN_MASK});
}

/* The receive for a message that is coming in, or NULL. */
static const struct fv_receive *receive_of(struct fv_qp *qp)
{
    if (qp->srq)
        return fv_srq_take(qp);
    return qp->r_next == qp->r_posted ? NULL : &qp->receives[qp->r_next % qp->init.cap.max_recv_wr];
}

static void received(struct fv_qp *qp, const struct fv_packet *packet, const struct fv_receive *r,
                     enum ibv_wc_status status)
{
    struct fv_cqe entry = {.qp = qp, .srq = qp->srq, .index = qp->r_next, .receive = true};
    entry.wc.wr_id = r->wr_id;
    entry.wc.status = status;
    entry.wc.opcode = packet->kind == FV_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    entry.wc.byte_len = packet->total;
    entry.wc.qp_num = qp->base.qp_num;
    entry.wc.src_qp = packet->from;
    if (packet->flags & FV_IMM) {
        entry.wc.imm_data = packet->imm;
        entry.wc.wc_flags = IBV_WC_WITH_IMM;
    }
    if (qp->srq) {
        qp->holds = false;
    } else {
        qp->r_next++;
        fv_object(qp->context, FV_RECEIVES, -1);
    }
    fv_complete((struct fv_cq *)qp->base.recv_cq, &entry, packet->flags & FV_SOLICITED);
}

/* A request that is wrong is the end of both QPs. */
static void refuse(struct fv_qp *qp, const struct fv_packet *packet, uint8_t code)
{
    fv_count(qp->context->fabric, qp->context->port, FV_REFUSED, 1);
    acknowledge(qp, packet->psn, code);
    fv_qp_fail(qp);
    if (fv_options.like == FV_MLX5)
        fv_event(qp->context,
                 code == FV_NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR, qp);
}

/* Of what is written, only a completed receive says that all of it is in memory. */
static void land_late(struct fv_qp *qp, const struct fv_mr *mr, char *to, const char *from,
                      uint32_t n)
{
    struct fv_late *packet = malloc(sizeof *packet + n);
    if (!packet)
        fv_fatal("no memory for a packet");
    *packet = (struct fv_late){.next = qp->late, .mr = mr, .to = to, .length = n};
    memcpy(packet->bytes, from, n);
    qp->late = packet;
}

/* The latest packets land first, as where packets of a message take several ways. */
static void land_all(struct fv_qp *qp)
{
    if (qp->late)
        usleep(fv_options.late_us);
    for (struct fv_late *packet; (packet = qp->late) != NULL; free(packet)) {
        qp->late = packet->next;
        fv_write(qp->context, packet->mr, packet->to, packet->bytes, packet->length);
    }
}

void fv_responder_forget_region(struct fv_qp *qp, const struct fv_mr *mr)
{
    for (struct fv_late **at = &qp->late, *packet; (packet = *at) != NULL;) {
        if (packet->mr != mr) {
            at = &packet->next;
            continue;
        }
        *at = packet->next;
        free(packet);
    }
}

void fv_responder_forget(struct fv_qp *qp)
{
    for (struct fv_late *packet; (packet = qp->late) != NULL; free(packet))
        qp->late = packet->next;
}

/* One packet of a SEND or WRITE, the one that is expected. False: it was refused. */
static bool land(struct fv_qp *qp, const struct fv_packet *packet, const char *payload)
{
    struct fv_context *c = qp->context;
    const struct fv_receive *r = NULL;
    bool send = packet->kind == FV_SEND, consumes = send || (packet->flags & FV_IMM);
    uint64_t nheld = c->nheld;
    if (consumes && !(r = receive_of(qp))) {
        fv_count(c->fabric, c->port, FV_RNR, 1);
        answer(qp, (struct fv_answer){.kind = FV_ACK, .code = FV_NAK_RNR, .psn = packet->psn});
        qp->refused_sequence = true; /* what follows was sent before it knew */
        return false;
    }
    if (packet->flags & FV_FIRST) {
        qp->landed = 0;
        qp->addr = packet->addr;
    }
    if (send && packet->total > r->length) {
        bool rxe = fv_options.like == FV_RXE;
        received(qp, packet, r, rxe ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR);
        refuse(qp, packet, rxe ? FV_NAK_OPERATION : FV_NAK_INVALID);
        return false;
    }
    if (send) {
        if (!fv_scatter(qp, r->sge, r->nsge, qp->landed, payload, packet->length)) {
            received(qp, packet, r, IBV_WC_LOC_PROT_ERR);
            refuse(qp, packet, FV_NAK_OPERATION);
            return false;
        }
    } else if (packet->total) {
        char *memory;
        if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
            refuse(qp, packet, FV_NAK_INVALID);
            return false;
        }
        const struct fv_mr *mr = fv_remote(c, qp->base.pd, packet->rkey, qp->addr, packet->total,
                                           IBV_ACCESS_REMOTE_WRITE, &memory);
        if (!mr) {
            refuse(qp, packet, FV_NAK_ACCESS);
            return false;
        }
        if (fv_options.late_us && !(consumes && (packet->flags & FV_LAST)))
            land_late(qp, mr, memory + qp->landed, payload, packet->length);
        else
            fv_write(c, mr, memory + qp->landed, payload, packet->length);
    }
    qp->landed += packet->length;
    bool tells = consumes && (packet->flags & FV_LAST);
    if (tells)
        land_all(qp);
    if (c->nheld != nheld)
        qp->nheld = c->nheld;
    if (!tells)
        return true;
    received(qp, packet, r, IBV_WC_SUCCESS);
    if (qp->nheld > c->ntold)
        c->ntold = qp->nheld;
    return true;
}

static void read_request(struct fv_qp *qp, const struct fv_packet *packet)
{
    struct fv_context *c = qp->context;
    const struct fv_mr *mr = NULL;
    char *memory;
    if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) || !qp->attr.max_dest_rd_atomic) {
        refuse(qp, packet, FV_NAK_INVALID);
        return;
    }
    if (packet->total
        && !(mr = fv_remote(c, qp->base.pd, packet->rkey, packet->addr, packet->total,
                            IBV_ACCESS_REMOTE_READ, &memory))) {
        refuse(qp, packet, FV_NAK_ACCESS);
        return;
    }
    bool of_gpu = mr && mr->gpu >= 0;
    if (of_gpu)
        fv_count(c->fabric, c->port, FV_GPU_READS, 1);
    answer(qp, (struct fv_answer){.kind = FV_READ_RESPONSE,
                                  .psn = packet->psn,
                                  .addr = packet->addr,
                                  .rkey = packet->rkey,
                                  .total = packet->total,
                                  .nheld = c->nheld,
                                  .due = of_gpu ? c->now + fv_options.overtake_us * 1000ull : 0});
}

void fv_responder_request(struct fv_qp *qp, const struct fv_packet *packet, const char *payload)
{
    struct fv_context *c = qp->context;
    int32_t ahead = fv_psn_after(packet->psn, qp->expected);
    if (ahead < 0) { /* executed before, and its answer was lost or is on its way */
        fv_count(c->fabric, c->port, FV_DUPLICATES, 1);
        if (packet->kind == FV_READ)
            read_request(qp, packet);
        else if (packet->flags & FV_ACK_PLEASE)
            acknowledge(qp, qp->expected - 1, FV_GOOD);
        return;
    }
    if (ahead > 0) {
        if (!qp->refused_sequence)
            acknowledge(qp, qp->expected, FV_NAK_SEQUENCE);
        qp->refused_sequence = true;
        return;
    }
    qp->refused_sequence = false;
    if (packet->kind == FV_READ) {
        uint32_t packets = packet->total ? (packet->total + qp->mtu - 1) / qp->mtu : 1;
        read_request(qp, packet);
        qp->expected = (qp->expected + packets) & FV_PSN_MASK;
        return;
    }
    if (!land(qp, packet, payload))
        return;
    qp->expected = (qp->expected + 1) & FV_PSN_MASK;
    if (packet->flags & FV_ACK_PLEASE)
        acknowledge(qp, packet->psn, FV_GOOD);
}

/* The next packet of an answer; FV_BUSY: not now. */
static enum fv_route send_answer(struct fv_qp *qp, struct fv_answer *a)
{
    struct fv_context *c = qp->context;
    struct fv_packet *packet;
    uint32_t left = a->total - a->sent, n = left < qp->mtu ? left : qp->mtu;
    bool read = a->kind == FV_READ_RESPONSE;
    const struct fv_mr *mr = NULL;
    char *memory = NULL;
    if (read && c->free_at > c->now) {
        fv_wake_at(c, c->free_at);
        return FV_BUSY;
    }
    if (read && fv_gpu_read_waits(c, a))
        return FV_BUSY;
    if (read && n
        && !(mr = fv_remote(c, qp->base.pd, a->rkey, a->addr + a->sent, n, IBV_ACCESS_REMOTE_READ,
                            &memory))) {
        a->kind = FV_ACK; /* deregistered since it was asked for */
        a->code = FV_NAK_ACCESS;
        read = false;
    }
    enum fv_route route = fv_route(qp, a->kind, read ? n : 0, &packet);
    if (route != FV_GO)
        return route;
    packet->psn = a->psn;
    packet->code = a->code;
    packet->timer = qp->attr.min_rnr_timer;
    packet->flags = !read || n == left ? FV_LAST : 0;
    if (read && n) {
        fv_gpu_read(c, mr, a->nheld);
        memcpy(packet + 1, memory, n);
    }
    fv_depart(qp, packet);
    if (read) {
        a->sent += n;
        a->psn = (a->psn + 1) & FV_PSN_MASK;
    }
    return FV_GO;
}

void fv_responder_stop(struct fv_qp *qp)
{
    for (; qp->nanswers; qp->nanswers--, qp->first_answer++)
        fv_stray(qp->context, qp->peer_slot, qp->base.qp_num, qp->attr.dest_qp_num,
                 qp->answers[qp->first_answer % FV_ANSWERS].psn);
}

bool fv_responder_answer(struct fv_qp *qp)
{
    bool did = false;
    for (int burst = 0; burst < 8 && qp->nanswers; burst++) {
        struct fv_answer *a = &qp->answers[qp->first_answer % FV_ANSWERS];
        uint8_t kind = a->kind;
        enum fv_route route = send_answer(qp, a);
        if (route == FV_BUSY)
            return did;
        did = true;
        if (route == FV_DROP && kind != FV_NOTE) { /* the requester's clock is to run */
            *a = (struct fv_answer){.kind = FV_NOTE, .psn = a->psn};
            continue;
        }
        if (route == FV_GO && kind == FV_READ_RESPONSE && a->kind == kind && a->sent < a->total)
            continue;
        qp->first_answer++;
        qp->nanswers--;
    }
    return did;
}
