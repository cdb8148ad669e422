"""The command line that the benchmarks of GPUs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

#: What both libraries have.
COLLECTIVES = (
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
)


def parser(description: str | None, output: Path) -> argparse.ArgumentParser:
    """Return a parser with what every contest takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--min", type=nbytes, default=8, metavar="BYTES")
    made.add_argument("--max", type=nbytes, default=1 << 30, metavar="BYTES")
    made.add_argument("--factor", type=int, default=4)
    made.add_argument("--sizes", type=several, metavar="8,64K,16M", help="in place of a range")
    made.add_argument("--seconds", type=float, default=1800.0, help="of measuring; then it ends")
    made.add_argument("--repeats", type=int, default=11)
    made.add_argument("--modes", default="eager,graph")
    made.add_argument("--blocks", type=int, help="of each rank, at most, of both libraries")
    made.add_argument("--collective", default="allreduce", help="several: one,other")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--empty", action="store_true", help="arrays of comm.empty")
    made.add_argument("--nccl", metavar="PATH", help="libnccl.so.2; found by default")
    made.add_argument("--alone", action="store_true", help="without NCCL")
    made.add_argument("--output", type=Path, default=output)
    made.add_argument("--stand-in", action="store_true", help=argparse.SUPPRESS)  # tests only
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and refuse what cannot be."""
    options = made.parse_args(arguments)
    for mode in options.modes.split(","):
        if mode not in ("eager", "graph"):
            made.error(f"--modes names {mode!r}, want some of eager, graph")
    for name in options.collective.split(","):
        if name not in COLLECTIVES:
            made.error(f"--collective names {name!r}, want some of {', '.join(COLLECTIVES)}")
    if options.min < 1 or options.max < options.min or options.factor < 2:
        made.error("want 1 <= --min <= --max and --factor of at least 2")
    if options.repeats < 1:
        made.error(f"--repeats is {options.repeats}, want at least 1")
    return options


def sizes(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the message sizes, in bytes."""
    if options.sizes:
        return tuple(options.sizes)
    found, size = [], options.min
    while size <= options.max:
        found.append(size)
        size *= options.factor
    if found[-1] != options.max:
        found.append(options.max)
    return tuple(found)


def heap(longest: int) -> str:
    """Return the MiB of PYCOLL_CUDA_HEAP with room for two arrays of so many bytes."""
    return str((2 * longest >> 20) + 8)


def nbytes(text: str) -> int:
    """Read 8, 64K or 256M."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def several(text: str) -> list[int]:
    """Read 8,64K,16M."""
    return [nbytes(part) for part in text.split(",")]


def numbers(text: str) -> list[int]:
    """Read 2,4."""
    return [int(part) for part in text.split(",")]
