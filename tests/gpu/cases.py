"""What the phases run: every algorithm, with data that shows where an element went wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import pycoll
from pycoll import algorithms
from pycoll.arrays.dtype import _NUMPY_DTYPES
from pycoll.dtypes import BY_NAME, DTYPES, OPS

REDUCING = ("allreduce", "reduce", "reduce_scatter")
#: Elements of the message, or of a block where every rank has one.
SMALL = (1, 3, 17, 64, 1000)
MEDIUM = (4097, 16 << 10, (64 << 10) + 3)
LARGE = ((1 << 20) + 7, 16 << 20, 64 << 20)
_TWO_BYTES = np.dtype("V2")


class Case(NamedTuple):
    """One call."""

    algorithm: str
    collective: str
    dtype: str
    op: str  #: "-" where nothing is reduced
    count: int
    skew: int  #: elements by which the arrays lie off their alignment

    def __str__(self) -> str:
        op = "" if self.op == "-" else f" {self.op}"
        skew = f" +{self.skew}" if self.skew else ""
        return f"{self.collective}[{self.algorithm}]{op} {self.dtype} x {self.count}{skew}"


def every_algorithm() -> list[tuple[str, str]]:
    """Return (algorithm, collective) of all built-in algorithms."""
    return [(built.name, built.collective.name) for built in algorithms.BUILTIN]


def cases(
    counts: tuple[int, ...], dtypes: tuple[str, ...] = (), thinned: tuple[int, int] = (1, 0)
) -> Iterator[Case]:
    """Yield a case for each algorithm, dtype and count; operators and skews take turns.

    Args:
        counts: Elements of the message or block.
        dtypes: Their names; all by default.
        thinned: ``(n, k)``: only every n-th algorithm, of each count and dtype others, from the
            k-th on.
    """
    turn = itertools.count()
    every, first = thinned
    for i, count in enumerate(counts):
        for j, dtype in enumerate(dtypes or tuple(kind.name for kind in DTYPES)):
            for algorithm, collective in every_algorithm()[(first + i + j) % every :: every]:
                number = next(turn)
                op = list(OPS)[number % len(OPS)] if collective in REDUCING else "-"
                yield Case(algorithm, collective, dtype, op, count, (0, 0, 1, 3)[number % 4])


def values(case: Case, rank: int, count: int) -> Any:
    """Return a rank's input: every element differs from its neighbours, and from other ranks'."""
    random = np.random.default_rng((count, rank, len(case.algorithm)))
    if case.dtype == "bfloat16":  # the bits of numbers of all sizes, of both signs
        return (random.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    kind = np.dtype(case.dtype)
    if kind.kind == "f":
        return random.standard_normal(count).astype(kind)
    info = np.iinfo(kind)
    return random.integers(info.min, info.max, count, kind, endpoint=True)


def lengths(case: Case, rank: int, size: int) -> tuple[int, int]:
    """Return how many elements a rank's input and its output have."""
    whole, block = case.count * size, case.count
    root = rank == 0
    return {
        "allreduce": (block, block),
        "broadcast": (block, block),
        "reduce": (block, block if root else 0),
        "allgather": (block, whole),
        "reduce_scatter": (whole, block),
        "alltoall": (whole, whole),
        "gather": (block, whole if root else 0),
        "scatter": (whole if root else 0, block),
    }[case.collective]


def host_array(bits: Any, dtype: str) -> Any:
    """Return an array of the host as pycoll takes it.

    numpy has no bfloat16, and a machine with a GPU may have no torch: here it is two bytes of no
    kind, of which pycoll is told what they are.
    """
    if dtype != "bfloat16":
        return bits
    _NUMPY_DTYPES[_TWO_BYTES] = BY_NAME[dtype]
    return bits.view(_TWO_BYTES)


def call(comm: Any, case: Case, x: Any, out: Any) -> None:
    """Run or enqueue a case."""
    method = getattr(comm, case.collective)
    more: dict[str, Any] = {"algorithm": case.algorithm}
    if case.op != "-":
        more["op"] = case.op
    if case.collective == "broadcast":
        method(x, **more)
    else:
        method(x, out, **more)


def make_ready(comm: Any, case: Case, x: Any, out: Any) -> None:
    """Make the plan of a case and load its kernel, which may wait for kernels that run."""
    given = None if case.collective == "broadcast" else out
    op = "sum" if case.op == "-" else case.op
    comm.plan(case.collective, x, given, op=op, algorithm=case.algorithm)


def nbytes(case: Case, size: int) -> int:
    """Return the bytes of the largest array that any rank has."""
    return max(lengths(case, 0, size)) * BY_NAME[case.dtype].itemsize


def expected(comm: pycoll.Communicator, case: Case, rank: int, size: int) -> tuple[Any, Any]:
    """Return a rank's input, and its output as the CPU's executor makes it; both as bits."""
    inputs, outputs = lengths(case, rank, size)
    given = values(case, rank, inputs)
    if case.collective == "broadcast":
        out = given.copy()
        call(comm, case, host_array(out, case.dtype), None)
        return given, out
    out = np.zeros(outputs, given.dtype)
    call(comm, case, host_array(given.copy(), case.dtype), host_array(out, case.dtype))
    return given, out


def same_bits(got: Any, want: Any) -> bool:
    """Tell whether two arrays are equal bit for bit."""
    return got.tobytes() == want.tobytes()


def difference(got: Any, want: Any) -> str:
    """Say where two arrays first differ."""
    bits = f"u{got.itemsize}"
    wrong = np.flatnonzero(got.view(bits) != want.view(bits))
    at = int(wrong[0])
    return f"{len(wrong)} of {len(got)} elements, first {at}: got {got[at]!r}, want {want[at]!r}"
