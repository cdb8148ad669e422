/* Wakeup: how a sleeping rank learns that a count was raised.
 *
 * It is a futex in the rank's arena. A rank with remote peers must wake for its sockets as well, so
 * that one of its threads, the listener, sleeps on descriptors (epoll). One of these is the rank's
 * wakeup socket, whose abstract name is in the arena; whoever wakes the rank sends a byte there.
 * Other threads of the rank sleep on the futex until the listener passes the wakeup on. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "core/internal.h"

static int datagrams(void)
{
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static socklen_t address_of(struct sockaddr_un *at, const struct pc_arena *a, size_t length)
{
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    memcpy(at->sun_path + 1, a->wakeup_name, length); /* a leading zero byte: an abstract name */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int pc__wakeup_open(struct pc_comm *comm)
{
    struct pc_arena *mine = (struct pc_arena *)comm->arena;
    struct sockaddr_un at;
    uint64_t noise;
    if (getrandom(&noise, sizeof noise, 0) != sizeof noise)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "getrandom: %s", strerror(errno));
    int n = snprintf(mine->wakeup_name, sizeof mine->wakeup_name, "pycoll-wakeup-%016llx",
                     (unsigned long long)noise);
    socklen_t length = address_of(&at, mine, (size_t)n);
    comm->wakeup_fd = datagrams();
    if (comm->wakeup_fd < 0 || bind(comm->wakeup_fd, (struct sockaddr *)&at, length) != 0)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "wakeup socket: %s", strerror(errno));
    atomic_store(&mine->wakeup_name_bytes, (uint32_t)n);
    return PC_OK;
}

void pc__wakeup_close(struct pc_comm *comm)
{
    int signal_fd = atomic_load(&comm->signal_fd);
    if (comm->wakeup_fd >= 0)
        close(comm->wakeup_fd);
    if (signal_fd >= 0)
        close(signal_fd);
}

/* The socket to signal with, made when a rank with a wakeup socket is first woken. */
static int signal_socket(struct pc_comm *comm)
{
    int fd = atomic_load(&comm->signal_fd), none = -1;
    if (fd >= 0 || (fd = datagrams()) < 0)
        return fd;
    if (atomic_compare_exchange_strong(&comm->signal_fd, &none, fd))
        return fd;
    close(fd); /* another thread was first */
    return none;
}

static void wake_all(struct pc_arena *a)
{
    syscall(SYS_futex, &a->wakeup, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void pc__wakeup_signal(struct pc_comm *comm, uint32_t peer)
{
    struct pc_arena *a = (struct pc_arena *)comm->peers[peer].arena;
    struct sockaddr_un at;
    atomic_fetch_add_explicit(&a->wakeup, 1, memory_order_acq_rel);
    uint32_t n = atomic_load_explicit(&a->wakeup_name_bytes, memory_order_acquire);
    if (n == 0 || n > sizeof a->wakeup_name) {
        wake_all(a);
        return;
    }
    socklen_t length = address_of(&at, a, n);
    while (sendto(signal_socket(comm), "", 1, MSG_NOSIGNAL, (struct sockaddr *)&at, length) < 0)
        if (errno != EINTR) /* EAGAIN: it was signalled already */
            break;
}

static void quiet(struct pc_comm *comm)
{
    char signals[8];
    while (recv(comm->wakeup_fd, signals, sizeof signals, MSG_DONTWAIT) >= 0 || errno == EINTR) {
    }
}

uint32_t pc__wakeup_arm(struct pc_comm *comm)
{
    return atomic_load_explicit(&((struct pc_arena *)comm->arena)->wakeup, memory_order_acquire);
}

static void futex_sleep(struct pc_arena *arena, uint32_t armed, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, &arena->wakeup, FUTEX_WAIT, armed, &t, NULL, 0);
}

void pc__wakeup_wait(struct pc_comm *comm, uint32_t armed, uint64_t ns)
{
    struct pc_arena *arena = (struct pc_arena *)comm->arena;
    int nobody = 0;
    if (!pc__has_net(comm)) {
        futex_sleep(arena, armed, ns);
        return;
    }
    atomic_fetch_add(&comm->sleepers, 1);
    if (atomic_compare_exchange_strong(&comm->listening, &nobody, 1)) {
        if (pc__wakeup_arm(comm) == armed && pc__net_pause(comm->net, ns))
            quiet(comm);
        atomic_store(&comm->listening, 0);
        if (atomic_fetch_sub(&comm->sleepers, 1) > 1) { /* one of them becomes the listener */
            atomic_fetch_add(&arena->wakeup, 1);
            wake_all(arena);
        }
    } else {
        futex_sleep(arena, armed, ns);
        atomic_fetch_sub(&comm->sleepers, 1);
    }
}
