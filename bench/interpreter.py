"""What does the interpreter cost, and how far from the machine's limit is all-reduce?

Two processes; in one run alternate the engine (called from a loop in C), the same algorithms
written by hand in C, and a loop that moves only the bytes any all-reduce must move.

Run: python bench/interpreter.py
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from launch import RESULTS, write

import pycoll
from pycoll.benchmark import metadata, report
from pycoll.benchmark.oob import gather, share
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Array, Problem
from pycoll.benchmark.timing import Case, Rules, measure
from pycoll.dtypes import ReduceOp
from pycoll.runtime.native import load

SLOTS, SLOT_BYTES = 4, 256 << 10
SIZES = (8, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
LARGEST = SIZES[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--max", type=int, default=LARGEST)
    parser.add_argument("--output", type=Path, default=RESULTS / "interpreter.json")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.max]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "twin.so"))
        source = str(Path(__file__).with_name("interpreter.c"))
        flags = ["-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", library, source], check=True)
        meta, rows = pycoll.spawn(rank, 2, library, sizes, options.repeats, timeout=3600)[0]
    for row in rows:
        print(report.line(row))
    write(options.output, meta, rows)


class Twin:
    """The hand-written code, bound to memory that both ranks share."""

    def __init__(self, library: str, comm: Any, largest: int) -> None:
        self.c = ctypes.CDLL(library)
        self.c.twin_open.restype = ctypes.c_void_p
        for name in ("one_shot", "two_shot", "limit", "engine"):
            getattr(self.c, f"twin_{name}").restype = ctypes.c_double
        self.c.twin_arrays.restype = ctypes.c_size_t
        slots = ctypes.c_uint32(SLOTS), ctypes.c_size_t(SLOT_BYTES)
        self.offset = int(self.c.twin_arrays(*slots))
        self.largest = largest
        half = self.offset + 2 * largest
        # Both ranks open rank 0's memory by its process and descriptor: no name is left behind.
        fd = -1
        if comm.rank == 0:
            fd = os.memfd_create("twin")
            os.ftruncate(fd, 2 * half)
        path = share(comm)(f"/proc/{os.getpid()}/fd/{fd}")
        mine = os.open(path, os.O_RDWR)
        self.memory = mmap.mmap(mine, 2 * half)
        self.handle = ctypes.c_void_p(
            self.c.twin_open(mine, ctypes.c_size_t(2 * half), comm.rank, *slots)
        )
        gather(comm)(0.0)  # rank 0 keeps its descriptor until the other has opened it
        for opened in {fd, mine} - {-1}:
            os.close(opened)
        self.start = comm.rank * half + self.offset

    def arrays(self, nbytes: int) -> tuple[Array, Array]:
        """Return this rank's input and output of `limit`."""
        views = (self.start, self.start + self.largest)
        return tuple(np.frombuffer(self.memory, np.float32, nbytes // 4, at) for at in views)

    def call(self, name: str, x: Array, out: Array, *more: int) -> Callable[[int], float]:
        """Return a block timer for one of the hand-written loops."""
        function = getattr(self.c, f"twin_{name}")
        addresses = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        count = ctypes.c_size_t(x.size)
        if name == "limit":
            sizes = ctypes.c_size_t(self.offset), ctypes.c_size_t(self.largest)
            return lambda calls: function(self.handle, count, *sizes, *more, ctypes.c_long(calls))
        return lambda calls: function(self.handle, *addresses, count, *more, ctypes.c_long(calls))

    def engine(self, comm: Any, plan: Any, x: Array, out: Array) -> Callable[[int], float]:
        """Return a block timer that calls the engine from C, with no Python between the calls."""
        native, ffi = load.lib, load.ffi
        run, resume = (
            ctypes.c_void_p(int(ffi.cast("uintptr_t", ffi.addressof(native, name))))
            for name in ("pc_run", "pc_resume")
        )
        # Private names: a user has no business with these pointers.
        handles = (
            ctypes.c_void_p(number) for number in (comm._engine.number, plan._owner[-1].number)
        )
        addresses = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        pointers = [*handles, *addresses]

        def block(calls: int) -> float:
            took = self.c.twin_engine(run, resume, *pointers, ctypes.c_long(calls))
            if took < 0:
                raise RuntimeError("the engine failed inside the timed loop")
            return float(took)

        return block


def case(
    library: str,
    name: str,
    arrays: str,
    pair: tuple[Array, Array],
    block: Callable[[int], float],
) -> Case:
    """Return a case whose blocks are timed in C."""
    run = functools.partial(block, 1)
    return Case(library, name, "shm", arrays, "plan", *pair, run, block)


def rank(library: str, sizes: list[int], repeats: int) -> tuple[dict[str, Any], list[Any]]:
    """Time everything on one rank."""
    rows = []
    with pycoll.init() as comm:
        twin = Twin(library, comm, max(sizes))
        largest = max(sizes) // 4
        private = np.empty(largest, np.float32), np.empty(largest, np.float32)
        shared = comm.empty(largest, "float32"), comm.empty(largest, "float32")
        for nbytes in sizes:
            x, out = (array[: nbytes // 4] for array in private)
            cases = []
            name = "one_shot" if nbytes <= 56 else "two_shot"
            plan = comm.plan("allreduce", x, out, algorithm=name)
            cases.append(case("pycoll", name, "numpy", (x, out), twin.engine(comm, plan, x, out)))
            if name == "one_shot":
                cases.append(case("twin", name, "numpy", (x, out), twin.call(name, x, out)))
            else:
                for past in (0, 1):
                    label = f"twin{' past cache' if past else ''}"
                    cases.append(
                        case(label, name, "numpy", (x, out), twin.call(name, x, out, past))
                    )
                near, result = (array[: nbytes // 4] for array in shared)
                direct = comm.plan("allreduce", near, result)
                cases.append(Case("pycoll", "chosen", "shm", "empty", "plan", near, result, direct))
                pair = twin.arrays(nbytes)
                for past in (0, 1):
                    label = f"limit{' past cache' if past else ''}"
                    cases.append(
                        case(label, "limit", "empty", pair, twin.call("limit", *pair, past))
                    )
            problem = Problem(
                OPERATIONS["allreduce"], x.size, "float32", ReduceOp.SUM, comm.rank, comm.size
            )
            timings = measure(cases, problem, gather(comm), Rules(repeats))
            for timed, timing in zip(cases, timings, strict=True):
                rows.append(report.row(timed, timing, problem))
        return metadata.collect(comm.launcher, comm.size, {}), rows


if __name__ == "__main__":
    main()
