/* What has to be seen to beside messages: wireup messages, the ports' events, and what is due at
 * some time. Whoever is in a call does it in passing; else the thread that attends. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PC_EPOLL_EVENTS 32
/* A peer that was reached before is lost without any connection for so long, if its connections
 * have failed so often since; else after twice the time. An attempt that began before may end. */
#define PC_RECONNECT_NS UINT64_C(10000000000)
#define PC_RECONNECT_TRIES 3
#define PC_PROBE_NS UINT64_C(5000000)       /* who answered an offer looks so often for the probe */
#define PC_POLL_SENT_NS UINT64_C(100000000) /* and for what has become of what was sent */

static void set_timer(struct pc_net *w, uint64_t when)
{
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(when / 1000000000u),
                                        .tv_nsec = (long)(when % 1000000000u)}};
    w->timed = when;
    timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* What is due must not be forgotten while nobody comes in; nor what is flying, whose failure only a
 * completion tells. */
void pc__net_unlock(struct pc_net *w)
{
    if (w->due != 0 && (w->timed == 0 || w->due < w->timed)) {
        set_timer(w, w->due);
    } else if (w->in_flight != 0 && !w->timer_set) {
        uint64_t poll_at = pc__now() + PC_POLL_SENT_NS;
        w->timer_set = true;
        if (w->timed == 0 || poll_at < w->timed)
            set_timer(w, poll_at);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Until when a peer may be without a connection; 0: for ever. Where a transfer was broken off none
 * is made, and both ranks live: what waits has its own deadline. Before its first connection the
 * other rank may rightly be late, as at every step of the start. Later the lower rank decides, as
 * only it knows what was tried, and hangs up; a busy machine may not have let it try. */
static uint64_t reconnect_until(const struct pc_net *w, const struct pc_verbs_peer *peer)
{
    uint64_t patience = w->comm->verbs.patience;
    bool tried
        = w->comm->options.rank < peer->rank && peer->tries >= PC_RECONNECT_TRIES * peer->nconns;
    if (peer->aborted)
        return 0;
    if (peer->reached)
        return peer->cut_off + (tried ? 1 : 2) * PC_RECONNECT_NS;
    return patience == 0 ? 0 : peer->cut_off + patience * UINT64_C(1000000000);
}

/* Whether an attempt that began in time may still end well. */
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

static void fail_peer(struct pc_net *w, struct pc_verbs_peer *peer)
{
    char why[64] = "no path to it is left";
    if (!peer->reached)
        snprintf(why, sizeof why, "no path to it came up within %u s", w->comm->verbs.patience);
    pc__verbs_peer_fail(w, peer, PC_LOST, why);
}

/* Offers what is down, goes on with what has failed, and gives up what has been cut off too long.
 */
void pc__handle_due(struct pc_net *w, bool join)
{
    uint64_t now = pc__now();
    if (w->due == 0 || now < w->due)
        return;
    w->due = 0;
    for (uint32_t p = 0; p < w->comm->options.size; p++) {
        struct pc_verbs_peer *peer = &w->peers[p];
        if (peer->wireup.fd < 0 || peer->ended)
            continue;
        pc__wireup_flush(&peer->wireup);
        for (uint32_t i = 0; i < peer->nconns && !peer->ended; i++) {
            struct pc_verbs_connection *conn = &peer->conns[i];
            if (conn->state == PC_CONNECTION_REPLIED && join) {
                w->connecting = true;
                pc__connection_connect(w, conn);
                w->connecting = false;
                now = pc__now();
            } else if (conn->state == PC_CONNECTION_REPLIED) {
                if (!w->connecting) /* whoever joins comes by */
                    pc__schedule(w, conn->since);
            } else if (conn->state == PC_CONNECTION_PROBING) {
                pc__schedule(w, now + PC_PROBE_NS);
            } else if (conn->state == PC_CONNECTION_DRAINING) {
                pc__connection_drain(w, conn);
            } else if (conn->state == PC_CONNECTION_DOWN && conn->attempt != 0) {
                if (conn->attempt <= now)
                    pc__connection_request(w, conn);
                else
                    pc__schedule(w, conn->attempt);
            }
        }
        uint64_t until = reconnect_until(w, peer);
        if (peer->live == 0 && until != 0 && !peer->ended) {
            if (now >= until && !(peer->reached && connecting_now(peer, until)))
                fail_peer(w, peer);
            else
                pc__schedule(w, now < until ? until : now + PC_POLL_SENT_NS);
        }
    }
}

/* Events of a port tell its number; all others are the device's. */
static bool concerns_events(const struct pc_ib_device *rail, enum ibv_event_type type,
                            uint32_t port)
{
    return (type != IBV_EVENT_PORT_ERR && type != IBV_EVENT_PORT_ACTIVE) || port == rail->spec.port;
}

static void handle_port_events(struct pc_net *w, uint32_t rail)
{
    struct ibv_async_event event;
    errno = 0;
    while (pc__ib.get_async_event(w->rails[rail].context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        uint32_t port = (uint32_t)event.element.port_num;
        pc__ib.ack_async_event(&event);
        bool gone = type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
        for (uint32_t p = 0; p < w->comm->options.size; p++)
            for (uint32_t i = 0; i < w->peers[p].nconns; i++) {
                struct pc_verbs_connection *conn = &w->peers[p].conns[i];
                if (conn->rail != rail || !concerns_events(&w->rails[rail], type, port))
                    continue;
                if (gone)
                    pc__connection_fail(w, conn,
                                        type == IBV_EVENT_PORT_ERR ? "its port went down"
                                                                   : "its device failed");
                if (type == IBV_EVENT_PORT_ACTIVE && conn->attempt != 0) {
                    conn->attempt = pc__now();
                    pc__schedule(w, conn->attempt);
                }
            }
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) /* the device is gone, and readable for ever */
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->rails[rail].context->async_fd, NULL);
}

/* Wireup messages, ports' events, the timer. */
void pc__handle_events(struct pc_net *w)
{
    struct epoll_event events[PC_EPOLL_EVENTS];
    uint64_t expired;
    w->events_pending = false;
    int n = epoll_wait(w->epoll, events, PC_EPOLL_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        uint64_t what = events[i].data.u64;
        if (what == PC_EVENT_TIMER) {
            (void)!read(w->timer, &expired, sizeof expired);
            w->timer_set = false;
            w->timed = 0;
        } else if (what >= PC_EVENT_PORT) {
            handle_port_events(w, (uint32_t)(what - PC_EVENT_PORT));
        } else {
            pc__verbs_peer_read(w, &w->peers[what]);
        }
    }
    if (n == PC_EPOLL_EVENTS)
        w->events_pending = true;
}
#endif
