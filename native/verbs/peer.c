/* One remote peer: the memory that it may write, wireup, and a connection for each message. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define PC_STRIPE_FROM_BYTES (64u << 10) /* longer messages are striped over all connections */

#define PC_STRIPE_SLOWEST 16 /* a connection slower than the best by this gets no fragment */

static struct ibv_mr *region(struct pc_verbs_net *w, const struct pc_verbs_peer *peer,
                             uint32_t rail, const void *at, size_t nbytes, int access,
                             struct pc_error *error)
{
    struct ibv_mr *mr = pc__mr_register(peer->domains[rail], at, nbytes, access);
    if (mr == NULL)
        pc__ib_device_refused(&w->rails[rail], "ibv_reg_mr", nbytes, error);
    else
        w->base.state.regions++;
    return mr;
}

static void drop(struct pc_verbs_net *w, struct ibv_mr **mr)
{
    if (*mr == NULL)
        return;
    pc__ib.dereg_mr(*mr);
    *mr = NULL;
    w->base.state.regions--;
}

/* A domain of its own on each rail, once. */
static int make_domains(struct pc_verbs_net *w, struct pc_verbs_peer *peer, struct pc_error *error)
{
    for (uint32_t i = 0; i < w->nrails; i++) {
        if (peer->domains[i] == NULL)
            peer->domains[i] = pc__ib_device_pd(&w->rails[i], error);
        if (peer->domains[i] == NULL)
            return error->code;
    }
    return PC_OK;
}

/* Slots in memory of a GPU, in all domains or in none; adds the way to `ways`. */
static int gpu_region(struct pc_verbs_net *w, const struct pc_verbs_peer *peer, uint64_t at,
                      int access, struct pc_error *error, struct ibv_mr **out, uint32_t *ways)
{
    struct pc_mr_domains domains = {.n = w->nrails, .access = access};
    struct pc_mem_span span
        = {.from = at, .to = at + w->base.gpu.each, .device = w->base.gpu.device};
    struct pc_mr made = {0};
    memcpy(domains.domains, peer->domains, sizeof domains.domains);
    int rc = pc__mr_gpu(&domains, &span, w->base.gpu.ways, error, &made);
    if (rc != PC_OK)
        return rc;
    *ways |= 1u << span.kind;
    memcpy(out, made.with, sizeof made.with);
    w->base.state.regions += w->nrails;
    return PC_OK;
}

int pc__verbs_register_slots(struct pc_net_peer *base, struct pc_error *error)
{
    struct pc_verbs_peer *peer = (struct pc_verbs_peer *)base;
    struct pc_verbs_net *w = (struct pc_verbs_net *)base->net;
    int theirs = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    uint32_t ways = 0;
    if (w->base.state.gpu_flush != PC_FLUSH_NONE)
        theirs |= PC_ACCESS_RELAXED; /* the flush is made anyway */
    int rc = make_domains(w, peer, error);
    if (rc == PC_OK)
        rc = gpu_region(w, peer, base->gpu_in, theirs, error, peer->slots, &ways);
    if (rc == PC_OK)
        rc = gpu_region(w, peer, base->gpu_out, 0, error, peer->shadow, &ways);
    if (rc == PC_OK)
        w->base.state.gpu_memory |= ways;
    else
        for (uint32_t i = 0; i < w->nrails; i++)
            drop(w, &peer->slots[i]);
    return rc;
}

/* Registers the lines and slots that the peer may write, its shadow and the bounce buffer; slots in
 * memory of a GPU have been. */
static int make_regions(struct pc_verbs_net *w, struct pc_verbs_peer *peer, struct pc_error *error)
{
    const struct pc_layout *l = &w->base.comm->layout;
    uint32_t rank = peer->base.rank;
    char *mine = pc__record(w->base.comm->arena, l, rank);
    char *shadow = w->base.comm->peers[rank].record;
    size_t lines = (size_t)PC_EDGE_CHANNELS * PC_LINES * PC_LINE_BYTES;
    size_t slots = PC_EDGE_CHANNELS * l->channel;
    int theirs = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    peer->bounce_at = aligned_alloc(PC_PAGE, PC_BOUNCE_BYTES);
    if (peer->bounce_at == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a bounce buffer");
    int rc = make_domains(w, peer, error);
    if (rc != PC_OK)
        return rc;
    for (uint32_t i = 0; i < w->nrails; i++) {
        const struct {
            struct ibv_mr **mr;
            const void *at;
            size_t nbytes;
            int access;
        } wanted[] = {
            {&peer->lines[i], pc__slot_lines(mine, rank, 0), lines, theirs},
            {&peer->slots[i], pc__slot_data(mine, l, 0), slots, theirs | PC_ACCESS_RELAXED},
            {&peer->shadow[i], pc__slot_data(shadow, l, 0), slots, 0},
            {&peer->bounce[i], peer->bounce_at, PC_BOUNCE_BYTES,
             IBV_ACCESS_LOCAL_WRITE | PC_ACCESS_RELAXED},
        };
        for (uint32_t k = 0; k < 4; k++) {
            bool gpu = wanted[k].mr == &peer->slots[i] || wanted[k].mr == &peer->shadow[i];
            if (gpu && peer->base.gpu_in != 0)
                continue;
            *wanted[k].mr
                = region(w, peer, i, wanted[k].at, wanted[k].nbytes, wanted[k].access, error);
            if (*wanted[k].mr == NULL)
                return error->code;
        }
    }
    return PC_OK;
}

/* Bytes of the slots of a peer. A device communicator has no transfers of the CPU. */
static uint64_t slots_bytes(const struct pc_verbs_net *w, bool gpu)
{
    return (gpu ? PC_MAX_CHANNELS : PC_EDGE_CHANNELS) * w->base.comm->layout.channel;
}

static struct pc_wireup_hello hello_of(const struct pc_verbs_net *w,
                                       const struct pc_verbs_peer *peer)
{
    struct pc_wireup_hello hello = {.nrails = w->nrails,
                                    .queue_pairs = w->options.queue_pairs,
                                    .lines = (uintptr_t)peer->lines[0]->addr,
                                    .lines_bytes = peer->lines[0]->length,
                                    .slots = (uintptr_t)peer->slots[0]->addr,
                                    .slots_bytes = slots_bytes(w, peer->base.gpu_in != 0),
                                    .slots_gpu = peer->base.gpu_in != 0};
    if (peer->base.gpu_in != 0) /* of a dma-buf the library may not say it */
        hello.slots = peer->base.gpu_in;
    for (uint32_t i = 0; i < w->nrails; i++)
        hello.rails[i] = (struct pc_wireup_rail){.lines_key = peer->lines[i]->rkey,
                                                 .slots_key = peer->slots[i]->rkey,
                                                 .speed = w->rails[i].speed};
    return hello;
}

static int begin_wireup(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int fd)
{
    struct pc_error error;
    int rc = make_regions(w, peer, &error);
    if (rc != PC_OK) {
        peer->base.fault = error;
        return rc;
    }
    pc__wireup_open(&peer->wireup, fd);
    peer->cut_off = pc__now();
    pc__net_schedule(&w->base, peer->cut_off);
    if (pc__net_watch(w->base.epoll, fd, EPOLLIN, peer->base.rank) != 0)
        return PC_SYSTEM;
    struct pc_wireup_hello hello = hello_of(w, peer);
    return pc__wireup_write(&peer->wireup, PC_WIREUP_HELLO, 0, 0, &hello, sizeof hello);
}

static double cost_of_slower(uint64_t a, uint64_t b)
{
    uint64_t speed = a < b ? a : b;
    return 1e9 / (double)(speed ? speed : 1);
}

/* Resizes the completion queues to hold the completions of all connections. */
static int make_room(struct pc_verbs_net *w)
{
    for (uint32_t i = 0; i < w->nrails; i++) {
        uint64_t want = (uint64_t)(w->load[i] - w->sharing[i]) * PC_CONNECTION_CQ_DEPTH
                        + (uint64_t)w->sharing[i] * PC_SHARING_SEND_WRS
                        + (w->srqs[i] != NULL ? 2 * (uint64_t)w->srqs[i]->max_wr : 0)
                        + (pc__gpu_flushes(w) ? PC_FLUSH_WRS : 0);
        uint64_t have = (uint64_t)w->rails[i].cq->cqe;
        if (want > have
            && pc__ib.resize_cq(w->rails[i].cq, (int)(want > 2 * have ? want : 2 * have)) != 0
            && pc__ib.resize_cq(w->rails[i].cq, (int)want) != 0)
            return PC_NOMEM;
        if ((uint64_t)w->rails[i].cq->cqe < want)
            return PC_NOMEM;
    }
    return PC_OK;
}

/* Connection i uses rail i of both ranks, modulo the number of rails of each. */
static int make_connections(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    const struct pc_wireup_hello *hello = &peer->hello;
    uint32_t mine = w->nrails, theirs = hello->nrails, each = w->options.queue_pairs;
    if (hello->queue_pairs < each)
        each = hello->queue_pairs;
    uint32_t n = (mine > theirs ? mine : theirs) * each;
    peer->conns = calloc(n, sizeof *peer->conns);
    if (peer->conns == NULL)
        return PC_NOMEM;
    peer->nconns = n;
    for (uint32_t i = 0; i < peer->nconns; i++) {
        struct pc_verbs_connection *conn = &peer->conns[i];
        *conn = (struct pc_verbs_connection){
            .peer = peer, .index = i, .rail = i / each % mine, .their_rail = i / each % theirs};
        conn->shares = w->load[conn->rail] >= w->options.srq_from && pc__srq_open(w, conn->rail);
        w->sharing[conn->rail] += conn->shares;
        w->base.state.sharing += conn->shares;
        w->load[conn->rail]++;
        conn->cost
            = cost_of_slower(w->rails[conn->rail].speed, hello->rails[conn->their_rail].speed);
    }
    w->base.state.connections += peer->nconns;
    return make_room(w);
}

static bool is_valid_hello(const struct pc_verbs_net *w, const struct pc_wireup_hello *hello)
{
    return hello->nrails >= 1 && hello->nrails <= PC_MAX_RAILS && hello->queue_pairs >= 1
           && hello->queue_pairs <= 8
           && hello->lines_bytes == (uint64_t)PC_EDGE_CHANNELS * PC_LINES * PC_LINE_BYTES
           && hello->slots_gpu <= 1 && hello->slots_bytes == slots_bytes(w, hello->slots_gpu);
}

static void handle_hello(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                         const struct pc_wireup_hello *hello)
{
    if (peer->hello_received || !is_valid_hello(w, hello)) {
        pc__verbs_peer_fail(w, peer, PC_LOST, "its greeting is not one");
        return;
    }
    peer->hello = *hello;
    peer->hello_received = true;
    if (make_connections(w, peer) != PC_OK) {
        pc__verbs_peer_fail(w, peer, PC_NOMEM, "there is no room for its connections");
        return;
    }
    if (w->base.comm->options.rank < peer->base.rank)
        for (uint32_t i = 0; i < peer->nconns; i++)
            pc__connection_request(w, &peer->conns[i]);
}

static bool has_landed(const struct pc_send_op *op, const struct pc_wireup_received *landed)
{
    uint32_t line = (uint32_t)op->number & (PC_LINES - 1);
    uint32_t at = op->edge->fifo->channel * PC_LINES + line;
    return (int32_t)(landed->counts[at] - (uint32_t)(op->number + 1)) >= 0
           || (op->frags > 1 && landed->frags[at] >> op->frag & 1);
}

void pc__verbs_peer_take_back(struct pc_verbs_net *w, struct pc_verbs_connection *conn)
{
    struct pc_net_peer *peer = &conn->peer->base;
    struct pc_send_op op;
    if (conn->state != PC_CONNECTION_RELEASED)
        return;
    while (pc__connection_take_back(w, conn, &op)) { /* the last first: before the queue */
        if (op.rndv != NULL && op.rndv->broken) {
            pc__rndv_read_failed(w, op.rndv);
        } else if (op.rndv != NULL) {
            pc__net_queue(peer, &op, true);
        } else if (op.edge != NULL && has_landed(&op, conn->landed)) {
            pc__net_count(op.edge, -1);
        } else if (op.edge != NULL) {
            pc__net_queue(peer, &op, true);
            w->base.state.replayed++;
        }
    }
    /* Credit says how much in all, so that it may be said twice. */
    peer->owed = (1u << PC_EDGE_CHANNELS) - 1;
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        peer->edges[c].told = 0;
    pc__net_dirty(peer);
    pc__connection_down(w, conn);
}

/* 1 when it is the peer's goodbye. */
static int handle_wireup(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    const struct pc_wireup_header *header = &peer->wireup.in.header;
    const union pc_wireup_body *body = &peer->wireup.in.body;
    if (header->kind == PC_WIREUP_HELLO) {
        handle_hello(w, peer, &body->hello);
        return PC_OK;
    }
    if (header->kind == PC_WIREUP_CLOSE)
        return 1;
    if (header->kind == PC_WIREUP_ABORTED) {
        peer->aborted = true;
        return PC_OK;
    }
    if (!peer->hello_received || header->conn >= peer->nconns) {
        pc__verbs_peer_fail(w, peer, PC_LOST, "its wireup message is about no connection");
        return PC_OK;
    }
    struct pc_verbs_connection *conn = &peer->conns[header->conn];
    if (header->kind == PC_WIREUP_REPLY)
        pc__connection_replied(w, conn, header->turn, &body->end);
    else if (header->kind == PC_WIREUP_REQUEST) {
        if (pc__connection_requested(w, conn, header->turn, &body->end) != PC_OK)
            pc__verbs_peer_fail(w, peer, PC_LOST, "it offered a connection that it has already");
    } else if (pc__connection_fenced(w, conn, header->turn, &body->landed) != PC_OK)
        pc__verbs_peer_fail(w, peer, PC_NOMEM, "no memory for its wireup message");
    pc__verbs_peer_take_back(w, conn);
    return PC_OK;
}

int pc__verbs_peer_read(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    int rc = PC_OK;
    pc__wireup_flush(&peer->wireup);
    while (rc == PC_OK && !peer->base.ended && (rc = pc__wireup_read(&peer->wireup)) > 0)
        rc = handle_wireup(w, peer);
    return rc;
}

/* Closes a connection. Messages that were posted to it and did not arrive are lost. */
static void drop_connection(struct pc_verbs_net *w, struct pc_verbs_connection *conn,
                            const struct pc_wireup_received *landed)
{
    struct pc_send_op op;
    pc__connection_close(w, conn);
    while (pc__connection_take_back(w, conn, &op)) {
        if (op.rndv != NULL)
            pc__rndv_read_failed(w, op.rndv);
        if (op.edge == NULL)
            continue;
        pc__net_count(op.edge, -1);
        if (landed == NULL || !has_landed(&op, landed))
            pc__net_undeliverable(op.edge);
    }
}

void pc__verbs_peer_leave(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                          const char *why, const struct pc_wireup_received *landed)
{
    char last[sizeof peer->base.fault.text];
    if (peer->base.ended)
        return;
    peer->base.ended = true;
    memcpy(last, peer->base.fault.text, sizeof last);
    bool told = last[0] != 0 && peer->live == 0;
    pc__fail(&peer->base.fault, code, (int)peer->base.rank, "rank %u is lost: %s%s%s%s",
             peer->base.rank, why, told ? " (" : "", told ? last : "", told ? ")" : "");
    for (uint32_t i = 0; i < peer->nconns; i++)
        drop_connection(w, &peer->conns[i], landed);
    for (uint32_t k = peer->base.head; k != peer->base.tail; k++)
        if (peer->base.queue[k % PC_PENDING_OPS].rndv != NULL)
            pc__rndv_read_failed(w, peer->base.queue[k % PC_PENDING_OPS].rndv);
    if (peer->wireup.open)
        shutdown(peer->wireup.fd, SHUT_RDWR); /* read_peer then closes it */
    pc__net_end(&peer->base);
}

void pc__verbs_peer_fail(struct pc_verbs_net *w, struct pc_verbs_peer *peer, int code,
                         const char *why)
{
    pc__verbs_peer_leave(w, peer, code, why, NULL);
}

/* Says that nothing more goes to the peer or is taken from it: its last word. */
static void say_close(struct pc_verbs_net *w, struct pc_verbs_peer *peer, const char *why)
{
    struct pc_wireup_received landed;
    for (uint32_t i = 0; i < peer->nconns; i++)
        drop_connection(w, &peer->conns[i], NULL);
    if (!peer->wireup.open)
        return;
    pc__received_so_far(peer, why, &landed);
    (void)pc__wireup_write(&peer->wireup, PC_WIREUP_CLOSE, 0, 0, &landed, sizeof landed);
}

void pc__verbs_peer_give_up(struct pc_verbs_net *w, struct pc_verbs_peer *peer, const char *why)
{
    if (peer->base.ended)
        return;
    say_close(w, peer, why);
    peer->base.fault.text[0] = 0; /* a note of a connection that failed before, which is not why */
    pc__verbs_peer_fail(w, peer, PC_LOST, why);
}

void pc__verbs_peer_close(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    say_close(w, peer, "");
    pc__wireup_close(&peer->wireup);
    pc__rndv_close_all(peer);
    for (uint32_t i = 0; i < PC_MAX_RAILS; i++) {
        drop(w, &peer->bounce[i]);
        drop(w, &peer->lines[i]);
        drop(w, &peer->slots[i]);
        drop(w, &peer->shadow[i]);
        if (peer->domains[i] != NULL)
            pc__ib.dealloc_pd(peer->domains[i]);
    }
    for (uint32_t i = 0; i < peer->nconns; i++)
        free(peer->conns[i].ops);
    free(peer->conns);
    free(peer->bounce_at);
}

/* Whether a connection is up whose rail is near the data. */
static bool near_is_up(const struct pc_verbs_net *w, const struct pc_verbs_peer *peer)
{
    for (uint32_t i = 0; i < peer->nconns; i++)
        if (peer->conns[i].state == PC_CONNECTION_UP && !w->rails[peer->conns[i].rail].spec.far)
            return true;
    return false;
}

/* The connection by which a message would be done first; NULL when no send queue has room. */
static struct pc_verbs_connection *first_done(const struct pc_verbs_net *w,
                                              const struct pc_verbs_peer *peer, uint64_t nbytes)
{
    struct pc_verbs_connection *best = NULL;
    double first = 0;
    bool near = near_is_up(w, peer);
    for (uint32_t i = 0; i < peer->nconns; i++) {
        struct pc_verbs_connection *conn = &peer->conns[i];
        if (!pc__can_post(conn) || (near && w->rails[conn->rail].spec.far))
            continue;
        double done = (double)(conn->bytes + nbytes + PC_LINE_BYTES) * conn->cost;
        if (best == NULL || done < first) {
            best = conn;
            first = done;
        }
    }
    return best;
}

static int send_on(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                   struct pc_verbs_connection *conn, const struct pc_send_op *op)
{
    int rc = pc__connection_post(w, conn, op);
    if (rc != PC_OK && op->frags > 1)
        pc__net_queue(&peer->base, op, true);
    return rc;
}

/* Stripes a message over the connections by their speed; false when fewer than two are free. They
 * may deliver in any order: the peer counts the fragments. */
static bool send_striped(struct pc_verbs_net *w, struct pc_verbs_peer *peer,
                         const struct pc_send_op *op)
{
    struct pc_verbs_connection *conns[PC_MAX_FRAGS];
    uint32_t n = 0;
    double speed = 0, best = 0;
    for (uint32_t i = 0; i < peer->nconns; i++)
        if (pc__can_post(&peer->conns[i]) && 1 / peer->conns[i].cost > best)
            best = 1 / peer->conns[i].cost;
    for (uint32_t i = 0; i < peer->nconns && n < PC_MAX_FRAGS; i++)
        if (pc__can_post(&peer->conns[i]) && 1 / peer->conns[i].cost > best / PC_STRIPE_SLOWEST) {
            conns[n++] = &peer->conns[i];
            speed += 1 / peer->conns[i].cost;
        }
    if (n < 2)
        return false;
    struct pc_send_op frag = *op;
    uint64_t begin = 0;
    double share = 0;
    frag.frags = (uint8_t)n;
    pc__net_count(op->edge, (int)n - 1);
    for (uint32_t i = 0; i < n; i++) {
        share += 1 / conns[i]->cost / speed;
        uint64_t end = (uint64_t)((double)op->nbytes * share) & -(uint64_t)PC_LINE_BYTES;
        if (i == n - 1)
            end = op->nbytes;
        frag.frag = (uint8_t)i;
        frag.data = op->data + begin;
        frag.nbytes = end - begin;
        begin = end;
        send_on(w, peer, conns[i], &frag);
    }
    return true;
}

int pc__verbs_send(struct pc_net_peer *base, const struct pc_send_op *op)
{
    struct pc_verbs_peer *peer = (struct pc_verbs_peer *)base;
    struct pc_verbs_net *w = (struct pc_verbs_net *)base->net;
    struct pc_verbs_connection *conn;
    if (op->rndv != NULL && op->rndv->broken) {
        pc__rndv_read_failed(w, op->rndv);
        return PC_OK;
    }
    if (op->nbytes >= PC_STRIPE_FROM_BYTES && op->frags == 1 && op->rndv == NULL && peer->live > 1
        && send_striped(w, peer, op))
        return PC_OK;
    conn = first_done(w, peer, op->nbytes);
    if (conn == NULL)
        return PC_AGAIN;
    return pc__connection_post(w, conn, op);
}

/* The user may write or free that memory next, so that no RDMA may touch it any more. No new
 * connection is made, as it would let what waits for one go on, here and at the other end. The
 * other end is told, as it would take a rank without connections for one that is lost; it learns
 * the reason from this rank's user, who may be elsewhere for long. */
static void abort_connections(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    if (!peer->aborted) /* a failed write means a lost peer: reading finds that */
        (void)pc__wireup_write(&peer->wireup, PC_WIREUP_ABORTED, 0, 0, "", 0);
    peer->aborted = true;
    for (uint32_t i = 0; i < peer->nconns; i++)
        pc__connection_abort(w, &peer->conns[i]);
    for (uint32_t i = 0; i < peer->nconns; i++)
        pc__verbs_peer_take_back(w, &peer->conns[i]);
}

void pc__verbs_release(struct pc_net_peer *peer, struct pc_rndv *rndv, bool taken)
{
    if (pc__rndv_break(rndv, taken))
        abort_connections((struct pc_verbs_net *)peer->net, (struct pc_verbs_peer *)peer);
}

bool pc__verbs_flush(struct pc_net_peer *peer)
{
    (void)peer; /* nothing is gathered: a posted work request has left */
    return true;
}

int pc__verbs_adopt(struct pc_net_peer *base, int fd)
{
    struct pc_verbs_peer *peer = (struct pc_verbs_peer *)base;
    int rc = PC_INVALID;
    if (!peer->wireup.open && !base->ended && peer->lines[0] == NULL)
        rc = begin_wireup((struct pc_verbs_net *)base->net, peer, fd);
    if (rc != PC_OK)
        peer->wireup.open = false; /* the socket stays the caller's */
    return rc;
}

int pc__verbs_connections(const struct pc_net_peer *base)
{
    return ((const struct pc_verbs_peer *)base)->wireup.open && !base->ended;
}

bool pc__verbs_settled(const struct pc_net_peer *base)
{
    const struct pc_verbs_peer *peer = (const struct pc_verbs_peer *)base;
    for (uint32_t i = 0; i < peer->nconns; i++)
        if (peer->conns[i].head != peer->conns[i].tail)
            return false;
    return true;
}
#endif
