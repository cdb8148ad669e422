"""Kernels: computations for a collective to run beside, and those that the stand-in has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

#: Threads of a block, of both.
THREADS = 256
#: A matrix product works on tiles of so many rows and columns.
TILE = 128

SOURCE = r"""
extern "C" __global__ void __launch_bounds__(256)
chain(float *x, unsigned count, unsigned steps)
{
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        float v = x[i];
        for (unsigned s = 0; s < steps; s++)
            v = v * 0.999f + 0.001f;
        x[i] = v;
    }
}

/* c = a b, of so many columns of a, a multiple of 8, and n of c, which like the rows is one of 128:
 * each block one tile of 128 x 128, each thread 8 x 8 of it. */
static __device__ __forceinline__ void
tile_of(const float *a, const float *b, float *c, unsigned n, unsigned columns)
{
    __shared__ float as[8][128], bs[8][128];
    unsigned row = blockIdx.y * 128, column = blockIdx.x * 128;
    unsigned ty = threadIdx.x / 16 * 8, tx = threadIdx.x % 16 * 8;
    float sum[8][8] = {};
    for (unsigned k = 0; k < columns; k += 8) {
        for (unsigned i = threadIdx.x; i < 1024; i += 256) {
            as[i % 8][i / 8] = a[(row + i / 8) * columns + k + i % 8];
            bs[i / 128][i % 128] = b[(k + i / 128) * n + column + i % 128];
        }
        __syncthreads();
#pragma unroll
        for (unsigned j = 0; j < 8; j++) {
            float left[8], right[8];
#pragma unroll
            for (unsigned i = 0; i < 8; i++) {
                left[i] = as[j][ty + i];
                right[i] = bs[j][tx + i];
            }
#pragma unroll
            for (unsigned i = 0; i < 8; i++)
#pragma unroll
                for (unsigned l = 0; l < 8; l++)
                    sum[i][l] += left[i] * right[l];
        }
        __syncthreads();
    }
    for (unsigned i = 0; i < 8; i++)
        for (unsigned l = 0; l < 8; l++)
            c[(row + ty + i) * n + column + tx + l] = sum[i][l];
}

extern "C" __global__ void __launch_bounds__(256)
product(const float *a, const float *b, float *c, unsigned n)
{
    tile_of(a, b, c, n, n);
}

/* The same of rectangles, several in one launch: the next one's rows begin so many rows behind. */
extern "C" __global__ void __launch_bounds__(256)
rows(const float *a, const float *b, float *c, unsigned n, unsigned k, unsigned next_of_a,
     unsigned next_of_c)
{
    unsigned long long z = blockIdx.z;
    tile_of(a + z * next_of_a * k, b, c + z * next_of_c * n, n, k);
}

/* What a GPU's parts take by themselves; all with the same arguments. */
typedef unsigned long long word;

extern "C" __global__ void idle(word *at, word count, unsigned rounds)
{
}

extern "C" __global__ void fences(word *at, word count, unsigned rounds)
{
    for (unsigned r = 1; r <= rounds; r++) {
        ((volatile word *)at)[0] = r;
        __threadfence_system();
    }
}

/* Two blocks answer each other. It ends also if one never does: what it leaves then tells. */
extern "C" __global__ void pingpong(word *at, word count, unsigned rounds)
{
    word *mine = at + 16 * blockIdx.x, *theirs = at + 16 * (1 - blockIdx.x), seen;
    for (word r = 1, spins = 0; r <= rounds; r++) {
        if (blockIdx.x == 0)
            asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(mine), "l"(r) : "memory");
        do
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                         : "=l"(seen) : "l"(theirs) : "memory");
        while (seen < r && ++spins < (1u << 28));
        if (seen < r)
            return;
        if (blockIdx.x == 1)
            asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(mine), "l"(r) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(256) copy(word *at, word count, unsigned rounds)
{
    const ulonglong2 *from = (const ulonglong2 *)at;
    ulonglong2 *to = (ulonglong2 *)(at + count);
    for (word i = blockIdx.x * blockDim.x + threadIdx.x; i < count / 2; i += gridDim.x * blockDim.x)
        to[i] = from[i];
}
"""
#: Names of those above, and what the stand-in has in their place: threads and registers that a
#: computation takes, and the kernel that runs.
PLAYED = {
    "chain": {"registers": 11, "threads": 1024, "like": "fakecuda_busy"},
    "product": {"registers": 101, "threads": 256, "shared": 8192, "like": "fakecuda_busy"},
    "rows": {"registers": 101, "threads": 256, "shared": 8192, "like": "fakecuda_rows"},
    "idle": {"like": "fakecuda_busy"},
    "fences": {"like": "fakecuda_busy"},
    "pingpong": {"like": "fakecuda_pingpong"},
    "copy": {"like": "fakecuda_copy"},
}


def compile_all(folder: Path, capability: tuple[int, int]) -> str:
    """Compile them into a folder; says what was made."""
    arch = f"{capability[0]}{capability[1]}"
    image = _compiled(arch)
    (folder / f"computations_{arch}.cubin").write_bytes(image)
    return f"computations for sm_{arch}, {len(image)} B"


def _compiled(arch: str) -> bytes:
    from pycoll.runtime.cuda import compile

    image = compile.compile_text(SOURCE, f"--gpu-architecture=sm_{arch}")
    if image is None:
        raise RuntimeError(f"NVRTC does not know sm_{arch}")
    return image


def load(device: int, carried: Path | None) -> dict[str, int]:
    """Return the kernels' handles, by name; compiled here if they were not carried along."""
    from pycoll.runtime.native import cuda

    gpu = cuda.device(device)
    arch = f"{gpu.major}{gpu.minor}"
    file = carried and carried / f"computations_{arch}.cubin"
    image = file.read_bytes() if file and file.exists() else _compiled(arch)
    module = cuda.module(device, image)
    return {name: cuda.function(device, module, name) for name in PLAYED}


def played(device: int, carried: Path | None) -> dict[str, int]:
    """Return kernels of the stand-in that say that they take what those above do."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "fakecuda"))
    import fakecuda

    from pycoll.runtime.native import cuda

    module = cuda.module(device, fakecuda.image(**PLAYED))
    return {name: cuda.function(device, module, name) for name in PLAYED}


class Computation:
    """A kernel with its arguments, enqueued with or without padding."""

    def __init__(
        self,
        device: int,
        handle: int,
        grid: tuple[int, int, int],
        threads: int,
        arguments: list[Any],
    ) -> None:
        self._device, self.handle, self._arguments = device, handle, arguments
        self._grid, self._threads = grid, threads

    def padded(self, padding: int) -> Any:
        """Return what enqueues it on a stream with so much dynamic shared memory."""
        from pycoll.runtime.native import cuda

        if padding:
            cuda.function_dynamic(self._device, self.handle, padding)
            cuda.function_carveout(self._device, self.handle, 100)

        def enqueue(stream: Any) -> None:
            cuda.launch(
                self._device,
                self.handle,
                self._grid,
                (self._threads, 1, 1),
                self._arguments,
                stream.ptr,
                shared=padding,
            )

        return enqueue


def take_any() -> None:
    """Compile nothing: the stand-in has the kernels in it, and takes any bytes for a module."""
    from pycoll.runtime.cuda import compile

    compile.cubin = lambda dtype, op, capability, cache: b"any\0"  # type: ignore[assignment]
    compile.transfer_cubin = lambda capability, cache: b"any\0"  # type: ignore[assignment]
    compile.require = lambda capability, cache: None
    compile.multimem = lambda image: True
