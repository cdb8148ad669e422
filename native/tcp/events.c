/* The events of sockets (epoll): one is readable, writable again, or has ended. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "tcp/tcp.h"

#define PC_EPOLL_EVENTS 32

static void end_connection(struct pc_tcp_connection *conn, const struct pc_error *error)
{
    conn->reading = false;
    pc__tcp_connection_watch(conn, EPOLL_CTL_DEL);
    pc__tcp_peer_lose(conn, error);
    shutdown(conn->fd, SHUT_RDWR); /* a connection always ends in both directions */
}

static void read_connection(struct pc_tcp_connection *conn)
{
    struct pc_tcp_peer *peer = conn->peer;
    struct pc_error error;
    pc__tcp_connection_read(conn, &error);
    if (conn->reading)
        return;
    end_connection(conn, &error);
    /* When a peer closes, its other connections still hold what it sent before, and end by
     * themselves. */
    bool closed = error.code == PC_LOST && (error.errnum == 0 || error.errnum == ECONNRESET);
    for (uint32_t i = 0; !closed && i < peer->nconns; i++)
        if (peer->conns[i]->reading)
            end_connection(peer->conns[i], &error);
}

static void poll_peer(const struct pc_tcp_peer *peer)
{
    for (uint32_t i = 0; i < peer->nconns; i++) {
        if (peer->conns[i]->full)
            pc__tcp_peer_flush(peer->conns[i]);
        if (peer->conns[i]->reading)
            read_connection(peer->conns[i]);
    }
}

void pc__tcp_poll(struct pc_net *net, struct pc_net_peer *only)
{
    struct epoll_event events[PC_EPOLL_EVENTS];
    if (only != NULL) {
        poll_peer((struct pc_tcp_peer *)only);
        return;
    }
    int n = epoll_wait(net->pause_epoll, events, PC_EPOLL_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        struct pc_tcp_connection *conn = events[i].data.ptr;
        if (events[i].data.u64 == PC_NET_WAKEUP) /* for the thread in pc__net_pause */
            continue;
        if (conn->full && events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            pc__tcp_peer_flush(conn);
        if (conn->reading && events[i].events & ~(uint32_t)EPOLLOUT)
            read_connection(conn);
    }
}

uint64_t pc__tcp_arm(struct pc_net *net, uint64_t ns)
{
    (void)net; /* epoll is level-triggered: unread bytes keep a socket readable */
    return ns;
}

void pc__tcp_woken(struct pc_net *net, uint64_t what)
{
    (void)net, (void)what;
}
