/* The thread that is a NIC: takes in packets, lets each QP send, keeps the clocks. */
#include <sched.h>
#include <signal.h>
#include <time.h>
#include "nic.h"

uint64_t fv_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void fv_wake_at(struct fv_context *c, uint64_t ns)
{
    if (ns < c->wake_at)
        c->wake_at = ns;
}

/* ThreadSanitizer sees this process only. What another process passed on (this rank's credit, then
 * the message that the credit allowed) is an order that it must be told of. */
void fv_fence(void)
{
#ifdef __SANITIZE_THREAD__
    static _Atomic uint64_t passed;
    atomic_fetch_add_explicit(&passed, 1, memory_order_acq_rel);
#endif
}

struct fv_qp *fv_find_qp(struct fv_context *c, uint32_t number)
{
    return number >> FV_QPN_BITS == c->slot ? c->qps[number % FV_MAX_QPS] : NULL;
}

static bool reachable(const struct fv_qp *qp)
{
    if (qp->peer_slot >= FV_SLOTS || qp->peer_port >= FV_PORTS)
        return false;
    struct fv_slot *s = &qp->context->fabric->shared->slots[qp->peer_slot];
    return atomic_load(&s->state) == FV_OPEN && atomic_load(&s->port) == qp->peer_port
           && atomic_load(&s->generation) == qp->peer_generation;
}

bool fv_peer_alive(struct fv_qp *qp)
{
    return reachable(qp) && fv_slot_alive(qp->context->fabric, qp->peer_slot);
}

enum fv_route fv_route(struct fv_qp *qp, uint32_t kind, uint32_t length, struct fv_packet **out)
{
    struct fv_context *c = qp->context;
    if (!reachable(qp))
        return FV_DROP;
    if (kind != FV_NOTE && fv_link_cut(c->fabric, c->port, qp->peer_port, kind)) {
        fv_count(c->fabric, c->port, FV_DROPPED, 1);
        return FV_DROP;
    }
    uint32_t narrow = atomic_load(&c->fabric->shared->ports[c->port].narrow);
    struct fv_packet *packet
        = narrow != 0 && length > narrow ? NULL : fv_ring_begin(c->fabric, qp->peer_slot, length);
    if (!packet) {
        fv_wake_at(c, c->now + 50000);
        return FV_BUSY;
    }
    packet->kind = (uint8_t)kind;
    packet->from = qp->base.qp_num;
    packet->to = qp->attr.dest_qp_num;
    *out = packet;
    return FV_GO;
}

void fv_depart(struct fv_qp *qp, struct fv_packet *packet)
{
    struct fv_context *c = qp->context;
    if (packet->kind != FV_NOTE) {
        fv_count(c->fabric, c->port, FV_TX_PACKETS, 1);
        fv_count(c->fabric, c->port, FV_TX_BYTES, packet->length);
        fv_link_pass(c->fabric, c->port, qp->peer_port, packet->kind, packet->flags & FV_LAST);
    }
    uint64_t speed = atomic_load(&c->fabric->shared->ports[c->port].bytes_per_second);
    if (speed && packet->kind != FV_NOTE) {
        uint64_t begin = c->free_at > c->now ? c->free_at : c->now;
        c->free_at = begin + (packet->length + sizeof *packet) * 1000000000u / speed;
    }
    fv_fence();
    qp->departed = fv_ring_commit(c->fabric, qp->peer_slot, packet);
}

void fv_stray(struct fv_context *c, uint32_t slot, uint32_t from, uint32_t to, uint32_t psn)
{
    if (c->nstrays < sizeof c->strays / sizeof *c->strays)
        c->strays[c->nstrays++]
            = (struct fv_stray){.slot = slot, .from = from, .to = to, .psn = psn};
}

static void receive(struct fv_context *c, const struct fv_packet *packet)
{
    struct fv_qp *qp = fv_find_qp(c, packet->to);
    const char *payload = (const char *)(packet + 1);
    bool request = packet->kind & FV_REQUESTS;
    fv_fence();
    if (packet->kind != FV_NOTE) {
        fv_count(c->fabric, c->port, FV_RX_PACKETS, 1);
        fv_count(c->fabric, c->port, FV_RX_BYTES, packet->length);
    }
    if (!qp || qp->attr.dest_qp_num != packet->from
        || (request && qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS)) {
        fv_count(c->fabric, c->port, FV_STRAY, 1);
        if (request) /* its clock is to run */
            fv_stray(c, packet->from >> FV_QPN_BITS, packet->to, packet->from, packet->psn);
        return;
    }
    if (request)
        fv_responder_request(qp, packet, payload);
    else if (packet->kind == FV_NOTE)
        fv_requester_lost(qp, packet->psn);
    else if (packet->kind == FV_READ_RESPONSE)
        fv_requester_read(qp, packet, payload);
    else
        fv_requester_ack(qp, packet);
}

static bool tell_of_strays(struct fv_context *c)
{
    uint32_t kept = 0, all = c->nstrays;
    for (uint32_t i = 0; i < all; i++) {
        const struct fv_stray s = c->strays[i];
        if (s.slot >= FV_SLOTS || atomic_load(&c->fabric->shared->slots[s.slot].state) != FV_OPEN)
            continue;
        struct fv_packet *packet = fv_ring_begin(c->fabric, s.slot, 0);
        if (!packet) { /* it may be a stopped process; others are told all the same */
            c->strays[kept++] = s;
            fv_wake_at(c, c->now + 50000);
            continue;
        }
        packet->kind = FV_NOTE;
        packet->from = s.from;
        packet->to = s.to;
        packet->psn = s.psn;
        fv_fence();
        fv_ring_commit(c->fabric, s.slot, packet);
    }
    c->nstrays = kept;
    return kept < all;
}

static void look_at_port(struct fv_context *c)
{
    uint32_t changes = atomic_load(&c->fabric->shared->changes);
    if (changes == c->changes)
        return;
    c->changes = changes;
    bool down = atomic_load(&c->fabric->shared->ports[c->port].down);
    if (down != c->down)
        fv_event(c, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, NULL);
    c->down = down;
    uint32_t moved = atomic_load(&c->fabric->shared->ports[c->port].moved);
    if (moved != c->moved)
        fv_event(c, fv_options.infiniband ? IBV_EVENT_LID_CHANGE : IBV_EVENT_GID_CHANGE, NULL);
    c->moved = moved;
    uint32_t pkey = atomic_load(&c->fabric->shared->ports[c->port].pkey);
    if (pkey != c->pkey)
        fv_event(c, IBV_EVENT_PKEY_CHANGE, NULL);
    c->pkey = pkey;
}

/* A little of everything; true when something was done. */
static bool turn(struct fv_context *c)
{
    bool did = false;
    c->now = fv_now();
    c->wake_at = UINT64_MAX;
    look_at_port(c);
    for (int i = 0; i < 32; i++) {
        const struct fv_packet *packet = fv_ring_peek(c->fabric, c->slot);
        if (!packet)
            break;
        receive(c, packet);
        fv_ring_take(c->fabric, c->slot, packet);
        did = true;
    }
    for (uint32_t i = 0; i < c->top_qp; i++) {
        struct fv_qp *qp = c->qps[i];
        if (!qp)
            continue;
        did |= fv_responder_answer(qp);
        did |= fv_requester_send(qp);
        did |= fv_requester_timer(qp);
        did |= fv_qp_flush(qp);
    }
    did |= tell_of_strays(c);
    did |= fv_gpu_turn(c);
    return did;
}

void *fv_nic(void *argument)
{
    struct fv_context *c = argument;
    struct fv_slot *slot = &c->fabric->shared->slots[c->slot];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&c->stop)) {
        uint32_t seen = atomic_load(&slot->doorbell);
        pthread_mutex_lock(&c->lock);
        bool did = turn(c);
        uint64_t wake_at = c->wake_at, now = c->now;
        pthread_mutex_unlock(&c->lock);
        if (atomic_load(&c->wanted))
            sched_yield(); /* the lock is not fair */
        if (!did && wake_at > now)
            fv_slot_sleep(c->fabric, c->slot, seen,
                          wake_at - now < 1000000000u ? wake_at - now : 1000000000u);
    }
    return NULL;
}
