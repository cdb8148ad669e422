/* Posts work requests to a connection's queue pair, and polls the completion queue of a rail. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <string.h>

/* Immediate data (32 bits): the channel, the kind, and by kind either the low bits of the credit,
 * or of a fragment the number of fragments, the line of its message, and its index; of the last
 * one, whose index is known, in place of that where the header lies. */
#define PC_IMM_CHANNEL 29
#define PC_IMM_FRAGS 24 /* the number of fragments less one */
#define PC_IMM_LINE_AT 19
#define PC_IMM_FRAG_AT 16
#define PC_CHANNEL_PROBE 7u /* no channel */
_Static_assert(PC_EDGE_CHANNELS <= PC_CHANNEL_PROBE, "a channel fits its bits");
_Static_assert(PC_LINES <= 32 && PC_MAX_FRAGS <= 8, "a line and a fragment fit their bits");

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
                                   .imm = imm >> PC_IMM_KIND & 3,
                                   .frags = (imm >> PC_IMM_FRAGS & 7) + 1,
                                   .frag = imm >> PC_IMM_FRAG_AT & 7,
                                   .line = imm >> PC_IMM_LINE_AT & (PC_LINES - 1),
                                   .place = imm & PC_IMM_NO_PLACE,
                                   .credit = imm & PC_IMM_CREDIT_BITS};
        if (out[i].imm == PC_IMM_HEADER)
            out[i].frag = out[i].frags - 1;
    }
    return n > 0 ? (uint32_t)n : 0;
}

bool pc__can_post(const struct pc_verbs_connection *conn)
{
    return conn->state == PC_CONNECTION_UP && conn->tail - conn->head < PC_CONNECTION_SEND_OPS
           && conn->requests + 2 <= pc__send_wrs(conn);
}

static bool is_last(const struct pc_send_op *op)
{
    return op->frag + 1 == op->frags;
}

static bool in_its_line(const struct pc_send_op *op)
{
    const char *line = (const char *)&op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
    return op->nbytes == 0 || (op->data >= line && op->data < line + PC_LINE_BYTES);
}

static uint32_t immediate(uint32_t channel, enum pc_imm_kind kind, uint32_t rest)
{
    return channel << PC_IMM_CHANNEL | (uint32_t)kind << PC_IMM_KIND | rest;
}

static uint32_t immediate_of_credit(const struct pc_net_edge *edge, enum pc_imm_kind kind)
{
    return immediate(edge->fifo->channel, kind, (uint32_t)edge->consumed & PC_IMM_CREDIT_BITS);
}

/* `place`: of the header, where this is the last fragment. */
static uint32_t immediate_of_frag(const struct pc_send_op *op, uint32_t place)
{
    uint32_t which = is_last(op) ? place : (uint32_t)op->frag << PC_IMM_FRAG_AT;
    return immediate(op->edge->fifo->channel, is_last(op) ? PC_IMM_HEADER : PC_IMM_FRAG,
                     (op->frags - 1u) << PC_IMM_FRAGS
                         | ((uint32_t)op->number & (PC_LINES - 1)) << PC_IMM_LINE_AT | which);
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
    w->base.state.requests += op->requests;
    w->base.state.credits += op->kind == PC_SEND_CREDIT;
    conn->bytes += op->nbytes + PC_LINE_BYTES;
    pc__net_add_sent(&w->base, conn->rail, op->nbytes);
    return 0;
}

/* Where the header goes: behind the data, at the next whole line. PC_IMM_NO_PLACE: there is no
 * room. A transfer leaves room, and so does a small slot; else a message may fill its slot. The CPU
 * of either end neither writes nor reads memory of a GPU. */
static uint32_t place_of_header(const struct pc_verbs_net *w, const struct pc_verbs_peer *peer,
                                const struct pc_send_op *op)
{
    if (peer->base.gpu_out != 0 || peer->hello.slots_gpu)
        return PC_IMM_NO_PLACE;
    const struct pc_fifo *f = op->edge->fifo;
    const struct pc_layout *l = &w->base.comm->layout;
    uint64_t slot_bytes = l->slot_bytes;
    uint64_t begin = (uint64_t)(op->data - f->out_data);
    uint64_t at = (begin + op->nbytes + PC_LINE_BYTES - 1) / PC_LINE_BYTES;
    bool full = f->channel < PC_MAX_CHANNELS && begin < l->slots * slot_bytes
                && at * PC_LINE_BYTES + PC_TRAILER_BYTES > (begin / slot_bytes + 1) * slot_bytes;
    return full || at >= PC_IMM_NO_PLACE ? PC_IMM_NO_PLACE : (uint32_t)at;
}

static void make_header(const struct pc_send_op *op, void *at)
{
    const struct pc_line *line = &op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
    const struct pc_message_header header = {.signature = line->signature,
                                             .place = line->place,
                                             .nbytes = line->nbytes,
                                             .count = op->number + 1,
                                             .credit = op->edge->consumed};
    memcpy(at, &header, sizeof header);
}

/* An RDMA write into the peer's lines. */
static struct ibv_send_wr write_line(const struct pc_verbs_connection *conn, const void *line,
                                     uint32_t nbytes, uint32_t imm, struct ibv_sge *span)
{
    const struct pc_verbs_peer *peer = conn->peer;
    struct ibv_send_wr request
        = {.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_SENT),
           .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
           .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | (nbytes ? IBV_SEND_INLINE : 0u),
           .imm_data = htonl(imm),
           .sg_list = span,
           .num_sge = nbytes != 0};
    *span = (struct ibv_sge){.addr = (uintptr_t)line, .length = nbytes};
    request.wr.rdma.remote_addr = peer->hello.lines;
    request.wr.rdma.rkey = peer->hello.rails[conn->their_rail].lines_key;
    if (nbytes != 0)
        request.wr.rdma.remote_addr
            += (uint64_t)((const char *)line - (const char *)peer->base.edges[0].fifo->out_lines);
    return request;
}

/* An RDMA write into the peer's slots, of bytes from the op's data on. */
static struct ibv_send_wr write_data(const struct pc_verbs_net *w,
                                     const struct pc_verbs_connection *conn,
                                     const struct pc_send_op *op, uint64_t nbytes, uint32_t imm,
                                     struct ibv_sge *span)
{
    const struct pc_verbs_peer *peer = conn->peer;
    const char *slots = peer->base.edges[0].fifo->out_data;
    uint64_t at = (uint64_t)(op->data - slots), gpu = peer->base.gpu_out;
    bool inlined = gpu == 0 && nbytes <= w->rails[conn->rail].max_inline;
    struct ibv_send_wr request
        = {.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_SENT),
           .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
           .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | (inlined ? IBV_SEND_INLINE : 0u),
           .imm_data = htonl(imm),
           .sg_list = span,
           .num_sge = 1};
    *span = (struct ibv_sge){.addr = gpu != 0 ? gpu + at : (uintptr_t)op->data,
                             .length = (uint32_t)nbytes,
                             .lkey = peer->shadow[conn->rail]->lkey};
    request.wr.rdma.remote_addr = peer->hello.slots + at;
    request.wr.rdma.rkey = peer->hello.rails[conn->their_rail].slots_key;
    return request;
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

/* A message whose bytes are not in its line, or a fragment of it: one RDMA write, of which the
 * receiver learns by its completion alone, and then raises the count itself. So nothing depends on
 * the order in which packets arrive, or in which their bytes become visible. */
static int post_data(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    uint64_t nbytes = op->nbytes;
    uint32_t place = is_last(op) ? place_of_header(w, conn->peer, op) : 0;
    struct ibv_sge spans[2];
    sent.requests = 1;
    if (is_last(op) && place != PC_IMM_NO_PLACE) {
        const struct pc_fifo *f = op->edge->fifo;
        char *at = f->out_data + (uint64_t)place * PC_LINE_BYTES;
        make_header(op, at);
        nbytes = (uint64_t)(at + sizeof(struct pc_message_header) - op->data);
    }
    struct ibv_send_wr data
        = write_data(w, conn, op, nbytes, immediate_of_frag(op, place), &spans[0]);
    if (place != PC_IMM_NO_PLACE)
        return post(w, conn, &data, &sent);
    /* The slot is full, and the header goes into the line. Its completion says that what was posted
     * before it to the same queue pair is there, too. */
    struct pc_line *line = &op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
    make_header(op, line);
    struct ibv_send_wr last = write_line(conn, line, sizeof(struct pc_message_header),
                                         immediate_of_frag(op, place), &spans[1]);
    data.wr_id = wr_id_of(conn, conn->tail, PC_EVENT_DATA);
    data.opcode = IBV_WR_RDMA_WRITE;
    data.send_flags &= (unsigned)IBV_SEND_INLINE;
    data.next = &last;
    sent.requests = 2;
    return post(w, conn, &data, &sent);
}

/* A message in its line goes with the count, which the receiver polls: the 64 bytes are one packet,
 * and one cache line, which a device writes at once. */
static int post_line(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                     const struct pc_send_op *op)
{
    struct pc_send_op sent = *op;
    const struct pc_line *line = NULL;
    uint32_t imm = immediate(PC_CHANNEL_PROBE, PC_IMM_CREDIT, 0);
    struct ibv_sge span;
    if (op->edge != NULL && op->kind == PC_SEND_MESSAGE) {
        line = &op->edge->fifo->out_lines[op->number & (PC_LINES - 1)];
        imm = immediate_of_credit(op->edge, PC_IMM_LINE);
    } else if (op->edge != NULL) {
        imm = immediate_of_credit(op->edge, PC_IMM_CREDIT);
        sent.edge = NULL; /* no call waits for a credit */
    }
    struct ibv_send_wr request = write_line(conn, line, line ? PC_LINE_BYTES : 0, imm, &span);
    sent.requests = 1;
    return post(w, conn, &request, &sent);
}

int pc__wr_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                const struct pc_send_op *op)
{
    if (op->rndv != NULL)
        return post_read(w, conn, op);
    bool data = op->edge != NULL && op->kind == PC_SEND_MESSAGE && !in_its_line(op);
    int error = data ? post_data(w, conn, op) : post_line(w, conn, op);
    if (error == 0 && data && conn->peer->base.gpu_out != 0)
        w->base.state.gpu_bytes += op->nbytes;
    if (error == 0 && op->edge != NULL && is_last(op))
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
