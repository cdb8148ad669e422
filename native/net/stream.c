/* What the sockets of wireup messages have in common. */
#include "net/stream.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int pc__stream_send(int fd, char *bytes, size_t *nbytes)
{
    while (*nbytes != 0) {
        ssize_t n = send(fd, bytes, *nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return PC_OK;
        if (n < 0) {
            *nbytes = 0;
            return PC_LOST;
        }
        *nbytes -= (size_t)n;
        memmove(bytes, bytes + n, *nbytes);
    }
    return PC_OK;
}

ssize_t pc__stream_receive(int fd, void *into, size_t room)
{
    for (;;) {
        ssize_t n = recv(fd, into, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        return n > 0 ? n : PC_LOST;
    }
}
