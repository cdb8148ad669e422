"""The library of the stand-in for libcuda: building it, its options, and reading its log.

Options, as keyword arguments; variables of the environment with ``FAKECUDA_`` before them:

==========  =================================================================================
DEVICES     how many GPUs there are, 1; CUDA_VISIBLE_DEVICES chooses of them
THREADS     of a block, at most: 4
MEMORY_MIB  of each GPU: 4096
POISON      bytes of new memory that are filled with 0xa5: the first MiB
STRICT      1: the host dies if it touches GPU memory itself while no stream works
PINNED      1: the host dies if it frees memory that a driver in the kernel has pinned
PEERS       0: GPUs do not reach each other's memory
MULTICAST   1: GPUs hang on one switch with multicast objects; 0
VIRTUAL     0: GPUs have no virtual memory management
CAPABILITY  compute capability, 90; below that a NIC's writes are not ordered by themselves
COHERENT    1: GPUs share the host's page tables, as with a link beside PCIe; 0
RDMA        0: NICs reach no memory of GPUs by its address; 1
DMABUF      0: the driver exports no dma-buf; 1
FLUSH       the flushes that the driver offers, in bits: 1, of the host; 0: none
ORDERING    of NICs' writes: 100 before what the GPU does, 200 before what all do; 0: none
GREEN       0: GPUs have no green contexts
LIMITS      1: the driver says how multiprocessors can be parted, as from CUDA 13 on; 0
PLACES      1: a kernel waits until the multiprocessors of its stream have room for it; 0
MEMOPS      0: streams neither write words nor wait for them
PATIENCE    seconds that a call waits for kernels that run, as the driver may where memory or code
            comes or goes: 30; then they are taken to wait for its caller, which is noted
FAIL        cuMemAlloc:2,kernel:1=719 makes the second cuMemAlloc fail, with OUT_OF_MEMORY, and
            the first kernel that runs, with 719
LOG         where each call is written down: `calls` reads it
==========  =================================================================================
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # where this is run as a program's part, and not by pytest

from compiled import SANITIZERS, Unit, linked  # noqa: E402
from compiled import lack as lack_of_compiler  # noqa: E402

NATIVE = HERE.parents[1] / "native"
SONAME = "libcuda.so.1"
SOURCES = (
    *("library", "errors", "memory", "virtual", "copy", "stream", "graph"),
    *("module", "kernels", "transfers", "peer", "green", "memops", "places"),
)
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int8"),
    *("uint8", "int32", "uint32", "int64", "uint64"),
)  #: in the order of enum pc_dtype
#: As the engine is compiled, where that decides bits: see native/build.py.
FLAGS = (
    *("-std=c++17", "-g1", "-fPIC", "-pthread", "-D_GNU_SOURCE", "-fvisibility=hidden"),
    *("-D_Static_assert=static_assert", "-fwrapv", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wno-format-zero-length", f"-I{NATIVE}"),
)
#: Compiling all kernels well takes a minute: these are for tests of more than a few bytes.
FAST = ("float32",)


def lack() -> str:
    """Say what this machine lacks for the stand-in; empty if nothing."""
    return lack_of_compiler(suffix=".cpp")


@functools.cache
def built(sanitizer: str = "plain", dtypes: Sequence[str] = DTYPES) -> Path:
    """Return the folder of the stand-in, which belongs on LD_LIBRARY_PATH.

    Args:
        sanitizer: What it is compiled with.
        dtypes: Whose kernels: all take a minute.
    """
    flags = SANITIZERS[sanitizer]
    units = [Unit(HERE / f"{name}.cpp", (*FLAGS, "-O1", *flags)) for name in SOURCES]
    for dtype in dtypes:
        fast = "-O1" if dtype in FAST else "-O0"
        which = (f"-DPC_KERNEL_DTYPE={DTYPES.index(dtype)}", f"-DPC_KERNEL_NAME={dtype}")
        units.append(Unit(HERE / "collectives.cpp", (*FLAGS, fast, *which, *flags)))
    return linked(SONAME, units, "-shared", *flags, f"-Wl,-soname,{SONAME}").parent


def library() -> Path:
    """Return the folder of the stand-in with all kernels: the one that `environment` named."""
    named = os.environ.get("FAKECUDA_LIBRARY")
    return Path(named) if named else built()


def environment(log: Path | None = None, **options: object) -> dict[str, str]:
    """Return the variables by which a process finds the stand-in instead of a driver."""
    path = os.environ.get("LD_LIBRARY_PATH", "")
    given = {f"FAKECUDA_{name.upper()}": str(value) for name, value in options.items()}
    if log is not None:
        given["FAKECUDA_LOG"] = str(log)
    folder = str(library())
    return {"LD_LIBRARY_PATH": f"{folder}:{path}".rstrip(":"), "FAKECUDA_LIBRARY": folder, **given}


@dataclass(frozen=True)
class Logged:
    """A line of the log."""

    pid: int
    thread: int
    name: str
    arguments: str
    result: int


_LINE = re.compile(r"(\d+) (\d+) (\w+)\((.*)\) = (\d+)")


def calls(log: Path | None = None) -> list[Logged]:
    """Read the log of what was called, of this process unless it is given."""
    text = (log or Path(os.environ["FAKECUDA_LOG"])).read_text()
    found = [match.groups() for match in map(_LINE.fullmatch, text.splitlines()) if match]
    return [Logged(int(a), int(b), name, given, int(c)) for a, b, name, given, c in found]


def remarks(log: Path | None = None) -> list[str]:
    """Read what the log says beside calls: where something was done that is undefined."""
    lines = (log or Path(os.environ["FAKECUDA_LOG"])).read_text().splitlines()
    return [line.split(" ", 2)[2] for line in lines if not _LINE.fullmatch(line)]
