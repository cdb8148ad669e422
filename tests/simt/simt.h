/* The kernels of this program, by dtype and op. */
#ifndef SIMT_H
#define SIMT_H
#include "gpu/kernel/target_simt.h"
#include "gpu/device.h"

struct pc_shared;
typedef void (*simt_kernel)(const struct pc_kernel_args *launch, uint32_t block,
                            struct pc_shared *shared);

struct simt_entry {
    simt_entry(uint32_t dtype, uint32_t op, simt_kernel run);
};
#endif
