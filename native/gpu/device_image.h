/* The device image of a plan: code, operands and chunks with the addresses of a GPU, one block for
 * each channel and instance, and the barriers of each block. Host code. */
#ifndef PC_DEVICE_IMAGE_H
#define PC_DEVICE_IMAGE_H
#include "gpu/device.h"
#include "core/internal.h"

/* Where the things of a device communicator lie, as the GPU sees them: device addresses. */
struct pc_device_fifos {
    uint64_t fifos;         /* struct pc_fifo [peer][PC_MAX_BLOCKS]: (peer, block) */
    uint64_t dones;         /* struct pc_token [peer][PC_MAX_BLOCKS] */
    uint64_t locals;        /* struct pc_token [PC_LOCALS]: (instance, from, to channel) */
    uint64_t states;        /* struct pc_block_state [PC_MAX_BLOCKS] */
    uint64_t control;       /* struct pc_host_control, mapped host memory */
    uint64_t scratch;       /* pc__device_image_scratch() bytes, or 0; a multiple of 64 */
    uint64_t scratch_bytes; /* that are there */
    uint32_t rank, size;    /* of the device communicator */
    uint32_t slots;         /* of an edge, and their bytes, as in every fifo */
    uint32_t slot_bytes;
    bool packets; /* every peer of this rank's programs has packet slots */
    /* Where every peer's heap is reached, or 0. */
    uint64_t ipc_peers;  /* struct pc_ipc_peer [peer]; of this rank itself only the heap */
    uint64_t arrays;     /* struct pc_arrays [PC_MAX_BLOCKS][peer] */
    uint64_t heap_bytes; /* of each rank's heap */
};

/* `form`: 0 for the staged form alone, 1 to have the direct form beside it, which then runs when
 * all ranks' arrays lie in their heaps. All ranks must give the same.
 *
 * How many blocks a launch takes in so many instances, or PC_INVALID. */
int pc__device_image_blocks(const struct pc_plan *plan, int form, uint32_t instances);
/* Bytes of scratch that it needs. */
uint64_t pc__device_image_scratch(const struct pc_plan *plan, int form, uint32_t instances);
/* Whether every message of a call is short enough for packets. */
bool pc__device_image_fits_ll(const struct pc_plan *plan, uint32_t instances);
/* Bytes of the image; 0 when there can be none. */
size_t pc__device_image_bytes(const struct pc_plan *plan, int form, uint32_t instances);
/* Writes into `host_copy` the bytes that are to lie at `device_base`, a multiple of 64. `number`:
 * the plan's in the entries of rings. OK, INVALID, or UNMAPPABLE when there is no such form here
 * (packets to a peer without, heaps that are not reached). */
int pc__device_image_build(const struct pc_plan *plan, int form, uint32_t instances, bool packets,
                           uint32_t number, const struct pc_device_fifos *edges, void *host_copy,
                           uint64_t device_base, struct pc_error *error);

/* barriers.c: sets PC_FLAG_SYNC on the lines of one block. */
void pc__place_barriers(struct pc_vm_instruction *code, uint32_t n, bool packets);
#endif
