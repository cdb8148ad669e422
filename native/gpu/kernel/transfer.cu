/* The transfer kernel, which knows no dtype; NVRTC compiles it as it does kernel.cu. */
#include "gpu/kernel/target_cuda.h"

#include "gpu/kernel/span.h"

#include "gpu/kernel/transfer.h"

/* As small as the kernels of collectives. */
extern "C" __global__ void __launch_bounds__(256, 3)
    pc_transfer(const __grid_constant__ struct pc_transfer_args launch)
{
    __shared__ struct pc_transfer_shared shared;
    pc__transfers(&launch, blockIdx.x, &shared);
}
