/* What has to be seen to beside messages: letters, the ports' events, and what is due at some time.
 * Whoever is in a call does it in passing; else the thread that attends. */
#include "verbs/verbs.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PC_EVENTS 32
/* A peer that was reached before is lost without any path for so long, if its paths have failed
 * so often since; else after twice the time. An attempt that began before may end. */
#define PC_HOPE_NS UINT64_C(10000000000)
#define PC_TRIES 3
#define PC_PROBE_NS UINT64_C(5000000)  /* who answered an offer looks so often for the probe */
#define PC_TICK_NS UINT64_C(100000000) /* and for what has become of what was sent */

static void set_timer(struct pc_wire *w, uint64_t when)
{
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(when / 1000000000u),
                                        .tv_nsec = (long)(when % 1000000000u)}};
    w->timed = when;
    timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* What is due must not be forgotten while nobody comes in; nor what is flying, whose failure only a
 * completion tells. */
void pc__unlock_wire(struct pc_wire *w)
{
    if (w->due != 0 && (w->timed == 0 || w->due < w->timed)) {
        set_timer(w, w->due);
    } else if (w->flying != 0 && !w->ticking) {
        uint64_t tick = pc__now() + PC_TICK_NS;
        w->ticking = true;
        if (w->timed == 0 || tick < w->timed)
            set_timer(w, tick);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Until when a partner may be without a path; 0: for ever. Where a transfer was broken off none is
 * made, and both ranks live: what waits has its own deadline. Before its first path the other rank
 * may rightly be late, as at every step of the start. Later the lower rank decides, as only it
 * knows what was tried, and hangs up; a busy machine may not have let it try. */
static uint64_t hope(const struct pc_wire *w, const struct pc_partner *partner)
{
    uint64_t patience = w->comm->verbs.patience;
    bool tried
        = w->comm->options.rank < partner->rank && partner->tries >= PC_TRIES * partner->npaths;
    if (partner->withdrawn)
        return 0;
    if (partner->reached)
        return partner->cut_off + (tried ? 1 : 2) * PC_HOPE_NS;
    return patience == 0 ? 0 : partner->cut_off + patience * UINT64_C(1000000000);
}

/* Whether an attempt that began in time may still end well. */
static bool trying(const struct pc_partner *partner, uint64_t until)
{
    for (uint32_t i = 0; i < partner->npaths; i++) {
        const struct pc_path *path = &partner->paths[i];
        if (path->state >= PC_PATH_OFFERED && path->state <= PC_PATH_PROBING && path->since < until)
            return true;
    }
    return false;
}

static void give_up(struct pc_wire *w, struct pc_partner *partner)
{
    char why[64] = "no path to it is left";
    if (!partner->reached)
        snprintf(why, sizeof why, "no path to it came up within %u s", w->comm->verbs.patience);
    pc__partner_end(w, partner, PC_LOST, why);
}

/* Offers what is down, goes on with what has failed, and gives up what has been cut off too long.
 */
void pc__tend(struct pc_wire *w, bool join)
{
    uint64_t now = pc__now();
    if (w->due == 0 || now < w->due)
        return;
    w->due = 0;
    for (uint32_t p = 0; p < w->comm->options.size; p++) {
        struct pc_partner *partner = &w->partners[p];
        if (partner->mail.fd < 0 || partner->ended)
            continue;
        pc__mail_flush(&partner->mail);
        for (uint32_t i = 0; i < partner->npaths && !partner->ended; i++) {
            struct pc_path *path = &partner->paths[i];
            if (path->state == PC_PATH_CALLED && join) {
                w->joining = true;
                pc__path_join(w, path);
                w->joining = false;
                now = pc__now();
            } else if (path->state == PC_PATH_CALLED) {
                if (!w->joining) /* whoever joins comes by */
                    pc__due(w, path->since);
            } else if (path->state == PC_PATH_PROBING) {
                pc__due(w, now + PC_PROBE_NS);
            } else if (path->state == PC_PATH_FAILING) {
                pc__path_settle(w, path);
            } else if (path->state == PC_PATH_DOWN && path->attempt != 0) {
                if (path->attempt <= now)
                    pc__path_offer(w, path);
                else
                    pc__due(w, path->attempt);
            }
        }
        uint64_t until = hope(w, partner);
        if (partner->live == 0 && until != 0 && !partner->ended) {
            if (now >= until && !(partner->reached && trying(partner, until)))
                give_up(w, partner);
            else
                pc__due(w, now < until ? until : now + PC_TICK_NS);
        }
    }
}

/* Events of a port tell its number; all others are the device's. */
static bool concerns(const struct pc_rail *rail, enum ibv_event_type type, uint32_t port)
{
    return (type != IBV_EVENT_PORT_ERR && type != IBV_EVENT_PORT_ACTIVE) || port == rail->spec.port;
}

static void hear_port(struct pc_wire *w, uint32_t rail)
{
    struct ibv_async_event event;
    errno = 0;
    while (pc__ib.get_async_event(w->rails[rail].context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        uint32_t port = (uint32_t)event.element.port_num;
        pc__ib.ack_async_event(&event);
        bool gone = type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
        for (uint32_t p = 0; p < w->comm->options.size; p++)
            for (uint32_t i = 0; i < w->partners[p].npaths; i++) {
                struct pc_path *path = &w->partners[p].paths[i];
                if (path->rail != rail || !concerns(&w->rails[rail], type, port))
                    continue;
                if (gone)
                    pc__path_fail(w, path,
                                  type == IBV_EVENT_PORT_ERR ? "its port went down"
                                                             : "its device failed");
                if (type == IBV_EVENT_PORT_ACTIVE && path->attempt != 0) {
                    path->attempt = pc__now();
                    pc__due(w, path->attempt);
                }
            }
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) /* the device is gone, and readable for ever */
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->rails[rail].context->async_fd, NULL);
}

/* Letters, ports' events, the timer. */
void pc__look(struct pc_wire *w)
{
    struct epoll_event events[PC_EVENTS];
    uint64_t expired;
    w->heed = false;
    int n = epoll_wait(w->epoll, events, PC_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        uint64_t what = events[i].data.u64;
        if (what == PC_TIMER) {
            (void)!read(w->timer, &expired, sizeof expired);
            w->ticking = false;
            w->timed = 0;
        } else if (what >= PC_PORT) {
            hear_port(w, (uint32_t)(what - PC_PORT));
        } else {
            pc__partner_read(w, &w->partners[what]);
        }
    }
    if (n == PC_EVENTS)
        w->heed = true;
}
#endif
