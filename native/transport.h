/* What a transport is: one file, one const struct of this type. Memory that it hands over is
 * mapped: it can be loaded and stored. No function blocks; PC_AGAIN asks for another call.
 *
 * A transport for peers that cannot be mapped adds registration and put to this contract. */
#ifndef PC_TRANSPORT_H
#define PC_TRANSPORT_H
#include "pycoll.h"

struct pc_device; /* a transport's own state for one communicator */

struct pc_transport {
    const char *name;

    /* Creates this rank's arena of `bytes` zeroed bytes and what peers need to reach it. */
    int (*open)(size_t bytes, uint32_t rank, uint32_t size, struct pc_error *error,
                struct pc_device **out);
    void (*close)(struct pc_device *device);
    char *(*arena)(struct pc_device *device);

    /* Writes the blob that bootstrap carries to every peer; returns its length. */
    int (*address)(struct pc_device *device, void *blob, size_t capacity);

    /* Maps the arena of `peer`. AGAIN until the peer has answered; UNMAPPABLE when it never can.
     * Checks everything in the blob: the peer may lie. */
    int (*connect)(struct pc_device *device, uint32_t peer, const void *blob, size_t nbytes,
                   char **arena);

    /* Answers peers that connect; returns how many it served. */
    int (*poll)(struct pc_device *device);

    /* A file descriptor that is readable when poll or connect has work to do. */
    int (*wakeup)(struct pc_device *device);

    /* Every peer is connected: stops answering and gives back what connecting needed. */
    void (*seal)(struct pc_device *device);

    /* Gives back `nbytes` of physical memory at `offset` of this rank's arena; they read zero. */
    int (*discard)(struct pc_device *device, size_t offset, size_t nbytes);
};

extern const struct pc_transport pc__shm;
#endif
