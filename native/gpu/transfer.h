/* The argument of the transfer kernel, which moves bytes between two ranks that no Program sends.
 * C11 and CUDA C++; see vm.h.
 *
 * Transfers go by the FIFOs of collectives, in order with their messages. A transfer has up to so
 * many lanes as its length says: lane l moves part l by the edge of block l, whatever block of the
 * launch does it. Lane 0 has the first message of every transfer, an empty one too, and each
 * message's line tells dtype and length of the whole: so ranks that differ find out there. */
#ifndef PC_GPU_TRANSFER_H
#define PC_GPU_TRANSFER_H
#include "gpu/device.h"

#define PC_KERNEL_TRANSFERS 120u /* of a launch: a kernel's parameters have 4 KiB on every GPU */

struct pc_host_peer {    /* in mapped host memory, by peer; the host writes */
    uint32_t gone;       /* 1: nothing comes from it any more, nor goes to it */
    uint32_t refused[2]; /* by direction: messages that this rank refused; for graphs */
    uint32_t reserved;
};

struct pc_kernel_transfer {
    char *at;
    uint64_t signature; /* dtype and nbytes; see pc__transfer_signature */
    uint32_t refused;   /* messages with this peer and direction that this rank refused before */
    uint32_t peer;
    uint8_t direction; /* enum pc_direction */
    uint8_t lanes_log2;
    uint8_t block;    /* that runs lane 0; lane l runs in (block + l) modulo nblocks */
    uint8_t by_proxy; /* 1: the peer is remote; lane l then runs in block l, whose ring is served */
    uint32_t reserved;
};

struct pc_transfer_args {          /* the only parameter of the kernel, by value: graphs copy it */
    struct pc_fifo *fifos;         /* [peer][PC_MAX_BLOCKS] */
    struct pc_block_state *states; /* [block] */
    struct pc_host_control *control;
    const struct pc_host_peer *peers;    /* [peer] */
    const struct pc_ipc_peer *ipc_peers; /* [peer], or NULL: no calls have a direct form */
    uint64_t timeout_ns;
    uint64_t call; /* the signature of the call that they are; 0: they are messages of two ranks */
    uint64_t salt; /* as in pc_kernel_args, with in_graph */
    uint32_t in_graph;
    uint32_t slots;
    uint32_t slot_bytes;
    uint32_t nblocks;
    uint32_t n;
    uint32_t reserved;
    /* Those of a direction of a peer follow each other, in order. */
    struct pc_kernel_transfer transfers[PC_KERNEL_TRANSFERS];
};
_Static_assert(sizeof(struct pc_transfer_args) <= 4096, "the parameters of a kernel");
#endif
