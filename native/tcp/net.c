/* Remote peers over TCP: for each peer, one or more sockets that carry frames.
 *
 * A call does not end before what it sent has left to the kernel, so nothing needs this rank while
 * it is elsewhere. Credit alone may stay behind: it travels with the next message, or goes by
 * itself as soon as this rank sleeps or the peer is half its slots ahead. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tcp/connection.h"

#define PC_STRIPE_BYTES (64u << 10) /* messages from here on take turns over the sockets */
#define PC_SEND_AT_ONCE 4096u       /* smaller ones are sent together when this rank next waits */
#define PC_EPOLL_EVENTS 32

struct remote {
    struct pc_tcp_connection *
        *conns; /* the first is made with the peer, its socket may come later */
    uint32_t nconns;
    uint32_t reading;                  /* connections that are */
    uint32_t queued[PC_EDGE_CHANNELS]; /* messages that have not left */
    uint32_t owed;         /* bit per channel: messages were consumed that the peer knows not of */
    uint32_t torn;         /* bit per channel: a message never can leave */
    bool dirty;            /* in the list of peers with something to send */
    struct pc_error fault; /* what ended the first of its connections */
};

struct adopted {
    struct adopted *next;
    uint32_t peer;
    int fd;
};

struct pc_net {
    struct pc_comm *comm;
    struct remote *remotes; /* by rank; no connections: a mapped one */
    uint32_t *dirty;
    uint32_t ndirty;
    /* Frames that have not left: messages of calls and of posted transfers, and credit. */
    uint32_t called, posted, credits;
    const struct pc_error *torn; /* a message of a call that never can leave */
    int epoll;
    bool pausing;
    struct adopted *adopted;
    pthread_mutex_t lock; /* of all this; calls, transfers and adoption are different threads' */
};

static int watch(struct pc_net *w, int operation, int fd, struct pc_tcp_connection *conn,
                 uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    return epoll_ctl(w->epoll, operation, fd, &event);
}

static int tcp_open(struct pc_comm *comm, int wakeup_fd, struct pc_net **out)
{
    struct pc_net *w = calloc(1, sizeof *w);
    *out = w;
    if (w == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for a transport");
    *w = (struct pc_net){.comm = comm, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    pthread_mutex_init(&w->lock, NULL);
    w->remotes = calloc(comm->options.size, sizeof *w->remotes);
    w->dirty = calloc(comm->options.size, sizeof *w->dirty);
    if (w->remotes == NULL || w->dirty == NULL)
        return pc__fail(&comm->error, PC_NOMEM, -1, "no memory for %u peers", comm->options.size);
    if (w->epoll < 0 || watch(w, EPOLL_CTL_ADD, wakeup_fd, NULL, EPOLLIN) != 0)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "epoll: %s", strerror(errno));
    return PC_OK;
}

/* Bytes that the peer's kernel has not acknowledged. To close before would lose them, should one
 * more credit come from the peer: the answer to it is a reset. */
static bool arrived(const struct pc_tcp_connection *conn)
{
    char unread[4096];
    int left = 0, domain = AF_UNIX;
    socklen_t length = sizeof domain;
    ssize_t n;
    while ((n = recv(conn->fd, unread, sizeof unread, MSG_DONTWAIT)) > 0) {
    }
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return true; /* never */
    getsockopt(conn->fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
    return domain == AF_UNIX || ioctl(conn->fd, SIOCOUTQ, &left) != 0 || left == 0;
}

static void linger(struct pc_net *w, uint64_t ns)
{
    uint64_t until = pc__now() + ns;
    for (uint32_t p = 0; p < w->comm->options.size; p++)
        for (uint32_t i = 0; i < w->remotes[p].nconns; i++) {
            struct pc_tcp_connection *conn = w->remotes[p].conns[i];
            if (conn->fd < 0 || !conn->writing)
                continue;
            while (!arrived(conn) && pc__now() < until)
                poll(NULL, 0, 1); /* a round trip; nothing says when it is over */
        }
}

static void tcp_close(struct pc_net *w, uint64_t linger_ns)
{
    if (w == NULL)
        return;
    if (linger_ns != 0)
        linger(w, linger_ns);
    for (uint32_t p = 0; w->remotes != NULL && p < w->comm->options.size; p++) {
        for (uint32_t i = 0; i < w->remotes[p].nconns; i++)
            pc__tcp_connection_free(w->remotes[p].conns[i]);
        free(w->remotes[p].conns);
    }
    for (struct adopted *a = w->adopted, *next; a != NULL; a = next) {
        next = a->next;
        close(a->fd);
        free(a);
    }
    if (w->epoll >= 0)
        close(w->epoll);
    pthread_mutex_destroy(&w->lock);
    free(w->remotes);
    free(w->dirty);
    free(w);
}

/* BBR paces a stream by the bandwidth that it believes in, and collectives, which send in bursts
 * and then wait for each other, have it believe a hundredth of what there is. Reno is in every
 * kernel, and every user may choose it. Whatever else the administrator has chosen stays. */
static void steady(int fd)
{
    char name[16] = "";
    socklen_t length = sizeof name;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0
        && strncmp(name, "bbr", 3) == 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

static int tcp_adopt(struct pc_net *w, uint32_t peer, int fd)
{
    struct adopted *a = malloc(sizeof *a);
    int flags = fcntl(fd, F_GETFL), yes = 1;
    if (a == NULL || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        free(a);
        return a == NULL ? PC_NOMEM : PC_SYSTEM;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* other streams have no delay */
    steady(fd);
    pthread_mutex_lock(&w->lock);
    *a = (struct adopted){.next = w->adopted, .peer = peer, .fd = fd};
    w->adopted = a;
    pthread_mutex_unlock(&w->lock);
    return PC_OK;
}

static int tcp_links(struct pc_net *w, uint32_t peer)
{
    int n = 0;
    pthread_mutex_lock(&w->lock);
    for (const struct adopted *a = w->adopted; a != NULL; a = a->next)
        n += a->peer == peer;
    n += (int)w->remotes[peer].reading;
    pthread_mutex_unlock(&w->lock);
    return n;
}

/* The first connection of a peer, which needs no socket to hold frames. */
static struct pc_tcp_connection *first_link(struct remote *r, uint32_t peer)
{
    if (r->conns == NULL)
        r->conns = calloc(PC_MAX_CONNECTIONS, sizeof *r->conns);
    if (r->conns != NULL && r->nconns == 0 && (r->conns[0] = pc__tcp_connection_new(peer)) != NULL)
        r->nconns = 1;
    return r->nconns == 0 ? NULL : r->conns[0];
}

static bool install(struct pc_net *w, uint32_t peer, int fd)
{
    struct remote *r = &w->remotes[peer];
    struct pc_tcp_connection *conn = first_link(r, peer);
    if (conn != NULL && (conn->fd >= 0 || !conn->writing)) {
        conn = r->fault.code == 0 && r->nconns < PC_MAX_CONNECTIONS ? pc__tcp_connection_new(peer)
                                                                    : NULL;
        if (conn != NULL)
            r->conns[r->nconns++] = conn;
    }
    if (conn == NULL || (conn->ahead = malloc(PC_CONNECTION_READ_AHEAD)) == NULL
        || watch(w, EPOLL_CTL_ADD, fd, conn, EPOLLIN) != 0)
        return false;
    conn->fd = fd;
    conn->reading = true;
    r->reading++;
    return true;
}

static void mark_dirty(struct pc_net *w, uint32_t peer)
{
    if (!w->remotes[peer].dirty)
        w->dirty[w->ndirty++] = peer;
    w->remotes[peer].dirty = true;
}

/* Takes up the sockets that were handed over since. */
static void pick_up(struct pc_net *w)
{
    struct adopted *a = w->adopted, *next, *turned = NULL;
    for (; a != NULL; a = next) { /* the order in which they came */
        next = a->next;
        a->next = turned;
        turned = a;
    }
    for (a = turned; a != NULL; a = next) {
        next = a->next;
        if (!install(w, a->peer, a->fd))
            close(a->fd);
        free(a);
    }
    w->adopted = NULL;
}

/* Another thread sleeps, maybe for what has just happened. */
static void wake(struct pc_net *w)
{
    if (w->pausing)
        pc__wakeup_signal(w->comm, w->comm->options.rank);
}

static void note(struct remote *r, const struct pc_error *error)
{
    if (r->fault.code == 0)
        r->fault = *error;
}

/* Counts a frame that is queued, or (by -1) one that no longer is. */
static void count(struct pc_net *w, uint32_t peer, const struct pc_frame *frame, int by)
{
    uint32_t *of = frame->channel == PC_CHANNEL_P2P ? &w->posted : &w->called;
    if (frame->kind == PC_FRAME_CREDIT)
        of = &w->credits;
    else
        w->remotes[peer].queued[frame->channel] += (uint32_t)by;
    *of += (uint32_t)by;
}

static int push(struct pc_net *w, struct pc_tcp_connection *conn, const struct pc_frame *frame,
                const char *bytes)
{
    int rc = pc__tcp_connection_push(conn, frame, bytes);
    if (rc == PC_OK)
        count(w, conn->peer, frame, 1);
    return rc;
}

/* What stands in its queue never leaves. A message is a loss; credit is of no use any more. */
static void stop_writing(struct pc_net *w, struct pc_tcp_connection *conn)
{
    struct remote *r = &w->remotes[conn->peer];
    for (; conn->head != conn->tail; conn->head++) {
        const struct pc_frame *frame = &conn->queue[conn->head % PC_CONNECTION_FRAMES].frame;
        count(w, conn->peer, frame, -1);
        if (frame->kind != PC_FRAME_MESSAGE)
            continue;
        r->torn |= UINT32_C(1) << frame->channel;
        if (frame->channel != PC_CHANNEL_P2P)
            w->torn = &r->fault;
    }
    conn->writing = false;
}

static void stop_reading(struct pc_net *w, struct pc_tcp_connection *conn)
{
    watch(w, EPOLL_CTL_DEL, conn->fd, NULL, 0);
    if (--w->remotes[conn->peer].reading == 0)
        atomic_store(&w->comm->peers[conn->peer].ready, 0);
    wake(w);
}

static void flush_link(struct pc_net *w, struct pc_tcp_connection *conn)
{
    struct pc_error error;
    bool was_full = conn->full;
    uint32_t head = conn->head;
    int rc = pc__tcp_connection_flush(conn, w->comm, &error);
    for (; head != conn->head; head++)
        count(w, conn->peer, &conn->queue[head % PC_CONNECTION_FRAMES].frame, -1);
    if (pc__tcp_connection_queued(conn) == 0)
        wake(w);
    if (rc != PC_OK) {
        note(&w->remotes[conn->peer], &error);
        stop_writing(w, conn);
    }
    if (conn->full != was_full && conn->reading)
        watch(w, EPOLL_CTL_MOD, conn->fd, conn, conn->full ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Transfers hold back their credit themselves, and may be all that this rank does. */
static bool transfers(const struct pc_fifo *f)
{
    return f->channel >= PC_MAX_CHANNELS;
}

/* Queues the credit that `r` is owed and that cannot wait. */
static void give_credit(struct pc_net *w, struct remote *r, uint32_t peer, bool all)
{
    struct pc_tcp_connection *conn = r->conns[0];
    all = all || pc__tcp_connection_queued(conn) != 0; /* it costs nothing then */
    for (uint32_t c = 0; r->owed >> c != 0; c++) {
        struct pc_fifo *f = &w->comm->fifos[(size_t)peer * PC_EDGE_CHANNELS + c];
        bool ahead = f->ahead || f->arrived - f->returned >= w->comm->options.slots / 2;
        if (!(r->owed >> c & 1) || !(all || ahead || transfers(f)))
            continue;
        struct pc_frame frame = pc__frame_credit(f);
        if (conn->writing && push(w, conn, &frame, NULL) != PC_OK)
            continue; /* later */
        f->returned = f->consumed;
        r->owed &= ~(UINT32_C(1) << c);
    }
}

static void flush(struct pc_net *w, bool all_credit)
{
    for (uint32_t k = w->ndirty; k-- > 0;) {
        uint32_t peer = w->dirty[k];
        struct remote *r = &w->remotes[peer];
        bool more = false;
        if (r->owed != 0)
            give_credit(w, r, peer, all_credit);
        for (uint32_t i = 0; i < r->nconns; i++) {
            struct pc_tcp_connection *conn = r->conns[i];
            if (conn->fd >= 0 && !conn->full && pc__tcp_connection_queued(conn) != 0)
                flush_link(w, conn);
            more = more || pc__tcp_connection_queued(conn) != 0;
        }
        if (!more && r->owed == 0) {
            r->dirty = false;
            w->dirty[k] = w->dirty[--w->ndirty];
        }
    }
}

static void end_link(struct pc_net *w, struct pc_tcp_connection *conn)
{
    conn->reading = false;
    stop_reading(w, conn);
    stop_writing(w, conn); /* nobody closes only one direction */
    shutdown(conn->fd, SHUT_RDWR);
}

static void read_link(struct pc_net *w, struct pc_tcp_connection *conn)
{
    struct pc_error error;
    pc__tcp_connection_read(conn, w->comm, &error);
    if (conn->reading)
        return;
    struct remote *r = &w->remotes[conn->peer];
    note(r, &error);
    end_link(w, conn);
    /* When a peer closes, its other connections still hold what it sent before, and end by
     * themselves. */
    bool closed = error.code == PC_LOST && (error.errnum == 0 || error.errnum == ECONNRESET);
    for (uint32_t i = 0; !closed && i < r->nconns; i++)
        if (r->conns[i]->reading)
            end_link(w, r->conns[i]);
}

static int tcp_message(struct pc_net *w, struct pc_fifo *f, const char *data, uint64_t nbytes,
                       struct pc_error *error)
{
    pthread_mutex_lock(&w->lock);
    pick_up(w);
    struct remote *r = &w->remotes[f->peer];
    struct pc_tcp_connection *conn = first_link(r, f->peer);
    int rc = conn == NULL ? PC_NOMEM : r->fault.code;
    if (rc == PC_OK) {
        if (nbytes >= PC_STRIPE_BYTES)
            conn = r->conns[f->put % r->nconns];
        struct pc_frame frame = pc__frame_message(f, f->put, nbytes);
        rc = push(w, conn, &frame, data);
    }
    if (rc == PC_OK) {
        f->sent = ++f->put;
        f->returned = f->consumed;
        r->owed &= ~(UINT32_C(1) << f->channel);
        mark_dirty(w, f->peer);
        if ((nbytes >= PC_SEND_AT_ONCE || transfers(f)) && conn->fd >= 0 && !conn->full)
            flush_link(w, conn);
    } else if (r->fault.code != 0) {
        *error = r->fault;
    } else {
        pc__fail(error, rc, (int)f->peer, "no room for message %llu to rank %u",
                 (unsigned long long)f->put, f->peer);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void tcp_credit(struct pc_net *w, struct pc_fifo *f, uint64_t received)
{
    pthread_mutex_lock(&w->lock);
    f->consumed = received;
    w->remotes[f->peer].owed |= UINT32_C(1) << f->channel;
    mark_dirty(w, f->peer);
    if (transfers(f))
        flush(w, false);
    pthread_mutex_unlock(&w->lock);
}

static void tcp_poll(struct pc_net *w, uint32_t peer)
{
    pthread_mutex_lock(&w->lock);
    pick_up(w);
    flush(w, false);
    struct remote *r = &w->remotes[peer];
    for (uint32_t i = 0; i < r->nconns; i++) {
        if (r->conns[i]->full)
            flush_link(w, r->conns[i]);
        if (r->conns[i]->reading)
            read_link(w, r->conns[i]);
    }
    pthread_mutex_unlock(&w->lock);
}

static void tcp_progress(struct pc_net *w)
{
    struct epoll_event events[PC_EPOLL_EVENTS];
    pthread_mutex_lock(&w->lock);
    pick_up(w);
    flush(w, false);
    int n = epoll_wait(w->epoll, events, PC_EPOLL_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        struct pc_tcp_connection *conn = events[i].data.ptr;
        if (conn == NULL) /* the wakeup socket, for whoever sleeps */
            continue;
        if (conn->full && events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            flush_link(w, conn);
        if (conn->reading && events[i].events & ~(uint32_t)EPOLLOUT)
            read_link(w, conn);
    }
    pthread_mutex_unlock(&w->lock);
}

static bool tcp_pause(struct pc_net *w, uint64_t ns)
{
    uint64_t milliseconds = (ns + 999999) / 1000000;
    struct epoll_event events[2]; /* of two, one may be the wakeup socket */
    bool rung = false;
    pthread_mutex_lock(&w->lock);
    pick_up(w);
    flush(w, true);
    w->pausing = true;
    pthread_mutex_unlock(&w->lock);
    int n = epoll_wait(w->epoll, events, 2, milliseconds > 1000000 ? 1000000 : (int)milliseconds);
    pthread_mutex_lock(&w->lock);
    w->pausing = false;
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < n; i++)
        rung = rung || events[i].data.ptr == NULL;
    return rung;
}

static int tcp_drained(struct pc_net *w, const struct pc_fifo *f, struct pc_error *error)
{
    pthread_mutex_lock(&w->lock);
    flush(w, false);
    int rc = w->called == 0 && (w->credits == 0 || w->posted != 0);
    const struct pc_error *torn = w->torn;
    if (f != NULL) {
        const struct remote *r = &w->remotes[f->peer];
        rc = r->queued[f->channel] == 0;
        torn = r->torn >> f->channel & 1 ? &r->fault : NULL;
    }
    if (torn != NULL) {
        *error = *torn;
        rc = error->code;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static const struct pc_error *tcp_fault(struct pc_net *w, uint32_t peer)
{
    struct remote *r = &w->remotes[peer];
    pthread_mutex_lock(&w->lock);
    const struct pc_error *fault = r->fault.code != 0 && r->reading == 0 ? &r->fault : NULL;
    pthread_mutex_unlock(&w->lock);
    return fault;
}

const struct pc_net_ops pc__tcp_ops = {
    .name = "tcp",
    .yields = 40,
    .slow_yield_ns = PC_SLOW_YIELD_NS,
    .open = tcp_open,
    .close = tcp_close,
    .adopt = tcp_adopt,
    .connections = tcp_links,
    .message = tcp_message,
    .credit = tcp_credit,
    .poll = tcp_poll,
    .progress = tcp_progress,
    .pause = tcp_pause,
    .drained = tcp_drained,
    .fault = tcp_fault,
};
