/* What has to be seen to beside messages: wireup messages, the ports' events, and what is due at
 * some time. Whoever is in a call does it in passing; else the thread that attends. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

/* A peer that was reached before is lost without any connection for so long, if its connections
 * have failed so often since; else after twice the time. An attempt that began before may end. */
#define PC_RECONNECT_NS UINT64_C(10000000000)
#define PC_RECONNECT_TRIES 3
#define PC_PROBE_NS UINT64_C(5000000)       /* who answered an offer looks so often for the probe */
#define PC_POLL_SENT_NS UINT64_C(100000000) /* and for an attempt that is under way */
/* A rank with something on its way looks whether the connection has failed. */
#define PC_NAP_NS UINT64_C(20000000)

/* Until when a peer may be without a connection; 0: for ever. Where a transfer was broken off none
 * is made, and both ranks live: what waits has its own deadline. Before its first connection the
 * other rank may rightly be late, as at every step of the start. Later the lower rank decides, as
 * only it knows what was tried, and hangs up; a busy machine may not have let it try. */
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

static void fail_peer(struct pc_verbs_net *w, struct pc_verbs_peer *peer)
{
    char why[64] = "no path to it is left";
    if (!peer->reached)
        snprintf(why, sizeof why, "no path to it came up within %u s", w->options.patience);
    pc__verbs_peer_fail(w, peer, PC_LOST, why);
}

/* Offers what is down, goes on with what has failed, and gives up what has been cut off too long.
 */
void pc__verbs_handle_due(struct pc_net *net, bool block)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    uint64_t now = pc__now();
    for (uint32_t p = 0; p < net->comm->options.size; p++) {
        struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
        if (peer == NULL || !peer->wireup.open || peer->base.ended)
            continue;
        pc__wireup_flush(&peer->wireup);
        for (uint32_t i = 0; i < peer->nconns && !peer->base.ended; i++) {
            struct pc_verbs_connection *conn = &peer->conns[i];
            if (conn->state == PC_CONNECTION_REPLIED && block) {
                w->connecting = true;
                pc__connection_connect(w, conn);
                w->connecting = false;
                now = pc__now();
            } else if (conn->state == PC_CONNECTION_REPLIED) {
                if (!w->connecting) /* whoever joins comes by */
                    pc__net_schedule(&w->base, conn->since);
            } else if (conn->state == PC_CONNECTION_PROBING) {
                pc__net_schedule(&w->base, now + PC_PROBE_NS);
            } else if (conn->state == PC_CONNECTION_DRAINING) {
                pc__connection_drain(w, conn);
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
}

/* Events of a port tell its number; all others are the device's. */
static bool concerns_events(const struct pc_ib_device *rail, enum ibv_event_type type,
                            uint32_t port)
{
    return (type != IBV_EVENT_PORT_ERR && type != IBV_EVENT_PORT_ACTIVE) || port == rail->spec.port;
}

static void handle_port_events(struct pc_verbs_net *w, uint32_t rail)
{
    struct ibv_async_event event;
    errno = 0;
    while (pc__ib.get_async_event(w->rails[rail].context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        uint32_t port = (uint32_t)event.element.port_num;
        pc__ib.ack_async_event(&event);
        bool gone = type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
        for (uint32_t p = 0; p < w->base.comm->options.size; p++) {
            struct pc_verbs_peer *peer = pc__verbs_peer(w, p);
            for (uint32_t i = 0; peer != NULL && i < peer->nconns; i++) {
                struct pc_verbs_connection *conn = &peer->conns[i];
                if (conn->rail != rail || !concerns_events(&w->rails[rail], type, port))
                    continue;
                if (gone)
                    pc__connection_fail(w, conn,
                                        type == IBV_EVENT_PORT_ERR ? "its port went down"
                                                                   : "its device failed");
                if (type == IBV_EVENT_PORT_ACTIVE && conn->attempt != 0) {
                    conn->attempt = pc__now();
                    pc__net_schedule(&w->base, conn->attempt);
                }
            }
        }
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) /* the device is gone, and readable for ever */
        epoll_ctl(w->base.epoll, EPOLL_CTL_DEL, w->rails[rail].context->async_fd, NULL);
}

void pc__verbs_handle_event(struct pc_net *net, uint64_t what)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    if (what >= PC_EVENT_PORT)
        handle_port_events(w, (uint32_t)(what - PC_EVENT_PORT));
    else
        pc__verbs_peer_read(w, pc__verbs_peer(w, (uint32_t)what));
}

void pc__verbs_poll(struct pc_net *net, struct pc_net_peer *only)
{
    (void)only; /* completions of all come together */
    pc__poll_cq((struct pc_verbs_net *)net);
}

uint64_t pc__verbs_arm(struct pc_net *net, uint64_t ns)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    /* Nobody solicits what this rank itself has posted. */
    bool own = (net->called | net->posted | w->reads) != 0;
    for (uint32_t i = 0; i < w->nrails; i++)
        if (!w->armed[i] || own)
            w->armed[i] = ibv_req_notify_cq(w->rails[i].cq, !own) == 0;
    if (pc__poll_cq(w)) /* before the channel was armed */
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
