/* Wireup messages: what two ranks that reach each other by RDMA say beside it, over the
 * authenticated socket between them: what may be written where, new queue pairs, and what becomes
 * of those that fail. */
#ifndef PC_WIREUP_H
#define PC_WIREUP_H
#include "core/layout.h"
#include "verbs/device.h"

#define PC_WIREUP_MAGIC 0x314c4350u /* "PCL1"; a host of the other byte order finds another */
#define PC_WIREUP_TEXT 320u

enum pc_wireup_kind {
    PC_WIREUP_HELLO = 1,   /* struct pc_wireup_hello */
    PC_WIREUP_REQUEST = 2, /* struct pc_qp_info: a queue pair for a connection that has none */
    PC_WIREUP_REPLY = 3,   /* struct pc_qp_info: the other end of it */
    PC_WIREUP_FENCED = 4,  /* struct pc_wireup_received: the connection's queue pair is no more, at
                              this end */
    PC_WIREUP_CLOSE = 5,   /* struct pc_wireup_received: none is; the rank leaves in good order */
    PC_WIREUP_ABORTED = 6, /* nothing: the rank lives, but broke a transfer off: no more connections
                            */
};

struct pc_wireup_header { /* the header of each */
    uint32_t magic;
    uint16_t kind; /* enum pc_wireup_kind */
    uint16_t conn;
    uint32_t turn;   /* of the connection: how often it has been offered */
    uint32_t nbytes; /* that follow */
};

struct pc_wireup_rail {
    uint32_t lines_key; /* remote keys of the two regions, by this rail */
    uint32_t slots_key;
    uint64_t speed; /* bytes per second */
};

struct pc_wireup_hello {
    uint32_t nrails;
    uint32_t queue_pairs;
    uint64_t lines; /* address of the lines that the reader of this may write */
    uint64_t lines_bytes;
    uint64_t slots; /* and of the slots */
    uint64_t slots_bytes;
    struct pc_wireup_rail rails[PC_MAX_RAILS];
};

struct pc_wireup_received { /* which messages had come, when nothing more could by that connection
                             */
    uint32_t counts[PC_EDGE_CHANNELS * PC_LINES]; /* the low bits of each line's */
    uint8_t frags[PC_EDGE_CHANNELS * PC_LINES];   /* a bit for each of the next message's */
    char why[PC_WIREUP_TEXT]; /* the connection has failed: its device here, and the reason */
};

union pc_wireup_body {
    struct pc_wireup_hello hello;
    struct pc_qp_info end;
    struct pc_wireup_received landed;
};

struct pc_wireup { /* both directions of one socket */
    int fd;
    bool open;
    char *out; /* what has not been sent */
    size_t nout, room;
    size_t nin;
    struct {
        struct pc_wireup_header header;
        union pc_wireup_body body;
    } in; /* what has come of the wireup message that is coming */
};

void pc__wireup_open(struct pc_wireup *wireup, int fd);
void pc__wireup_close(struct pc_wireup *wireup);
/* OK also when the socket takes nothing at present; LOST when it has ended. */
int pc__wireup_write(struct pc_wireup *wireup, enum pc_wireup_kind kind, uint32_t conn,
                     uint32_t turn, const void *body, size_t nbytes);
int pc__wireup_flush(struct pc_wireup *wireup);
/* 1: a whole wireup message lies in wireup->in, until the next call; 0: none yet; LOST at the end
 * of the stream, INVALID when it is no wireup message. */
int pc__wireup_read(struct pc_wireup *wireup);
#endif
