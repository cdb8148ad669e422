/* One kernel: of the dtype and the op that the compiler is told. */
#include "simt.h"
#include "gpu/kernel/span.h"
#include "gpu/kernel/kernel.h"

static void run(const struct pc_kernel_args *launch, uint32_t block, struct pc_shared *shared)
{
    pc__kernel<pc__folding<PC_KERNEL_DTYPE, PC_KERNEL_OP>>(launch, block, shared);
}

static simt_entry entry(PC_KERNEL_DTYPE, PC_KERNEL_OP, run);
