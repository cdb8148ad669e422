/* Wireup messages between two ranks, over the authenticated socket between them. They exchange the
 * keys of memory regions, connect queue pairs, and fence those that failed. */
#ifndef PC_WIREUP_H
#define PC_WIREUP_H
#include "core/layout.h"
#include "verbs/device.h"

#define PC_WIREUP_MAGIC \
    0x314c4350u /* "PCL1"; a host of the other byte order reads another number */
#define PC_WIREUP_TEXT 320u

enum pc_wireup_kind {
    PC_WIREUP_HELLO = 1,   /* struct pc_wireup_hello */
    PC_WIREUP_REQUEST = 2, /* struct pc_qp_info: asks to connect this queue pair */
    PC_WIREUP_REPLY = 3,   /* struct pc_qp_info: the queue pair of the other end */
    PC_WIREUP_FENCED = 4,  /* struct pc_wireup_received: this end has destroyed its queue pair */
    PC_WIREUP_CLOSE = 5,   /* struct pc_wireup_received: all are destroyed; the rank closes, or has
                              given up the other for the reason that it says */
    PC_WIREUP_ABORTED = 6, /* empty: a transfer was broken off: no more connections */
};

struct pc_wireup_header { /* the header of each message */
    uint32_t magic;
    uint16_t kind; /* enum pc_wireup_kind */
    uint16_t conn;
    uint32_t turn;   /* of the connection: the number of its requests so far */
    uint32_t nbytes; /* of the body that follows */
};

struct pc_wireup_rail {
    uint32_t lines_key; /* rkeys of the two regions on this rail */
    uint32_t slots_key;
    uint64_t speed; /* bytes per second */
};

struct pc_wireup_hello {
    uint32_t nrails;
    uint32_t queue_pairs;
    uint64_t lines; /* address of the lines that the receiver may write */
    uint64_t lines_bytes;
    uint64_t slots; /* and of the slots */
    uint64_t slots_bytes;
    uint32_t slots_gpu; /* 1: the slots are memory of a GPU, which has no place for a header */
    uint32_t reserved;
    struct pc_wireup_rail rails[PC_MAX_RAILS];
};

struct pc_wireup_received { /* what this end has received, when its queue pair is gone */
    uint32_t counts[PC_EDGE_CHANNELS * PC_LINES]; /* the low bits of each line's count */
    uint8_t frags[PC_EDGE_CHANNELS * PC_LINES];   /* a bit per fragment of its next message */
    char why[PC_WIREUP_TEXT]; /* this end's device, and the reason of the failure; or "" */
};

union pc_wireup_body {
    struct pc_wireup_hello hello;
    struct pc_qp_info end;
    struct pc_wireup_received landed;
};

struct pc_wireup { /* both directions of one socket */
    int fd;
    bool open;
    char *out; /* bytes that are not sent yet */
    size_t nout, room;
    size_t nin;
    struct {
        struct pc_wireup_header header;
        union pc_wireup_body body;
    } in; /* the message that is being received: its first `nin` bytes */
};

void pc__wireup_open(struct pc_wireup *wireup, int fd);
void pc__wireup_close(struct pc_wireup *wireup);
/* OK also when the socket would block; LOST when it has ended. */
int pc__wireup_write(struct pc_wireup *wireup, enum pc_wireup_kind kind, uint32_t conn,
                     uint32_t turn, const void *body, size_t nbytes);
int pc__wireup_flush(struct pc_wireup *wireup);
/* 1: a whole message lies in wireup->in until the next call; 0: none yet; LOST: the stream has
 * ended; INVALID: the bytes are no wireup message. */
int pc__wireup_read(struct pc_wireup *wireup);
#endif
