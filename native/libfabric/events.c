/* Completions, and the events of sockets. Whoever polls makes the provider's progress. */
#include "libfabric/fabric.h"
#ifdef PC_LIBFABRIC
#include <poll.h>
#include <stdio.h>

#define PC_COMPLETIONS_AT_ONCE 16
#define PC_TURNS_AT_ONCE 64                 /* of a poll: other work waits, too */
#define PC_GREETING_NS UINT64_C(5000000)    /* between two polls while ranks find each other */
#define PC_CONNECTING_NS UINT64_C(12000000) /* and until a provider has looked at a connection */
#define PC_STOPPING_NS UINT64_C(2000000000) /* for peers that are asked to send no more */
/* Each a millisecond: what a peer sent before it died may come behind the end of its socket. */
#define PC_QUIET_ROUNDS 10

void pc__fabric_came(struct pc_fabric_net *w, struct pc_fabric_peer *peer, int rc,
                     const struct pc_error *error)
{
    struct pc_comm *comm = w->base.comm;
    if (rc > 0) /* another thread: this one is awake */
        pc__wakeup_signal(comm, comm->options.rank);
    if (rc < 0) {
        peer->base.fault = *error;
        pc__fabric_peer_leave(w, peer, error->text);
    } else {
        pc__fabric_peer_came(w, peer);
    }
}

static void received(struct pc_fabric_net *w, struct pc_fabric_packet *packet, size_t nbytes)
{
    struct pc_error error;
    struct pc_fabric_peer *peer = pc__fabric_sender(w, packet->bytes, nbytes);
    if (peer != NULL)
        pc__fabric_came(w, peer, pc__fabric_land(w, peer, packet->bytes, nbytes, &error), &error);
    pc__fabric_receive(w, packet);
}

static void written(struct pc_fabric_net *w, uint64_t data)
{
    struct pc_error error;
    uint32_t line;
    bool joined;
    struct pc_fabric_peer *peer = pc__fabric_writer(w, data, &line, &joined);
    if (peer != NULL)
        pc__fabric_came(w, peer,
                        (joined ? pc__fabric_joined : pc__fabric_written)(w, peer, line, &error),
                        &error);
}

static void failed(struct pc_fabric_net *w, struct fid_cq *cq)
{
    union {
        struct fi_cq_err_entry entry;
        char room[256]; /* later versions have more fields, and some providers write them all */
    } read = {0};
    const struct fi_cq_err_entry *entry = &read.entry;
    char text[96];
    if (fi_cq_readerr(cq, &read.entry, 0) != 1 || entry->op_context == NULL)
        return;
    struct pc_fabric_packet *packet = entry->op_context;
    if (packet->receives) { /* a stranger's packet was too long; or it is cancelled */
        pc__fabric_receive(w, packet);
        return;
    }
    const char *provider
        = fi_cq_strerror(cq, entry->prov_errno, entry->err_data, text, sizeof text);
    char why[160];
    snprintf(why, sizeof why, "%s (provider %s: %.60s)", pc__fi.strerror(entry->err),
             w->endpoint.info->fabric_attr->prov_name, provider != NULL ? provider : "");
    struct pc_fabric_peer *peer = packet->peer;
    if (peer == NULL) {
        pc__fabric_hmem_flushed(w, why);
        return;
    }
    peer->cut_by_read = false;
    pc__fabric_peer_cut(peer, "send", why);
    if (peer->base.fault.code != 0) /* else it is still to be found out whether the peer has it */
        pc__fabric_sent(packet);
}

static void completed(struct pc_fabric_net *w, const struct fi_cq_data_entry *entry)
{
    struct pc_fabric_packet *packet = entry->op_context;
    if (entry->flags & FI_REMOTE_WRITE) { /* which has no context */
        written(w, entry->data);
    } else if (packet->receives) {
        received(w, packet, entry->len);
    } else if (packet->peer == NULL) {
        pc__fabric_hmem_flushed(w, NULL);
    } else {
        pc__fabric_sent(packet);
        if (!packet->peer->base.ended)
            pc__net_dirty(&packet->peer->base); /* there is room for the next */
    }
}

/* True when something was there. */
static bool poll_cq(struct pc_fabric_net *w, struct fid_cq *cq)
{
    struct fi_cq_data_entry entries[PC_COMPLETIONS_AT_ONCE];
    bool some = false;
    for (int turn = 0; turn < PC_TURNS_AT_ONCE; turn++) {
        ssize_t n = fi_cq_read(cq, entries, PC_COMPLETIONS_AT_ONCE);
        if (n == -FI_EAVAIL)
            failed(w, cq);
        else if (n <= 0)
            break;
        some = true;
        for (ssize_t i = 0; i < n; i++)
            completed(w, &entries[i]);
        /* That was all: one more read would have the provider look at its sockets. But the rest of
         * a message is there, or comes at once. */
        if (n > 0 && n < PC_COMPLETIONS_AT_ONCE && w->partial == 0)
            break;
    }
    return some;
}

/* True when something came or left. */
static bool poll_all(struct pc_fabric_net *w)
{
    if (w->unposted != NULL)
        pc__fabric_receive_unposted(w);
    bool some = poll_cq(w, w->endpoint.cq);
    some = (w->base.in_flight != 0 && poll_cq(w, w->endpoint.tx_cq)) || some;
    if (w->hmem.n != 0)
        some = pc__fabric_hmem_flush(w) || some;
    return ((w->rndvs != NULL || w->reads_woken) && pc__fabric_poll_reads(w)) || some;
}

void pc__fabric_poll(struct pc_net *net, struct pc_net_peer *only)
{
    (void)only; /* one completion queue serves all peers */
    poll_all((struct pc_fabric_net *)net);
}

uint64_t pc__fabric_arm(struct pc_net *net, uint64_t ns)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    bool nap = w->endpoint.wait_fd < 0 || w->again || net->in_flight != 0 || w->hmem.n != 0
               || (w->rndvs != NULL && w->reads.wait_fd < 0);
    w->again = false;
    if (poll_all(w))
        return 0;
    if (!pc__endpoint_may_sleep(&w->endpoint) || !pc__endpoint_may_sleep(&w->reads))
        return 0; /* something has come since */
    return nap && ns > PC_SHORT_NS ? PC_SHORT_NS : ns;
}

void pc__fabric_woken(struct pc_net *net, uint64_t what)
{
    if (what == PC_EVENT_READS)
        ((struct pc_fabric_net *)net)->reads_woken = true;
    /* The caller polls next. */
}

/* The end of its socket is the peer's; what it sent before has come, or comes soon where its
 * provider takes another way. */
static void socket_ended(struct pc_fabric_net *w, struct pc_fabric_peer *peer, int rc)
{
    const char *why
        = rc == PC_LOST ? "it closed its connection" : "it sent what is no wireup message";
    if (rc == PC_LOST && peer->gave_up[0] != 0)
        why = peer->gave_up;
    for (int turn = 0; turn < PC_TURNS_AT_ONCE && poll_all(w); turn++)
        ;
    if (!peer->leaves || peer->received >= peer->leaves_at || rc != PC_LOST) {
        pc__fabric_peer_leave(w, peer, why);
        return;
    }
    peer->gone = pc__now() + PC_LAST_NS;
    pc__fabric_wireup_close(&peer->socket);
    pc__net_schedule(&w->base, pc__now());
}

void pc__fabric_handle_event(struct pc_net *net, uint64_t what)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    struct pc_fabric_peer *peer = pc__fabric_peer(w, (uint32_t)what);
    int rc = pc__fabric_peer_read(w, peer);
    if (rc < 0 && !peer->base.ended)
        socket_ended(w, peer, rc);
}

/* What needs this rank while nothing may call it: two ranks that find each other, and the last
 * packets of one that leaves. */
void pc__fabric_handle_due(struct pc_net *net, bool block)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    uint64_t now = pc__now(), patience = w->options.patience * UINT64_C(1000000000);
    (void)block;
    poll_all(w);
    for (uint32_t p = 0; p < net->comm->options.size; p++) {
        struct pc_fabric_peer *peer = pc__fabric_peer(w, p);
        if (peer == NULL || peer->base.ended || !peer->greeted)
            continue;
        pc__fabric_wireup_flush(&peer->socket);
        if (peer->cut != 0)
            pc__fabric_peer_cut(peer, "", "");
        if (peer->gone != 0 && (peer->received >= peer->leaves_at || now >= peer->gone))
            pc__fabric_peer_leave(w, peer, "it closed its connection");
        else if (peer->gone != 0 || peer->leaves || peer->told_to_stop)
            pc__net_schedule(net, now + PC_SHORT_NS);
        else if (!peer->up && patience != 0 && now - peer->since >= patience)
            pc__fabric_peer_leave(w, peer,
                                  "no packet of it came by libfabric, though its socket "
                                  "is there: is a firewall or a security group between?");
        else if (!peer->up || peer->tells)
            pc__net_schedule(net, now + PC_GREETING_NS);
    }
}

void pc__fabric_quiesce(struct pc_fabric_net *w)
{
    /* ofi_rxm looks every 10 ms at connections that peers begin; libfabric 1.17 leaves behind the
     * socket of one that it has accepted and not looked at when the endpoint is closed. */
    uint64_t now = pc__now(), until = now + PC_CONNECTING_NS;
    if (now - w->adopted >= PC_LAST_NS)
        return;
    for (; pc__now() < until; poll(NULL, 0, 1))
        poll_all(w);
    poll_all(w);
}

/* Nothing is on its way to it or from it. A peer that has not greeted sends nothing. */
static bool is_quiet(struct pc_fabric_net *w, struct pc_fabric_peer *peer)
{
    if (peer == NULL || peer->base.ended || !peer->greeted)
        return true;
    int rc = peer->socket.open ? pc__fabric_peer_read(w, peer) : 0;
    if (rc < 0 && !peer->base.ended)
        socket_ended(w, peer, rc);
    bool all_came = peer->stopped && peer->received >= peer->stopped_at;
    return peer->base.ended || (all_came && peer->under_way == 0);
}

bool pc__fabric_stop_peers(struct pc_fabric_net *w)
{
    uint64_t until = pc__now() + PC_STOPPING_NS;
    pc__fabric_say(w, PC_FABRIC_WIREUP_STOP);
    for (uint32_t rounds = 0; rounds < PC_QUIET_ROUNDS; rounds++) {
        pc__fabric_handle_due(&w->base, false);
        for (uint32_t p = 0; p < w->base.comm->options.size; p++)
            if (!is_quiet(w, pc__fabric_peer(w, p)))
                rounds = 0;
        if (pc__now() >= until)
            return false;
        pthread_mutex_unlock(&w->base.lock);
        poll(NULL, 0, 1);
        pthread_mutex_lock(&w->base.lock);
    }
    return true;
}
#endif
