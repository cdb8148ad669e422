/* The state machine of one connection: a queue pair at each end is created by wireup, probed, used,
 * and fenced when it fails.
 *
 * The lower rank sends the request, for the first time and after a failure. A connection fails at
 * one end or at both. Each end then destroys its queue pair, so that nothing more can arrive by it,
 * and only after that says what it has received. The sender so knows exactly which messages did not
 * arrive, and sends those again by another connection: each arrives once, and never in a slot that
 * has moved on. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PC_FIRST_PAUSE_NS UINT64_C(10000000)
#define PC_LONGEST_PAUSE_NS UINT64_C(1000000000)
#define PC_FLUSH_NS UINT64_C(1000000000) /* after that the device will not flush any more */
#define PC_LOOK_NS UINT64_C(1000000)     /* between two looks whether the flush has ended */
#define PC_BROKEN_OFF "a transfer was broken off"

static const char *rail_name(const struct pc_verbs_net *w, const struct pc_verbs_connection *conn)
{
    return w->rails[conn->rail].spec.device;
}

static void send_wireup(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                        enum pc_wireup_kind kind, const void *body, size_t nbytes)
{
    struct pc_verbs_peer *peer = conn->peer;
    int rc = pc__wireup_write(&peer->wireup, kind, conn->index, conn->turn, body, nbytes);
    if (rc == PC_OK || !peer->wireup.open)
        return;
    /* There is no memory for a message for which the peer would wait, or its socket takes none any
     * more. What the peer wrote before, perhaps its CLOSE with what it has received, is still read;
     * the peer is lost only at the end of the stream. */
    shutdown(peer->wireup.fd, SHUT_RDWR);
    w->base.events_pending = true;
}

static void destroy(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    if (conn->qp == NULL)
        return;
    uint32_t qpn = conn->qp->qp_num;
    pc__ib.destroy_qp(conn->qp);
    conn->qp = NULL;
    if (conn->shares)
        pc__srq_remove(w, conn->rail, qpn);
    conn->receives = 0; /* they went with the queue pair */
    w->base.state.queue_pairs--;
}

/* Creates a queue pair in INIT, and resets the counters of the connection. */
static int make(struct pc_verbs_net *w, struct pc_verbs_connection *conn, struct pc_error *error)
{
    struct pc_ib_device *rail = &w->rails[conn->rail];
    if (conn->peer->aborted)
        return pc__fail(error, PC_BROKEN, -1, "%s", PC_BROKEN_OFF);
    if (conn->ops == NULL)
        conn->ops = malloc(PC_CONNECTION_SEND_OPS * sizeof *conn->ops);
    if (conn->ops == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a connection");
    int rc = conn->shares ? pc__srq_usable(w, conn->rail, error) : PC_OK;
    if (rc == PC_OK)
        rc = pc__qp_create(rail, conn->peer->domains[conn->rail],
                           conn->shares ? w->srqs[conn->rail]->queue : NULL, pc__send_wrs(conn),
                           conn->shares ? 0 : PC_CONNECTION_RECV_WRS, error, &conn->qp,
                           &conn->mine);
    if (rc == PC_OK && conn->shares && (rc = pc__srq_add(w, conn, error)) != PC_OK)
        pc__ib.destroy_qp(conn->qp);
    if (rc != PC_OK) {
        conn->qp = NULL;
        return rc;
    }
    w->base.state.queue_pairs++;
    conn->mine.shares = conn->shares;
    conn->head = conn->tail = 0;
    conn->seen_at = 0;
    conn->requests = conn->receives = conn->spent = 0;
    conn->bytes = 0;
    conn->flushed = conn->answered = false;
    return PC_OK;
}

static void postpone(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    conn->pause = conn->pause == 0 ? PC_FIRST_PAUSE_NS : 2 * conn->pause;
    if (conn->pause > PC_LONGEST_PAUSE_NS)
        conn->pause = PC_LONGEST_PAUSE_NS;
    conn->attempt = pc__now() + conn->pause;
    conn->peer->tries++;
    pc__net_schedule(&w->base, conn->attempt);
}

/* Notes why a connection failed: for the other end, and for the peer's fault. */
static void note(struct pc_verbs_net *w, struct pc_verbs_connection *conn, const char *why)
{
    struct pc_verbs_peer *peer = conn->peer;
    snprintf(conn->why, sizeof conn->why, "%.60s: %.250s", rail_name(w, conn), why);
    if (!peer->base.ended) /* else `fault` has the reason already */
        pc__fail(&peer->base.fault, 0, (int)peer->base.rank, "%s, connection %u: %s",
                 rail_name(w, conn), conn->index, why);
}

int pc__connection_request(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    struct pc_error error;
    if (!pc__ib_device_active(&w->rails[conn->rail])) {
        note(w, conn, "the port is down");
        postpone(w, conn);
        return PC_AGAIN;
    }
    conn->turn++;
    if (make(w, conn, &error) != PC_OK) {
        note(w, conn, error.text);
        postpone(w, conn);
        return PC_AGAIN;
    }
    conn->state = PC_CONNECTION_REQUESTED;
    conn->since = pc__now();
    send_wireup(w, conn, PC_WIREUP_REQUEST, &conn->mine, sizeof conn->mine);
    return PC_OK;
}

int pc__connection_post(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                        const struct pc_send_op *op)
{
    int error = pc__wr_post(w, conn, op);
    if (error != 0)
        pc__connection_fail(w, conn, strerror(error));
    return error == 0 ? PC_OK : PC_AGAIN;
}

void pc__connection_receive(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t n)
{
    int error = pc__wr_post_receives(conn, n);
    if (error != 0)
        pc__connection_fail(w, conn, strerror(error));
}

static void learn_other_end(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                            const struct pc_qp_info *theirs)
{
    conn->state = PC_CONNECTION_REPLIED;
    conn->theirs = *theirs;
    pc__net_schedule(&w->base, conn->since);
}

int pc__connection_requested(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                             uint32_t turn, const struct pc_qp_info *theirs)
{
    struct pc_error error;
    if (conn->state != PC_CONNECTION_DOWN)
        return PC_INVALID;
    conn->turn = turn;
    conn->since = pc__now();
    conn->answered = false;
    if (make(w, conn, &error) != PC_OK) {
        note(w, conn, error.text);
        conn->polls_then = w->polls[conn->rail];
        conn->state = PC_CONNECTION_DRAINING;
        pc__connection_drain(w, conn);
    } else {
        learn_other_end(w, conn, theirs);
    }
    return PC_OK;
}

void pc__connection_replied(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                            const struct pc_qp_info *theirs)
{
    if (conn->state == PC_CONNECTION_REQUESTED
        && conn->turn == turn) /* else it has failed here meanwhile */
        learn_other_end(w, conn, theirs);
}

void pc__connection_connect(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    static const struct pc_send_op probe = {.frags = 1};
    struct pc_error error;
    conn->state = PC_CONNECTION_CONNECTING;
    conn->failed_early = false;
    struct pc_ib_device rail = w->rails[conn->rail]; /* a copy: the port may change */
    pthread_mutex_unlock(&w->base.lock);
    int rc = pc__qp_connect(&rail, conn->qp, &conn->mine, &conn->theirs, &error);
    pthread_mutex_lock(&w->base.lock);
    conn->state = PC_CONNECTION_PROBING;
    pc__net_schedule(&w->base, pc__now() + PC_LOOK_NS);
    if (conn->peer->base.ended) {
        pc__connection_close(w, conn);
        return;
    }
    if (rc != PC_OK || conn->failed_early) /* the other end is told by FENCED, as of any failure */
        pc__connection_fail(w, conn, rc != PC_OK ? error.text : NULL);
    else if (!conn->shares)
        pc__connection_receive(w, conn, PC_CONNECTION_RECV_WRS);
    if (conn->state == PC_CONNECTION_DRAINING)
        pc__connection_drain(w, conn);
    else if (w->base.comm->options.rank < conn->peer->base.rank)
        pc__connection_post(w, conn, &probe);
    else
        send_wireup(w, conn, PC_WIREUP_REPLY, &conn->mine, sizeof conn->mine);
}

void pc__connection_up(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    struct pc_verbs_peer *peer = conn->peer;
    if (conn->state != PC_CONNECTION_PROBING)
        return;
    conn->state = PC_CONNECTION_UP;
    conn->since = pc__now();
    peer->live++;
    peer->reached = true;
    peer->cut_off = 0;
    w->base.state.live++;
    w->base.state.revivals += conn->revived;
    conn->revived = true;
    pc__net_dirty(&peer->base);
    w->base.events_pending = true; /* wakes a thread that waits for a connection */
}

void pc__connection_fail(struct pc_verbs_net *w, struct pc_verbs_connection *conn, const char *why)
{
    struct pc_verbs_peer *peer = conn->peer;
    if (conn->state == PC_CONNECTION_DOWN || conn->state >= PC_CONNECTION_DRAINING)
        return;
    uint64_t now = pc__now();
    if (why != NULL && (conn->state != PC_CONNECTION_CONNECTING || !conn->failed_early))
        note(w, conn, why);
    if (conn->state == PC_CONNECTION_CONNECTING) {
        conn->failed_early = true;
        return;
    }
    if (conn->state == PC_CONNECTION_UP) {
        peer->live--;
        w->base.state.live--;
        w->base.state.failures++;
        if (now - conn->since > PC_LONGEST_PAUSE_NS) /* it was up for a while: no backoff */
            conn->pause = 0;
        if (peer->live == 0) {
            peer->cut_off = now;
            peer->tries = 0;
        }
    }
    conn->state = PC_CONNECTION_DRAINING;
    conn->since = now;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    pc__ib.modify_qp(conn->qp, &attributes, IBV_QP_STATE);
    conn->polls_then = w->polls[conn->rail];
    pc__net_schedule(&w->base, now + PC_LOOK_NS);
}

void pc__received_so_far(const struct pc_verbs_peer *peer, const char *why,
                         struct pc_wireup_received *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++) {
        const struct pc_net_edge *edge = &peer->base.edges[c];
        for (uint32_t i = 0; i < PC_LINES; i++)
            out->counts[c * PC_LINES + i] = (uint32_t)pc__count(&edge->fifo->in_lines[i]);
        memcpy(out->frags + c * PC_LINES, edge->come, PC_LINES);
    }
    pc__gpu_received(peer, out);
    snprintf(out->why, sizeof out->why, "%s", why);
}

bool pc__connection_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                              struct pc_send_op *op)
{
    if (conn->head == conn->tail)
        return false;
    *op = conn->ops[--conn->tail % PC_CONNECTION_SEND_OPS];
    w->base.in_flight--;
    return true;
}

void pc__connection_down(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    conn->state = PC_CONNECTION_DOWN;
    uint64_t took = pc__now() - conn->since;
    if (took > w->base.state.recovery_ns && conn->revived)
        w->base.state.recovery_ns = took;
    free(conn->landed);
    conn->landed = NULL;
    if (w->base.comm->options.rank < conn->peer->base.rank)
        postpone(w, conn);
    w->base.events_pending = true;
}

/* Destroys this end's queue pair, then says FENCED. */
static void fence(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    destroy(w, conn);
    conn->state = PC_CONNECTION_FENCED;
    struct pc_wireup_received landed;
    pc__received_so_far(conn->peer, conn->why, &landed);
    send_wireup(w, conn, PC_WIREUP_FENCED, &landed, sizeof landed);
    if (conn->answered)
        conn->state = PC_CONNECTION_RELEASED;
}

void pc__connection_abort(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    pc__connection_fail(w, conn, PC_BROKEN_OFF);
    if (conn->state == PC_CONNECTION_DRAINING)
        fence(w, conn);
}

void pc__connection_drain(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    /* All that came before the failure was polled, and dealt with: a later poll has ended. Receives
     * that it shares are not flushed. */
    bool polled = (int32_t)(w->emptied[conn->rail] - conn->polls_then) > 0;
    bool received = conn->shares ? polled : conn->receives == 0;
    bool back = received && (conn->head == conn->tail || conn->flushed);
    if (conn->state != PC_CONNECTION_DRAINING)
        return;
    uint64_t now = pc__now();
    if (!back && (!polled || now - conn->since < PC_FLUSH_NS)) {
        pc__net_schedule(&w->base, now + PC_LOOK_NS);
        return;
    }
    fence(w, conn);
}

int pc__connection_fenced(struct pc_verbs_net *w, struct pc_verbs_connection *conn, uint32_t turn,
                          const struct pc_wireup_received *landed)
{
    if (turn != conn->turn || conn->state == PC_CONNECTION_DOWN || conn->answered)
        return PC_OK; /* of an older turn */
    char why[PC_WIREUP_TEXT + 32];
    snprintf(why, sizeof why, "at the other end, %.*s", (int)sizeof landed->why - 1, landed->why);
    conn->landed = malloc(sizeof *conn->landed);
    if (conn->landed == NULL)
        return PC_NOMEM;
    *conn->landed = *landed;
    conn->answered = true;
    pc__connection_fail(w, conn, why);
    if (conn->state == PC_CONNECTION_FENCED)
        conn->state = PC_CONNECTION_RELEASED;
    else
        pc__connection_drain(w, conn);
    return PC_OK;
}

void pc__connection_close(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    if (conn->state == PC_CONNECTION_UP) {
        conn->peer->live--;
        w->base.state.live--;
    }
    if (conn->state == PC_CONNECTION_CONNECTING)
        return; /* pc__connection_connect closes it afterwards */
    destroy(w, conn);
    conn->state = PC_CONNECTION_DOWN;
    conn->attempt = 0;
    free(conn->landed);
    conn->landed = NULL;
}
#endif
