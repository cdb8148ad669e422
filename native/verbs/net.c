/* Remote peers over RDMA verbs.
 *
 * A message is written into the peer's slot, and behind it, on the same queue pair, its line, whose
 * last bytes are the count: so the count is never seen before the message. The line goes with an
 * immediate, which tells a peer that sleeps, and carries credit. A call ends when all that it sent
 * is acknowledged, for only this rank could send it again. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* While this rank only sends and consumes, it looks for completions so often. */
#define PC_CALLS_PER_REAP 8u
#define PC_TURNS_PER_LOOK 16u
/* A rank with something on its way looks whether the connection has failed. */
#define PC_NAP_NS UINT64_C(20000000)

static int watch(int epoll, int fd, uint64_t what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = what};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* For a connection to each peer; where that would be very much, it grows as they come. */
static uint32_t completions(const struct pc_comm *comm)
{
    uint64_t conns = (uint64_t)(comm->options.size - 1) * comm->verbs.queue_pairs;
    return PC_CONNECTION_CQ_DEPTH * (uint32_t)(conns < 1 ? 1 : conns < 16 ? conns : 16);
}

static int open_rails(struct pc_net *w)
{
    struct pc_comm *comm = w->comm;
    for (; w->nrails < comm->nrails; w->nrails++) {
        struct pc_ib_device *rail = &w->rails[w->nrails];
        int rc = pc__ib_device_open(&comm->rails[w->nrails], &comm->verbs, completions(comm),
                                    &comm->error, rail);
        if (rc != PC_OK)
            return rc;
        int fd = rail->context->async_fd;
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0
            || watch(w->epoll, fd, PC_EVENT_PORT + w->nrails) != 0
            || watch(w->pause_epoll, rail->channel->fd, PC_EVENT_CQ + w->nrails) != 0)
            return pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    }
    return PC_OK;
}

/* What all peers together would have locked in memory, against what this process may lock: better
 * to know before anybody has connected. */
static int check_memlock(struct pc_net *w)
{
    const struct pc_layout *l = &w->comm->layout;
    uint64_t lines = (uint64_t)PC_EDGE_LINES * PC_LINE_BYTES;
    uint64_t slots = (uint64_t)PC_EDGE_CHANNELS * l->slots * l->slot_bytes;
    uint64_t want
        = w->nrails * (uint64_t)(w->comm->options.size - 1) * (lines + 2 * slots + PC_BOUNCE_BYTES);
    uint64_t may = pc__ib_lockable();
    errno = ENOMEM; /* what it would have been */
    if (want <= may)
        return PC_OK;
    return pc__fail(&w->comm->error, PC_SYSTEM, -1,
                    "RDMA to %u ranks over %u rails locks %llu KiB in memory, of %llu that may be"
                    "%s",
                    w->comm->options.size - 1, w->nrails, (unsigned long long)want >> 10,
                    (unsigned long long)may >> 10, pc__ib_remedy(ENOMEM));
}

static int verbs_open(struct pc_comm *comm, int wakeup_fd, struct pc_net **out)
{
    struct pc_net *w = calloc(1, sizeof *w);
    *out = w;
    if (w == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a transport");
    w->comm = comm;
    w->pid = getpid();
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->pause_epoll = epoll_create1(EPOLL_CLOEXEC);
    w->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    pthread_mutex_init(&w->lock, NULL);
    w->peers = calloc(comm->options.size, sizeof *w->peers);
    w->dirty = calloc(comm->options.size, sizeof *w->dirty);
    if (w->peers == NULL || w->dirty == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u peers", comm->options.size);
    for (uint32_t p = 0; p < comm->options.size; p++)
        w->peers[p] = (struct pc_verbs_peer){.rank = p, .wireup.fd = -1};
    if (w->epoll < 0 || w->pause_epoll < 0 || w->timer < 0
        || watch(w->epoll, w->timer, PC_EVENT_TIMER) != 0
        || watch(w->pause_epoll, wakeup_fd, PC_EVENT_WAKEUP) != 0
        || watch(w->pause_epoll, w->epoll, PC_EVENT_ASYNC) != 0)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    int rc = open_rails(w);
    return rc != PC_OK ? rc : check_memlock(w);
}

static void flush(struct pc_net *w, bool all_credit)
{
    for (uint32_t k = w->ndirty; k-- > 0;) {
        struct pc_verbs_peer *peer = w->dirty[k];
        if (pc__verbs_peer_flush(w, peer, all_credit) && peer->owed == 0
            && peer->head == peer->tail) {
            peer->dirty = false;
            w->dirty[k] = w->dirty[--w->ndirty];
        }
    }
}

static void handle_all(struct pc_net *w, bool join)
{
    pc__poll_cq(w);
    pc__handle_events(w);
    pc__handle_due(w, join);
    flush(w, false);
}

static bool all_has_arrived(const struct pc_net *w)
{
    for (uint32_t p = 0; p < w->comm->options.size; p++) {
        const struct pc_verbs_peer *peer = &w->peers[p];
        for (uint32_t i = 0; i < peer->nconns; i++)
            if (peer->conns[i].head != peer->conns[i].tail)
                return false;
        if (!peer->ended && (peer->head != peer->tail || peer->owed != 0))
            return false;
    }
    return true;
}

static void linger(struct pc_net *w, uint64_t ns)
{
    uint64_t until = pc__now() + ns;
    pthread_mutex_lock(&w->lock); /* to connect a connection gives it back for a while */
    for (;;) {
        handle_all(w, true);
        flush(w, true);
        if (all_has_arrived(w) || pc__now() >= until)
            break;
        poll(NULL, 0,
             1); /* a round trip, or a failing connection; completions need not be solicited */
    }
    pthread_mutex_unlock(&w->lock);
}

static void verbs_close(struct pc_net *w, uint64_t linger_ns)
{
    if (w == NULL)
        return;
    bool mine = w->pid == getpid(); /* else the parent's objects would go with these */
    if (mine && linger_ns != 0)
        linger(w, linger_ns);
    for (uint32_t p = 0; mine && w->peers != NULL && p < w->comm->options.size; p++)
        pc__verbs_peer_close(w, &w->peers[p]);
    for (uint32_t i = 0; mine && i < w->nrails; i++)
        pc__ib_device_close(&w->rails[i]);
    if (w->pause_epoll >= 0)
        close(w->pause_epoll);
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->timer >= 0)
        close(w->timer);
    pthread_mutex_destroy(&w->lock);
    free(w->peers);
    free(w->dirty);
    free(w);
}

static int verbs_adopt(struct pc_net *w, uint32_t rank, int fd)
{
    struct pc_verbs_peer *peer = &w->peers[rank];
    pthread_mutex_lock(&w->lock);
    int rc = PC_INVALID;
    if (peer->wireup.fd < 0 && !peer->ended && peer->lines[0] == NULL) {
        if (peer->queue == NULL)
            peer->queue = malloc(PC_PENDING_OPS * sizeof *peer->queue);
        rc = peer->queue == NULL ? PC_NOMEM : pc__verbs_peer_wireup(w, peer, fd);
    }
    if (rc != PC_OK)
        peer->wireup.fd = -1; /* it stays the caller's */
    pc__net_unlock(w);
    return rc;
}

static int verbs_links(struct pc_net *w, uint32_t rank)
{
    pthread_mutex_lock(&w->lock);
    int n = w->peers[rank].wireup.fd >= 0 && !w->peers[rank].ended;
    pc__net_unlock(w);
    return n;
}

static bool transfers(const struct pc_fifo *f)
{
    return f->channel >= PC_MAX_CHANNELS;
}

static int verbs_message(struct pc_net *w, struct pc_fifo *f, const char *data, uint64_t nbytes,
                         struct pc_error *error)
{
    pthread_mutex_lock(&w->lock);
    struct pc_verbs_peer *peer = &w->peers[f->peer];
    int rc = PC_OK;
    if (++w->calls >= PC_CALLS_PER_REAP)
        pc__poll_cq(w);
    if (peer->queue == NULL)
        peer->queue = malloc(PC_PENDING_OPS * sizeof *peer->queue);
    if (peer->ended) {
        *error = peer->fault;
        rc = error->code;
    } else if (peer->queue == NULL) {
        rc = pc__fail(error, PC_NOMEM, (int)f->peer, "no memory for messages to rank %u", f->peer);
    } else if (f->put - pc__count(f->out_credit) >= PC_LINES) {
        rc = pc__fail(error, PC_INVALID, (int)f->peer, "no room for message %llu to rank %u",
                      (unsigned long long)f->put, f->peer);
    } else {
        struct pc_send_op op
            = {.fifo = f, .number = f->put, .data = data, .nbytes = nbytes, .frags = 1};
        struct pc_line *line = &f->out_lines[f->put & (PC_LINES - 1)];
        atomic_store_explicit(&line->count, f->put + 1, memory_order_relaxed);
        f->sent = ++f->put;
        pc__verbs_peer_count_pending(w, peer, f, 1);
        if (peer->head != peer->tail || !pc__verbs_peer_send(w, peer, &op))
            pc__verbs_peer_queue(w, peer, &op, false);
    }
    pc__net_unlock(w);
    return rc;
}

static void verbs_credit(struct pc_net *w, struct pc_fifo *f, uint64_t received)
{
    struct pc_verbs_peer *peer = &w->peers[f->peer];
    pthread_mutex_lock(&w->lock);
    f->consumed = received;
    peer->owed |= UINT32_C(1) << f->channel;
    pc__verbs_peer_dirty(w, peer);
    if (++w->calls >= PC_CALLS_PER_REAP)
        pc__poll_cq(w);
    if (transfers(f))
        flush(w, false);
    pc__net_unlock(w);
}

static void verbs_poll(struct pc_net *w, uint32_t rank)
{
    (void)rank; /* completions of all come together */
    pthread_mutex_lock(&w->lock);
    pc__poll_cq(w);
    if (w->ndirty != 0)
        flush(w, false);
    pc__net_unlock(w);
}

static void verbs_progress(struct pc_net *w)
{
    pthread_mutex_lock(&w->lock);
    if (w->events_pending || ++w->turns % PC_TURNS_PER_LOOK == 0) {
        handle_all(w, !w->has_event_thread);
    } else {
        pc__poll_cq(w);
        if (w->ndirty != 0)
            flush(w, false);
    }
    pc__net_unlock(w);
}

static void handle_completions(struct pc_net *w, uint32_t rail)
{
    struct ibv_cq *cq;
    void *context;
    if (pc__ib.get_cq_event(w->rails[rail].channel, &cq, &context) == 0)
        pc__ib.ack_cq_events(cq, 1);
    w->armed[rail] = false;
}

static bool verbs_pause(struct pc_net *w, uint64_t ns)
{
    struct epoll_event events[PC_MAX_RAILS + 2];
    bool rung = false, come;
    pthread_mutex_lock(&w->lock);
    flush(w, false); /* a peer that runs out of room is owed enough to be told at once */
    /* Nobody solicits what this rank itself has posted. */
    bool own = (w->called | w->posted | w->reads) != 0;
    for (uint32_t i = 0; i < w->nrails; i++)
        if (!w->armed[i] || own)
            w->armed[i] = ibv_req_notify_cq(w->rails[i].cq, !own) == 0;
    come = pc__poll_cq(w); /* before the channel was armed */
    if (come || w->events_pending || w->undeliverable != NULL)
        ns = 0;
    if (w->in_flight != 0 && ns > PC_NAP_NS)
        ns = PC_NAP_NS;
    w->pausing = true;
    pc__net_unlock(w);
    uint64_t milliseconds = (ns + 999999) / 1000000;
    int n = epoll_wait(w->pause_epoll, events, PC_MAX_RAILS + 2,
                       milliseconds > 1000000 ? 1000000 : (int)milliseconds);
    pthread_mutex_lock(&w->lock);
    w->pausing = false;
    for (int i = 0; i < n; i++) {
        uint64_t what = events[i].data.u64;
        if (what == PC_EVENT_WAKEUP)
            rung = true;
        else if (what == PC_EVENT_ASYNC)
            w->events_pending = true;
        else
            handle_completions(w, (uint32_t)(what - PC_EVENT_CQ));
    }
    pc__net_unlock(w);
    return rung;
}

static int verbs_drained(struct pc_net *w, const struct pc_fifo *f, struct pc_error *error)
{
    pthread_mutex_lock(&w->lock);
    if (w->ndirty != 0)
        flush(w, false);
    int rc = w->called == 0;
    const struct pc_error *undeliverable = w->undeliverable;
    if (f != NULL) {
        const struct pc_verbs_peer *peer = &w->peers[f->peer];
        rc = peer->unacknowledged[f->channel] == 0;
        undeliverable = peer->undeliverable >> f->channel & 1 ? &peer->fault : NULL;
    }
    if (undeliverable != NULL) {
        *error = *undeliverable;
        rc = error->code;
    }
    pc__net_unlock(w);
    return rc;
}

static const struct pc_error *verbs_fault(struct pc_net *w, uint32_t rank)
{
    struct pc_verbs_peer *peer = &w->peers[rank];
    pthread_mutex_lock(&w->lock);
    const struct pc_error *fault = peer->ended ? &peer->fault : NULL;
    pc__net_unlock(w);
    return fault;
}

static int verbs_attention(struct pc_net *w)
{
    pthread_mutex_lock(&w->lock); /* calls may run already */
    w->has_event_thread = true;
    pc__net_unlock(w);
    return w->epoll;
}

static void verbs_attend(struct pc_net *w)
{
    pthread_mutex_lock(&w->lock);
    handle_all(w, true);
    bool wake = w->pausing;
    pc__net_unlock(w);
    if (wake)
        pc__wakeup_signal(w->comm, w->comm->options.rank);
}

static void verbs_state(struct pc_net *w, struct pc_net_state *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->state;
    pc__net_unlock(w);
}

static const struct pc_net_ops verbs = {
    .name = "verbs",
    .yields = 400,
    .slow_yield_ns = 10 * PC_SLOW_YIELD_NS, /* a device in software works in its poster's time */
    .open = verbs_open,
    .close = verbs_close,
    .adopt = verbs_adopt,
    .connections = verbs_links,
    .message = verbs_message,
    .credit = verbs_credit,
    .poll = verbs_poll,
    .progress = verbs_progress,
    .pause = verbs_pause,
    .drained = verbs_drained,
    .fault = verbs_fault,
    .lend = pc__rndv_expose,
    .borrow = pc__rndv_get,
    .borrowed = pc__rndv_test,
    .release = pc__rndv_release,
    .attention = verbs_attention,
    .attend = verbs_attend,
    .state = verbs_state,
};

const struct pc_net_ops *const pc__verbs_ops = &verbs;
#else
const struct pc_net_ops *const pc__verbs_ops = NULL;
#endif
