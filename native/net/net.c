/* What all networks have in common: the queue of each remote peer, credit, lost peers, timers, and
 * how a rank sleeps. pc_net_ops does the rest. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "core/target_cpu.h"

#define PC_EPOLL_EVENTS 32
#define PC_TURNS_PER_LOOK 16u
#define PC_POLL_SENT_NS \
    UINT64_C(100000000) /* when an idle rank polls again while sends are in flight */

int pc__net_watch(int epoll, int fd, uint32_t events, uint64_t what)
{
    struct epoll_event event = {.events = events, .data.u64 = what};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int pc__net_attend(struct pc_net *net)
{
    net->epoll = epoll_create1(EPOLL_CLOEXEC);
    net->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (net->epoll < 0 || net->timer < 0
        || pc__net_watch(net->epoll, net->timer, EPOLLIN, PC_NET_TIMER) != 0
        || pc__net_watch(net->pause_epoll, net->epoll, EPOLLIN, PC_NET_EVENTS) != 0)
        return pc__fail(&net->comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    return PC_OK;
}

static void set_timer(struct pc_net *net, uint64_t when)
{
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(when / 1000000000u),
                                        .tv_nsec = (long)(when % 1000000000u)}};
    net->timed = when;
    timerfd_settime(net->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* Sets the timer for what is due and for what is in flight, as no thread may call in for long. */
void pc__net_unlock(struct pc_net *net)
{
    uint64_t when = net->due;
    if (net->in_flight != 0 && !net->timer_set) {
        uint64_t poll_at = pc__now() + PC_POLL_SENT_NS;
        net->timer_set = true;
        if (when == 0 || poll_at < when)
            when = poll_at;
    }
    if (when != 0 && (net->timed == 0 || when < net->timed))
        set_timer(net, when);
    pthread_mutex_unlock(&net->lock);
}

void pc__net_schedule(struct pc_net *net, uint64_t when)
{
    if (net->due == 0 || when < net->due)
        net->due = when;
}

void pc__net_count(struct pc_net_edge *edge, int by)
{
    struct pc_net *net = edge->peer->net;
    *(edge->fifo->channel == PC_CHANNEL_P2P ? &net->posted : &net->called) += (uint32_t)by;
    edge->pending += (uint32_t)by;
}

static uint32_t bit_of(const struct pc_net_edge *edge)
{
    return UINT32_C(1) << edge->fifo->channel;
}

void pc__net_told(struct pc_net_edge *edge)
{
    edge->told = edge->consumed;
    edge->peer->owed &= ~bit_of(edge);
}

void pc__net_undeliverable(struct pc_net_edge *edge)
{
    struct pc_net_peer *peer = edge->peer;
    peer->undeliverable |= bit_of(edge);
    if (edge->fifo->channel != PC_CHANNEL_P2P)
        peer->net->undeliverable = &peer->fault;
}

void pc__net_dirty(struct pc_net_peer *peer)
{
    struct pc_net *net = peer->net;
    if (!peer->dirty)
        net->dirty[net->ndirty++] = peer;
    peer->dirty = true;
}

void pc__net_queue(struct pc_net_peer *peer, const struct pc_send_op *op, bool first)
{
    uint32_t at = first ? --peer->head : peer->tail++;
    peer->queue[at % PC_PENDING_OPS] = *op;
    pc__net_dirty(peer);
}

void pc__net_wake(struct pc_net *net)
{
    if (net->pausing)
        pc__wakeup_signal(net->comm, net->comm->options.rank);
}

void pc__net_end(struct pc_net_peer *peer)
{
    struct pc_comm *comm = peer->net->comm;
    peer->ended = true;
    atomic_store(&comm->peers[peer->rank].ready, 0);
    for (; peer->head != peer->tail; peer->head++) {
        struct pc_net_edge *edge = peer->queue[peer->head % PC_PENDING_OPS].edge;
        if (edge == NULL)
            continue;
        pc__net_count(edge, -1);
        pc__net_undeliverable(edge);
    }
    peer->net->events_pending = true;
    pc__wakeup_signal(comm, comm->options.rank);
}

/* Sends the queued ops and the credit that is due, see flush_to; false when something is left. */
static bool flush_peer(struct pc_net_peer *peer, uint64_t depth)
{
    const struct pc_net_ops *ops = peer->net->ops;
    if (peer->ended) {
        peer->owed = 0;
        return true;
    }
    while (peer->head != peer->tail) {
        const struct pc_send_op op = peer->queue[peer->head % PC_PENDING_OPS];
        peer->head++; /* `send` may put fragments that fail at the head of the queue */
        if (ops->send(peer, &op) != PC_OK) {
            peer->queue[--peer->head % PC_PENDING_OPS] = op;
            return false;
        }
    }
    for (uint32_t c = 0; peer->owed >> c != 0; c++) {
        struct pc_net_edge *edge = &peer->edges[c];
        const struct pc_send_op op = {.edge = edge, .kind = PC_SEND_CREDIT, .frags = 1};
        if (!(peer->owed >> c & 1))
            continue;
        if (edge->told == edge->consumed)
            peer->owed &= ~bit_of(edge);
        else if (pc__edge_due(edge, peer->sending ? 0 : depth))
            ops->send(peer, &op);
    }
    return ops->flush(peer) && peer->owed == 0;
}

void pc__net_begin(struct pc_net *net, uint64_t longest)
{
    const struct pc_options *o = &net->comm->options;
    uint32_t depth = longest <= pc__net_small(o) ? PC_LINES : o->slots;
    atomic_store_explicit(&net->depth, depth, memory_order_relaxed);
}

/* Sends what is queued, and the credit that is due to peers which may have `depth` messages in
 * flight; 0: all. */
static void flush_to(struct pc_net *net, uint64_t depth)
{
    for (uint32_t k = net->ndirty; k-- > 0;) {
        struct pc_net_peer *peer = net->dirty[k];
        if (flush_peer(peer, depth)) {
            peer->dirty = false;
            net->dirty[k] = net->dirty[--net->ndirty];
        }
    }
}

static void flush(struct pc_net *net)
{
    flush_to(net, atomic_load_explicit(&net->depth, memory_order_relaxed));
}

static void poll_net(struct pc_net *net, struct pc_net_peer *only)
{
    net->calls = 0;
    net->unpolled = only == NULL ? 0 : net->unpolled;
    net->ops->poll(net, only);
}

/* Polls after calls_per_poll sends and credits: a rank that only sends must also receive. */
static void count_call(struct pc_net *net)
{
    if (net->ops->calls_per_poll != 0 && ++net->calls >= net->ops->calls_per_poll)
        poll_net(net, NULL);
}

int pc__net_message(struct pc_net_edge *edge, char *slot, const char *lent, uint64_t nbytes,
                    struct pc_error *error)
{
    struct pc_net_peer *peer = edge->peer;
    struct pc_net *net = peer->net;
    struct pc_fifo *f = edge->fifo;
    int rc = PC_INVALID;
    pthread_mutex_lock(&net->lock);
    count_call(net);
    if (lent != NULL && (net->ops->lend_from == 0 || nbytes < net->ops->lend_from)) {
        memcpy(slot, lent, nbytes);
        lent = NULL;
    }
    if (peer->fault.code == 0 && edge->put - pc__count(f->out_credit) < PC_LINES) {
        struct pc_send_op op = {.edge = edge,
                                .number = edge->put,
                                .data = lent ? lent : slot,
                                .keep = lent ? slot : NULL,
                                .nbytes = nbytes,
                                .frags = 1};
        struct pc_line *line = &f->out_lines[edge->put & (PC_LINES - 1)];
        atomic_store_explicit(&line->count, edge->put + 1, memory_order_relaxed);
        pc__net_count(edge, 1);
        rc = peer->head != peer->tail ? PC_AGAIN : net->ops->send(peer, &op);
        if (rc == PC_AGAIN) {
            if (lent)
                memcpy(slot, lent, nbytes);
            op.data = slot;
            op.keep = NULL;
            pc__net_queue(peer, &op, false);
            rc = PC_OK;
        }
        if (rc == PC_OK)
            f->sent = ++edge->put;
        else
            pc__net_count(edge, -1);
    }
    if (rc != PC_OK && peer->fault.code != 0) {
        *error = peer->fault;
        rc = error->code;
    } else if (rc != PC_OK) {
        pc__fail(error, rc, (int)peer->rank, "no room for message %llu to rank %u",
                 (unsigned long long)edge->put, peer->rank);
    }
    pc__net_unlock(net);
    return rc;
}

void pc__net_credit(struct pc_net_edge *edge, uint64_t received)
{
    struct pc_net *net = edge->peer->net;
    pthread_mutex_lock(&net->lock);
    edge->consumed = received;
    edge->peer->owed |= bit_of(edge);
    pc__net_dirty(edge->peer);
    count_call(net);
    if (pc__edge_holds_credit(edge))
        flush(net);
    pc__net_unlock(net);
}

void pc__net_credit_along(struct pc_net_edge *edge, uint64_t received)
{
    struct pc_net *net = edge->peer->net;
    pthread_mutex_lock(&net->lock);
    edge->consumed = received;
    pc__net_unlock(net);
}

void pc__net_expect(struct pc_net_edge *edge, const struct pc_net_expected *expected)
{
    struct pc_net *net = edge->peer->net;
    pthread_mutex_lock(&net->lock);
    edge->expected = *expected;
    if (atomic_load(&net->comm->abort_claimed)) /* pc__net_unexpect may have been called */
        edge->expected.into = NULL;
    pthread_mutex_unlock(&net->lock);
}

void pc__net_unexpect(struct pc_net *net)
{
    if (!pc__net_expects(net) || net->pid != getpid())
        return;
    pthread_mutex_lock(&net->lock);
    for (uint32_t p = 0; net->peers != NULL && p < net->comm->options.size; p++)
        for (uint32_t c = 0; net->peers[p] != NULL && c < PC_MAX_CHANNELS; c++)
            if (net->peers[p]->edges[c].expected.into != NULL)
                net->ops->unexpect(&net->peers[p]->edges[c]);
    pthread_mutex_unlock(&net->lock);
}

/* Handles the events of net->epoll, and what is due. */
static void handle_events(struct pc_net *net, bool block)
{
    struct epoll_event events[PC_EPOLL_EVENTS];
    uint64_t expired;
    if (net->epoll < 0)
        return;
    int n = epoll_wait(net->epoll, events, PC_EPOLL_EVENTS, 0);
    net->events_pending = n == PC_EPOLL_EVENTS;
    for (int i = 0; i < n; i++) {
        if (events[i].data.u64 != PC_NET_TIMER) {
            net->ops->handle_event(net, events[i].data.u64);
            continue;
        }
        (void)!read(net->timer, &expired, sizeof expired);
        net->timer_set = false;
        net->timed = 0;
    }
    if (net->due != 0 && pc__now() >= net->due) {
        net->due = 0;
        net->ops->handle_due(net, block);
    }
    flush(net);
}

void pc__net_progress(struct pc_net *net)
{
    pthread_mutex_lock(&net->lock);
    flush(net);
    poll_net(net, NULL);
    flush(net); /* what has come decides which credit is due */
    if (net->events_pending || ++net->turns % PC_TURNS_PER_LOOK == 0)
        handle_events(net, !net->has_event_thread);
    pc__net_unlock(net);
}

static const struct pc_error *fault_of(const struct pc_net_peer *peer)
{
    return peer->ended ? &peer->fault : NULL;
}

const struct pc_error *pc__net_poll(struct pc_net *net, uint32_t rank)
{
    struct pc_net_peer *peer = net->peers[rank];
    if (peer == NULL)
        return NULL;
    pthread_mutex_lock(&net->lock);
    flush(net);
    poll_net(net, peer);
    flush(net);
    const struct pc_error *fault = fault_of(peer);
    pc__net_unlock(net);
    return fault;
}

const struct pc_error *pc__net_fault(struct pc_net *net, uint32_t rank)
{
    struct pc_net_peer *peer = net->peers[rank];
    if (peer == NULL)
        return NULL;
    pthread_mutex_lock(&net->lock);
    const struct pc_error *fault = fault_of(peer);
    pc__net_unlock(net);
    return fault;
}

int pc__net_drained(struct pc_net *net, const struct pc_net_edge *edge, struct pc_error *error)
{
    pthread_mutex_lock(&net->lock);
    /* Now and then what came from peers that nobody waits for: their end, and what is no frame. */
    if (++net->unpolled >= PC_TURNS_PER_LOOK)
        poll_net(net, NULL);
    flush(net);
    int rc = net->called == 0 && (net->credits == 0 || net->posted != 0);
    const struct pc_error *undeliverable = net->undeliverable;
    if (edge != NULL) {
        rc = edge->pending == 0;
        undeliverable = edge->peer->undeliverable & bit_of(edge) ? &edge->peer->fault : NULL;
    }
    if (undeliverable != NULL) {
        *error = *undeliverable;
        rc = error->code;
    }
    pc__net_unlock(net);
    return rc;
}

bool pc__net_pause(struct pc_net *net, uint64_t ns)
{
    struct epoll_event events[PC_EPOLL_EVENTS];
    bool woken_up = false;
    pthread_mutex_lock(&net->lock);
    flush(net);
    ns = net->ops->arm(net, ns);
    if (net->events_pending || net->undeliverable != NULL)
        ns = 0;
    net->pausing = true;
    pc__net_unlock(net);
    uint64_t milliseconds = (ns + 999999) / 1000000;
    int n = epoll_wait(net->pause_epoll, events, PC_EPOLL_EVENTS,
                       milliseconds > 1000000 ? 1000000 : (int)milliseconds);
    pthread_mutex_lock(&net->lock);
    net->pausing = false;
    for (int i = 0; i < n; i++) {
        uint64_t what = events[i].data.u64;
        if (what == PC_NET_WAKEUP)
            woken_up = true;
        else if (what == PC_NET_EVENTS)
            net->events_pending = true;
        else
            net->ops->woken(net, what);
    }
    pc__net_unlock(net);
    return woken_up;
}

static bool all_settled(const struct pc_net *net)
{
    for (uint32_t p = 0; p < net->comm->options.size; p++) {
        const struct pc_net_peer *peer = net->peers[p];
        if (peer == NULL)
            continue;
        if (!peer->ended && (peer->head != peer->tail || peer->owed != 0))
            return false;
        if (!net->ops->settled(peer))
            return false;
    }
    return true;
}

static void linger(struct pc_net *net, uint64_t ns)
{
    uint64_t until = pc__now() + ns;
    pthread_mutex_lock(&net->lock); /* handle_due releases it where it blocks */
    for (;;) {
        poll_net(net, NULL);
        handle_events(net, true);
        flush_to(net, 0);
        if (all_settled(net) || pc__now() >= until)
            break;
        poll(NULL, 0, 1); /* about a round trip; no event tells when all is acknowledged */
    }
    pthread_mutex_unlock(&net->lock);
}

/* Maps the shadows of all peers, one behind the other: of each arena this rank's record, where all
 * its messages go. Memory is taken page by page as it is written. */
static int make_shadows(struct pc_net *net)
{
    struct pc_comm *comm = net->comm;
    size_t bytes = comm->options.size * comm->layout.record;
    /* Shared: a fork would have this process copy a page that a device knows. */
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "mmap of shadows: %s", strerror(errno));
    net->shadows = p;
    return PC_OK;
}

int pc__net_register_gpu(struct pc_net *net,
                         int (*register_slots)(struct pc_net_peer *peer, struct pc_error *error),
                         struct pc_error *error)
{
    const struct pc_net_gpu *gpu = &net->gpu;
    uint64_t at = gpu->at;
    uint32_t failed = 0;
    for (uint32_t p = 0; p < net->comm->options.size; p++) {
        struct pc_net_peer *peer = net->peers[p];
        if (peer == NULL)
            continue;
        peer->gpu_in = at;
        peer->gpu_out = at + gpu->each;
        at += 2 * gpu->each;
        if (register_slots(peer, &peer->staged) == PC_OK) {
            peer->staged = (struct pc_error){0};
            continue;
        }
        peer->gpu_in = peer->gpu_out = 0;
        peer->staged.code = PC_UNMAPPABLE; /* whatever it is, its data can be staged */
        if (failed++ == 0)
            *error = peer->staged;
    }
    return failed == net->npeers ? PC_UNMAPPABLE : PC_OK;
}

/* All is staged. */
static void forget_gpu(struct pc_net *net)
{
    net->gpu = (struct pc_net_gpu){0};
    for (uint32_t p = 0; p < net->comm->options.size; p++)
        if (net->peers[p] != NULL) {
            net->peers[p]->gpu_in = net->peers[p]->gpu_out = 0;
            net->peers[p]->staged = (struct pc_error){0};
        }
}

int pc__net_gpu(struct pc_net *net, const struct pc_net_gpu *gpu, struct pc_error *error)
{
    int rc = PC_OK;
    pthread_mutex_lock(&net->lock);
    if (net->gpu.at != 0)
        rc = pc__fail(error, PC_INVALID, -1, "%s has memory of a GPU already", net->ops->name);
    for (uint32_t p = 0; p < net->comm->options.size && rc == PC_OK; p++)
        if (net->peers[p] != NULL && net->ops->connections(net->peers[p]) > 0)
            rc = pc__fail(error, PC_INVALID, (int)p,
                          "memory of a GPU comes before rank %u is connected", p);
    if (rc == PC_OK) {
        net->gpu = *gpu;
        rc = net->ops->register_gpu(net, error);
        if (rc != PC_OK)
            forget_gpu(net);
    }
    pc__net_unlock(net);
    return rc;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

void pc__net_close(struct pc_net *net, uint64_t linger_ns)
{
    if (net == NULL)
        return;
    uint32_t size = net->comm->options.size;
    if (linger_ns != 0 && net->pid == getpid())
        linger(net, linger_ns);
    net->ops->close(net);
    if (net->gpu.at != 0 && !net->gpu.keep && net->pid == getpid())
        net->gpu.free(net->gpu.device, net->gpu.at);
    for (uint32_t p = 0; net->peers != NULL && p < size; p++) {
        if (net->peers[p] != NULL)
            free(net->peers[p]->queue);
        free(net->peers[p]);
    }
    close_fd(net->pause_epoll);
    close_fd(net->epoll);
    close_fd(net->timer);
    if (net->shadows != NULL && !net->keeps)
        munmap(net->shadows, size * net->comm->layout.record);
    pthread_mutex_destroy(&net->lock);
    free(net->peers);
    free(net->dirty);
    free(net);
}

static int open_net(struct pc_comm *comm, const struct pc_net_ops *ops, const void *options,
                    size_t nbytes)
{
    struct pc_net *net = calloc(1, ops->net_bytes);
    uint32_t size = comm->options.size;
    if (net == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a network");
    net->ops = ops;
    net->comm = comm;
    pc__net_begin(net, UINT64_MAX);
    net->pid = getpid();
    net->epoll = net->timer = -1;
    pthread_mutex_init(&net->lock, NULL);
    net->pause_epoll = epoll_create1(EPOLL_CLOEXEC);
    net->peers = calloc(size, sizeof *net->peers);
    net->dirty = calloc(size, sizeof *net->dirty);
    int rc = PC_OK;
    if (net->peers == NULL || net->dirty == NULL)
        rc = pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u peers", size);
    if (rc == PC_OK)
        rc = make_shadows(net);
    if (rc == PC_OK && comm->wakeup_fd < 0)
        rc = pc__wakeup_open(comm);
    if (rc == PC_OK
        && (net->pause_epoll < 0
            || pc__net_watch(net->pause_epoll, comm->wakeup_fd, EPOLLIN, PC_NET_WAKEUP) != 0))
        rc = pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    if (rc == PC_OK)
        rc = ops->open(net, options, nbytes);
    if (rc != PC_OK) {
        pc__net_close(net, 0);
        return rc;
    }
    comm->net = net;
    pc__p2p_reach(comm, ops->frag_bytes, ops->rndv_from);
    comm->yields = ops->yields;
    comm->polls_per_yield = ops->polls_per_yield;
    comm->slow_yield_ns = ops->slow_yield_ns;
    return PC_OK;
}

int pc_comm_net(struct pc_comm *comm, const char *name, const void *options, size_t nbytes)
{
    const struct pc_net_ops *const *ops = pc__nets;
    if (comm->net != NULL && comm->net->npeers != 0)
        return pc__fail(&comm->error, PC_INVALID, -1,
                        "a network comes before the peers that it reaches");
    pc__net_close(comm->net, 0);
    comm->net = NULL;
    comm->yields = 0;
    comm->polls_per_yield = 0;
    comm->slow_yield_ns = PC_SLOW_YIELD_NS;
    if (*name == 0)
        return PC_OK;
    while (*ops != NULL && strcmp((*ops)->name, name) != 0)
        ops++;
    if (*ops == NULL)
        return pc__fail(&comm->error, PC_INVALID, -1, "there is no network %s", name);
    const char *missing = (*ops)->missing();
    if (*missing != 0)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "%s", missing);
    return open_net(comm, *ops, options, nbytes);
}

int pc_comm_remote(struct pc_comm *comm, uint32_t rank)
{
    int rc = PC_OK;
    if (rank >= comm->options.size || rank == comm->options.rank || comm->sealed)
        return pc__fail(&comm->error, PC_INVALID, (int)rank,
                        "rank %u cannot be remote to rank %u of %u%s", rank, comm->options.rank,
                        comm->options.size, comm->sealed ? ", which has been told all peers" : "");
    if (comm->net == NULL)
        rc = pc_comm_net(comm, pc__nets[0]->name, NULL, 0);
    if (rc != PC_OK || comm->net->peers[rank] != NULL)
        return rc;
    struct pc_net *net = comm->net;
    struct pc_net_peer *peer = calloc(1, net->ops->peer_bytes);
    struct pc_send_op *queue = malloc(PC_PENDING_OPS * sizeof *queue);
    if (peer == NULL || queue == NULL) {
        free(peer);
        free(queue);
        return pc__fail(&comm->error, PC_NOMEM, (int)rank, "no memory for messages to rank %u",
                        rank);
    }
    peer->net = net;
    peer->rank = rank;
    peer->queue = queue;
    net->peers[rank] = peer;
    net->npeers++;
    for (uint32_t c = 0; c < PC_EDGE_CHANNELS; c++)
        peer->edges[c] = (struct pc_net_edge){
            .peer = peer, .fifo = &comm->fifos[(size_t)rank * PC_EDGE_CHANNELS + c]};
    pc__comm_resolve_remote(comm, rank, net->shadows + rank * comm->layout.record, peer,
                            net->ops->expose != NULL ? &pc__get_rndv : NULL);
    return PC_OK;
}

static struct pc_net_peer *peer_of(struct pc_comm *comm, uint32_t rank)
{
    return rank < comm->options.size && comm->net != NULL ? comm->net->peers[rank] : NULL;
}

int pc_comm_adopt(struct pc_comm *comm, uint32_t rank, int fd)
{
    struct pc_net_peer *peer = peer_of(comm, rank);
    if (peer == NULL)
        return PC_INVALID;
    struct pc_net *net = comm->net;
    pthread_mutex_lock(&net->lock);
    int rc = net->ops->adopt(peer, fd);
    atomic_store(&comm->peers[rank].ready, net->ops->connections(peer) > 0);
    pc__net_unlock(net);
    if (rc == PC_OK)
        pc__wakeup_signal(comm, comm->options.rank);
    return rc;
}

int pc_comm_connections(struct pc_comm *comm, uint32_t rank)
{
    struct pc_net_peer *peer = peer_of(comm, rank);
    if (peer == NULL)
        return PC_INVALID;
    pthread_mutex_lock(&comm->net->lock);
    int n = comm->net->ops->connections(peer);
    pc__net_unlock(comm->net);
    return n;
}

int pc_comm_peer_fault(struct pc_comm *comm, uint32_t rank, struct pc_error *out)
{
    struct pc_net_peer *peer = peer_of(comm, rank);
    if (peer == NULL)
        return PC_INVALID;
    pthread_mutex_lock(&comm->net->lock);
    *out = peer->fault;
    pc__net_unlock(comm->net);
    return PC_OK;
}

int pc_comm_event_fd(struct pc_comm *comm)
{
    if (comm->net == NULL)
        return -1;
    pthread_mutex_lock(&comm->net->lock); /* other threads may be in calls already */
    comm->net->has_event_thread = true;
    pc__net_unlock(comm->net);
    return comm->net->epoll;
}

int pc_comm_handle_events(struct pc_comm *comm)
{
    struct pc_net *net = comm->net;
    if (net == NULL)
        return PC_OK;
    pthread_mutex_lock(&net->lock);
    poll_net(net, NULL);
    handle_events(net, true);
    pc__net_wake(net);
    pc__net_unlock(net);
    return PC_OK;
}

int pc_comm_net_state(struct pc_comm *comm, struct pc_net_state *out)
{
    memset(out, 0, sizeof *out);
    if (comm->net == NULL)
        return PC_OK;
    pthread_mutex_lock(&comm->net->lock);
    *out = comm->net->state;
    pc__net_unlock(comm->net);
    return PC_OK;
}

void pc__net_sent(const struct pc_net *net, uint64_t *bytes)
{
    for (uint32_t rail = 0; rail < PC_MAX_RAILS; rail++) {
        uint64_t sent = __atomic_load_n(&net->state.bytes[rail], __ATOMIC_RELAXED);
        __atomic_store_n(&bytes[rail], sent, __ATOMIC_RELAXED);
    }
}

uint32_t pc_comm_links(struct pc_comm *comm, uint32_t peer, struct pc_link *out)
{
    struct pc_net *net = comm->net;
    if (net == NULL || peer >= comm->options.size || net->peers[peer] == NULL
        || net->ops->links == NULL)
        return 0;
    pthread_mutex_lock(&net->lock);
    uint32_t n = net->ops->links(net->peers[peer], out);
    pc__net_unlock(net);
    return n;
}
