/* The interface of a transport for ranks of one host, which map each other's memory: one file and
 * one const struct of this type. All other peers are reached by a network (core/net.h).
 *
 * No function blocks; PC_AGAIN: call it again. */
#ifndef PC_TRANSPORT_H
#define PC_TRANSPORT_H
#include <stdbool.h>
#include "pycoll.h"

struct pc_shm; /* the transport's state for one communicator */

struct pc_shm_ops {
    const char *name;

    /* Creates this rank's arena of `bytes` zeroed bytes, and what peers need to map it. */
    int (*open)(size_t bytes, uint32_t rank, uint32_t size, struct pc_error *error,
                struct pc_shm **out);
    void (*close)(struct pc_shm *device);
    char *(*arena)(struct pc_shm *device);

    /* Writes the address blob that the bootstrap carries to every peer; returns its length. */
    int (*address)(struct pc_shm *device, void *blob, size_t capacity);

    /* Maps the arena of `peer`. AGAIN until the peer has answered; UNMAPPABLE when it never can.
     * Checks everything in the blob: the peer may lie. */
    int (*connect)(struct pc_shm *device, uint32_t peer, const void *blob, size_t nbytes,
                   char **arena);

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
