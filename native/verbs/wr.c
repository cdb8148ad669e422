/* What goes out by a connection, and the completions that come back. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <string.h>

/* An immediate: the channel and what it tells of it. The low bits of the credit come with all but
 * fragments, which say which of how many they are, of the message on which line. */
#define PC_IMM_CHANNEL 29
#define PC_IMM_KIND 27
#define PC_IMM_FRAGS 24 /* less one */
#define PC_IMM_FRAG 21
#define PC_IMM_LINE 16
#define PC_IMM_CREDIT ((UINT32_C(1) << PC_IMM_KIND) - 1)
#define PC_CHANNEL_PROBE 7u
_Static_assert(PC_EDGE_CHANNELS <= PC_CHANNEL_PROBE, "a channel fits its bits");
_Static_assert(PC_LINES <= 32 && PC_MAX_FRAGS <= 8, "so do a line and a piece");

enum imm_kind { CREDIT, MESSAGE, PIECE };

/* What a request is, in its number: peer, connection, turn, send op, kind. A completion may come
 * after its queue pair has gone; the turn tells. */
enum request { RECEIVE, DATA, LAST };

static uint64_t number_of(const struct pc_verbs_connection *conn, uint32_t op, enum request kind)
{
    return (uint64_t)conn->peer->base.rank << 48 | (uint64_t)conn->index << 40
           | (uint64_t)(conn->turn & 0xffff) << 24 | (uint64_t)(op & 0xffff) << 8 | kind;
}

bool pc__can_post(const struct pc_verbs_connection *conn)
{
    return conn->state == PC_CONNECTION_UP && conn->tail - conn->head < PC_CONNECTION_SEND_OPS
           && conn->requests + 2 <= PC_CONNECTION_SEND_WRS;
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
        return immediate(edge->fifo->channel, MESSAGE, edge->consumed);
    return immediate(edge->fifo->channel, PIECE, 0) | (op->frags - 1u) << PC_IMM_FRAGS
           | (uint32_t)op->frag << PC_IMM_FRAG
           | ((uint32_t)op->number & (PC_LINES - 1)) << PC_IMM_LINE;
}

static int post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                struct ibv_send_wr *requests, const struct pc_send_op *op)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(conn->qp, requests, &bad);
    if (error != 0) {
        pc__connection_fail(w, conn, strerror(error));
        return PC_LOST;
    }
    conn->ops[conn->tail++ % PC_CONNECTION_SEND_OPS] = *op;
    w->base.in_flight++;
    conn->requests += op->requests;
    conn->bytes += op->nbytes + PC_LINE_BYTES;
    w->base.state.bytes[conn->rail] += op->nbytes;
    return PC_OK;
}

/* The data, if they do not lie in the line: into the peer's slot. */
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
    *request = (struct ibv_send_wr){.wr_id = number_of(conn, conn->tail, DATA),
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .sg_list = span,
                                    .num_sge = 1};
    if (op->nbytes <= w->rails[conn->rail].max_inline)
        request->send_flags = IBV_SEND_INLINE;
    request->wr.rdma.remote_addr = peer->hello.slots + (uint64_t)(op->data - slots);
    request->wr.rdma.rkey = peer->hello.rails[conn->their_rail].slots_key;
    return true;
}

/* The line: with its count, which says that all is there; or without, when fragments go by several
 * connections, and the peer counts them. */
static void describe_line(const struct pc_verbs_connection *conn, const struct pc_send_op *op,
                          struct ibv_sge *span, struct ibv_send_wr *request)
{
    const struct pc_verbs_peer *peer = conn->peer;
    const struct pc_line *lines = peer->base.edges[0].fifo->out_lines;
    *request = (struct ibv_send_wr){.wr_id = number_of(conn, conn->tail, LAST),
                                    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                                    .imm_data = htonl(immediate_of(op))};
    request->wr.rdma.remote_addr = peer->hello.lines;
    request->wr.rdma.rkey = peer->hello.rails[conn->their_rail].lines_key;
    if (op->edge == NULL)
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

static int post_read(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    struct ibv_sge span = {.addr = (uintptr_t)op->data,
                           .length = (uint32_t)op->nbytes,
                           .lkey = pc__rndv_lkey(op->rndv, conn->rail)};
    struct ibv_send_wr request = {.wr_id = number_of(conn, conn->tail, LAST),
                                  .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &span,
                                  .num_sge = 1};
    request.wr.rdma.remote_addr = op->number;
    request.wr.rdma.rkey = op->rndv->rkey.keys[conn->their_rail];
    sent.requests = 1;
    return post(w, conn, &request, &sent);
}

int pc__post_message(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    struct ibv_sge spans[2];
    struct ibv_send_wr data = {0}, last, *first = &last;
    if (op->rndv != NULL)
        return post_read(w, conn, op);
    bool has_data = op->edge != NULL && describe_data(w, conn, op, &spans[0], &data);
    sent.requests = 1;
    if (op->frag != 0) { /* the line goes with fragment 0 */
        data.wr_id = number_of(conn, conn->tail, LAST);
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
    int rc = post(w, conn, first, &sent);
    if (rc == PC_OK && op->edge != NULL && op->frags == 1)
        pc__net_told(op->edge);
    return rc;
}

int pc__post_credit(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                    struct pc_net_edge *edge)
{
    const struct pc_wireup_hello *hello = &conn->peer->hello;
    struct pc_send_op op = {.requests = 1, .frags = 1};
    struct ibv_send_wr request
        = {.wr_id = number_of(conn, conn->tail, LAST),
           .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
           .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
           .imm_data = htonl(immediate(edge->fifo->channel, CREDIT, edge->consumed))};
    request.wr.rdma.remote_addr = hello->lines;
    request.wr.rdma.rkey = hello->rails[conn->their_rail].lines_key;
    int rc = post(w, conn, &request, &op);
    if (rc == PC_OK)
        pc__net_told(edge);
    return rc;
}

int pc__post_receives(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t n)
{
    struct ibv_recv_wr requests[PC_REPOST_BATCH], *bad;
    for (uint32_t posted = 0; posted < n;) {
        uint32_t k = n - posted < PC_REPOST_BATCH ? n - posted : PC_REPOST_BATCH;
        for (uint32_t i = 0; i < k; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = number_of(conn, 0, RECEIVE),
                                               .next = i + 1 < k ? &requests[i + 1] : NULL};
        int error = ibv_post_recv(conn->qp, requests, &bad);
        if (error != 0) {
            pc__connection_fail(w, conn, strerror(error));
            return PC_LOST;
        }
        conn->receives += k;
        posted += k;
    }
    return PC_OK;
}

/* The peer has said how much it has consumed; of several connections, an older word may come late.
 */
static void receive_credit(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                           const struct pc_net_edge *edge, uint32_t said)
{
    struct pc_fifo *f = edge->fifo;
    uint64_t known = pc__count(f->out_credit);
    uint32_t more = (said - (uint32_t)known) & PC_IMM_CREDIT;
    if (more > PC_IMM_CREDIT / 2)
        return;
    if (known + more > edge->put) {
        pc__verbs_peer_fail(w, peer, PC_LOST, "it gave back more messages than were sent");
        return;
    }
    pc__raise(f->out_credit, known + more); /* who sleeps is woken by whoever reaped */
}

static void receive(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t imm)
{
    struct pc_verbs_peer *peer = conn->peer;
    uint32_t channel = imm >> PC_IMM_CHANNEL, imm_kind = imm >> PC_IMM_KIND & 3;
    pc__connection_up(w, conn);
    if (channel < PC_EDGE_CHANNELS) {
        struct pc_net_edge *edge = &peer->base.edges[channel];
        if (imm_kind == PIECE) /* what a connection has brought is in memory by now */
            pc__edge_frag(edge, imm >> PC_IMM_LINE & (PC_LINES - 1), imm >> PC_IMM_FRAG & 7,
                          (imm >> PC_IMM_FRAGS & 7) + 1);
        else
            receive_credit(w, peer, edge, imm & PC_IMM_CREDIT);
    }
    if (++conn->spent >= PC_REPOST_BATCH && conn->qp != NULL && conn->state <= PC_CONNECTION_UP) {
        conn->spent -= PC_REPOST_BATCH;
        pc__post_receives(w, conn, PC_REPOST_BATCH);
    }
}

/* True when somebody may wait for just that. */
static bool acknowledge(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    /* A copy: what follows may post more. */
    const struct pc_send_op done = conn->ops[conn->head++ % PC_CONNECTION_SEND_OPS], *op = &done;
    w->base.in_flight--;
    conn->requests -= op->requests;
    conn->bytes -= op->nbytes + PC_LINE_BYTES;
    if (op->rndv != NULL)
        pc__rndv_read_done(w, op->rndv, op->nbytes);
    else if (op->edge != NULL)
        pc__net_count(op->edge, -1);
    pc__connection_up(w, conn);
    return done.rndv != NULL || (done.edge != NULL && done.edge->pending == 0);
}

/* Of these the network is innocent: the two ranks disagree on what may be written where. (An
 * invalid request is not among them: Soft-RoCE says so of packets that it lost.) */
static bool refused(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_LOC_PROT_ERR
           || status == IBV_WC_LOC_LEN_ERR;
}

static void failed(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                   const struct ibv_wc *wc)
{
    uint64_t last = number_of(conn, conn->tail - 1, LAST);
    if (wc->status != IBV_WC_WR_FLUSH_ERR || conn->state < PC_CONNECTION_DRAINING)
        pc__connection_fail(w, conn, pc__ib.wc_status_str(wc->status));
    conn->flushed = conn->flushed || wc->wr_id == last;
    if (refused(wc->status))
        pc__verbs_peer_fail(w, conn->peer, PC_LOST, pc__ib.wc_status_str(wc->status));
}

static bool complete(struct pc_verbs_net *w, const struct ibv_wc *wc)
{
    uint32_t rank = (uint32_t)(wc->wr_id >> 48), index = wc->wr_id >> 40 & 0xff;
    struct pc_verbs_peer *peer = pc__verbs_peer(w, rank);
    struct pc_verbs_connection *conn = &peer->conns[index];
    if (conn->qp == NULL || (conn->turn & 0xffff) != (wc->wr_id >> 24 & 0xffff))
        return false; /* of a queue pair that is no more */
    bool receives = (wc->wr_id & 0xff) == RECEIVE, imm_kind = false;
    if (receives)
        conn->receives--;
    if (wc->status != IBV_WC_SUCCESS) {
        failed(w, conn, wc);
    } else if (receives) {
        receive(w, conn, ntohl(wc->imm_data));
        imm_kind = true;
    } else {
        imm_kind = acknowledge(w, conn);
    }
    if (conn->state == PC_CONNECTION_DRAINING)
        pc__connection_drain(w, conn);
    return imm_kind;
}

bool pc__poll_cq(struct pc_verbs_net *w)
{
    struct ibv_wc done[16];
    bool came = false;
    for (uint32_t i = 0; i < w->nrails; i++) {
        int n;
        do {
            n = ibv_poll_cq(w->rails[i].cq, 16, done);
            for (int k = 0; k < n; k++)
                came |= complete(w, &done[k]);
        } while (n == 16);
    }
    /* A thread that sleeps on a count may have to look; who listens on descriptors is woken there.
     */
    if (came) {
        /* A thread that is about to sleep has read the wakeup counter before it looked. */
        atomic_fetch_add(&((struct pc_arena *)w->base.comm->arena)->wakeup, 1);
        if (atomic_load(&w->base.comm->sleepers))
            pc__wakeup_signal(w->base.comm, w->base.comm->options.rank);
    }
    return came;
}
#endif
