/* What a QP sends: requests in order, sent again from the first that is not acknowledged. */
#include "nic.h"

#define PROBE_NS 20000000u        /* of silence: is the peer's process still there? */
#define SILENCE_NS 10000000000ull /* as if lost, although nothing is known to be */

static struct fv_send *request(struct fv_qp *qp, uint64_t index)
{
    return &qp->sends[index % qp->init.cap.max_send_wr];
}

static uint32_t add(uint32_t psn, uint32_t n)
{
    return (psn + n) & FV_PSN_MASK;
}

static uint32_t kind_of(enum ibv_wr_opcode opcode)
{
    static const uint8_t kinds[] = {[IBV_WR_RDMA_WRITE] = FV_WRITE,
                                    [IBV_WR_RDMA_WRITE_WITH_IMM] = FV_WRITE_IMM,
                                    [IBV_WR_SEND] = FV_SEND,
                                    [IBV_WR_SEND_WITH_IMM] = FV_SEND,
                                    [IBV_WR_RDMA_READ] = FV_READ};
    return kinds[opcode];
}

static void complete(struct fv_qp *qp, enum ibv_wc_status status)
{
    const struct fv_send *s = request(qp, qp->done);
    bool signalled = qp->init.sq_sig_all || (s->wr.send_flags & IBV_SEND_SIGNALED);
    if (s->begun && s->wr.opcode == IBV_WR_RDMA_READ)
        qp->reading--;
    if (signalled || status) {
        uint32_t kind = kind_of(s->wr.opcode);
        struct fv_cqe entry = {.qp = qp, .index = qp->done};
        entry.wc.wr_id = s->wr.wr_id;
        entry.wc.status = status;
        entry.wc.qp_num = qp->base.qp_num;
        entry.wc.opcode = kind == FV_SEND   ? IBV_WC_SEND
                          : kind == FV_READ ? IBV_WC_RDMA_READ
                                            : IBV_WC_RDMA_WRITE;
        entry.wc.byte_len = s->length;
        if (status) { /* nothing else is valid */
            bool poison = fv_options.like == FV_MLX5;
            entry.wc.opcode = poison ? IBV_WC_DRIVER3 : 0;
            entry.wc.byte_len = poison ? 0xdeadbeef : 0;
            entry.wc.vendor_err = 0x80u | (uint32_t)status;
        }
        fv_complete((struct fv_cq *)qp->base.send_cq, &entry, false);
    }
    qp->done++;
    fv_object(qp->context, FV_WRS, -1);
}

void fv_qp_fail(struct fv_qp *qp)
{
    qp->state = IBV_QPS_ERR;
    qp->flush = qp->r_flush = true;
    fv_count(qp->context->fabric, qp->context->port, FV_FAILED, 1);
}

static void fail(struct fv_qp *qp, enum ibv_wc_status status)
{
    complete(qp, status);
    fv_qp_fail(qp);
}

bool fv_qp_flush(struct fv_qp *qp)
{
    if ((!qp->flush && !qp->r_flush) || qp->state != IBV_QPS_ERR)
        return false;
    while (qp->flush && qp->done < qp->posted)
        complete(qp, IBV_WC_WR_FLUSH_ERR);
    qp->next = qp->done;
    while (qp->r_flush && (qp->holds || qp->r_next < qp->r_posted)) {
        const struct fv_receive *r
            = qp->holds ? &qp->held : &qp->receives[qp->r_next % qp->init.cap.max_recv_wr];
        struct fv_cqe entry = {.qp = qp, .srq = qp->srq, .index = qp->r_next, .receive = true};
        entry.wc.wr_id = r->wr_id;
        entry.wc.status = IBV_WC_WR_FLUSH_ERR;
        entry.wc.qp_num = qp->base.qp_num;
        if (fv_options.like == FV_MLX5) {
            entry.wc.opcode = IBV_WC_DRIVER3;
            entry.wc.byte_len = 0xdeadbeef;
        }
        if (qp->srq) {
            qp->holds = false;
        } else {
            qp->r_next++;
            fv_object(qp->context, FV_RECEIVES, -1);
        }
        fv_complete((struct fv_cq *)qp->base.recv_cq, &entry, false);
    }
    if (qp->r_flush && qp->srq && fv_options.like == FV_MLX5)
        fv_event(qp->context, IBV_EVENT_QP_LAST_WQE_REACHED, qp);
    qp->flush = qp->r_flush = false;
    return true;
}

static void lost(struct fv_qp *qp, uint32_t psn)
{
    if (!qp->lost || fv_psn_after(psn, qp->lost_psn) > 0)
        qp->lost_psn = psn;
    qp->lost = true;
}

static void sent(struct fv_qp *qp, const struct fv_send *s)
{
    if (!qp->quiet)
        qp->quiet = qp->context->now;
    qp->sent++;
    if (s->wr.opcode == IBV_WR_RDMA_READ || qp->sent == s->packets) {
        qp->next++;
        qp->sent = 0;
    }
}

static enum fv_route send_read(struct fv_qp *qp, const struct fv_send *s)
{
    struct fv_packet *packet;
    uint32_t had = s->received * qp->mtu, psn = add(s->first, s->received);
    enum fv_route route = fv_route(qp, FV_READ, 0, &packet);
    if (route == FV_DROP)
        lost(qp, psn);
    if (route == FV_GO) {
        packet->flags = FV_FIRST | FV_LAST;
        packet->psn = psn;
        packet->addr = s->wr.wr.rdma.remote_addr + had;
        packet->rkey = s->wr.wr.rdma.rkey;
        packet->total = s->length - had;
        fv_depart(qp, packet);
    }
    return route;
}

static enum fv_route send_packet(struct fv_qp *qp, struct fv_send *s)
{
    struct fv_packet *packet;
    uint32_t at = qp->sent * qp->mtu, psn = add(s->first, qp->sent);
    uint32_t n = s->length - at < qp->mtu ? s->length - at : qp->mtu;
    bool last = qp->sent + 1 == s->packets;
    bool imm = s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || s->wr.opcode == IBV_WR_SEND_WITH_IMM;
    enum fv_route route = fv_route(qp, kind_of(s->wr.opcode), n, &packet);
    if (route == FV_DROP)
        lost(qp, psn);
    if (route != FV_GO)
        return route;
    if (s->data)
        memcpy(packet + 1, s->data + at, n);
    else if (!fv_gather(qp, s->sge, s->nsge, at, n, (char *)(packet + 1))) {
        fv_ring_cancel(qp->context->fabric, qp->peer_slot);
        s->local = fv_options.like == FV_RXE ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR;
        return FV_GO;
    }
    packet->flags
        = (uint8_t)((at == 0 ? FV_FIRST : 0) | (last ? FV_LAST : 0) | (last && imm ? FV_IMM : 0)
                    | (last && (s->wr.send_flags & IBV_SEND_SOLICITED) ? FV_SOLICITED : 0)
                    | (last || psn % FV_ACK_EACH == 0 ? FV_ACK_PLEASE : 0));
    packet->psn = psn;
    packet->imm = imm ? s->wr.imm_data : 0;
    packet->addr = s->wr.wr.rdma.remote_addr;
    packet->rkey = s->wr.wr.rdma.rkey;
    packet->total = s->length;
    fv_depart(qp, packet);
    return FV_GO;
}

/* Whether request `s` may begin, or be continued, now. */
static bool ready(struct fv_qp *qp, struct fv_send *s)
{
    struct fv_context *c = qp->context;
    if (c->free_at > c->now) {
        fv_wake_at(c, c->free_at);
        return false;
    }
    if (!s->begun) {
        bool read = s->wr.opcode == IBV_WR_RDMA_READ;
        if (s->due > c->now) {
            fv_wake_at(c, s->due);
            return false;
        }
        if ((read && qp->reading >= qp->attr.max_rd_atomic)
            || ((s->wr.send_flags & IBV_SEND_FENCE) && qp->reading))
            return false;
        s->first = qp->psn;
        s->packets = s->length ? (s->length + qp->mtu - 1) / qp->mtu : 1;
        s->begun = true;
        qp->psn = add(qp->psn, s->packets);
        qp->reading += read;
    }
    return fv_psn_after(add(s->first, qp->sent), qp->acked) < (int32_t)FV_WINDOW;
}

bool fv_requester_send(struct fv_qp *qp)
{
    struct fv_context *c = qp->context;
    bool did = false;
    if (qp->state != IBV_QPS_RTS)
        return false;
    if (qp->rnr_until > c->now) {
        fv_wake_at(c, qp->rnr_until);
        return false;
    }
    for (int burst = 0; burst < 8 && qp->next < qp->posted; burst++) {
        struct fv_send *s = request(qp, qp->next);
        if (!s->local) {
            if (!ready(qp, s))
                break;
            enum fv_route route
                = s->wr.opcode == IBV_WR_RDMA_READ ? send_read(qp, s) : send_packet(qp, s);
            if (route == FV_BUSY)
                break;
        }
        if (s->local) { /* those before it must be done first */
            if (qp->done == qp->next) {
                fail(qp, s->local);
                did = true;
            }
            break;
        }
        sent(qp, s);
        did = true;
    }
    return did;
}

/* Sends again from the first packet that is not acknowledged. */
static void go_back(struct fv_qp *qp)
{
    qp->next = qp->done;
    qp->sent = 0;
    qp->lost = false;
    qp->deadline = 0;
    if (qp->next < qp->posted) {
        const struct fv_send *s = request(qp, qp->next);
        if (s->begun && s->wr.opcode != IBV_WR_RDMA_READ)
            qp->sent = (uint32_t)fv_psn_after(qp->acked, s->first);
    }
    fv_count(qp->context->fabric, qp->context->port, FV_RETRANSMITTED, 1);
}

/* All before `psn` is acknowledged. */
static void advance(struct fv_qp *qp, uint32_t psn)
{
    for (uint64_t i = qp->done; qp->reading && i < qp->posted; i++) {
        const struct fv_send *s = request(qp, i); /* but no read before its data are here */
        uint32_t here = add(s->first, s->received);
        if (!s->begun)
            break;
        if (s->wr.opcode == IBV_WR_RDMA_READ && s->received < s->packets
            && fv_psn_after(psn, here) > 0)
            psn = here;
    }
    if (fv_psn_after(psn, qp->acked) <= 0 || fv_psn_after(psn, qp->psn) > 0)
        return;
    qp->acked = psn;
    qp->retries = qp->rnr_retries = 0;
    qp->quiet = qp->context->now;
    qp->deadline = 0;
    if (qp->lost && fv_psn_after(psn, qp->lost_psn) > 0)
        qp->lost = false;
    while (qp->done < qp->posted) {
        const struct fv_send *s = request(qp, qp->done);
        if (!s->begun || fv_psn_after(qp->acked, add(s->first, s->packets)) < 0)
            break;
        complete(qp, IBV_WC_SUCCESS);
    }
    if (qp->next < qp->done) { /* while it was being sent again */
        qp->next = qp->done;
        qp->sent = 0;
    }
    if (qp->next == qp->done && qp->next < qp->posted) {
        const struct fv_send *s = request(qp, qp->next);
        int32_t had
            = s->begun && s->wr.opcode != IBV_WR_RDMA_READ ? fv_psn_after(qp->acked, s->first) : 0;
        if (had > (int32_t)qp->sent)
            qp->sent = (uint32_t)had;
    }
}

void fv_requester_ack(struct fv_qp *qp, const struct fv_packet *packet)
{
    static const uint32_t rnr_us[32]
        = {655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
           480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
           20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
    if (qp->state != IBV_QPS_RTS)
        return;
    advance(qp, packet->code == FV_GOOD ? add(packet->psn, 1) : packet->psn);
    if (packet->code == FV_GOOD || fv_psn_after(packet->psn, qp->acked) < 0
        || qp->done == qp->posted)
        return;
    switch (packet->code) {
    case FV_NAK_SEQUENCE:
        go_back(qp);
        break;
    case FV_NAK_RNR:
        if (qp->attr.rnr_retry != 7 && qp->rnr_retries++ >= qp->attr.rnr_retry) {
            fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
            break;
        }
        qp->rnr_until = qp->context->now + rnr_us[packet->timer & 31] * 1000ull;
        go_back(qp);
        break;
    case FV_NAK_INVALID:
        fail(qp, IBV_WC_REM_INV_REQ_ERR);
        break;
    case FV_NAK_ACCESS:
        fail(qp, IBV_WC_REM_ACCESS_ERR);
        break;
    default:
        fail(qp, IBV_WC_REM_OP_ERR);
    }
}

/* What a QP in ERR had asked for may land until its requests are flushed: only a completion, or the
 * end of the QP, says that memory is the user's again. */
void fv_requester_read(struct fv_qp *qp, const struct fv_packet *packet, const char *payload)
{
    bool failed = qp->state == IBV_QPS_ERR && qp->flush;
    if (qp->state != IBV_QPS_RTS && !failed)
        return;
    for (uint64_t i = qp->done; i < qp->posted; i++) {
        struct fv_send *s = request(qp, i);
        if (!s->begun)
            return;
        if (s->wr.opcode != IBV_WR_RDMA_READ || s->received == s->packets)
            continue;
        if (packet->psn != add(s->first, s->received))
            return; /* a second answer, or one after a gap */
        if (!failed)
            advance(qp, packet->psn);
        if (!fv_scatter(qp, s->sge, s->nsge, s->received * qp->mtu, payload, packet->length)) {
            if (!failed)
                fail(qp, IBV_WC_LOC_PROT_ERR);
            return;
        }
        s->received++;
        if (!failed)
            advance(qp, add(packet->psn, 1));
        return;
    }
}

void fv_requester_lost(struct fv_qp *qp, uint32_t psn)
{
    if (fv_psn_after(psn, qp->acked) >= 0)
        lost(qp, psn);
}

/* Whether the peer's NIC has yet to take what was sent. It is a thread, which a busy machine may
 * keep waiting for longer than a timeout; what no fault dropped lands nevertheless. */
static bool underway(struct fv_qp *qp)
{
    struct fv_context *c = qp->context;
    return qp->departed != 0 && !fv_ring_taken(c->fabric, qp->peer_slot, qp->departed)
           && c->now - qp->quiet < SILENCE_NS && fv_peer_alive(qp);
}

bool fv_requester_timer(struct fv_qp *qp)
{
    struct fv_context *c = qp->context;
    if (qp->state != IBV_QPS_RTS || (qp->done == qp->next && !qp->sent)) {
        qp->deadline = qp->quiet = 0;
        return false;
    }
    if (!qp->lost && c->now - qp->quiet >= PROBE_NS
        && (!fv_peer_alive(qp) || c->now - qp->quiet >= SILENCE_NS))
        lost(qp, qp->acked);
    if (!qp->lost) {
        uint64_t probe = qp->quiet + PROBE_NS;
        fv_wake_at(c, probe > c->now ? probe : c->now + PROBE_NS);
        return false;
    }
    if (!qp->attr.timeout)
        return false; /* waits for ever */
    if (!qp->deadline || underway(qp))
        qp->deadline = c->now + (4096ull << qp->attr.timeout);
    if (qp->deadline > c->now) {
        fv_wake_at(c, qp->deadline);
        return false;
    }
    bool for_ever = fv_options.like == FV_RXE && qp->attr.retry_cnt == 7;
    if (!for_ever && qp->retries++ >= qp->attr.retry_cnt)
        fail(qp, IBV_WC_RETRY_EXC_ERR);
    else
        go_back(qp);
    qp->quiet = c->now;
    return true;
}
