/* The event loop of verbs: completions, wireup messages, asynchronous events and timers. A thread
 * that is in a call serves it; otherwise the event thread does. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include "verbs/port.h"

/* A peer that was reached before is lost after this time without a connection, if each of its
 * connections failed so often since; else after twice the time. An attempt that began before may
 * end. */
#define PC_RECONNECT_NS UINT64_C(10000000000)
#define PC_RECONNECT_TRIES 3
#define PC_PROBE_NS UINT64_C(5000000)       /* between two polls for the probe, after a reply */
#define PC_POLL_SENT_NS UINT64_C(100000000) /* between two looks at an attempt */
/* Longer than a device takes to give up a send: at least this, or so many times what it should take
 * (it may take four times as long), and for each byte in flight by the port what a slow and busy
 * one takes. */
#define PC_STALL_NS UINT64_C(5000000000)
#define PC_STALL_TIMES 4
#define PC_STALL_NS_PER_BYTE 100
#define PC_LOOKS_PER_STALL 4
/* The longest sleep with sends in flight: a failed connection wakes nobody. */
#define PC_NAP_NS UINT64_C(20000000)

/* Until when a peer may be without a connection; 0: for ever. Where a transfer was broken off no
 * connection is made, and both ranks live: what waits has its own deadline. Before the first
 * connection the other rank may rightly be late, as at every step of the start. Later the lower
 * rank decides, as only it knows what was tried, and closes the socket; a busy machine may not have
 * let it try. */
static uint64_t reconnect_until(const struct pc_verbs_net *w, const struct pc_verbs_peer *peer)
{
    uint64_t patience = w->options.patience;
    bool tried = w->base.comm->options.rank < peer->base.rank
                 && peer->tries >= PC_RECONNECT_TRIES * peer->nconns;
    if (peer->aborted)
        return 0;
    if (peer->reached)
        return peer->cut_off + (tried ? 1 : 2) * PC_RECONNECT_NS;
    return patience == 0 ? 0 : peer->cut_off + patience * UINT64_C(1000000000);
}

/* Whether a connection attempt that began before `until` may still succeed. */
static bool connecting_now(const struct pc_verbs_peer *peer, uint64_t until)
{
    for (uint32_t i = 0; i < peer->nconns; i++) {
        const struct pc_verbs_connection *conn = &peer->conns[i];
        if (conn->state >= PC_CONNECTION_REQUESTED && conn->state <= PC_CONNECTION_PROBING
            && conn->since < until)
            return true;
    }
    return false;
}

static void fail_peer(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    char why[64] = "no connection to it is left";
    if (!peer->reached)
        snprintf(why, sizeof why, "no connection to it came up within %u s", w->options.patience);
    pc__verbs_peer_fail(w, peer, PC_LOST, why);
}

static uint64_t stall_ns(const struct pc_verbs_net *w)
{
    uint64_t tries = w->options.retry_count + 1;
    uint64_t device = PC_STALL_TIMES * tries * (UINT64_C(4096) << w->options.timeout);
    return device > PC_STALL_NS ? device : PC_STALL_NS;
}

/* Schedules a look at what is in flight, unless one is. */
static void watch(struct pc_verbs_net *w)
{
    if (w->base.in_flight == 0 || w->watching)
        return;
    w->watching = true;
    pc__net_schedule(&w->base, pc__now() + stall_ns(w) / PC_LOOKS_PER_STALL);
}

/* The peer has consumed `said` messages. With several connections an older count may come late. */
static void receive_credit(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                           const struct pc_net_edge *edge, uint64_t said)
{
    if (said > edge->put)
        pc__verbs_peer_fail(w, peer, PC_LOST, "it gave back more messages than were sent");
    else if (said > pc__count(edge->fifo->out_credit))
        pc__raise(edge->fifo->out_credit, said); /* poll_all wakes sleepers */
}

/* The count whose low bits are `said`: the nearest to the credit that is known. */
static uint64_t whole_credit(const struct pc_net_edge *edge, uint32_t said)
{
    uint64_t known = pc__count(edge->fifo->out_credit);
    uint32_t more = (said - (uint32_t)known) & PC_IMM_CREDIT_BITS;
    return more > PC_IMM_CREDIT_BITS / 2 ? known : known + more;
}

/* Takes over what a header says of its message. False: the peer may not say that. */
static bool receive_header(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                           struct pc_net_edge *edge, const struct pc_event *event)
{
    const struct pc_layout *l = &w->base.comm->layout;
    const struct pc_fifo *f = edge->fifo;
    struct pc_line *line = &f->in_lines[event->line];
    uint64_t at = (uint64_t)event->place * PC_LINE_BYTES, before = pc__count(line);
    bool placed = event->place != PC_IMM_NO_PLACE;
    bool small = placed && at >= (uint64_t)l->slots * l->slot_bytes;
    uint64_t depth = f->channel < PC_MAX_CHANNELS && !small ? l->slots : PC_LINES;
    const void *from = placed ? f->in_data + at : (const char *)line;
    struct pc_message_header header;
    char why[160];
    if (placed && peer->base.gpu_in != 0) {
        pc__verbs_peer_fail(w, peer, PC_LOST, "a header in memory of a GPU");
        return false;
    }
    if (placed && at + sizeof header > l->channel) {
        snprintf(why, sizeof why, "a header at byte %llu of channel %u, which has %llu",
                 (unsigned long long)at, f->channel, (unsigned long long)l->channel);
        pc__verbs_peer_fail(w, peer, PC_LOST, why);
        return false;
    }
    memcpy(&header, from, sizeof header);
    /* A line takes every PC_LINES-th message, each exactly once, and never before the message that
     * lies where this one is has been consumed. */
    if (header.count != (before == 0 ? event->line + 1u : before + PC_LINES)
        || header.count - 1 - edge->consumed >= depth) {
        snprintf(why, sizeof why,
                 "message %llu of channel %u came in line %u, behind %llu there; %llu are consumed",
                 (unsigned long long)header.count, f->channel, event->line,
                 (unsigned long long)before, (unsigned long long)edge->consumed);
        pc__verbs_peer_fail(w, peer, PC_LOST, why);
        return false;
    }
    line->signature = header.signature;
    line->place = header.place;
    line->nbytes = header.nbytes;
    receive_credit(w, peer, edge, header.credit);
    return true;
}

static void receive_frag(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                         struct pc_net_edge *edge, const struct pc_event *event)
{
    struct pc_verbs_peer *peer = conn->peer;
    if (event->frag >= event->frags)
        pc__verbs_peer_fail(w, peer, PC_LOST, "it sent a fragment that its message has not");
    else if (event->imm == PC_IMM_HEADER && !receive_header(w, peer, edge, event))
        return;
    else if (peer->base.gpu_in == 0 || !pc__gpu_flushes(w))
        pc__edge_frag(edge, event->line, event->frag, event->frags);
    else if (pc__gpu_arrived(w, conn->rail, edge, event) != PC_OK)
        pc__verbs_peer_fail(w, peer, PC_NOMEM, "no memory for what came from it");
}

static void receive(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                    const struct pc_event *event)
{
    struct pc_verbs_peer *peer = conn->peer;
    pc__connection_up(w, conn);
    if (event->channel < PC_EDGE_CHANNELS) {
        struct pc_net_edge *edge = &peer->base.edges[event->channel];
        if (event->imm >= PC_IMM_FRAG)
            receive_frag(w, conn, edge, event);
        else
            receive_credit(w, peer, edge, whole_credit(edge, event->credit));
    }
    if (!conn->shares && ++conn->spent >= PC_REPOST_BATCH && conn->qp != NULL
        && conn->state <= PC_CONNECTION_UP) {
        conn->spent -= PC_REPOST_BATCH;
        pc__connection_receive(w, conn, PC_REPOST_BATCH);
    }
}

/* Retires the oldest send op; true when a thread may wait for just that. */
static bool acknowledge(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    const struct pc_send_op *op = &conn->ops[conn->head++ % PC_CONNECTION_SEND_OPS];
    w->base.in_flight--;
    conn->requests -= op->requests;
    conn->bytes -= op->nbytes + PC_LINE_BYTES;
    if (op->rndv != NULL)
        pc__rndv_read_done(w, op->rndv, op->nbytes);
    else if (op->edge != NULL)
        pc__net_count(op->edge, -1);
    pc__connection_up(w, conn);
    return op->rndv != NULL || (op->edge != NULL && op->edge->pending == 0);
}

/* Errors that no other connection mends: the two ranks disagree on what may be written where.
 * (IBV_WC_REM_INV_REQ_ERR is not among them: Soft-RoCE reports it for lost packets.) */
static bool refused(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_LOC_PROT_ERR
           || status == IBV_WC_LOC_LEN_ERR;
}

static void failed(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                   const struct pc_event *event)
{
    bool last = event->kind == PC_EVENT_SENT && event->op == ((conn->tail - 1) & 0xffff);
    if (event->status != IBV_WC_WR_FLUSH_ERR || conn->state < PC_CONNECTION_DRAINING)
        pc__connection_fail(w, conn, pc__ib.wc_status_str(event->status));
    conn->flushed = conn->flushed || last;
    if (refused(event->status))
        pc__verbs_peer_fail(w, conn->peer, PC_LOST, pc__ib.wc_status_str(event->status));
}

/* NULL: its queue pair was destroyed. */
static struct pc_verbs_connection *connection_of(struct pc_verbs_net *w, uint32_t rail,
                                                 const struct pc_event *event)
{
    if (event->kind == PC_EVENT_SHARED)
        return pc__srq_consumed(w, rail, event->qpn);
    struct pc_verbs_connection *conn = &pc__verbs_peer(w, event->rank)->conns[event->conn];
    return conn->qp == NULL || (conn->turn & 0xffff) != event->turn ? NULL : conn;
}

static bool complete(struct pc_verbs_net *w, uint32_t rail, const struct pc_event *event)
{
    struct pc_verbs_connection *conn = connection_of(w, rail, event);
    bool news = event->kind == PC_EVENT_RECEIVED || event->kind == PC_EVENT_SHARED;
    if (conn == NULL)
        return false;
    conn->receives -= event->kind == PC_EVENT_RECEIVED;
    if (event->status != IBV_WC_SUCCESS) {
        failed(w, conn, event);
        news = false;
    } else if (news) {
        receive(w, conn, event);
    } else {
        news = acknowledge(w, conn);
    }
    if (conn->state == PC_CONNECTION_DRAINING)
        pc__connection_drain(w, conn);
    pc__verbs_peer_take_back(w, conn);
    return news;
}

/* Polls all completion queues; true when messages or credit came. */
static bool poll_all(struct pc_verbs_net *w)
{
    struct pc_event events[PC_EVENTS_AT_ONCE];
    struct pc_comm *comm = w->base.comm;
    bool came = false;
    for (uint32_t i = 0, n; i < w->nrails; i++)
        do {
            w->polls[i]++;
            n = pc__wr_poll(&w->rails[i], events);
            for (uint32_t k = 0; k < n; k++)
                came |= events[k].kind == PC_EVENT_FLUSHED ? pc__gpu_flushed(w, i, &events[k])
                                                           : complete(w, i, &events[k]);
            if (n < PC_EVENTS_AT_ONCE)
                w->emptied[i] = w->polls[i];
            pc__srq_refill(w, i, n < PC_EVENTS_AT_ONCE);
        } while (n == PC_EVENTS_AT_ONCE);
    if (pc__gpu_flushes(w))
        came |= pc__gpu_flush(w);
    watch(w);
    if (came) {
        /* A thread that is about to sleep has read the wakeup counter before it looked. */
        atomic_fetch_add(&((struct pc_arena *)comm->arena)->wakeup, 1);
        if (atomic_load(&comm->sleepers))
            pc__wakeup_signal(comm, comm->options.rank);
    }
    return came;
}

static uint64_t bytes_in_flight(const struct pc_verbs_net *w, uint32_t rail)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < w->base.comm->options.size; p++) {
        const struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
        for (uint32_t i = 0; peer != NULL && i < peer->nconns; i++)
            bytes += peer->conns[i].rail == rail ? peer->conns[i].bytes : 0;
    }
    return bytes;
}

/* Whether the device may rightly keep its oldest send op for long: the peer's receives are shared,
 * and may all be taken until it posts some. An RDMA read takes none, and no receive helps where the
 * port has become too small for a packet. */
static bool may_wait(const struct pc_verbs_net *w, const struct pc_verbs_connection *conn)
{
    const struct pc_send_op *oldest = &conn->ops[conn->head % PC_CONNECTION_SEND_OPS];
    return conn->theirs.shares && oldest->rndv == NULL
           && pc__ib_device_has_mtu(&w->rails[conn->rail],
                                    pc__mtu_smaller(conn->mine.mtu, conn->theirs.mtu));
}

/* Fails a connection whose oldest send op neither completes nor fails. Soft-RoCE tries for ever,
 * without counting, what its own interface does not take (it became too small for a packet of the
 * path MTU), and an operation that fails behind one whose acknowledgement was lost may never
 * complete; the peer, which waits, sends nothing by which it could notice. */
static void check_progress(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    uint64_t now = pc__now();
    if (conn->head == conn->tail) {
        conn->seen_at = 0;
        return;
    }
    if (conn->seen_at == 0 || conn->seen != conn->head) {
        conn->seen = conn->head;
        conn->seen_at = now;
        return;
    }
    if (now - conn->seen_at < stall_ns(w)
        || now - conn->seen_at < stall_ns(w) + bytes_in_flight(w, conn->rail) * PC_STALL_NS_PER_BYTE
        || may_wait(w, conn))
        return;
    poll_all(w); /* this thread may have been stopped since the last time */
    if (conn->head != conn->seen)
        return;
    char why[96];
    snprintf(why, sizeof why, "no send was acknowledged, and none failed, for %.1f s",
             (double)(now - conn->seen_at) / 1e9);
    pc__connection_fail(w, conn, why);
}

/* Requests what is down, drains what has failed, gives up peers that were cut off too long. */
void pc__verbs_handle_due(struct pc_net *net, bool block)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    uint64_t now = pc__now();
    w->watching = false;
    pc__gpu_check(w, stall_ns(w));
    for (uint32_t p = 0; p < net->comm->options.size; p++) {
        struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
        if (peer == NULL || !peer->wireup.open || peer->base.ended)
            continue;
        pc__wireup_flush(&peer->wireup);
        for (uint32_t i = 0; i < peer->nconns && !peer->base.ended; i++) {
            struct pc_verbs_connection *conn = &peer->conns[i];
            if (conn->state == PC_CONNECTION_PROBING || conn->state == PC_CONNECTION_UP)
                check_progress(w, conn);
            if (conn->state == PC_CONNECTION_REPLIED && block) {
                w->connecting = true;
                pc__connection_connect(w, conn);
                w->connecting = false;
                now = pc__now();
                pc__verbs_peer_take_back(w, conn);
            } else if (conn->state == PC_CONNECTION_REPLIED) {
                if (!w->connecting) /* the thread that connects serves this one too */
                    pc__net_schedule(&w->base, conn->since);
            } else if (conn->state == PC_CONNECTION_PROBING) {
                pc__net_schedule(&w->base, now + PC_PROBE_NS);
            } else if (conn->state == PC_CONNECTION_DRAINING) {
                pc__connection_drain(w, conn);
                pc__verbs_peer_take_back(w, conn);
            } else if (conn->state == PC_CONNECTION_DOWN && conn->attempt != 0) {
                if (conn->attempt <= now)
                    pc__connection_request(w, conn);
                else
                    pc__net_schedule(&w->base, conn->attempt);
            }
        }
        uint64_t until = reconnect_until(w, peer);
        if (peer->live == 0 && until != 0 && !peer->base.ended) {
            if (now >= until && !(peer->reached && connecting_now(peer, until)))
                fail_peer(w, peer);
            else
                pc__net_schedule(&w->base, now < until ? until : now + PC_POLL_SENT_NS);
        }
    }
    watch(w);
}

/* The port got or lost an address, or a partition. */
static bool moves_port(enum ibv_event_type type)
{
    return type == IBV_EVENT_GID_CHANGE || type == IBV_EVENT_LID_CHANGE
           || type == IBV_EVENT_PKEY_CHANGE;
}

/* Only events of ports carry a port number; all others are the whole device's. */
static bool concerns_port(const struct pc_ib_device *rail, enum ibv_event_type type, uint32_t port)
{
    return (type != IBV_EVENT_PORT_ERR && type != IBV_EVENT_PORT_ACTIVE && !moves_port(type))
           || port == rail->spec.port;
}

/* Why an event is the end of a connection, or NULL. */
static const char *ends(const struct pc_ib_device *rail, const struct pc_verbs_connection *conn,
                        enum ibv_event_type type, struct pc_qp_answer *last)
{
    if (type == IBV_EVENT_PORT_ERR)
        return "its port went down";
    if (type == IBV_EVENT_DEVICE_FATAL)
        return "its device failed";
    bool addressed = conn->state >= PC_CONNECTION_CONNECTING && conn->state <= PC_CONNECTION_UP;
    if (!moves_port(type) || !addressed)
        return NULL;
    return pc__qp_moved(rail, &conn->mine, &conn->theirs, last);
}

static void handle_device_events(struct pc_verbs_net *w, uint32_t rail)
{
    struct ibv_async_event event;
    bool low = false;
    errno = 0;
    while (pc__ib.get_async_event(w->rails[rail].context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        uint32_t port = (uint32_t)event.element.port_num;
        struct pc_qp_answer last = {0};
        pc__ib.ack_async_event(&event);
        low = low || type == IBV_EVENT_SRQ_LIMIT_REACHED;
        if (type == IBV_EVENT_SRQ_ERR)
            pc__srq_fail(w, rail, "its shared receive queue has failed");
        for (uint32_t p = 0; p < w->base.comm->options.size; p++) {
            struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
            for (uint32_t i = 0; peer != NULL && i < peer->nconns; i++) {
                struct pc_verbs_connection *conn = &peer->conns[i];
                if (conn->rail != rail || !concerns_port(&w->rails[rail], type, port))
                    continue;
                const char *why = ends(&w->rails[rail], conn, type, &last);
                if (why != NULL)
                    pc__connection_fail(w, conn, why);
                if ((type == IBV_EVENT_PORT_ACTIVE || moves_port(type)) && conn->attempt != 0) {
                    conn->attempt = pc__now();
                    pc__net_schedule(&w->base, conn->attempt);
                }
            }
        }
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) /* the device is gone, and readable for ever */
        epoll_ctl(w->base.epoll, EPOLL_CTL_DEL, w->rails[rail].context->async_fd, NULL);
    if (low) {
        poll_all(w); /* which posts them again */
        pc__srq_arm(w, rail);
    }
}

/* Its CLOSE has come. What it has received counts if it leaves; not if it gives this rank up. */
static void closed(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    const struct pc_wireup_received *landed = &peer->wireup.in.body.landed;
    char why[PC_WIREUP_TEXT + 32] = "it closed its connection";
    if (landed->why[0] != 0)
        snprintf(why, sizeof why, "it gave up rank %u: %.*s", w->base.comm->options.rank,
                 (int)sizeof landed->why - 1, landed->why);
    pc__verbs_peer_leave(w, peer, PC_LOST, why, landed->why[0] != 0 ? NULL : landed);
}

static void read_peer(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    int rc = pc__verbs_peer_read(w, peer);
    if (rc != PC_OK)
        poll_all(w); /* what it acknowledged or sent before */
    if (rc > 0)
        closed(w, peer);
    else if (rc < 0)
        pc__verbs_peer_fail(w, peer, PC_LOST,
                            rc == PC_LOST ? "it closed its connection"
                                          : "it sent what is no wireup message");
    if (peer->base.ended && peer->wireup.open)
        pc__wireup_close(&peer->wireup); /* close removes it from the epoll */
}

void pc__verbs_handle_event(struct pc_net *net, uint64_t what)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    if (what >= PC_EVENT_PORT)
        handle_device_events(w, (uint32_t)(what - PC_EVENT_PORT));
    else
        read_peer(w, pc__verbs_peer(w, (uint32_t)what));
}

void pc__verbs_poll(struct pc_net *net, struct pc_net_peer *only)
{
    (void)only; /* one completion queue serves all peers */
    poll_all((struct pc_verbs_net *)net);
}

uint64_t pc__verbs_arm(struct pc_net *net, uint64_t ns)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    /* Completions of this rank's own sends raise no solicited event. */
    bool own = (net->called | net->posted | w->reads) != 0;
    for (uint32_t i = 0; i < w->nrails; i++)
        if (!w->armed[i] || own)
            w->armed[i] = ibv_req_notify_cq(w->rails[i].cq, !own) == 0;
    if (poll_all(w)) /* came before the channel was armed */
        return 0;
    return net->in_flight != 0 && ns > PC_NAP_NS ? PC_NAP_NS : ns;
}

void pc__verbs_woken(struct pc_net *net, uint64_t what)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    uint32_t rail = (uint32_t)(what - PC_EVENT_CQ);
    struct ibv_cq *cq;
    void *context;
    if (pc__ib.get_cq_event(w->rails[rail].channel, &cq, &context) == 0)
        pc__ib.ack_cq_events(cq, 1);
    w->armed[rail] = false;
}
#endif
