/* Notes between two ranks, over the authenticated socket between them: where each one's endpoint
 * is, and before a rank closes, what it has sent. The socket's end is the peer's. */
#ifndef PC_FABRIC_STREAM_H
#define PC_FABRIC_STREAM_H
#include "libfabric/endpoint.h"
#ifdef PC_LIBFABRIC

#define PC_FABRIC_NOTE_MAGIC \
    0x314e4350u /* "PCN1"; a host of the other byte order reads another number */
#define PC_FABRIC_PROVIDER 32u

enum pc_fabric_note_kind {
    PC_NOTE_HELLO = 1, /* where the endpoint is, and what its packets must show */
    PC_NOTE_LEAVING,   /* `packets`: so many were sent in all; the rank waits for ARRIVED */
    PC_NOTE_ARRIVED,   /* `packets`: so many have arrived */
};

struct pc_fabric_note { /* all of one size */
    uint32_t magic;
    uint32_t kind; /* enum pc_fabric_note_kind */
    uint64_t packets;
    uint64_t key;    /* HELLO, as all that follows: what packets to this rank must show */
    uint32_t window; /* packets that may be under way to this rank */
    uint32_t part;   /* bytes of a message in a packet: PC_FABRIC_PART */
    uint32_t format; /* of the address: an FI_SOCKADDR_IN or the like */
    uint32_t address_bytes;
    char provider[PC_FABRIC_PROVIDER]; /* ends with a zero */
    char address[PC_FABRIC_ADDRESS];
};
_Static_assert(sizeof(struct pc_fabric_note) == 328, "a note has no gaps");

struct pc_fabric_stream {
    int fd;
    bool open;
    char in[sizeof(struct pc_fabric_note)];
    size_t nin;
    char out[4 * sizeof(struct pc_fabric_note)]; /* that the socket has not taken yet */
    size_t nout;
};

/* OK also when the socket has not taken all yet; LOST: it has ended, or the peer does not read. */
int pc__stream_write(struct pc_fabric_stream *stream, const struct pc_fabric_note *note);
int pc__stream_flush(struct pc_fabric_stream *stream);
/* 1: a whole note is in *note; 0: none yet; LOST: the socket has ended; INVALID: no note came. */
int pc__stream_read(struct pc_fabric_stream *stream, struct pc_fabric_note *note);
void pc__stream_close(struct pc_fabric_stream *stream);
#endif
#endif
