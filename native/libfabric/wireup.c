/* Wireup messages over a stream socket. */
#include "libfabric/wireup.h"
#ifdef PC_LIBFABRIC
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int pc__fabric_wireup_write(struct pc_fabric_socket *socket, const struct pc_fabric_wireup *message)
{
    if (!socket->open || socket->nout + sizeof *message > sizeof socket->out)
        return PC_LOST;
    memcpy(socket->out + socket->nout, message, sizeof *message);
    socket->nout += sizeof *message;
    return pc__fabric_wireup_flush(socket);
}

int pc__fabric_wireup_flush(struct pc_fabric_socket *socket)
{
    while (socket->nout != 0 && socket->open) {
        ssize_t n = send(socket->fd, socket->out, socket->nout, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return PC_OK;
        if (n < 0) {
            socket->nout = 0; /* the peer does not read it any more */
            return PC_LOST;
        }
        socket->nout -= (size_t)n;
        memmove(socket->out, socket->out + n, socket->nout);
    }
    return socket->open ? PC_OK : PC_LOST;
}

int pc__fabric_wireup_read(struct pc_fabric_socket *socket, struct pc_fabric_wireup *message)
{
    while (socket->open) {
        ssize_t n = recv(socket->fd, socket->in + socket->nin, sizeof *message - socket->nin,
                         MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return PC_LOST;
        socket->nin += (size_t)n;
        if (socket->nin < sizeof *message)
            continue;
        socket->nin = 0;
        memcpy(message, socket->in, sizeof *message);
        return message->magic == PC_FABRIC_WIREUP_MAGIC && message->kind >= PC_FABRIC_WIREUP_HELLO
                       && message->kind <= PC_FABRIC_WIREUP_ARRIVED
                   ? 1
                   : PC_INVALID;
    }
    return PC_LOST;
}

void pc__fabric_wireup_close(struct pc_fabric_socket *socket)
{
    if (socket->open)
        close(socket->fd);
    socket->open = false;
    socket->nout = 0;
}
#endif
