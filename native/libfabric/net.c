/* The network of libfabric: AWS EFA, Slingshot, Omni-Path and whatever else has a provider.
 *
 * A message goes as two-sided packets, which every provider has and which assume no order, or a
 * long one as a write and a packet. A call ends when the provider has completed all of them, by its
 * own default: EFA and its like do that when the peer's NIC has them, `tcp` when the kernel does.
 * (FI_TRANSMIT_COMPLETE would have `tcp` wait for the peer's process, which may be in no call for
 * long.) Until then the call polls, as most providers make progress only then; so does the thread
 * of net->epoll while two ranks find each other, while one closes, and every 100 ms while a packet
 * is under way. A rank that is in no call takes no other packets: its peers have their windows, as
 * over TCP they have the kernel's buffers.
 */
#include <string.h>
#include "libfabric/fabric.h"

#ifdef PC_LIBFABRIC
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

static uint32_t least(uint32_t a, uint64_t b)
{
    return a < b ? a : (uint32_t)b;
}

int pc__fabric_choose_window(struct pc_fabric_net *w, struct pc_error *error)
{
    struct pc_comm *comm = w->base.comm;
    const struct fi_info *info = w->endpoint.info;
    uint64_t peers = comm->options.size > 1 ? comm->options.size - 1 : 1;
    uint64_t receives = info->rx_attr->size / peers, sends = info->tx_attr->size / peers;
    uint64_t few = PC_FABRIC_PACKETS / peers;
    w->window = least(PC_FABRIC_WINDOW, few < 8 ? 8 : few);
    w->window = least(w->window, receives > PC_FABRIC_SPARE ? receives - PC_FABRIC_SPARE : 0);
    w->window = least(w->window, sends > PC_FABRIC_SPARE ? sends - PC_FABRIC_SPARE : 0);
    errno = 0; /* these are no errors of the system */
    if (w->window < PC_FABRIC_LEAST_WINDOW)
        return pc__fail(error, PC_SYSTEM, -1,
                        "provider %s has queues for %zu receives and %zu sends, and %u ranks want "
                        "%u of each; PYCOLL_TRANSPORT=tcp does without",
                        info->fabric_attr->prov_name, info->rx_attr->size, info->tx_attr->size,
                        comm->options.size,
                        (comm->options.size - 1) * (PC_FABRIC_LEAST_WINDOW + PC_FABRIC_SPARE));
    if (info->ep_attr->max_msg_size < PC_FABRIC_PACKET)
        return pc__fail(
            error, PC_SYSTEM, -1, "provider %s takes messages of %zu bytes at most, want %zu",
            info->fabric_attr->prov_name, info->ep_attr->max_msg_size, PC_FABRIC_PACKET);
    return PC_OK;
}

size_t pc__fabric_completions(const struct pc_fabric_net *w)
{
    return 3 * (size_t)w->base.comm->options.size * (w->window + PC_FABRIC_SPARE);
}

static int fabric_open(struct pc_net *net, const void *given, size_t nbytes)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    struct pc_comm *comm = net->comm;
    const struct pc_layout *l = &comm->layout;
    w->endpoint.wait_fd = w->reads.wait_fd = -1;
    if (nbytes != sizeof w->options)
        return pc__fail(&comm->error, PC_INVALID, -1, "options of %zu bytes, want %zu", nbytes,
                        sizeof w->options);
    memcpy(&w->options, given, nbytes);
    w->options.provider[sizeof w->options.provider - 1] = 0;
    w->options.node[sizeof w->options.node - 1] = 0;
    uint64_t fragments
        = ((uint64_t)l->slots * l->slot_bytes + PC_FABRIC_FRAGMENT - 1) / PC_FABRIC_FRAGMENT;
    w->words = (uint32_t)((fragments + 63) / 64);
    int rc = pc__net_attend(net);
    if (rc == PC_OK)
        rc = pc__endpoint_find(&w->options, &comm->error, &w->endpoint);
    if (rc == PC_OK)
        rc = pc__fabric_choose_window(w, &comm->error);
    if (rc == PC_OK)
        rc = pc__endpoint_open(&w->endpoint, pc__fabric_completions(w), false, &comm->error);
    struct pc_error none; /* without an endpoint for reads transfers go by packets */
    if (rc == PC_OK && w->endpoint.reads)
        pc__endpoint_open_beside(&w->endpoint, w->endpoint.info->tx_attr->size, &none, &w->reads);
    if (rc == PC_OK
        && ((w->endpoint.wait_fd >= 0
             && pc__net_watch(net->pause_epoll, w->endpoint.wait_fd, EPOLLIN, PC_EVENT_CQ) != 0)
            || (w->reads.wait_fd >= 0
                && pc__net_watch(net->pause_epoll, w->reads.wait_fd, EPOLLIN, PC_EVENT_READS)
                       != 0)))
        rc = pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    return rc;
}

static void fabric_close(struct pc_net *net)
{
    struct pc_fabric_net *w = (struct pc_fabric_net *)net;
    bool child = net->pid != getpid(); /* of fork: the objects are the parent's */
    bool stopped = !child;
    if (!child && w->endpoint.ep != NULL) {
        pthread_mutex_lock(&net->lock);
        pc__fabric_quiesce(w);
        if (pc__endpoint_closes_only_idle(&w->endpoint))
            stopped = pc__fabric_stop_peers(w);
        pthread_mutex_unlock(&net->lock);
        /* Regions that are bound to an endpoint hold it open. */
        bool bound = w->endpoint.info->domain_attr->mr_mode & FI_MR_ENDPOINT;
        for (uint32_t p = 0; bound && net->peers != NULL && p < net->comm->options.size; p++)
            if (net->peers[p] != NULL)
                pc__fabric_unregister_peer(w, pc__fabric_peer(w, p));
        if (bound)
            pc__fabric_hmem_unregister(w);
        stopped = stopped && pc__endpoint_stop(&w->endpoint);
    }
    if (!child && pc__fabric_stop_reads(w) && w->reads.info != NULL)
        pc__endpoint_close(&w->reads);
    for (uint32_t p = 0; net->peers != NULL && p < net->comm->options.size; p++) {
        if (net->peers[p] == NULL)
            continue;
        if (stopped)
            pc__fabric_peer_close(w, pc__fabric_peer(w, p));
        else
            pc__fabric_wireup_close(&pc__fabric_peer(w, p)->socket);
        if (!stopped && !child)
            pc__fabric_regions_close(w, pc__fabric_peer(w, p)); /* no peer writes to the arena */
    }
    net->keeps = !stopped && !child;
    net->gpu.keep = net->gpu.keep || net->keeps; /* the provider may still have it */
    if (!child)
        pc__fabric_hmem_unregister(w);
    if (stopped)
        pc__fabric_hmem_free(w);
    if (stopped)
        pc__endpoint_close(&w->endpoint);
}

const struct pc_net_ops pc__libfabric_ops = {
    .name = "libfabric",
    .net_bytes = sizeof(struct pc_fabric_net),
    .peer_bytes = sizeof(struct pc_fabric_peer),
    .yields = 400,
    .polls_per_yield = 2, /* one may bring a part of a message, and says nothing */
    .slow_yield_ns = PC_SLOW_YIELD_NS,
    .calls_per_poll = 8,
    .frag_bytes = 128u << 10, /* each is two operations and a credit */
    .rndv_from = 256u << 10,
    .missing = pc__fi_load,
    .open = fabric_open,
    .close = fabric_close,
    .register_gpu = pc__fabric_register_gpu,
    .adopt = pc__fabric_adopt,
    .send = pc__fabric_send,
    .flush = pc__fabric_flush,
    .connections = pc__fabric_connections,
    .settled = pc__fabric_settled,
    .expose = pc__fabric_expose,
    .get = pc__fabric_get,
    .test = pc__fabric_test,
    .release = pc__fabric_release,
    .poll = pc__fabric_poll,
    .arm = pc__fabric_arm,
    .woken = pc__fabric_woken,
    .handle_event = pc__fabric_handle_event,
    .handle_due = pc__fabric_handle_due,
};
#else
const struct pc_net_ops pc__libfabric_ops = {.name = "libfabric", .missing = pc__fi_load};
#endif
