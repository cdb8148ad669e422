/* Posts work requests to a connection's queue pair, and polls the completion queue of a rail. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <arpa/inet.h>

/* Immediate data (32 bits): the channel, the kind, and by kind either the low bits of the credit,
 * or for a fragment the number of fragments, its index, and the line of its message. */
#define PC_IMM_CHANNEL 29
#define PC_IMM_FRAGS 24 /* the number of fragments less one */
#define PC_IMM_FRAG 21
#define PC_IMM_LINE 16
#define PC_CHANNEL_PROBE 7u /* no channel */
_Static_assert(PC_EDGE_CHANNELS <= PC_CHANNEL_PROBE, "a channel fits its bits");
_Static_assert(PC_LINES <= 32 && PC_MAX_FRAGS <= 8, "a line and a fragment fit their bits");

enum imm_kind { CREDIT, MESSAGE, FRAG };

/* The wr_id: peer (20 bits), connection (8), turn (16), send op (16), kind (4). A completion may be
 * polled after its queue pair was destroyed; its turn is an older one then. */
_Static_assert(PC_MAX_RANKS <= 1u << 20, "a rank fits its bits");
static uint64_t wr_id_of(const struct pc_verbs_connection *conn, uint32_t op,
                         enum pc_event_kind kind)
{
    return (uint64_t)conn->peer->base.rank << 44 | (uint64_t)conn->index << 36
           | (uint64_t)(conn->turn & 0xffff) << 20 | (uint64_t)(op & 0xffff) << 4 | kind;
}

uint32_t pc__wr_poll(struct pc_ib_device *rail, struct pc_event *out)
{
    struct ibv_wc done[PC_EVENTS_AT_ONCE];
    int n = ibv_poll_cq(rail->cq, PC_EVENTS_AT_ONCE, done);
    for (int i = 0; i < n; i++) {
        uint64_t number = done[i].wr_id;
        uint32_t imm = ntohl(done[i].imm_data);
        out[i] = (struct pc_event){.rank = (uint32_t)(number >> 44),
                                   .qpn = done[i].qp_num,
                                   .conn = number >> 36 & 0xff,
                                   .turn = number >> 20 & 0xffff,
                                   .op = number >> 4 & 0xffff,
                                   .kind = number & 0xf,
                                   .status = done[i].status,
                                   .channel = imm >> PC_IMM_CHANNEL,
                                   .is_frag = (imm >> PC_IMM_KIND & 3) == FRAG,
                                   .frags = (imm >> PC_IMM_FRAGS & 7) + 1,
                                   .frag = imm >> PC_IMM_FRAG & 7,
                                   .line = imm >> PC_IMM_LINE & (PC_LINES - 1),
                                   .credit = imm & PC_IMM_CREDIT};
    }
    return n > 0 ? (uint32_t)n : 0;
}

bool pc__can_post(const struct pc_verbs_connection *conn)
{
    return conn->state == PC_CONNECTION_UP && conn->tail - conn->head < PC_CONNECTION_SEND_OPS
           && conn->requests + 2 <= pc__send_wrs(conn);
}

static uint32_t immediate(uint32_t channel, enum imm_kind imm_kind, uint64_t credit)
{
    return channel << PC_IMM_CHANNEL | (uint32_t)imm_kind << PC_IMM_KIND
           | ((uint32_t)credit & PC_IMM_CREDIT);
}

static uint32_t immediate_of(const struct pc_send_op *op)
{
    const struct pc_net_edge *edge = op->edge;
    if (edge == NULL)
        return immediate(PC_CHANNEL_PROBE, CREDIT, 0);
    if (op->frags == 1)
        return immediate(edge->fifo->channel, op->kind == PC_SEND_CREDIT ? CREDIT : MESSAGE,
                         edge->consumed);
    return immediate(edge->fifo->channel, FRAG, 0) | (op->frags - 1u) << PC_IMM_FRAGS
           | (uint32_t)op->frag << PC_IMM_FRAG
           | ((uint32_t)op->number & (PC_LINES - 1)) << PC_IMM_LINE;
}

static int post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                struct ibv_send_wr *requests, const struct pc_send_op *op)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(conn->qp, requests, &bad);
    if (error != 0)
        return error;
    conn->ops[conn->tail++ % PC_CONNECTION_SEND_OPS] = *op;
    w->base.in_flight++;
    conn->requests += op->requests;
    conn->bytes += op->nbytes + PC_LINE_BYTES;
    w->base.state.bytes[conn->rail] += op->nbytes;
    return 0;
}

/* The RDMA write of the data into the peer's slot; false when the data are inline in the line. */
static bool describe_data(const struct pc_verbs_net *w, const struct pc_verbs_connection *conn,
                          const struct pc_send_op *op, struct ibv_sge *span,
                          struct ibv_send_wr *request)
{
    const struct pc_verbs_peer *peer = conn->peer;
    const char *line = (const char *)&op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
    const char *slots = peer->base.edges[0].fifo->out_data;
    if (op->nbytes == 0 || (op->data >= line && op->data < line + PC_LINE_BYTES))
        return false;
    *span = (struct ibv_sge){.addr = (uintptr_t)op->data,
                             .length = (uint32_t)op->nbytes,
                             .lkey = peer->shadow[conn->rail]->lkey};
    *request = (struct ibv_send_wr){.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_DATA),
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .sg_list = span,
                                    .num_sge = 1};
    if (op->nbytes <= w->rails[conn->rail].max_inline)
        request->send_flags = IBV_SEND_INLINE;
    request->wr.rdma.remote_addr = peer->hello.slots + (uint64_t)(op->data - slots);
    request->wr.rdma.rkey = peer->hello.rails[conn->their_rail].slots_key;
    return true;
}

/* The RDMA write of the line. A whole message sends it with its count, which says that all is
 * there. A striped one leaves out the count, as the peer counts the fragments. */
static void describe_line(const struct pc_verbs_connection *conn, const struct pc_send_op *op,
                          struct ibv_sge *span, struct ibv_send_wr *request)
{
    const struct pc_verbs_peer *peer = conn->peer;
    const struct pc_line *lines = peer->base.edges[0].fifo->out_lines;
    *request = (struct ibv_send_wr){.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_SENT),
                                    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                                    .imm_data = htonl(immediate_of(op))};
    request->wr.rdma.remote_addr = peer->hello.lines;
    request->wr.rdma.rkey = peer->hello.rails[conn->their_rail].lines_key;
    if (op->edge == NULL || op->kind == PC_SEND_CREDIT)
        return;
    const struct pc_line *line = &op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
    *span = (struct ibv_sge){.addr = (uintptr_t)line,
                             .length = op->frags == 1 ? PC_LINE_BYTES
                                                      : (uint32_t)offsetof(struct pc_line, count)};
    request->sg_list = span;
    request->num_sge = 1;
    request->send_flags |= IBV_SEND_INLINE;
    request->wr.rdma.remote_addr += (uint64_t)((const char *)line - (const char *)lines);
}

/* The local key of the destination of an RDMA read. */
static uint32_t lkey_of(const struct pc_rndv *rndv, uint32_t rail)
{
    if (rndv->cached == NULL)
        return rndv->peer->bounce[rail]->lkey;
    return ((const struct pc_mr *)rndv->cached->handle)->with[rail]->lkey;
}

static int post_read(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    struct ibv_sge span = {.addr = (uintptr_t)op->data,
                           .length = (uint32_t)op->nbytes,
                           .lkey = lkey_of(op->rndv, conn->rail)};
    struct ibv_send_wr request = {.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_SENT),
                                  .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &span,
                                  .num_sge = 1};
    request.wr.rdma.remote_addr = op->number;
    request.wr.rdma.rkey = op->rndv->rkey.keys[conn->their_rail];
    sent.requests = 1;
    return post(w, conn, &request, &sent);
}

int pc__wr_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    struct ibv_sge spans[2];
    struct ibv_send_wr data = {0}, last, *first = &last;
    if (op->rndv != NULL)
        return post_read(w, conn, op);
    bool has_data = op->edge != NULL && op->kind == PC_SEND_MESSAGE
                    && describe_data(w, conn, op, &spans[0], &data);
    sent.requests = 1;
    if (op->frag != 0) { /* fragment 0 carries the line */
        data.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_SENT);
        data.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        data.send_flags |= IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
        data.imm_data = htonl(immediate_of(op));
        first = &data;
    } else {
        describe_line(conn, op, &spans[1], &last);
        if (has_data) {
            data.next = &last;
            first = &data;
            sent.requests = 2;
        }
    }
    if (op->kind == PC_SEND_CREDIT)
        sent.edge = NULL; /* no call waits for a credit */
    int error = post(w, conn, first, &sent);
    if (error == 0 && op->edge != NULL && op->frags == 1)
        pc__net_told(op->edge);
    return error;
}

int pc__wr_post_receives(struct pc_verbs_connection *conn, uint32_t n)
{
    struct ibv_recv_wr requests[PC_REPOST_BATCH], *bad;
    for (uint32_t posted = 0; posted < n;) {
        uint32_t k = n - posted < PC_REPOST_BATCH ? n - posted : PC_REPOST_BATCH;
        for (uint32_t i = 0; i < k; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = wr_id_of(conn, 0, PC_EVENT_RECEIVED),
                                               .next = i + 1 < k ? &requests[i + 1] : NULL};
        int error = ibv_post_recv(conn->qp, requests, &bad);
        if (error != 0)
            return error;
        conn->receives += k;
        posted += k;
    }
    return 0;
}
#endif
