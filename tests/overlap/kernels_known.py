"""Kernels as they are known: what their blocks take, and what they do.

Registers and shared memory of those marked NVRTC are what it makes of a source in this repository
(tests/gpu/kernels.py, ROWS below) for sm_90; `test_advise` compiles them where NVRTC and cuobjdump
are there. Others are public:

- torch: elementwise kernels have 128 threads, four elements each, under launch bounds of 128 and 4
  (ATen/native/cuda/CUDALoops.cuh); reductions 512 threads and 4 blocks, so at most 32 registers
  (ATen/native/cuda/Reduce.cuh, C10_LAUNCH_BOUNDS_2(nt, 4)).
- CUTLASS 2.x, 128 x 128 x 32 in 4 stages of 16-bit floats: 4 * (128 + 128) * 32 * 2 B; 128 floats
  accumulated by each of 128 threads, or 64 by each of 256. 256 x 128 x 32 in 3 stages: 72 KiB, and
  128 floats by each of 256 threads.
- CUTLASS 3.x, cooperative and persistent: three warp groups, launch bounds of 384 threads and one
  block, so 168 registers; what it stages fills the shared memory.
- FlashAttention 2: head dimension 64 is 128 x 128 by 4 warps, (128 + 2 * 128) * 64 * 2 B; of 256 on
  an H100 64 x 64 by 4 warps, 96 KiB, "since then we can get 2 CTAs per SM"
  (flash_fwd_launch_template.h).
- Triton's tutorials: the matrix product of 128 x 256 x 64 in 3 stages by 8 warps
  (03-matrix-multiplication.py; with 4 stages triton-lang/triton#1561 has "Required: 196608", so
  147456 with 3); softmax of a row of 4096 floats by 8 warps; vectors of 1024 elements by 4 warps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pycoll import overlap
from pycoll.overlap.occupancy import Footprint

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

ROWS = r"""
extern "C" __global__ void __launch_bounds__(256) softmax(const float *x, float *y, unsigned n)
{
    __shared__ float part[8];
    const float *row = x + (size_t)blockIdx.x * n;
    float most = -3.4e38f, sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += 256)
        most = fmaxf(most, row[i]);
    for (int o = 16; o; o /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, part[i]);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += 256)
        sum += __expf(row[i] - most);
    for (int o = 16; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i];
    for (unsigned i = threadIdx.x; i < n; i += 256)
        y[(size_t)blockIdx.x * n + i] = __expf(row[i] - most) / sum;
}

extern "C" __global__ void __launch_bounds__(512) total(const float4 *x, float *y, unsigned n)
{
    __shared__ float part[16];
    float sum = 0;
    for (unsigned i = blockIdx.x * 512 + threadIdx.x; i < n; i += gridDim.x * 512) {
        float4 v = x[i];
        sum += v.x + v.y + v.z + v.w;
    }
    for (int o = 16; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 16) {
        sum = part[threadIdx.x];
        for (int o = 8; o; o /= 2)
            sum += __shfl_xor_sync(0xffff, sum, o);
        if (threadIdx.x == 0)
            y[blockIdx.x] = sum;
    }
}
"""

#: What NVRTC 12.9 makes of them for sm_90: registers, and bytes of shared memory.
COMPILED = {"chain": (11, 0), "product": (101, 8192), "softmax": (22, 32), "total": (16, 64)}


def compiled(name: str, threads: int) -> Footprint:
    """Return what a block of one of them takes."""
    return Footprint(threads, *COMPILED[name])


def gemm(m: int, n: int, k: int, of: int = 2) -> dict[str, Any]:
    """Return what a matrix product does, each matrix moved once."""
    return {"flops": 2.0 * m * n * k, "nbytes": float(of * (m * k + k * n + m * n))}


def through(nbytes: int, flops: float) -> dict[str, Any]:
    """Return what a kernel does that moves so many bytes."""
    return {"flops": flops, "nbytes": float(nbytes)}


def triton(registers: int, shared: int, warps: int) -> Footprint:
    """Return what a block of a kernel takes, by what Triton says of it once it is compiled."""
    metadata = SimpleNamespace(shared=shared, num_warps=warps, num_ctas=1)
    packed = warps, 1, shared
    return overlap.footprint(
        SimpleNamespace(n_regs=registers, metadata=metadata, packed_metadata=packed)
    )


KERNELS: dict[str, overlap.Computation] = {
    # 256 MiB of floats, each thread one element after another, 32 multiply-adds each
    "chain": overlap.Computation(compiled("chain", 256), 8448, **through(512 * MIB, 64 * 64e6)),
    # the same on numbers that stay in the cache: nothing but arithmetic
    "long chain": overlap.Computation(compiled("chain", 256), 8448, **through(MIB, 4e11)),
    "product 4096": overlap.Computation(
        compiled("product", 256), 1024, **gemm(4096, 4096, 4096, 4)
    ),
    "product 1024": overlap.Computation(compiled("product", 256), 64, **gemm(1024, 1024, 1024, 4)),
    "softmax": overlap.Computation(compiled("softmax", 256), 16384, **through(512 * MIB, 3e8)),
    "total": overlap.Computation(compiled("total", 512), 528, **through(GIB, 2.7e8)),
    "torch elementwise": overlap.Computation(
        Footprint(128, 32), 131072, **through(768 * MIB, 6.7e7)
    ),
    "torch reduction": overlap.Computation(
        Footprint(512, 32, 16), 1056, persistent=True, **through(GIB, 2.7e8)
    ),
    "cutlass 128x128": overlap.Computation(
        Footprint(256, 128, dynamic=64 * KIB), 4096, tensor=True, **gemm(8192, 8192, 8192)
    ),
    "cutlass 256x128": overlap.Computation(
        Footprint(256, 240, dynamic=72 * KIB), 2048, tensor=True, **gemm(8192, 8192, 8192)
    ),
    "cutlass persistent": overlap.Computation(
        Footprint(384, 168, dynamic=226 * KIB),
        132,
        tensor=True,
        persistent=True,
        **gemm(8192, 8192, 8192),
    ),
    "cublas": overlap.Computation(
        Footprint(384, 168, dynamic=200 * KIB), 1024, tensor=True, padded=False, seconds=2e-3
    ),
    "flash attention 64": overlap.Computation(
        Footprint(128, 255, dynamic=48 * KIB), 4096, tensor=True, seconds=1e-3
    ),
    "flash attention 256": overlap.Computation(
        Footprint(128, 255, dynamic=96 * KIB), 2048, tensor=True, seconds=1e-3
    ),
    "triton product": overlap.Computation(
        triton(255, 147456, 8), 2048, tensor=True, **gemm(8192, 8192, 8192)
    ),
    "triton softmax": overlap.Computation(triton(40, 64, 8), 16384, **through(512 * MIB, 3e8)),
    "triton add": overlap.Computation(triton(22, 0, 4), 65536, **through(768 * MIB, 6.7e7)),
}
