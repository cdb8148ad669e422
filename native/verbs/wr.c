/* What goes out by a path, and the completions that come back. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <string.h>

/* An immediate: the channel and what it tells of it. The low bits of the credit come with all but
 * pieces, which say which of how many they are, of the message on which line. */
#define PC_IMM_CHANNEL 29
#define PC_IMM_KIND 27
#define PC_IMM_FRAGS 24 /* less one */
#define PC_IMM_FRAG 21
#define PC_IMM_LINE 16
#define PC_IMM_CREDIT ((UINT32_C(1) << PC_IMM_KIND) - 1)
#define PC_CHANNEL_PROBE 7u
_Static_assert(PC_EDGE_CHANNELS <= PC_CHANNEL_PROBE, "a channel fits its bits");
_Static_assert(PC_LINES <= 32 && PC_MAX_FRAGS <= 8, "so do a line and a piece");

enum news { CREDIT, MESSAGE, PIECE };

/* What a request is, in its number: partner, path, turn, record, kind. A completion may come after
 * its queue pair has gone; the turn tells. */
enum request { RECEIVE, DATA, LAST };

static uint64_t number_of(const struct pc_verbs_connection *path, uint32_t record,
                          enum request kind)
{
    return (uint64_t)path->partner->rank << 48 | (uint64_t)path->index << 40
           | (uint64_t)(path->turn & 0xffff) << 24 | (uint64_t)(record & 0xffff) << 8 | kind;
}

bool pc__can_post(const struct pc_verbs_connection *path)
{
    return path->state == PC_CONNECTION_UP && path->tail - path->head < PC_CONNECTION_SEND_OPS
           && path->requests + 2 <= PC_CONNECTION_SEND_WRS;
}

static uint32_t immediate(uint32_t channel, enum news news, uint64_t credit)
{
    return channel << PC_IMM_CHANNEL | (uint32_t)news << PC_IMM_KIND
           | ((uint32_t)credit & PC_IMM_CREDIT);
}

static uint32_t immediate_of(const struct pc_send_op *record)
{
    const struct pc_fifo *f = record->fifo;
    if (f == NULL)
        return immediate(PC_CHANNEL_PROBE, CREDIT, 0);
    if (record->pieces == 1)
        return immediate(f->channel, MESSAGE, f->consumed);
    return immediate(f->channel, PIECE, 0) | (record->pieces - 1u) << PC_IMM_FRAGS
           | (uint32_t)record->piece << PC_IMM_FRAG
           | ((uint32_t)record->number & (PC_LINES - 1)) << PC_IMM_LINE;
}

static int post(struct pc_net *w, struct pc_verbs_connection *path, struct ibv_send_wr *requests,
                const struct pc_send_op *record)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(path->qp, requests, &bad);
    if (error != 0) {
        pc__connection_fail(w, path, strerror(error));
        return PC_LOST;
    }
    path->records[path->tail++ % PC_CONNECTION_SEND_OPS] = *record;
    w->flying++;
    path->requests += record->requests;
    path->bytes += record->nbytes + PC_LINE_BYTES;
    w->state.bytes[path->rail] += record->nbytes;
    return PC_OK;
}

/* The data, if they do not lie in the line: into the peer's slot. */
static bool describe_data(const struct pc_net *w, const struct pc_verbs_connection *path,
                          const struct pc_send_op *record, struct ibv_sge *span,
                          struct ibv_send_wr *request)
{
    const struct pc_verbs_peer *partner = path->partner;
    const char *line = (const char *)&record->fifo->out_lines[record->number & (PC_LINES - 1)];
    const char *slots = w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS].out_data;
    if (record->nbytes == 0 || (record->data >= line && record->data < line + PC_LINE_BYTES))
        return false;
    *span = (struct ibv_sge){.addr = (uintptr_t)record->data,
                             .length = (uint32_t)record->nbytes,
                             .lkey = partner->shadow[path->rail]->lkey};
    *request = (struct ibv_send_wr){.wr_id = number_of(path, path->tail, DATA),
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .sg_list = span,
                                    .num_sge = 1};
    if (record->nbytes <= w->rails[path->rail].max_inline)
        request->send_flags = IBV_SEND_INLINE;
    request->wr.rdma.remote_addr = partner->hello.slots + (uint64_t)(record->data - slots);
    request->wr.rdma.rkey = partner->hello.rails[path->their_rail].slots_key;
    return true;
}

/* The line: with its count, which says that all is there; or without, when pieces go by several
 * paths, and the peer counts them. */
static void describe_line(const struct pc_net *w, const struct pc_verbs_connection *path,
                          const struct pc_send_op *record, struct ibv_sge *span,
                          struct ibv_send_wr *request)
{
    const struct pc_verbs_peer *partner = path->partner;
    const struct pc_line *lines
        = w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS].out_lines;
    *request = (struct ibv_send_wr){.wr_id = number_of(path, path->tail, LAST),
                                    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                                    .imm_data = htonl(immediate_of(record))};
    request->wr.rdma.remote_addr = partner->hello.lines;
    request->wr.rdma.rkey = partner->hello.rails[path->their_rail].lines_key;
    if (record->fifo == NULL)
        return;
    const struct pc_line *line = &record->fifo->out_lines[record->number & (PC_LINES - 1)];
    *span = (struct ibv_sge){
        .addr = (uintptr_t)line,
        .length = record->pieces == 1 ? PC_LINE_BYTES : (uint32_t)offsetof(struct pc_line, count)};
    request->sg_list = span;
    request->num_sge = 1;
    request->send_flags |= IBV_SEND_INLINE;
    request->wr.rdma.remote_addr += (uint64_t)((const char *)line - (const char *)lines);
}

static int post_read(struct pc_net *w, struct pc_verbs_connection *path,
                     const struct pc_send_op *record)
{
    struct pc_send_op sent = *record;
    struct ibv_sge span = {.addr = (uintptr_t)record->data,
                           .length = (uint32_t)record->nbytes,
                           .lkey = pc__rndv_lkey(record->pull, path->rail)};
    struct ibv_send_wr request = {.wr_id = number_of(path, path->tail, LAST),
                                  .opcode = IBV_WR_RDMA_READ,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &span,
                                  .num_sge = 1};
    request.wr.rdma.remote_addr = record->number;
    request.wr.rdma.rkey = record->pull->loan.keys[path->their_rail];
    sent.requests = 1;
    return post(w, path, &request, &sent);
}

int pc__post_message(struct pc_net *w, struct pc_verbs_connection *path,
                     const struct pc_send_op *record)
{
    struct pc_send_op sent = *record;
    struct pc_fifo *f = record->fifo;
    struct ibv_sge spans[2];
    struct ibv_send_wr data = {0}, last, *first = &last;
    if (record->pull != NULL)
        return post_read(w, path, record);
    bool has_data = f != NULL && describe_data(w, path, record, &spans[0], &data);
    sent.requests = 1;
    if (record->piece != 0) { /* the line goes with piece 0 */
        data.wr_id = number_of(path, path->tail, LAST);
        data.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        data.send_flags |= IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
        data.imm_data = htonl(immediate_of(record));
        first = &data;
    } else {
        describe_line(w, path, record, &spans[1], &last);
        if (has_data) {
            data.next = &last;
            first = &data;
            sent.requests = 2;
        }
    }
    int rc = post(w, path, first, &sent);
    if (rc == PC_OK && f != NULL && record->pieces == 1) {
        f->returned = f->consumed;
        path->partner->owed &= ~(UINT32_C(1) << f->channel);
    }
    return rc;
}

int pc__post_credit(struct pc_net *w, struct pc_verbs_connection *path, struct pc_fifo *f)
{
    const struct pc_wireup_hello *hello = &path->partner->hello;
    struct pc_send_op record = {.requests = 1, .pieces = 1};
    struct ibv_send_wr request = {.wr_id = number_of(path, path->tail, LAST),
                                  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
                                  .imm_data = htonl(immediate(f->channel, CREDIT, f->consumed))};
    request.wr.rdma.remote_addr = hello->lines;
    request.wr.rdma.rkey = hello->rails[path->their_rail].lines_key;
    int rc = post(w, path, &request, &record);
    if (rc == PC_OK)
        f->returned = f->consumed;
    return rc;
}

int pc__post_receives(struct pc_net *w, struct pc_verbs_connection *path, uint32_t n)
{
    struct ibv_recv_wr requests[PC_REPOST_BATCH], *bad;
    for (uint32_t posted = 0; posted < n;) {
        uint32_t k = n - posted < PC_REPOST_BATCH ? n - posted : PC_REPOST_BATCH;
        for (uint32_t i = 0; i < k; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = number_of(path, 0, RECEIVE),
                                               .next = i + 1 < k ? &requests[i + 1] : NULL};
        int error = ibv_post_recv(path->qp, requests, &bad);
        if (error != 0) {
            pc__connection_fail(w, path, strerror(error));
            return PC_LOST;
        }
        path->receives += k;
        posted += k;
    }
    return PC_OK;
}

/* The peer has said how much it has consumed; of several paths, an older word may come late. */
static void take_credit(struct pc_net *w, struct pc_verbs_peer *partner, struct pc_fifo *f,
                        uint32_t said)
{
    uint64_t known = pc__count(f->out_credit);
    uint32_t more = (said - (uint32_t)known) & PC_IMM_CREDIT;
    if (more > PC_IMM_CREDIT / 2)
        return;
    if (known + more > f->put) {
        pc__verbs_peer_fail(w, partner, PC_LOST, "it gave back more messages than were sent");
        return;
    }
    pc__raise(f->out_credit, known + more); /* who sleeps is woken by whoever reaped */
}

/* A piece has come; true when that makes the message whole. What a path has brought is in memory
 * when its completion is seen, and only then is the count raised, here. */
static bool take_piece(struct pc_verbs_peer *partner, struct pc_fifo *f, uint32_t imm)
{
    uint32_t number = imm >> PC_IMM_LINE & (PC_LINES - 1);
    uint32_t pieces = (imm >> PC_IMM_FRAGS & 7) + 1, piece = imm >> PC_IMM_FRAG & 7;
    uint8_t *come = &partner->come[f->channel * PC_LINES + number];
    *come |= (uint8_t)(1u << piece);
    if (*come != (1u << pieces) - 1)
        return false;
    *come = 0;
    struct pc_line *line = &f->in_lines[number];
    uint64_t count = pc__count(line);
    pc__raise(line, count == 0 ? number + 1 : count + PC_LINES); /* who sleeps is woken later */
    return true;
}

static void receive(struct pc_net *w, struct pc_verbs_connection *path, uint32_t imm)
{
    struct pc_verbs_peer *partner = path->partner;
    uint32_t channel = imm >> PC_IMM_CHANNEL, news = imm >> PC_IMM_KIND & 3;
    pc__connection_up(w, path);
    if (channel < PC_EDGE_CHANNELS) {
        struct pc_fifo *f = &w->comm->fifos[(size_t)partner->rank * PC_EDGE_CHANNELS + channel];
        if (news == MESSAGE || (news == PIECE && take_piece(partner, f, imm))) {
        }
        if (news != PIECE)
            take_credit(w, partner, f, imm & PC_IMM_CREDIT);
    }
    if (++path->spent >= PC_REPOST_BATCH && path->qp != NULL && path->state <= PC_CONNECTION_UP) {
        path->spent -= PC_REPOST_BATCH;
        pc__post_receives(w, path, PC_REPOST_BATCH);
    }
}

/* True when somebody may wait for just that. */
static bool acknowledge(struct pc_net *w, struct pc_verbs_connection *path)
{
    /* A copy: what follows may post more. */
    const struct pc_send_op done = path->records[path->head++ % PC_CONNECTION_SEND_OPS],
                            *record = &done;
    w->flying--;
    path->requests -= record->requests;
    path->bytes -= record->nbytes + PC_LINE_BYTES;
    if (record->pull != NULL)
        pc__rndv_read_done(w, record->pull, record->nbytes);
    else if (record->fifo != NULL)
        pc__verbs_peer_count_pending(w, path->partner, record->fifo, -1);
    pc__connection_up(w, path);
    return done.pull != NULL
           || (done.fifo != NULL && path->partner->unacknowledged[done.fifo->channel] == 0);
}

/* Of these the network is innocent: the two ranks disagree on what may be written where. (An
 * invalid request is not among them: Soft-RoCE says so of packets that it lost.) */
static bool refused(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_LOC_PROT_ERR
           || status == IBV_WC_LOC_LEN_ERR;
}

static void failed(struct pc_net *w, struct pc_verbs_connection *path, const struct ibv_wc *wc)
{
    uint64_t last = number_of(path, path->tail - 1, LAST);
    if (wc->status != IBV_WC_WR_FLUSH_ERR || path->state < PC_CONNECTION_DRAINING)
        pc__connection_fail(w, path, pc__ib.wc_status_str(wc->status));
    path->flushed = path->flushed || wc->wr_id == last;
    if (refused(wc->status))
        pc__verbs_peer_fail(w, path->partner, PC_LOST, pc__ib.wc_status_str(wc->status));
}

static bool complete(struct pc_net *w, const struct ibv_wc *wc)
{
    uint32_t rank = (uint32_t)(wc->wr_id >> 48), index = wc->wr_id >> 40 & 0xff;
    struct pc_verbs_peer *partner = &w->partners[rank];
    struct pc_verbs_connection *path = &partner->paths[index];
    if (path->qp == NULL || (path->turn & 0xffff) != (wc->wr_id >> 24 & 0xffff))
        return false; /* of a queue pair that is no more */
    bool receives = (wc->wr_id & 0xff) == RECEIVE, news = false;
    if (receives)
        path->receives--;
    if (wc->status != IBV_WC_SUCCESS) {
        failed(w, path, wc);
    } else if (receives) {
        receive(w, path, ntohl(wc->imm_data));
        news = true;
    } else {
        news = acknowledge(w, path);
    }
    if (path->state == PC_CONNECTION_DRAINING)
        pc__connection_drain(w, path);
    return news;
}

bool pc__poll_cq(struct pc_net *w)
{
    struct ibv_wc done[16];
    bool came = false;
    w->calls = 0;
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
        /* A thread that is about to sleep has read the doorbell before it looked. */
        atomic_fetch_add(&((struct pc_arena *)w->comm->arena)->doorbell, 1);
        if (atomic_load(&w->comm->dozing))
            pc__wakeup_signal(w->comm, w->comm->options.rank);
    }
    return came;
}
#endif
