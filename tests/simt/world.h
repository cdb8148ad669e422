/* Ranks of one process whose "device memory" is the host's: what a plane makes of a communicator.
 * Between C, which has the engine, and C++, which has the kernels. */
#ifndef WORLD_H
#define WORLD_H
#include "gpu/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MAX_RANKS 8

struct plan_text {                         /* one rank's part of a case */
    const unsigned char *program, *direct; /* the second or NULL */
    uint64_t program_bytes, direct_bytes;
    const uint64_t *blocks;
    uint32_t nblocks, dtype, op, tile, root, instances, packets;
    uint32_t multicast;           /* 1: a multicast address of all heaps; 2: which may round */
    uint32_t input[2], output[2]; /* extents */
    uint64_t signature;
};

struct world;

/* All counts of all edges begin at `first`, and with packets not yet cleaned, as if so many
 * messages had passed. */
struct world *world_open(uint32_t size, uint32_t slots, uint32_t slot_bytes, uint64_t first);
void world_close(struct world *world);
/* The image of the plan, at its own address; exits with the reason if there is none. */
struct pc_device_image *world_image(struct world *world, uint32_t rank,
                                    const struct plan_text *text);
/* HEAP bytes that the peers reach. */
#define HEAP (1u << 18)
/* Has all ranks reach a rank's segment 1, of HEAP bytes. */
void world_register(struct world *w, uint32_t rank, const char *at);
/* Takes it from the table that the rank itself reads, or puts it there. */
void world_show(struct world *w, uint32_t rank, bool there);
char *world_heap(struct world *world, uint32_t rank);
/* HEAP addresses at which nothing is mapped, for all heaps at once. */
char *world_multicast(struct world *world);
struct pc_host_control *world_control(struct world *world, uint32_t rank);

/* Mutations, and what to count them by: the n-th line of all ranks' images that `match` names. */
enum line_kind {
    LINE_SYNC,
    LINE_FENCE,
    LINE_WAIT_MESSAGE,
    LINE_WAIT_CREDIT,
    LINE_WAIT_LOCAL,
    LINE_WAIT_DONE,
    LINE_REDUCE_COPY
};
/* The head of a block's package. */
static inline struct pc_block_image *image_block(const struct pc_device_image *image, uint32_t form,
                                                 uint32_t block)
{
    return (struct pc_block_image *)(image->packages.at[form]
                                     + (uint64_t)block * image->packages.nbytes[form]);
}
uint32_t image_lines(const struct pc_device_image *image, enum line_kind kind);
/* Takes the n-th line away. */
void image_mutate(struct pc_device_image *image, enum line_kind kind, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
