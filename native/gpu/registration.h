/* Registration of users' arrays: what registration.c keeps. Internal to gpu/. */
#ifndef PC_REGISTRATION_H
#define PC_REGISTRATION_H
#include "gpu/device_layout.h"

enum pc_registered_state {
    PC_REGISTERED_NONE,    /* the number is free, once all have closed what had it before */
    PC_REGISTERED_SAID,    /* the peers are told to open it */
    PC_REGISTERED_REACHED, /* all have: it is in the table that kernels read */
    PC_REGISTERED_REFUSED, /* it cannot be exported, or a peer cannot open it */
    PC_REGISTERED_LEAVING, /* out of the table; launches may still have named it */
};

struct pc_registered { /* an allocation of this rank's user */
    uint64_t base, nbytes, id;
    uint64_t serial; /* last said: how often this number was opened and closed; odd: open */
    uint64_t used;   /* the number of the last call that named it */
    uint64_t since;  /* REFUSED: the number of the call by which that was known */
    uint64_t launched[PC_MAX_BLOCKS]; /* LEAVING: as of when it left the table */
    uint8_t state;                    /* enum pc_registered_state */
    bool captured;                    /* a graph may name it */
};

struct pc_opened {   /* an allocation of a peer's user */
    uint64_t serial; /* last answered */
    uint64_t base;   /* what pc__ipc_open_memory gave; 0: nothing, or it is of this process */
    bool open;
};

/* What a rank says to a peer, in that one's memory; only the rank writes there. Zero at first. */
struct pc_mail {
    _Atomic uint64_t said; /* raised behind all else */
    struct {
        _Atomic uint64_t serial; /* written behind the rest */
        uint64_t address, nbytes, id;
        unsigned char handle[PC_CUDA_HANDLE];
    } segments[PC_SEGMENTS];               /* of the rank */
    _Atomic uint64_t answers[PC_SEGMENTS]; /* to the peer's: serial << 1, plus 1: cannot open it */
    char lack[160];                        /* why the last one could not be opened */
};

struct pc_registration {
    bool on;
    struct pc_registered mine[PC_SEGMENTS];
    struct pc_opened *theirs; /* [peer][PC_SEGMENTS] */
    uint64_t *seen;           /* [peer]: `said` as of when its mail was read */
    uint64_t calls;           /* that could name a segment */
    uint64_t questions;       /* to the driver, about arrays */
    bool waiting;             /* a number is LEAVING */
    bool active;              /* something may be open, here or at a peer */
    uint32_t look;            /* the number to be looked at next */
    bool news;                /* `lack` is another one */
    char lack[240];           /* why arrays of the last allocation in question are not reached */
};
#endif
