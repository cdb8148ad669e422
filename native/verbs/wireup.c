/* Wireup messages over a stream socket. */
#include "verbs/wireup.h"
#ifdef PC_VERBS
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "net/stream.h"

#define PC_WIREUP_BACKLOG_BYTES (1u << 20) /* a peer that does not read */

void pc__wireup_open(struct pc_wireup *wireup, int fd)
{
    wireup->fd = fd;
    wireup->open = true;
    wireup->nin = 0;
}

void pc__wireup_close(struct pc_wireup *wireup)
{
    if (wireup->open)
        close(wireup->fd);
    free(wireup->out);
    wireup->open = false;
    wireup->out = NULL;
    wireup->nout = wireup->room = 0;
}

static bool reserve(struct pc_wireup *wireup, size_t nbytes)
{
    size_t room = wireup->room ? wireup->room : 4096;
    while (room < wireup->nout + nbytes)
        room *= 2;
    if (room == wireup->room)
        return true;
    char *out = room > PC_WIREUP_BACKLOG_BYTES ? NULL : realloc(wireup->out, room);
    if (out == NULL)
        return false;
    wireup->out = out;
    wireup->room = room;
    return true;
}

int pc__wireup_write(struct pc_wireup *wireup, enum pc_wireup_kind kind, uint32_t conn,
                     uint32_t turn, const void *body, size_t nbytes)
{
    struct pc_wireup_header header = {.magic = PC_WIREUP_MAGIC,
                                      .kind = (uint16_t)kind,
                                      .conn = (uint16_t)conn,
                                      .turn = turn,
                                      .nbytes = (uint32_t)nbytes};
    if (!wireup->open)
        return PC_LOST;
    if (!reserve(wireup, sizeof header + nbytes))
        return PC_NOMEM;
    memcpy(wireup->out + wireup->nout, &header, sizeof header);
    memcpy(wireup->out + wireup->nout + sizeof header, body, nbytes);
    wireup->nout += sizeof header + nbytes;
    return pc__wireup_flush(wireup);
}

int pc__wireup_flush(struct pc_wireup *wireup)
{
    return wireup->open ? pc__stream_send(wireup->fd, wireup->out, &wireup->nout) : PC_LOST;
}

static bool is_wireup(const struct pc_wireup_header *header)
{
    static const size_t bytes[] = {
        [PC_WIREUP_HELLO] = sizeof(struct pc_wireup_hello),
        [PC_WIREUP_REQUEST] = sizeof(struct pc_qp_info),
        [PC_WIREUP_REPLY] = sizeof(struct pc_qp_info),
        [PC_WIREUP_FENCED] = sizeof(struct pc_wireup_received),
        [PC_WIREUP_CLOSE] = sizeof(struct pc_wireup_received),
        [PC_WIREUP_ABORTED] = 0,
    };
    return header->magic == PC_WIREUP_MAGIC && header->kind >= PC_WIREUP_HELLO
           && header->kind <= PC_WIREUP_ABORTED && header->nbytes == bytes[header->kind];
}

int pc__wireup_read(struct pc_wireup *wireup)
{
    char *in = (char *)&wireup->in;
    size_t want = sizeof wireup->in.header;
    if (wireup->nin >= want && wireup->nin == want + wireup->in.header.nbytes)
        wireup->nin = 0; /* the caller is done with the last message */
    while (wireup->open) {
        want = sizeof wireup->in.header;
        if (wireup->nin >= want) {
            if (!is_wireup(&wireup->in.header))
                return PC_INVALID;
            want += wireup->in.header.nbytes;
            if (wireup->nin == want)
                return 1;
        }
        ssize_t n = pc__stream_receive(wireup->fd, in + wireup->nin, want - wireup->nin);
        if (n <= 0)
            return (int)n;
        wireup->nin += (size_t)n;
    }
    return PC_LOST;
}
#endif
