/* The doorbell: how a rank that sleeps is told that a count was raised.
 *
 * It is a futex in the rank's arena. A rank with remote peers must wake for its sockets as well:
 * one of its threads, the listener, sleeps on descriptors. One of these is the rank's bell, a
 * socket whose abstract name stands in the arena, and whoever rings sends a byte there. Should
 * there be other threads, they sleep on the futex until the listener passes it on. */
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
    memcpy(at->sun_path + 1, a->bell_name, length); /* a leading zero byte: the abstract names */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int pc__wakeup_open(struct pc_comm *comm)
{
    struct pc_arena *mine = (struct pc_arena *)comm->arena;
    struct sockaddr_un at;
    uint64_t noise;
    if (getrandom(&noise, sizeof noise, 0) != sizeof noise)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "getrandom: %s", strerror(errno));
    int n = snprintf(mine->bell_name, sizeof mine->bell_name, "pycoll-bell-%016llx",
                     (unsigned long long)noise);
    socklen_t length = address_of(&at, mine, (size_t)n);
    comm->bell = datagrams();
    if (comm->bell < 0 || bind(comm->bell, (struct sockaddr *)&at, length) != 0)
        return pc__fail(&comm->error, PC_SYSTEM, -1, "bell: %s", strerror(errno));
    atomic_store(&mine->bell, (uint32_t)n);
    return PC_OK;
}

void pc__wakeup_close(struct pc_comm *comm)
{
    int ringer = atomic_load(&comm->ringer);
    if (comm->bell >= 0)
        close(comm->bell);
    if (ringer >= 0)
        close(ringer);
}

/* A socket to ring with: made the first time that somebody with a bell is rung. */
static int ringer_of(struct pc_comm *comm)
{
    int fd = atomic_load(&comm->ringer), none = -1;
    if (fd >= 0 || (fd = datagrams()) < 0)
        return fd;
    if (atomic_compare_exchange_strong(&comm->ringer, &none, fd))
        return fd;
    close(fd); /* another thread was first */
    return none;
}

static void wake_all(struct pc_arena *a)
{
    syscall(SYS_futex, &a->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void pc__wakeup_signal(struct pc_comm *comm, uint32_t peer)
{
    struct pc_arena *a = (struct pc_arena *)comm->peers[peer].arena;
    struct sockaddr_un at;
    atomic_fetch_add_explicit(&a->doorbell, 1, memory_order_acq_rel);
    uint32_t n = atomic_load_explicit(&a->bell, memory_order_acquire);
    if (n == 0 || n > sizeof a->bell_name) {
        wake_all(a);
        return;
    }
    socklen_t length = address_of(&at, a, n);
    while (sendto(ringer_of(comm), "", 1, MSG_NOSIGNAL, (struct sockaddr *)&at, length) < 0)
        if (errno != EINTR) /* EAGAIN: it rings already */
            break;
}

static void quiet(struct pc_comm *comm)
{
    char rings[8];
    while (recv(comm->bell, rings, sizeof rings, MSG_DONTWAIT) >= 0 || errno == EINTR) {
    }
}

uint32_t pc__wakeup_arm(struct pc_comm *comm)
{
    return atomic_load_explicit(&((struct pc_arena *)comm->arena)->doorbell, memory_order_acquire);
}

static void doze(struct pc_arena *arena, uint32_t doorbell, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, &arena->doorbell, FUTEX_WAIT, doorbell, &t, NULL, 0);
}

void pc__wakeup_wait(struct pc_comm *comm, uint32_t doorbell, uint64_t ns)
{
    struct pc_arena *arena = (struct pc_arena *)comm->arena;
    int nobody = 0;
    if (comm->remote == NULL) {
        doze(arena, doorbell, ns);
        return;
    }
    atomic_fetch_add(&comm->dozing, 1);
    if (atomic_compare_exchange_strong(&comm->listening, &nobody, 1)) {
        if (pc__wakeup_arm(comm) == doorbell && comm->remote->pause(comm->wire, ns))
            quiet(comm);
        atomic_store(&comm->listening, 0);
        if (atomic_fetch_sub(&comm->dozing, 1) > 1) { /* one of them listens from now on */
            atomic_fetch_add(&arena->doorbell, 1);
            wake_all(arena);
        }
    } else {
        doze(arena, doorbell, ns);
        atomic_fetch_sub(&comm->dozing, 1);
    }
}
