/* What a transport is: one file, one const struct of one of the two types below.
 *
 * Peers on this host are *mapped*: a pc_shm_ops hands over their memory, which can be loaded and
 * stored. All others are *remote*: this rank writes into a private shadow of their memory, with the
 * same addresses, and a pc_net_ops carries each message and each credit over to where it belongs.
 * No function blocks unless it says so; PC_AGAIN asks for another call. */
#ifndef PC_TRANSPORT_H
#define PC_TRANSPORT_H
#include <stdbool.h>
#include "pycoll.h"

struct pc_shm; /* a transport's own state for one communicator */

struct pc_shm_ops {
    const char *name;

    /* Creates this rank's arena of `bytes` zeroed bytes and what peers need to reach it. */
    int (*open)(size_t bytes, uint32_t rank, uint32_t size, struct pc_error *error,
                struct pc_shm **out);
    void (*close)(struct pc_shm *device);
    char *(*arena)(struct pc_shm *device);

    /* Writes the blob that bootstrap carries to every peer; returns its length. */
    int (*address)(struct pc_shm *device, void *blob, size_t capacity);

    /* Maps the arena of `peer`. AGAIN until the peer has answered; UNMAPPABLE when it never can.
     * Checks everything in the blob: the peer may lie. */
    int (*connect)(struct pc_shm *device, uint32_t peer, const void *blob, size_t nbytes,
                   char **arena);

    /* Answers peers that connect; returns how many it served. */
    int (*poll)(struct pc_shm *device);

    /* A file descriptor that is readable when poll or connect has work to do. */
    int (*wakeup)(struct pc_shm *device);

    /* Every peer is connected: stops answering and gives back what connecting needed. */
    void (*seal)(struct pc_shm *device);

    /* Gives back `nbytes` of physical memory at `offset` of this rank's arena; they read zero. */
    int (*discard)(struct pc_shm *device, size_t offset, size_t nbytes);
};

extern const struct pc_shm_ops pc__shm_ops;

struct pc_comm;
struct pc_fifo;
struct pc_net;  /* a remote transport's own state for one communicator */
struct pc_rndv; /* and for one end of a transfer that its receiver reads */

struct pc_rkey { /* where it lies, and the key to it by each rail of the sender */
    uint64_t address;
    uint32_t keys[PC_MAX_RAILS];
};

/* Any thread may call these but open and close. A peer that is lost, or that lied, is no failure
 * until a call needs it: what it has sent before is still received. */
struct pc_net_ops {
    const char *name;
    uint32_t yields;        /* a rank yields so often before it sleeps, and is woken */
    uint64_t slow_yield_ns; /* one that takes longer has let a foreign process run */

    /* pause() ends when `wakeup_fd` becomes readable. */
    int (*open)(struct pc_comm *comm, int wakeup_fd, struct pc_net **out);
    /* Waits at most `linger_ns` for what has been sent to arrive. */
    void (*close)(struct pc_net *wire, uint64_t linger_ns);

    /* Takes over a connected socket to `peer`, whom the caller has authenticated. */
    int (*adopt)(struct pc_net *wire, uint32_t peer, int fd);
    /* How many sockets to `peer` live. */
    int (*connections)(struct pc_net *wire, uint32_t peer);

    /* Sends message f->sent, whose `nbytes` lie at `data` in the shadow, and raises f->sent. The
     * shadow must stay as it is until the peer has given the message back. */
    int (*message)(struct pc_net *wire, struct pc_fifo *f, const char *data, uint64_t nbytes,
                   struct pc_error *error);
    /* The peer is to be told that `received` messages are consumed. That may be held back for a
     * message to travel with, but not so long that the peer waits for it. */
    void (*credit)(struct pc_net *wire, struct pc_fifo *f, uint64_t received);

    /* Sends what is due, and takes in what has come: from one peer, or from all. */
    void (*poll)(struct pc_net *wire, uint32_t peer);
    void (*progress)(struct pc_net *wire);
    /* Sends what was held back, then sleeps until something comes, or a wakeup, or `ns` have
     * passed; true when it was a wakeup. Takes nothing in; one thread at a time. */
    bool (*pause)(struct pc_net *wire, uint64_t ns);

    /* 1 when the messages of this FIFO (NULL: of all calls) have left this process, 0 while some
     * have not; a code when a message never can. A call does not wait for posted transfers, nor
     * for credit that stands behind them: who sees to them sees to that. */
    int (*drained)(struct pc_net *wire, const struct pc_fifo *f, struct pc_error *error);
    /* Why nothing more can come from `peer`, or NULL. */
    const struct pc_error *(*fault)(struct pc_net *wire, uint32_t peer);

    /* The next four, or none: a receiver may read a long transfer from where it lies, with nobody's
     * help. lend: lets `peer` read, and says what it must know to; UNMAPPABLE when this memory
     * cannot be had. borrow: begins to read. borrowed: 1 when all of it is here, 0 while it is not,
     * or a code. release: of both ends, `taken` when all was read; else it is broken off,
     * and on return nothing reads that memory, or writes it, any more. */
    int (*lend)(struct pc_net *wire, uint32_t peer, const void *at, uint64_t nbytes,
                struct pc_rkey *loan, struct pc_rndv **pull);
    int (*borrow)(struct pc_net *wire, uint32_t peer, void *into, uint64_t nbytes,
                  const struct pc_rkey *loan, struct pc_rndv **pull, struct pc_error *error);
    int (*borrowed)(struct pc_net *wire, struct pc_rndv *pull, struct pc_error *error);
    void (*release)(struct pc_net *wire, struct pc_rndv *pull, bool taken);

    /* The next two, or neither: where something may have to be seen to while no thread is inside a
     * call. A descriptor, readable when that is so; and what sees to it. */
    int (*attention)(struct pc_net *wire);
    void (*attend)(struct pc_net *wire);
    /* Or not. */
    void (*state)(struct pc_net *wire, struct pc_net_state *out);
};

extern const struct pc_net_ops pc__tcp_ops;
extern const struct pc_net_ops *const
    pc__verbs_ops; /* NULL when this was built without libibverbs */
#endif
