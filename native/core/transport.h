/* The interface of a transport for ranks of one host, which map each other's memory: one file and
 * one const struct of this type. All other peers are reached by a network (core/net.h).
 *
 * No function blocks; PC_AGAIN: call it again. */
#ifndef PC_TRANSPORT_H
#define PC_TRANSPORT_H
#include <stdbool.h>
#include "pycoll.h"

struct pc_shm;    /* the transport's state for one communicator */
struct pc_layout; /* core/layout.h */

struct pc_shm_map { /* of a peer's memory */
    char *arena;    /* its header; all of the arena follows it unless the layout says windows */
    char *record;   /* this rank's */
};

struct pc_shm_ops {
    const char *name;

    /* Creates this rank's arena of `bytes` zeroed bytes, and what peers need to map it. */
    int (*open)(const struct pc_layout *layout, uint32_t rank, struct pc_error *error,
                struct pc_shm **out);
    void (*close)(struct pc_shm *device);
    char *(*arena)(struct pc_shm *device);

    /* Writes the address blob that the bootstrap carries to every peer; returns its length. */
    int (*address)(struct pc_shm *device, void *blob, size_t capacity);

    /* Maps the arena of `peer`, whole or by a window, and returns it and this rank's record in it.
     * AGAIN until the peer has answered; UNMAPPABLE when it never can. Checks everything in the
     * blob: the peer may lie. */
    int (*connect)(struct pc_shm *device, uint32_t peer, const void *blob, size_t nbytes,
                   struct pc_shm_map *out);

    /* The same, if that needs nothing from the peer; else UNMAPPABLE. LOST: it is not there any
     * more, and its memory neither. */
    int (*map)(struct pc_shm *device, uint32_t peer, const void *blob, size_t nbytes,
               struct pc_shm_map *out);

    /* Memory of this process in the place of a lost peer's: what is written there, nobody reads. */
    int (*stand_in)(struct pc_shm *device, uint32_t peer, struct pc_shm_map *out);

    /* Serves peers that connect; returns how many. */
    int (*poll)(struct pc_shm *device);

    /* A file descriptor that is readable when poll or connect has work to do. */
    int (*wakeup)(struct pc_shm *device);

    /* All peers are connected: stops serving and frees what connecting needed. */
    void (*seal)(struct pc_shm *device);

    /* Frees the pages of `nbytes` at `offset` of this rank's arena; they read as zero. */
    int (*discard)(struct pc_shm *device, size_t offset, size_t nbytes);
};

extern const struct pc_shm_ops pc__shm_ops;
#endif
