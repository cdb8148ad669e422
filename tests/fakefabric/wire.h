/* What the stand-in's endpoints send each other: datagrams that begin with this. */
#ifndef FAKEFABRIC_WIRE_H
#define FAKEFABRIC_WIRE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NAME 32 /* bytes of an endpoint's address, all of them */

struct wire {
    uint64_t write; /* a number of the sender's for the write; 0: a packet */
    uint64_t read;  /* a number of the reader's, who asks for bytes, or is sent these; 0: no read */
    uint64_t key, at, total;
    uint64_t data; /* of a write, for its target; of what is read: the errno if it cannot be */
    char from[NAME];
};

static inline socklen_t address_of(const char *name, struct sockaddr_un *out)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path + 1, name, NAME); /* abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME);
}
#endif
