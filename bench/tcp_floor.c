/* The least that an all-reduce over TCP sockets does: it sends and receives the bytes, and adds.
 *
 * No frames, no credit, no checks, no plan. What a library takes beyond this is its own. Loaded by
 * tcp_floor.py. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

/* Sends `nbytes` to one peer while as many come from another. `yields`: how often a rank that has
 * to wait lets others run before it sleeps. 0, or -1 with errno. */
static int shift(int to, const char *out, size_t nout, int from, char *in, size_t nin, int yields)
{
    int turns = yields;
    while (nout != 0 || nin != 0) {
        ssize_t sent = 0, came = 0;
        if (nout != 0) {
            sent = send(to, out, nout, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN)
                return -1;
            if (sent > 0) {
                out += sent;
                nout -= (size_t)sent;
            }
        }
        if (nin != 0) {
            /* With nothing left to send, a receive that sleeps is one system call. */
            int flags = nout == 0 && turns == 0 ? 0 : MSG_DONTWAIT;
            came = recv(from, in, nin, flags);
            if (came == 0)
                errno = ECONNRESET;
            if (came == 0 || (came < 0 && errno != EAGAIN))
                return -1;
            if (came > 0) {
                in += came;
                nin -= (size_t)came;
            }
        }
        if (sent > 0 || came > 0) {
            turns = yields;
        } else if (turns > 0) {
            turns--;
            sched_yield();
        } else {
            struct pollfd fds[2] = {{.fd = nin ? from : -1, .events = POLLIN},
                                    {.fd = nout ? to : -1, .events = POLLOUT}};
            poll(fds, 2, -1);
        }
    }
    return 0;
}

static void add(float *into, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        into[i] += from[i];
}

/* Recursive doubling: all of it to rank ^ 1, rank ^ 2, ... `size` is a power of two. */
int floor_doubling(const int *fds, int rank, int size, float *x, float *spare, size_t n, int yields)
{
    for (int step = 1; step < size; step *= 2) {
        int fd = fds[rank ^ step];
        size_t nbytes = n * sizeof *x;
        if (shift(fd, (char *)x, nbytes, fd, (char *)spare, nbytes, yields) != 0)
            return -1;
        add(x, spare, n);
    }
    return 0;
}

/* Recursive halving, then doubling (Rabenseifner): `n` is a multiple of `size`. */
int floor_halving(const int *fds, int rank, int size, float *x, float *spare, size_t n, int yields)
{
    size_t begin = 0, count = n;
    for (int step = size / 2; step != 0; step /= 2) {
        int fd = fds[rank ^ step];
        size_t half = count / 2, nbytes = half * sizeof *x;
        size_t mine = begin + (rank & step ? half : 0), theirs = begin + (rank & step ? 0 : half);
        if (shift(fd, (char *)(x + theirs), nbytes, fd, (char *)spare, nbytes, yields) != 0)
            return -1;
        add(x + mine, spare, half);
        begin = mine;
        count = half;
    }
    for (int step = 1; step < size; step *= 2) {
        int fd = fds[rank ^ step];
        size_t nbytes = count * sizeof *x, other = begin + (rank & step ? -count : count);
        if (shift(fd, (char *)(x + begin), nbytes, fd, (char *)(x + other), nbytes, yields) != 0)
            return -1;
        begin = rank & step ? other : begin;
        count *= 2;
    }
    return 0;
}

/* A ring of reduce-scatter and all-gather: `n` is a multiple of `size`. */
int floor_ring(const int *fds, int rank, int size, float *x, float *spare, size_t n, int yields)
{
    size_t part = n / (size_t)size, nbytes = part * sizeof *x;
    int right = fds[(rank + 1) % size], left = fds[(rank + size - 1) % size];
    for (int step = 0; step < size - 1; step++) {
        float *out = x + part * (size_t)((rank - step + size) % size);
        float *in = x + part * (size_t)((rank - step - 1 + size) % size);
        if (shift(right, (char *)out, nbytes, left, (char *)spare, nbytes, yields) != 0)
            return -1;
        add(in, spare, part);
    }
    for (int step = 0; step < size - 1; step++) {
        float *out = x + part * (size_t)((rank + 1 - step + size) % size);
        float *in = x + part * (size_t)((rank - step + size) % size);
        if (shift(right, (char *)out, nbytes, left, (char *)in, nbytes, yields) != 0)
            return -1;
    }
    return 0;
}
