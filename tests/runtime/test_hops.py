"""One element, followed through all ranks' Programs: what it should be, and after a flip."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from pycoll import algorithms
from pycoll.algorithms import get
from pycoll.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, UINT8, ReduceOp
from pycoll.program import reference
from pycoll.program.arithmetic import storage
from pycoll.program.lower import compile_all
from pycoll.program.reference import bounds
from pycoll.runtime.check import hops
from pycoll.runtime.check.hops import Element, Fit, Graph, TooLarge
from pycoll.schedule import COLLECTIVES, NotDirect

ALL = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
COUNT = 40  #: elements of a block


def numbers(count: int, dtype: Any, rank: int) -> Any:
    bits = np.random.default_rng(rank).integers(0, 256, count * dtype.itemsize, "u1")
    made = bits.view(storage(dtype))
    if made.dtype.kind == "f" and dtype is not FLOAT16:
        made = np.random.default_rng(rank).normal(size=count).astype(made.dtype)
    return made


def followed(
    collective: str, name: str, size: int, dtype: Any, op: ReduceOp, direct: bool = False
) -> None:
    """Compare each element of each output with the reference interpreter's."""
    c = COLLECTIVES[collective]
    programs = compile_all(
        get(name, collective), size, direct=direct, average=op is ReduceOp.AVG and c.reduces
    )
    nblocks = c.nblocks(size)
    inputs = [numbers(COUNT * len(c.in_blocks(r, size)), dtype, r) for r in range(size)]
    counts = [COUNT] * nblocks
    want = reference.run(
        programs, [x.copy() for x in inputs], dtype, op, collective=c, counts=counts
    )
    graph, parts, item = Graph(programs, 4), programs[0].nchunks // nblocks, dtype.itemsize
    for at in (0, COUNT // 2, COUNT - 1):
        part = next(p for p in range(parts) if at * item < bounds(p, parts, COUNT * item)[1])
        given = {
            (rank, block * parts + part): inputs[rank][
                (block - c.in_blocks(rank, size).start) * COUNT + at
            ]
            for rank in range(size)
            for block in c.in_blocks(rank, size)
        }
        places = {
            (rank, block * parts + part): (block - c.out_blocks(rank, size).start) * COUNT + at
            for rank in range(size)
            for block in c.out_blocks(rank, size)
        }
        right = Element(graph, given, list(places), dtype, op).right()
        for (rank, chunk), place in places.items():
            assert right[rank, chunk] == want[rank][place].tobytes(), (rank, chunk, at)


@pytest.mark.parametrize(("collective", "name"), ALL)
@pytest.mark.parametrize("size", [2, 5, 8])
def test_what_is_right_is_what_the_reference_gives(collective: str, name: str, size: int) -> None:
    followed(collective, name, size, FLOAT64, ReduceOp.SUM)
    with contextlib.suppress(NotDirect):
        followed(collective, name, size, INT32, ReduceOp.SUM, direct=True)


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, UINT8], ids=lambda d: d.name)
def test_all_arithmetic_is_followed(dtype: Any, op: ReduceOp) -> None:
    followed("allreduce", "ring", 3, dtype, op)


def an_element(name: str, size: int, *, dtype: Any = FLOAT64) -> Any:
    programs = compile_all(get(name, "allreduce"), size)
    graph = Graph(programs, 4)
    given = {(rank, 0): numbers(1, dtype, rank)[0] for rank in range(size)}
    places = [(rank, 0) for rank in range(size)]
    return Element(graph, given, places, dtype, ReduceOp.SUM)


@pytest.mark.parametrize("name", algorithms.names("allreduce"))
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_flip_anywhere_is_among_those_that_explain_it(name: str, size: int) -> None:
    element = an_element(name, size)
    for node in element._order:
        made, bit = element._nodes[node], 45 + node % 10
        values = dict(element._right)
        values[node] = (values[node].view("u8") ^ np.uint64(1 << bit)).view("f8")
        for user in element._following(node):
            values[user] = element._value(user, values)
        there = {place: values[end].tobytes() for place, end in element._ends.items()}
        if there == element.right():
            continue
        fits = element.fits(there)
        assert Fit(made.kind, made.source, made.target, bit) in fits
        assert len(fits) <= 8 * size


def test_a_flip_of_one_ranks_result() -> None:
    element = an_element("two_shot", 4)
    there = element.right()
    changed = np.frombuffer(there[2, 0], "u8") ^ np.uint64(1 << 50)
    assert Fit("result", 2, 2, 50) in element.fits({**there, (2, 0): changed.tobytes()})


def test_what_no_single_flip_explains() -> None:
    element = an_element("ring", 4)
    there = element.right()
    for rank, bits in ((1, 5), (3, 9)):
        changed = np.frombuffer(there[rank, 0], "u8") ^ np.uint64(bits)
        there[rank, 0] = changed.tobytes()
    assert element.fits(there) == []


def test_what_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    element = an_element("ring", 4)
    monkeypatch.setattr(hops, "MOST_VALUES", 3)
    with pytest.raises(TooLarge, match=r"^more than 3 values would be computed anew$"):
        element.fits(element.right())
    monkeypatch.setattr(hops, "MOST_STEPS", 3)
    with pytest.raises(TooLarge, match=r"^its programs touch \d+ chunks, at most 3 are followed$"):
        an_element("ring", 4)
