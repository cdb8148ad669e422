"""What is only moved moves whatever its dtype; what is reduced needs one with arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycoll

pytestmark = pytest.mark.native

DTYPES: tuple[Any, ...] = (
    "int16",
    "uint16",
    "bool",
    "complex64",
    "complex128",
    "longdouble",
    ">f8",
    ">i2",
    "datetime64[ns]",
    "timedelta64[D]",
    "S5",
    "U3",
    "V7",
    [("a", "i2"), ("b", ">f8", (2,)), ("c", "S3")],
    "float32",  # and one that can be reduced, too
)
ROWS = 4


def kinds() -> list[np.dtype[Any]]:
    found = [np.dtype(kind) for kind in DTYPES]
    try:
        import ml_dtypes
    except ImportError:
        return found
    return found + [
        np.dtype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4")
    ]


def data(kind: np.dtype[Any], count: int, *seed: int) -> np.ndarray[Any, Any]:
    """Elements of any bits that the dtype can have, padding among them."""
    made = np.random.default_rng(seed)
    if kind.kind == "U":  # whose code points end at 0x10ffff
        return np.array(["".join(map(chr, made.integers(1, 9999, 3))) for _ in range(count)], kind)
    bits = made.integers(0, 2 if kind.kind == "b" else 256, count * kind.itemsize, "uint8")
    return np.frombuffer(bits.tobytes(), kind).copy()


def join(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Arrays one behind the other, bit for bit: numpy's own would swap and round."""
    return np.frombuffer(b"".join(x.tobytes() for x in parts), parts[0].dtype).copy()


def same(got: Any, want: Any) -> bool:
    """Tell whether two arrays are of one dtype and hold the same bits."""
    return got.dtype == want.dtype and got.tobytes() == want.tobytes()


def check(comm: pycoll.Communicator, kind: np.dtype[Any]) -> None:
    size, rank, last = comm.size, comm.rank, comm.size - 1
    every = [data(kind, ROWS, r) for r in range(size)]
    mine, joined = every[rank], join(every)

    def fresh(count: int = ROWS) -> np.ndarray[Any, Any]:
        return data(kind, count, 99)

    for again in range(2):  # the second time from the plan that the first one made
        assert same(comm.allgather(mine), joined), again
        assert same(comm.allgather(mine, fresh(ROWS * size)), joined), again
        place = fresh(ROWS * size)
        place[rank * ROWS : (rank + 1) * ROWS] = mine
        comm.allgather(place[rank * ROWS : (rank + 1) * ROWS], place)
        assert same(place, joined), again
        assert same(comm.broadcast(mine.copy(), root=last), every[last]), again
        gathered = comm.gather(mine, root=last)
        assert gathered is None if rank != last else same(gathered, joined), again
        assert same(comm.scatter(joined, fresh(), root=last), mine), again
        whole = join([data(kind, 2, rank, r) for r in range(size)])
        want = join([data(kind, 2, r, rank) for r in range(size)])
        assert same(comm.alltoall(whole), want), again
        assert same(comm.allgather(mine, async_op=True).wait(), joined), again

    plan = comm.plan("allgather", mine, fresh(ROWS * size))
    assert same(plan(), joined)
    assert same(plan(), joined)
    whole = mine.copy()
    plan = comm.plan("broadcast", whole, root=0)
    assert same(plan(), every[0])

    listed = [mine.copy(), np.float32([rank]), mine[:1].copy(), mine.copy().reshape(2, -1)]
    comm.broadcast(listed, root=last)
    assert [same(listed[i], every[last]) for i in (0, 3)] == [True, True]
    assert same(listed[2], every[last][:1])
    assert listed[1] == last
    listed[0][...] = mine
    comm.broadcast(listed, root=0, async_op=True).wait()
    assert same(listed[0], every[0])

    shared = comm.empty((2, ROWS // 2), kind)
    assert (shared.dtype, shared.shape) == (kind, (2, ROWS // 2))
    shared[...] = mine.reshape(2, -1)
    assert same(comm.allgather(shared).reshape(-1), joined)

    counts = [r + 1 for r in range(size)]
    pieces = [data(kind, n, 7, r) for r, n in enumerate(counts)]
    assert same(comm.allgatherv(pieces[rank], counts), join(pieces))
    found = comm.gatherv(pieces[rank], counts if rank == last else None, root=last)
    assert found is None if rank != last else same(found, join(pieces))
    out = fresh(counts[rank])
    comm.scatterv(join(pieces), counts, out, root=0)
    assert same(out, pieces[rank])
    out = fresh(sum(counts))
    comm.alltoallv(join([mine[:1]] * size), [1] * size, out[:size], [1] * size)
    assert same(out[:size], join([x[:1] for x in every]))

    right, left = (rank + 1) % size, (rank - 1) % size
    out = fresh()
    comm.exchange([(mine, right)], [(out, left)])
    assert same(out, every[left])
    if size > 1 and rank < 2:
        if rank == 0:
            comm.send(mine, 1)
            comm.send(mine, to=1, async_op=True).wait()
        else:
            for form in range(2):
                out = fresh()
                if form:
                    comm.recv(out, frm=0, async_op=True).wait()
                else:
                    assert comm.recv(out, 0) is out
                assert same(out, every[0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_move_of_every_dtype(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for kind in kinds():
                check(comm, kind)

    pycoll.spawn(rank, size, timeout=120)


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    names = ("int16", "bool", "complex64", "complex128", "uint16", "float8_e5m2")
    names += ("float8_e4m3fn",)

    def bits(x: Any) -> bytes:
        return bytes(x.reshape(-1).view(torch.uint8).numpy().tobytes())

    def rank() -> None:
        with pycoll.init() as comm:
            for name in names:
                kind = getattr(torch, name)
                itemsize = torch.empty(0, dtype=kind).itemsize
                most = 2 if name == "bool" else 256
                every = [
                    np.random.default_rng(r).integers(0, most, 4 * itemsize, "uint8")
                    for r in range(comm.size)
                ]
                x = torch.from_numpy(every[comm.rank].copy()).view(kind)
                for _ in range(2):
                    got = comm.allgather(x)
                    assert (got.dtype, bits(got)) == (kind, np.concatenate(every).tobytes()), name
                    got = comm.broadcast(x.clone(), root=1)
                    assert (got.dtype, bits(got)) == (kind, every[1].tobytes()), name
                    out = torch.empty_like(x)
                    comm.exchange([(x, 1 - comm.rank)], [(out, 1 - comm.rank)])
                    assert bits(out) == every[1 - comm.rank].tobytes(), name
                with pytest.raises(pycoll.UsageError, match=f"dtype {name}, which can be mov"):
                    comm.allreduce(x)
            # A conjugate is its original and a flag: those bytes are not its elements.
            x = torch.tensor([1 + 2j, 3 - 1j])
            comm.broadcast(x)
            with pytest.raises(pycoll.UsageError, match=r"pass x.resolve_conj\(\).resolve_neg"):
                comm.broadcast(x.conj())
            # One end may be of numpy.
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                assert np.array_equal(comm.recv(np.empty(2, "complex64"), 0), [1 + 2j, 3 - 1j])

    pycoll.spawn(rank, 2, timeout=120)


def test_a_tensor_that_negates_is_refused_at_later_calls_too() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(4)

    def refused(*arrays: Any) -> None:
        with pytest.raises(pycoll.UsageError, match=r"negative of what its memory holds"):
            comm.allgather(*arrays)

    with pycoll.init() as comm:
        for _ in range(2):  # the second time there is a plan for such memory
            refused(torch._neg_view(ones))
            refused(ones, torch._neg_view(torch.empty(4)))
            assert comm.allgather(ones, torch.empty(4)).tolist() == comm.allgather(ones).tolist()


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("int16", "uint16"), r"int16, 8 elements.*uint16, 8 elements"),
        (("int16", "int8"), r"int16, 8 elements.*int8, 8 elements"),
        (("bool", "uint8"), r"bool, 8 elements.*uint8, 8 elements"),
        (("<f8", ">f8"), r"float64, 8 elements.*>f8, 8 elements"),
        (("datetime64[ns]", "datetime64[us]"), r"\[ns\], 8 elements.*\[us\], 8 elements"),
        ((([("a", "i4")]), ([("b", "i4")])), r"\[\('a', '<i4'\)\].*\[\('b', '<i4'\)\]"),
    ],
)
@pytest.mark.usefixtures("patient")
def test_ranks_that_disagree_about_a_dtype_in_a_collective(kinds: Any, message: str) -> None:
    def rank() -> None:
        comm = pycoll.init()
        with pytest.raises(pycoll.MismatchError, match=message):
            comm.allgather(np.zeros(4, kinds[comm.rank]))

    pycoll.spawn(rank, 2, timeout=120)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("int16", "uint16"), r"3 elements int16.*3 elements uint16|3 elements uint16.*int16"),
        (("complex64", "float64"), r"3 elements complex64.*float64|3 elements float64.*complex64"),
        (("bool", "int8"), r"3 elements bool.*int8|3 elements int8.*bool"),
        (("S4", "U1"), r"12 bytes of dtype #\w+.*12 bytes of dtype #\w+"),
        ((">f8", "<f8"), r"24 bytes of dtype #.*3 elements float64|float64.*24 bytes of dtype #"),
    ],
)
@pytest.mark.parametrize("async_op", [False, True])
def test_ends_that_disagree_about_a_dtype(kinds: Any, message: str, async_op: bool) -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = np.zeros(3, kinds[comm.rank])

        def transfer() -> None:
            work = (comm.recv if comm.rank else comm.send)(x, 1 - comm.rank, async_op=async_op)
            if async_op:
                work.wait()
            comm.barrier()

        with pytest.raises((pycoll.MismatchError, pycoll.BrokenError), match=message):
            transfer()

    pycoll.spawn(rank, 2, timeout=120)


def test_reductions_refuse_what_has_no_arithmetic_and_say_what_to_pass() -> None:
    hints = {
        "int16": "convert it to one that is",
        "bool": r"pass x.view\('uint8'\): max is any, min is all",
        "complex64": r"imaginary parts as one real array, x.view\('float32'\)",
        "complex128": r"imaginary parts as one real array, x.view\('float64'\)",
        ">f8": r"pass x.astype\(x.dtype.newbyteorder\('='\)\)",
        "datetime64[ns]": "convert it to one that is",
        "S5": "convert it to one that is",
    }

    def rank() -> None:
        with pycoll.init() as comm:
            n = comm.size
            calls: dict[str, Callable[[Any], Any]] = {
                "allreduce": comm.allreduce,
                "reduce": comm.reduce,
                "reduce_scatter": comm.reduce_scatter,
                "reduce_scatterv": lambda x: comm.reduce_scatterv(x, [1] * n),
                "allreduce: x\\[1\\]": lambda x: comm.allreduce([np.ones(1), x]),
                "allreduce: x": lambda x: comm.plan("allreduce", x),
                "allreduce: x ": lambda x: comm.allreduce(x, async_op=True),
            }
            for kind, hint in hints.items():
                for who, call in calls.items():
                    with pytest.raises(pycoll.UsageError, match=f"^{who}.*not reduced; .*{hint}"):
                        call(np.zeros(n, kind))
            assert comm.allreduce(np.ones(1))[0] == n  # and it goes on

    pycoll.spawn(rank, 2, timeout=120)


def test_elements_that_are_no_fixed_number_of_bytes_are_refused() -> None:
    strings = getattr(np.dtypes, "StringDType", None)
    kinds: list[Any] = [object, [("a", "i4"), ("b", object)], "V0"]
    kinds += [strings()] if strings else []

    def rank() -> None:
        with pycoll.init() as comm:
            for kind in kinds:
                x = np.zeros(3, kind)
                for call in (comm.broadcast, comm.allgather, comm.allreduce):
                    with pytest.raises(
                        pycoll.UsageError, match=r"fixed number of bytes, .*_object"
                    ):
                        call(x)
                with pytest.raises(pycoll.UsageError, match="empty: the array has dtype"):
                    comm.empty(3, kind)

    pycoll.spawn(rank, 1, timeout=120)


def test_a_new_array_has_the_byte_order_that_was_asked_for() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = comm.empty(3, ">f8")
            x[:] = [1, 2, 3]
            assert x.dtype == np.dtype(">f8")
            assert x.tobytes() == np.array([1, 2, 3], ">f8").tobytes()

    pycoll.spawn(rank, 1, timeout=120)
