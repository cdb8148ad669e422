/* Wireup messages over a stream socket. */
#include "libfabric/wireup.h"
#ifdef PC_LIBFABRIC
#include <string.h>
#include <unistd.h>
#include "net/stream.h"

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
    return socket->open ? pc__stream_send(socket->fd, socket->out, &socket->nout) : PC_LOST;
}

int pc__fabric_wireup_read(struct pc_fabric_socket *socket, struct pc_fabric_wireup *message)
{
    while (socket->open) {
        ssize_t n = pc__stream_receive(socket->fd, socket->in + socket->nin,
                                       sizeof *message - socket->nin);
        if (n <= 0)
            return (int)n;
        socket->nin += (size_t)n;
        if (socket->nin < sizeof *message)
            continue;
        socket->nin = 0;
        memcpy(message, socket->in, sizeof *message);
        return message->magic == PC_FABRIC_WIREUP_MAGIC && message->kind >= PC_FABRIC_WIREUP_HELLO
                       && message->kind <= PC_FABRIC_WIREUP_GAVE_UP
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
