/* Letters over a stream socket. */
#include "verbs/wireup.h"
#ifdef PC_VERBS
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PC_WIREUP_BACKLOG_BYTES \
    (1u << 20) /* a peer that does not read has taken leave of its senses */

void pc__wireup_open(struct pc_wireup *mail, int fd)
{
    mail->fd = fd;
    mail->nin = 0;
}

void pc__wireup_close(struct pc_wireup *mail)
{
    if (mail->fd >= 0)
        close(mail->fd);
    free(mail->out);
    mail->fd = -1;
    mail->out = NULL;
    mail->nout = mail->room = 0;
}

static bool reserve(struct pc_wireup *mail, size_t nbytes)
{
    size_t room = mail->room ? mail->room : 4096;
    while (room < mail->nout + nbytes)
        room *= 2;
    if (room == mail->room)
        return true;
    char *out = room > PC_WIREUP_BACKLOG_BYTES ? NULL : realloc(mail->out, room);
    if (out == NULL)
        return false;
    mail->out = out;
    mail->room = room;
    return true;
}

int pc__wireup_write(struct pc_wireup *mail, enum pc_wireup_kind kind, uint32_t path, uint32_t turn,
                     const void *body, size_t nbytes)
{
    struct pc_wireup_header header = {.magic = PC_WIREUP_MAGIC,
                                      .kind = (uint16_t)kind,
                                      .path = (uint16_t)path,
                                      .turn = turn,
                                      .nbytes = (uint32_t)nbytes};
    if (mail->fd < 0)
        return PC_LOST;
    if (!reserve(mail, sizeof header + nbytes))
        return PC_NOMEM;
    memcpy(mail->out + mail->nout, &header, sizeof header);
    memcpy(mail->out + mail->nout + sizeof header, body, nbytes);
    mail->nout += sizeof header + nbytes;
    return pc__wireup_flush(mail);
}

int pc__wireup_flush(struct pc_wireup *mail)
{
    while (mail->nout != 0 && mail->fd >= 0) {
        ssize_t n = send(mail->fd, mail->out, mail->nout, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return PC_OK;
        if (n < 0) {
            mail->nout = 0; /* nobody reads it */
            return PC_LOST;
        }
        mail->nout -= (size_t)n;
        memmove(mail->out, mail->out + n, mail->nout);
    }
    return mail->fd >= 0 ? PC_OK : PC_LOST;
}

static bool is_letter(const struct pc_wireup_header *header)
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

int pc__wireup_read(struct pc_wireup *mail)
{
    char *in = (char *)&mail->in;
    size_t want = sizeof mail->in.header;
    if (mail->nin >= want && mail->nin == want + mail->in.header.nbytes)
        mail->nin = 0; /* the last one has been dealt with */
    while (mail->fd >= 0) {
        want = sizeof mail->in.header;
        if (mail->nin >= want) {
            if (!is_letter(&mail->in.header))
                return PC_INVALID;
            want += mail->in.header.nbytes;
            if (mail->nin == want)
                return 1;
        }
        ssize_t n = recv(mail->fd, in + mail->nin, want - mail->nin, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return PC_LOST;
        mail->nin += (size_t)n;
    }
    return PC_LOST;
}
#endif
