"""Blocks of different lengths that only their two ends know."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.schedule import COLLECTIVES

pytestmark = pytest.mark.native


def ranks(size: int, function: Any) -> list[Any]:
    return pycoll.spawn(function, size, timeout=100)


def count(frm: int, to: int, turn: int) -> int:
    """Elements that a rank sends to another: many, few or none."""
    return (0, 3, 1, 1000, 0, 70_001, 12)[(3 * frm + 5 * to + turn) % 7]


def part(frm: int, to: int, turn: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(count(frm, to, turn)) % 100 + 3 * frm + to).astype(dtype)


def parts(pairs: Any, turn: int, dtype: str = "float32") -> np.ndarray:
    return np.concatenate([part(*pair, turn, dtype) for pair in pairs])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_alltoallv(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r, every = comm.rank, range(size)
            for turn, dtype in itertools.product(range(7), ("float32", "int8")):
                x = parts([(r, to) for to in every], turn, dtype)
                want = parts([(frm, r) for frm in every], turn, dtype)
                out = np.full_like(want, -1)
                sent, got = ([count(r, q, turn) for q in every], [count(q, r, turn) for q in every])
                assert comm.alltoallv(x, sent, out, np.array(got)) is out
                assert np.array_equal(out, want)
                out[...] = -1
                work = comm.alltoallv(x, sent, out, got, async_op=True)
                comm.barrier()
                assert work.wait() is out
                assert np.array_equal(out, want)

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gatherv_and_scatterv(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r, every = comm.rank, range(size)
            for turn, root in itertools.product(range(7), every):
                is_root = r == root
                counts = [count(q, root, turn) for q in every]
                whole, mine = parts([(q, root) for q in every], turn), part(r, root, turn)
                at = sum(counts[:root])
                own = slice(at, at + counts[root])
                for how in ("given", "new", "in place", "queued"):
                    out = np.full_like(whole, -1) if is_root and how != "new" else None
                    x = mine
                    if is_root and how == "in place":
                        x = out[own]
                        x[...] = mine
                    more = {"async_op": True} if how == "queued" else {}
                    got = comm.gatherv(x, counts if is_root else None, out, root, **more)
                    got = got.wait() if how == "queued" else got
                    assert (got is None) == (not is_root), how
                    assert not is_root or np.array_equal(got, whole), how
                    assert out is None or got is out
                for how in ("given", "in place", "view", "queued"):
                    x = whole.copy() if is_root else None
                    out = np.full_like(mine, -1)
                    if is_root and how in ("in place", "view"):
                        out = x[own] if how == "in place" else None
                    more = {"async_op": True} if how == "queued" else {}
                    at_root = (x, counts) if is_root else ()
                    got = comm.scatterv(*at_root, out=out, root=root, **more)
                    got = got.wait() if how == "queued" else got
                    assert np.array_equal(got, mine), how
                    assert out is None or got is out

    ranks(size, rank)


def test_arrays_of_torch_and_several_axes() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            r = comm.rank
            x = torch.full((r + 1, 2), float(r)).bfloat16()
            got = comm.gatherv(x, [2, 4] if r == 1 else None, root=1)
            if r == 1:
                assert got.dtype is torch.bfloat16
                assert got.tolist() == [0, 0, 1, 1, 1, 1]
            whole = np.arange(6).reshape(3, 2)
            given, out = (None, np.zeros(2, int)) if r else (whole, None)
            part = comm.scatterv(given, [4, 2], out)
            assert part.tolist() == ([4, 5] if r else [0, 1, 2, 3])
            assert np.shares_memory(part, whole) == (r == 0)

    ranks(2, rank)


def test_two_ends_that_disagree() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)

        def exchange() -> None:
            comm.alltoallv(np.ones(4), [2, 2], np.ones(4 - comm.rank), [2, 2 - comm.rank])
            comm.barrier()

        with pytest.raises((pycoll.MismatchError, pycoll.BrokenError)):
            exchange()

    ranks(2, rank)


def test_arguments_have_one_order_in_all_methods() -> None:
    names = "x counts send_counts out recv_counts op root async_op algorithm timeout order"
    ranked = {name: i for i, name in enumerate(names.split())}
    for name in (*COLLECTIVES, *(f"{c}v" for c in COLLECTIVES)):
        if method := getattr(pycoll.Communicator, name, None):
            given = [ranked[a] for a in inspect.signature(method).parameters if a != "self"]
            assert given == sorted(given), name
            assert {"async_op", "timeout"} < inspect.signature(method).parameters.keys(), name


@pytest.mark.usefixtures("patient")
def test_other_calls_are_no_gatherv() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        with pytest.raises(pycoll.MismatchError, match=r"gatherv\(float64, root 0\) at .*barrier"):
            comm.barrier() if comm.rank else comm.gatherv(np.ones(4), [4, 4])

    ranks(2, rank)


def test_what_is_refused() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(6)
            for call, message in (
                (lambda: comm.gatherv(x), "gatherv: counts is None, want 1 numbers of elements"),
                (lambda: comm.gatherv(x, [5]), "gatherv: x has 6 elements, want 5 by counts"),
                (lambda: comm.gatherv(x, [6], x[1:]), "counts add up to 6 elements, and out has 5"),
                (lambda: comm.gatherv(x, [6], np.ones(6, "i4")), "out has dtype int32, want float"),
                (lambda: comm.gatherv(x[1:], [5], x[:5]), "gatherv: out begins -8 bytes from x an"),
                (lambda: comm.gatherv(x, root=2), "gatherv: root is 2, want a rank"),
                (lambda: comm.scatterv(x, [5]), "counts add up to 5 elements, and x has 6"),
                (lambda: comm.scatterv(None, [5]), "scatterv: x is None, want an array"),
                (lambda: comm.scatterv(x, [6], x[:5]), "scatterv: out has 5 elements, want 6"),
                (lambda: comm.alltoallv(x, [6], None, [6]), "alltoallv: out is a NoneType, want"),
                (lambda: comm.alltoallv(x, [6], x, [6]), "alltoallv: out begins 0 bytes from x"),
                (lambda: comm.alltoallv(x, [1, 5], x, [6]), r"send_counts is \[1, 5\], want 1 num"),
                (lambda: comm.alltoallv(x, [6], np.ones(6), [7]), "recv_counts add up to 7 elemen"),
                (
                    lambda: comm.alltoallv(x, [6], np.ones(6), [6], timeout=-1),
                    "alltoallv: timeout is -1, want seconds",
                ),
            ):
                with pytest.raises(pycoll.UsageError, match=message):
                    call()

    ranks(1, rank)
