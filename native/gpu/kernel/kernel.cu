/* The kernels of one dtype and op, given by -DPC_KERNEL_DTYPE and -DPC_KERNEL_OP (enum pc_dtype,
 * enum pc_reduce_op); NVRTC compiles them at first use. */
#include "gpu/kernel/target_cuda.h"

#include "gpu/kernel/span.h"

#include "gpu/kernel/kernel.h"

#define DTYPE_0 float64
#define DTYPE_1 float32
#define DTYPE_2 float16
#define DTYPE_3 bfloat16
#define DTYPE_4 int8
#define DTYPE_5 uint8
#define DTYPE_6 int32
#define DTYPE_7 uint32
#define DTYPE_8 int64
#define DTYPE_9 uint64
#define OP_0 sum
#define OP_1 prod
#define OP_2 min
#define OP_3 max
#define OP_4 avg
#define NAME__(prefix, dtype, op) prefix##_##dtype##_##op
#define NAME_(prefix, dtype, op) NAME__(prefix, dtype, op)
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(prefix) NAME_(prefix, PASTE(DTYPE_, PC_KERNEL_DTYPE), PASTE(OP_, PC_KERNEL_OP))

/* Small enough to run beside compute kernels: 256 threads with at most 80 registers each, as three
 * such blocks must fit into one multiprocessor. For GPUs without NVLink (sm_120) the compiler needs
 * a few more, and two fit. */
#if !defined(PC_MIN_BLOCKS)
#if __CUDA_ARCH__ >= 1200
#define PC_MIN_BLOCKS 2
#else
#define PC_MIN_BLOCKS 3
#endif
#endif
#define KERNEL extern "C" __global__ void __launch_bounds__(256, PC_MIN_BLOCKS)

typedef pc__folding<PC_KERNEL_DTYPE, PC_KERNEL_OP> folding;

/* The kernel of one rank, with as many blocks as its image says. */
KERNEL NAME(pc)(const __grid_constant__ struct pc_kernel_args launch)
{
    __shared__ struct pc_shared shared;
    pc__kernel<folding>(&launch, blockIdx.x, &shared);
}

/* Several ranks on one GPU in one launch, so that all are sure to run at once: blockIdx.y is the
 * rank. */
KERNEL NAME(pc_fused)(const struct pc_kernel_args *launches)
{
    __shared__ struct pc_shared shared;
    pc__kernel<folding>(&launches[blockIdx.y], blockIdx.x, &shared);
}
