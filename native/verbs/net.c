/* The network of RDMA verbs.
 *
 * A message is one RDMA write with immediate: of its line, or into the peer's slot with a header
 * behind the bytes. The immediate wakes a peer that sleeps and says where the header is; the peer
 * then writes the line and its count itself. Credit goes along. A call ends when all that it sent
 * is acknowledged, for only this rank could send it again. */
#include <string.h>
#include "verbs/verbs.h"

/* The options of pc_comm_net. */
struct options {
    struct pc_verbs_options verbs;
    uint32_t nrails;
    struct pc_rail_spec rails[PC_MAX_RAILS];
};

#ifdef PC_VERBS
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* The first depth of a completion queue; make_room in peer.c resizes it later. */
static uint32_t first_cq_depth(const struct pc_verbs_net *w)
{
    uint64_t conns = (uint64_t)(w->base.comm->options.size - 1) * w->options.queue_pairs;
    return PC_CONNECTION_CQ_DEPTH * (uint32_t)(conns < 1 ? 1 : conns < 16 ? conns : 16);
}

static int open_rails(struct pc_verbs_net *w, const struct options *options)
{
    struct pc_comm *comm = w->base.comm;
    for (; w->nrails < options->nrails; w->nrails++) {
        struct pc_ib_device *rail = &w->rails[w->nrails];
        int rc = pc__ib_device_open(&options->rails[w->nrails], &w->options, first_cq_depth(w),
                                    &comm->error, rail);
        if (rc != PC_OK)
            return rc;
        int fd = rail->context->async_fd;
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0
            || pc__net_watch(w->base.epoll, fd, EPOLLIN, PC_EVENT_PORT + w->nrails) != 0
            || pc__net_watch(w->base.pause_epoll, rail->channel->fd, EPOLLIN,
                             PC_EVENT_CQ + w->nrails)
                   != 0)
            return pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    }
    return PC_OK;
}

/* Compares the memory that all peers together need registered with RLIMIT_MEMLOCK, so that this
 * fails before anybody has connected. */
static int check_memlock(struct pc_verbs_net *w)
{
    const struct pc_layout *l = &w->base.comm->layout;
    uint64_t lines = (uint64_t)PC_EDGE_LINES * PC_LINE_BYTES;
    uint64_t slots = PC_EDGE_CHANNELS * l->channel;
    uint64_t want = w->nrails * (uint64_t)(w->base.comm->options.size - 1)
                    * (lines + 2 * slots + PC_BOUNCE_BYTES);
    uint64_t may = pc__ib_lockable();
    errno = ENOMEM; /* as ibv_reg_mr would set it */
    if (want <= may)
        return PC_OK;
    return pc__fail(&w->base.comm->error, PC_SYSTEM, -1,
                    "RDMA to %u ranks over %u rails locks %llu KiB in memory, of %llu that may be"
                    "%s",
                    w->base.comm->options.size - 1, w->nrails, (unsigned long long)want >> 10,
                    (unsigned long long)may >> 10, pc__ib_remedy(ENOMEM));
}

static int verbs_open(struct pc_net *net, const void *given, size_t nbytes)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    struct options options;
    if (nbytes != sizeof options)
        return pc__fail(&net->comm->error, PC_INVALID, -1, "options of %zu bytes, want %zu", nbytes,
                        sizeof options);
    memcpy(&options, given, sizeof options);
    w->options = options.verbs;
    int rc = pc__net_attend(net);
    if (rc == PC_OK)
        rc = open_rails(w, &options);
    return rc != PC_OK ? rc : check_memlock(w);
}

static void verbs_close(struct pc_net *net)
{
    struct pc_verbs_net *w = (struct pc_verbs_net *)net;
    if (net->pid != getpid())
        return; /* a child of fork: the objects are the parent's */
    if (net->peers != NULL)
        pc__verbs_poll(net, NULL); /* peers are told what has come, and a completion says that */
    for (uint32_t p = 0; net->peers != NULL && p < net->comm->options.size; p++)
        if (net->peers[p] != NULL)
            pc__verbs_peer_close(w, pc__verbs_peer(w, p));
    pc__verbs_unregister_gpu(w);
    for (uint32_t i = 0; i < w->nrails; i++) {
        pc__srq_close(w, i);
        pc__ib_device_close(&w->rails[i]);
    }
}

const struct pc_net_ops pc__verbs_ops = {
    .name = "verbs",
    .net_bytes = sizeof(struct pc_verbs_net),
    .peer_bytes = sizeof(struct pc_verbs_peer),
    .yields = 400,
    .slow_yield_ns = 10 * PC_SLOW_YIELD_NS, /* rxe works on its caller's CPU time */
    .calls_per_poll = 8,
    .missing = pc_verbs_missing,
    .open = verbs_open,
    .close = verbs_close,
    .register_gpu = pc__verbs_register_gpu,
    .adopt = pc__verbs_adopt,
    .send = pc__verbs_send,
    .flush = pc__verbs_flush,
    .connections = pc__verbs_connections,
    .settled = pc__verbs_settled,
    .expose = pc__rndv_expose,
    .get = pc__rndv_get,
    .test = pc__rndv_test,
    .release = pc__verbs_release,
    .poll = pc__verbs_poll,
    .arm = pc__verbs_arm,
    .woken = pc__verbs_woken,
    .handle_event = pc__verbs_handle_event,
    .handle_due = pc__verbs_handle_due,
};
#else
const struct pc_net_ops pc__verbs_ops = {.name = "verbs", .missing = pc_verbs_missing};
#endif

int pc_comm_rails(struct pc_comm *comm, const struct pc_verbs_options *options,
                  const struct pc_rail_spec *rails, uint32_t n)
{
    struct options all = {.verbs = *options, .nrails = n};
    if (n > PC_MAX_RAILS)
        return pc__fail(&comm->error, PC_INVALID, -1, "%u rails, want at most %u", n, PC_MAX_RAILS);
    memcpy(all.rails, rails, n * sizeof *rails);
    return pc_comm_net(comm, n == 0 ? "" : "verbs", &all, sizeof all);
}
