/* The network of TCP: each peer has one or more sockets that carry frames.
 *
 * A call ends only when the kernel has taken all that it sent, so that nothing needs this rank
 * while it is elsewhere. Only credit may stay behind, see net/edge.c. */
#include "tcp/tcp.h"

static const char *tcp_missing(void)
{
    return "";
}

static int tcp_open(struct pc_net *net, const void *options, size_t nbytes)
{
    (void)net, (void)options, (void)nbytes; /* `adopt` gets connected sockets */
    return PC_OK;
}

static void tcp_close(struct pc_net *net)
{
    for (uint32_t p = 0; net->peers != NULL && p < net->comm->options.size; p++) {
        struct pc_tcp_peer *peer = (struct pc_tcp_peer *)net->peers[p];
        for (uint32_t i = 0; peer != NULL && i < PC_MAX_CONNECTIONS; i++)
            pc__tcp_connection_free(peer->conns[i]);
    }
}

const struct pc_net_ops pc__tcp_ops = {
    .name = "tcp",
    .net_bytes = sizeof(struct pc_net),
    .peer_bytes = sizeof(struct pc_tcp_peer),
    .yields = 40,
    .polls_per_yield = 1,
    .slow_yield_ns = PC_SLOW_YIELD_NS,
    .lend_from = PC_SEND_AT_ONCE,
    .missing = tcp_missing,
    .open = tcp_open,
    .close = tcp_close,
    .adopt = pc__tcp_adopt,
    .send = pc__tcp_send,
    .flush = pc__tcp_flush,
    .connections = pc__tcp_connections,
    .settled = pc__tcp_settled,
    .links = pc__tcp_links,
    .unexpect = pc__tcp_unexpect,
    .poll = pc__tcp_poll,
    .arm = pc__tcp_arm,
    .woken = pc__tcp_woken,
};
