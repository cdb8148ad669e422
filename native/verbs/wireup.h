/* Letters: what two ranks that reach each other by RDMA say beside it, over the authenticated
 * socket between them: what may be written where, new queue pairs, and what becomes of those that
 * fail. */
#ifndef PC_LETTER_H
#define PC_LETTER_H
#include "core/layout.h"
#include "verbs/device.h"

#define PC_LETTER_MAGIC 0x314c4350u /* "PCL1"; a host of the other byte order finds another */
#define PC_LETTER_TEXT 320u

enum pc_letter_kind {
    PC_LETTER_HELLO = 1,     /* struct pc_hello */
    PC_LETTER_OFFER = 2,     /* struct pc_end: a queue pair for a path that has none */
    PC_LETTER_ANSWER = 3,    /* struct pc_end: the other end of it */
    PC_LETTER_FENCED = 4,    /* struct pc_landed: the path's queue pair is no more, at this end */
    PC_LETTER_BYE = 5,       /* struct pc_landed: none is; the rank leaves in good order */
    PC_LETTER_WITHDRAWN = 6, /* nothing: the rank lives, but broke a transfer off: no more paths */
};

struct pc_letter { /* the header of each */
    uint32_t magic;
    uint16_t kind; /* enum pc_letter_kind */
    uint16_t path;
    uint32_t turn;   /* of the path: how often it has been offered */
    uint32_t nbytes; /* that follow */
};

struct pc_hello_rail {
    uint32_t lines_key; /* remote keys of the two regions, by this rail */
    uint32_t slots_key;
    uint64_t speed; /* bytes per second */
};

struct pc_hello {
    uint32_t nrails;
    uint32_t queue_pairs;
    uint64_t lines; /* address of the lines that the reader of this may write */
    uint64_t lines_bytes;
    uint64_t slots; /* and of the slots */
    uint64_t slots_bytes;
    struct pc_hello_rail rails[PC_MAX_RAILS];
};

struct pc_landed { /* which messages had come, when nothing more could by that path */
    uint32_t counts[PC_EDGE_CHANNELS * PC_LINES]; /* the low bits of each line's */
    uint8_t pieces[PC_EDGE_CHANNELS * PC_LINES];  /* a bit for each of the next message's */
    char why[PC_LETTER_TEXT]; /* the path has failed: its device here, and the reason */
};

union pc_letter_body {
    struct pc_hello hello;
    struct pc_end end;
    struct pc_landed landed;
};

struct pc_mail { /* both directions of one socket */
    int fd;      /* -1: none, or ended */
    char *out;   /* what has not been sent */
    size_t nout, room;
    size_t nin;
    struct {
        struct pc_letter header;
        union pc_letter_body body;
    } in; /* what has come of the letter that is coming */
};

void pc__mail_open(struct pc_mail *mail, int fd);
void pc__mail_close(struct pc_mail *mail);
/* OK also when the socket takes nothing at present; LOST when it has ended. */
int pc__mail_write(struct pc_mail *mail, enum pc_letter_kind kind, uint32_t path, uint32_t turn,
                   const void *body, size_t nbytes);
int pc__mail_flush(struct pc_mail *mail);
/* 1: a whole letter lies in mail->in, until the next call; 0: none yet; LOST at the end of the
 * stream, INVALID when it is no letter. */
int pc__mail_read(struct pc_mail *mail);
#endif
