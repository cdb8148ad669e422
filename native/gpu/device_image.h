/* Builds the device image of a plan: code, operands and chunks with device addresses, for one block
 * per channel and instance, and the barriers of each block. Host code. */
#ifndef PC_DEVICE_IMAGE_H
#define PC_DEVICE_IMAGE_H
#include "gpu/device.h"
#include "core/internal.h"

/* The device addresses of a device communicator's structures. */
struct pc_device_fifos {
    uint64_t fifos;         /* struct pc_fifo [peer][PC_MAX_BLOCKS]: (peer, block) */
    uint64_t dones;         /* struct pc_token [peer][PC_MAX_BLOCKS] */
    uint64_t locals;        /* struct pc_token [PC_LOCALS]: (instance, from, to channel) */
    uint64_t states;        /* struct pc_block_state [PC_MAX_BLOCKS] */
    uint64_t control;       /* struct pc_host_control, mapped host memory */
    uint64_t scratch;       /* at least pc__device_image_scratch() bytes, 64-byte aligned; or 0 */
    uint64_t scratch_bytes; /* bytes there */
    uint32_t rank, size;    /* of the device communicator */
    uint32_t slots;         /* slots of an edge, and their bytes */
    uint32_t slot_bytes;
    bool packets; /* all peers of this rank's programs have slots for LL packets */
    /* For the direct form; 0: not every peer's heap is reached. */
    uint64_t ipc_peers; /* struct pc_ipc_peer [peer] */
    uint64_t arrays;    /* struct pc_arrays [PC_MAX_BLOCKS][peer] */
    uint64_t
        multicast; /* from this rank's heap to the multicast address of all; 0: there is none */
    bool rounds;   /* the switch may fold floats, which it rounds in an order of its own */
};

/* `form`: 0: the staged form alone; 1: also the direct form, which runs when the arrays of all
 * ranks are reached. `instances` has a number for each of these forms, as their Programs may differ
 * in channels. All ranks must pass the same.
 *
 * The number of blocks of a launch, those of the form that has more, or PC_INVALID. */
int pc__device_image_blocks(const struct pc_plan *plan, int form, const uint32_t *instances);
/* Bytes of scratch that the image needs. */
uint64_t pc__device_image_scratch(const struct pc_plan *plan, int form, const uint32_t *instances);
/* Whether every message of the staged form is short enough for LL. */
bool pc__device_image_fits_ll(const struct pc_plan *plan, uint32_t instances);
/* Bytes of the image; 0 when it cannot be built. */
size_t pc__device_image_bytes(const struct pc_plan *plan, int form, const uint32_t *instances);
/* Builds in `host_copy` the bytes to be copied to `device_base`, a multiple of 64. `number`: the
 * plan's in proxy FIFO entries. OK, INVALID, or UNMAPPABLE when this form is not possible (LL to a
 * peer without slots for it, heaps that are not reached). */
int pc__device_image_build(const struct pc_plan *plan, int form, const uint32_t *instances,
                           bool packets, uint32_t number, const struct pc_device_fifos *edges,
                           void *host_copy, uint64_t device_base, struct pc_error *error);
/* The parameter of a kernel, but for what differs from call to call; `image` is the host copy. */
struct pc_kernel_args pc__device_image_args(const struct pc_device_image *image,
                                            uint64_t device_base);

/* barriers.c: sets PC_FLAG_SYNC and PC_FLAG_FENCE on the lines of one block. */
void pc__place_barriers(struct pc_vm_instruction *code, uint32_t n, bool packets);

/* multimem_marks.c: sets PC_FLAG_FOLD_ALL (if the switch folds the dtype and op), STORE_ALL and
 * FOLLOWS in a copy of the code of a direct form; returns enum pc_alike, 0 if it set none. */
uint32_t pc__mark_multimem(const struct pc_program *program, struct pc_vm_instruction *code,
                           uint32_t rank, uint32_t size, bool folds);
#endif
