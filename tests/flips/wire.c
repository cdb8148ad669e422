/* Preloaded before libc: flips one bit of one message on its way to the kernel, once it is told to.
 *
 * The sender's memory keeps its bit. Counted are the sends that begin with a frame of a message of
 * at least `least` bytes; the flip is in the payload of that frame. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "net/frame.h"

static int left;     /* sends until the flip; 0: none */
static size_t least; /* bytes of a message that counts */
static size_t place; /* the bit; of a payload that is shorter, its remainder */
static int flipped = -1;

void flips_arm(int sends, size_t bytes, size_t bit)
{
    left = sends;
    least = bytes;
    place = bit;
    flipped = -1;
}

/* The socket by which the bit has gone; -1: it has not. */
int flips_done(void)
{
    return flipped;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (real == NULL)
        real = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    const struct iovec *parts = message->msg_iov;
    struct pc_frame frame;
    if (left == 0 || message->msg_iovlen == 0 || parts[0].iov_len < sizeof frame)
        return real(fd, message, flags);
    memcpy(&frame, parts[0].iov_base, sizeof frame);
    if (frame.magic != PC_FRAME_MAGIC || frame.kind != PC_FRAME_MESSAGE || frame.nbytes < least)
        return real(fd, message, flags);
    if (left > 1) {
        left--;
        return real(fd, message, flags);
    }
    size_t total = 0, at = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        total += parts[i].iov_len;
    char *copy = malloc(total);
    for (size_t i = 0; i < message->msg_iovlen; at += parts[i++].iov_len)
        memcpy(copy + at, parts[i].iov_base, parts[i].iov_len);
    size_t bit = place % (8 * frame.nbytes), byte = sizeof frame + bit / 8;
    if (byte < total)
        copy[byte] ^= (char)(1 << bit % 8);
    struct iovec one = {copy, total};
    struct msghdr changed = *message;
    changed.msg_iov = &one;
    changed.msg_iovlen = 1;
    ssize_t n = real(fd, &changed, flags);
    if (n > (ssize_t)byte) {
        left = 0;
        flipped = fd;
    }
    free(copy);
    return n;
}
