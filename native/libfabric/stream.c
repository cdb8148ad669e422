/* Notes over a stream socket. */
#include "libfabric/stream.h"
#ifdef PC_LIBFABRIC
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int pc__stream_write(struct pc_fabric_stream *stream, const struct pc_fabric_note *note)
{
    if (!stream->open || stream->nout + sizeof *note > sizeof stream->out)
        return PC_LOST;
    memcpy(stream->out + stream->nout, note, sizeof *note);
    stream->nout += sizeof *note;
    return pc__stream_flush(stream);
}

int pc__stream_flush(struct pc_fabric_stream *stream)
{
    while (stream->nout != 0 && stream->open) {
        ssize_t n = send(stream->fd, stream->out, stream->nout, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return PC_OK;
        if (n < 0) {
            stream->nout = 0; /* the peer does not read it any more */
            return PC_LOST;
        }
        stream->nout -= (size_t)n;
        memmove(stream->out, stream->out + n, stream->nout);
    }
    return stream->open ? PC_OK : PC_LOST;
}

int pc__stream_read(struct pc_fabric_stream *stream, struct pc_fabric_note *note)
{
    while (stream->open) {
        ssize_t n
            = recv(stream->fd, stream->in + stream->nin, sizeof *note - stream->nin, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return PC_LOST;
        stream->nin += (size_t)n;
        if (stream->nin < sizeof *note)
            continue;
        stream->nin = 0;
        memcpy(note, stream->in, sizeof *note);
        return note->magic == PC_FABRIC_NOTE_MAGIC && note->kind >= PC_NOTE_HELLO
                       && note->kind <= PC_NOTE_ARRIVED
                   ? 1
                   : PC_INVALID;
    }
    return PC_LOST;
}

void pc__stream_close(struct pc_fabric_stream *stream)
{
    if (stream->open)
        close(stream->fd);
    stream->open = false;
    stream->nout = 0;
}
#endif
