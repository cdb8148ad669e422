/* Wireup messages between two ranks, over the authenticated socket between them: where each one's
 * endpoint is, and before a rank closes, what it has sent. The socket's end is the peer's. */
#ifndef PC_FABRIC_WIREUP_H
#define PC_FABRIC_WIREUP_H
#include "libfabric/endpoint.h"
#include "core/net.h"
#ifdef PC_LIBFABRIC

#define PC_FABRIC_WIREUP_MAGIC \
    0x314e4350u /* "PCN1"; a host of the other byte order reads another number */
#define PC_FABRIC_PROVIDER 32u
#define PC_FABRIC_WHY 200u

enum pc_fabric_wireup_kind {
    PC_FABRIC_WIREUP_HELLO = 1, /* where the endpoint is, and what its packets must show */
    PC_FABRIC_WIREUP_LEAVING, /* `packets`: so many were sent in all; the rank waits for ARRIVED */
    PC_FABRIC_WIREUP_ARRIVED, /* `packets`: so many have arrived */
    PC_FABRIC_WIREUP_BROKEN_OFF, /* the endpoint for reads is closed, and nobody is gone */
    PC_FABRIC_WIREUP_STOP,       /* the rank is about to close: the peer is to send nothing more */
    PC_FABRIC_WIREUP_STOPPED,    /* nor will it; `packets`: so many were sent in all */
    PC_FABRIC_WIREUP_CLOSED,  /* the endpoint is closed; `packets`: the same; `counts`: the messages
                                 that came before */
    PC_FABRIC_WIREUP_GAVE_UP, /* `why`: the rank gives up the peer, and closes the socket */
};

struct pc_fabric_wireup { /* all of one size */
    uint32_t magic;
    uint32_t kind; /* enum pc_fabric_wireup_kind */
    uint64_t packets;
    uint64_t key;      /* HELLO, as all that follows: what packets to this rank must show */
    uint32_t window;   /* packets that may be under way to this rank */
    uint32_t fragment; /* bytes of a message in a packet: PC_FABRIC_FRAGMENT */
    uint32_t format;   /* of the address: an FI_SOCKADDR_IN or the like */
    uint32_t address_bytes;
    uint64_t slots;            /* what the peer may write to: as the provider wants the address */
    uint64_t slots_key;        /* of the region */
    uint64_t slots_bytes;      /* 0: nothing; the provider has no such writes */
    uint64_t slots_gpu;        /* 1: they are in memory of a GPU; else 0 */
    uint64_t heads, heads_key; /* likewise, of the headers of what is written there */
    uint64_t joins;            /* a write may have two places; else 0 */
    uint64_t reads_bytes;      /* of the next but one; 0: there is no endpoint for reads */
    char provider[PC_FABRIC_PROVIDER]; /* ends with a zero */
    char address[PC_FABRIC_ADDRESS], reads[PC_FABRIC_ADDRESS];
    union {
        uint32_t counts[PC_EDGE_LINES]; /* CLOSED: the low bits of each line's count */
        char why[PC_FABRIC_WHY];        /* GAVE_UP: ends with a zero */
    };
};
_Static_assert(sizeof(struct pc_fabric_wireup) == 1416, "a wireup message has no gaps");

struct pc_fabric_socket {
    int fd;
    bool open;
    char in[sizeof(struct pc_fabric_wireup)];
    size_t nin;
    char out[4 * sizeof(struct pc_fabric_wireup)]; /* that the socket has not taken yet */
    size_t nout;
};

/* OK also when the socket has not taken all yet; LOST: it has ended, or the peer does not read. */
int pc__fabric_wireup_write(struct pc_fabric_socket *socket,
                            const struct pc_fabric_wireup *message);
int pc__fabric_wireup_flush(struct pc_fabric_socket *socket);
/* 1: a whole one is in *message; 0: none yet; LOST: the socket has ended; INVALID: it was none. */
int pc__fabric_wireup_read(struct pc_fabric_socket *socket, struct pc_fabric_wireup *message);
void pc__fabric_wireup_close(struct pc_fabric_socket *socket);
#endif
#endif
