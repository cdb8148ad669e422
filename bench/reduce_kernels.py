"""GB/s of the reduce kernels, beside memcpy and a loop written by hand with intrinsics.

    python bench/reduce_kernels.py [--level 0|1|2] [--only TEXT] [--json FILE]

GB/s counts the bytes of one operand; a sum of two moves three times as much. Each figure is the
best of many repeats, taken in one process on one core. Native code only, so it needs no build:
native/reduce/reduce.c and the loop below are compiled with the flags of the engine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pycoll.dtypes import BY_NAME, OPS  # noqa: E402

SIZES = [4 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
COUNTS = [1, 2, 4, 10, 16, 33, 64, 256]
FLAGS = "-std=gnu11 -O3 -ffp-contract=off -fno-math-errno -shared -fPIC"

HARNESS = r"""
#include <string.h>
#include <time.h>
#include "reduce/reduce.h"
#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx512f"))) void by_hand(
    void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc, size_t count,
    uint32_t divisor, uint32_t stream)
{
    float *to = dst[0];
    const float *a = src[0], *b = src[1];
    (void)ndst, (void)nsrc, (void)divisor;
    for (size_t i = 0; i < count; i += 64)
#pragma GCC unroll 4
        for (size_t j = i; j < i + 64; j += 16) {
            __m512 sum = _mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(b + j));
            if (stream)
                _mm512_stream_ps(to + j, sum);
            else
                _mm512_storeu_ps(to + j, sum);
        }
    _mm_sfence();
}
#endif

void by_libc(void *const dst[], uint32_t ndst, const void *const src[], uint32_t nsrc, size_t count,
             uint32_t divisor, uint32_t stream)
{
    (void)ndst, (void)nsrc, (void)divisor, (void)stream;
    memcpy(dst[0], src[0], 4 * count);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The least time of one call, ns. */
double best(pc_fold_fn fold, void *const dst[], uint32_t ndst, const void *const src[],
            uint32_t nsrc, size_t count, uint32_t divisor, uint32_t stream, int calls, int repeats)
{
    double least = 1e30;
    for (int r = 0; r < repeats; r++) {
        double start = now();
        for (int i = 0; i < calls; i++) {
            fold(dst, ndst, src, nsrc, count, divisor, stream);
            __asm__ volatile("" ::: "memory");
        }
        double time = (now() - start) / calls;
        least = time < least ? time : least;
    }
    return least;
}
"""


class Case(NamedTuple):
    """One row of the table."""

    dtype: str
    op: str
    nsrc: int = 2
    ndst: int = 1
    stream: int = 0
    by: str = "pycoll"

    @property
    def name(self) -> str:
        """What the row is called."""
        what = "copy" if self.nsrc == 1 else f"{self.dtype} {self.op}"
        shape = f"{what} {self.nsrc}>{self.ndst}{' streamed' if self.stream else ''}"
        return shape if self.by == "pycoll" else f"{shape} {self.by}"


CASES = [
    Case("float32", "sum", by="by_hand"),
    Case("float32", "sum"),
    Case("float32", "sum", stream=1, by="by_hand"),
    Case("float32", "sum", stream=1),
    Case("float32", "sum", nsrc=3),
    Case("float32", "sum", nsrc=8),
    Case("float32", "sum", ndst=2),
    Case("float32", "sum", ndst=2, stream=3),
    Case("float32", "sum", nsrc=1, by="by_libc"),
    Case("float32", "sum", nsrc=1),
    Case("float32", "sum", nsrc=1, stream=1),
    Case("float32", "sum", nsrc=1, ndst=2),
    Case("float32", "avg"),
    *(Case("float32", op) for op in ("prod", "min", "max")),
    *(Case(dtype, op) for dtype in BY_NAME if dtype != "float32" for op in ("sum", "max", "avg")),
]


def library() -> ctypes.CDLL:
    """Compile the kernels and the harness."""
    folder = Path(tempfile.mkdtemp(prefix="reduce-kernels-"))
    harness = folder / "harness.c"
    harness.write_text(HARNESS)
    built = folder / "kernels.so"
    sources = [str(harness), str(ROOT / "native" / "reduce" / "reduce.c"), f"-I{ROOT / 'native'}"]
    subprocess.run(["cc", *shlex.split(FLAGS), *sources, "-o", str(built)], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.pc__fold.restype = ctypes.c_void_p
    loaded.pc__cpu_features.restype = ctypes.c_char_p
    loaded.best.restype = ctypes.c_double
    loaded.best.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32,
        ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", type=int, default=-1, help="of SIMD; the best by default")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    loaded = library()
    if loaded.pc__reduce_level(options.level) < 0:
        parser.error(f"--level {options.level}: this CPU has no such level")
    memory = [ctypes.create_string_buffer(max(SIZES) + 4096) for _ in range(10)]
    for buffer in memory:
        ctypes.memset(buffer, 0x3F, len(buffer))  # a moderate number in every dtype
    places = [(ctypes.addressof(buffer) + 4095) // 4096 * 4096 for buffer in memory]
    sources, destinations = (ctypes.c_void_p * 8)(*places[:8]), (ctypes.c_void_p * 2)(*places[8:])

    def nanoseconds(case: Case, count: int, calls: int, repeats: int) -> float:
        dtype, op = BY_NAME[case.dtype].code, OPS[case.op]
        fold = loaded.pc__fold(dtype, op) if case.by == "pycoll" else getattr(loaded, case.by)
        return loaded.best(fold, destinations, case.ndst, sources, case.nsrc, count,
                           2 if case.op == "avg" else 0, case.stream, calls, repeats)  # fmt: skip

    features = loaded.pc__cpu_features().decode()
    print(f"{features}; GB/s at bytes per operand, then ns at float32 counts")
    columns = [f"{s >> 20} MiB" if s >> 20 else f"{s >> 10} KiB" for s in SIZES]
    print(f"{'':32}" + "".join(f"{c:>9}" for c in columns) + "".join(f"{n:>7}" for n in COUNTS))
    rows = []
    for case in CASES:
        if options.only not in case.name or (case.by == "by_hand" and "avx512" not in features):
            continue
        rates = [
            size / nanoseconds(case, size // BY_NAME[case.dtype].itemsize,
                               max(1, min(200, (8 << 20) // size)), 12 if size > 8 << 20 else 60)
            for size in SIZES
        ]  # fmt: skip
        small = [] if case.by == "by_hand" else [nanoseconds(case, n, 200, 100) for n in COUNTS]
        print(f"{case.name:32}" + "".join(f"{rate:9.1f}" for rate in rates)
              + "".join(f"{time:7.1f}" for time in small), flush=True)  # fmt: skip
        rows.append({"name": case.name, "GBps": dict(zip(SIZES, rates, strict=True)),
                     "ns": dict(zip(COUNTS, small, strict=False))})  # fmt: skip
    if options.json:
        meta = {"host": platform.node(), "machine": platform.machine(), "features": features}
        options.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
