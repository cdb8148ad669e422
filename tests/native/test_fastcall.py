"""The per-call path refuses what it does not serve, and takes element types by their width."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.errors import PycollError
from pycoll.runtime.native import load


def _ctypes_arrays() -> list[list[int]]:
    comm = pycoll.init()
    arrays = [(ctypes.c_int32 * 4)(*[2**31 - 1] * 4), (ctypes.c_long * 2)(2**31 - 1, 1)]
    for array in arrays * 2:  # the first time by the slow path, which makes the plan
        comm.allreduce(array)
    return [list(array) for array in arrays]


def test_elements_are_as_wide_as_their_type() -> None:
    # 32 bits wrap inside each element, 64 bits hold it; both are 16 bytes long.
    want = [[-4] * 4, [4 * (2**31 - 1), 4]]
    assert pycoll.spawn(_ctypes_arrays, 2) == [want, want]


def _refusals() -> list[object]:
    comm = pycoll.init()
    x = np.ones(8, "float32")
    comm.allreduce(x)
    call = comm._engine.dispatcher.call
    read_only = x.copy()
    read_only.flags.writeable = False
    return [
        call(0, read_only, None, "sum", 0),
        call(0, x[::2], None, "sum", 0),
        call(0, x.astype(">f4"), None, "sum", 0),
        call(0, x.astype("complex64"), None, "sum", 0),
        call(0, x[:4], x[2:6], "sum", 0),
        call(0, x, x.reshape(2, 4).copy(), "sum", 0),
        call(0, x, None, "median", 0),
        call(0, x, None, "prod", 0),
        call(0, "x", None, "sum", 0),
        call(0, x, None, 3, 0),
        call(0, x, None, 99, 0),
        call(0, None, None, "sum", 0),
        call(0, x, None, "sum", 1),
        call(0, x, None, "sum", -1),
        call(0, x, None, "sum", "0"),
        call(1, x, None, "sum", 0),
    ]


def test_what_has_no_plan_is_handed_back() -> None:
    assert pycoll.spawn(_refusals, 1) == [[None] * 16]


def _views() -> list[object]:
    """Calls with arrays whose dtype is known from the call before, of every kind of shape."""
    comm = pycoll.init()
    call = comm._engine.dispatcher.call
    found: list[object] = []
    for dtype in ("float16", "float64", "int8", "uint32", "longlong", "int64"):
        for shape in ((), (0,), (3,), (2, 3), (2, 0, 3)):
            comm.allreduce(np.ones(shape, dtype))  # the plan, and the dtype's descriptor
            x, out = np.full(shape, 3, dtype), np.zeros(shape, dtype)
            found.append(call(0, x, out, "sum", 0) is out and bool((out == 3).all()))
    whole = np.zeros(3 * 8 + 1, "uint8")
    unaligned = whole[1:].view("float64")
    unaligned[:] = 5
    out = np.zeros(3)
    found.append(comm.allreduce(unaligned, out) is out and list(out) == [5, 5, 5])
    same = np.frombuffer(bytearray(24), "float64")  # not numpy's own memory
    found.append(call(0, np.ones(3), same, "sum", 0) is same and list(same) == [1, 1, 1])
    kin = np.dtype("float64", metadata={"unit": "m"})  # equal, and another descriptor
    found.append(call(0, np.full(3, 2.0, kin), out, "sum", 0) is out and list(out) == [2, 2, 2])
    found.append(call(0, np.ones(3), np.ones(3)[::-1], "sum", 0))
    found.append(call(0, np.ones(3), np.ones((3, 2))[:, 0], "sum", 0))
    locked = np.ones(3)
    locked.flags.writeable = False
    found.append(call(0, locked, out, "sum", 0) is out)
    found.append(call(0, out, locked, "sum", 0))
    return found


def test_arrays_of_numpy_are_seen_as_the_buffer_protocol_shows_them() -> None:
    assert pycoll.spawn(_views, 1) == [[True] * 33 + [None, None, True, None]]


@pycoll.algorithm("allreduce")
def through_rank_0(b: pycoll.ScheduleBuilder) -> None:
    """Fold at rank 0, and send from there."""
    x = b.output
    for peer in range(1, b.size):
        if b.rank == 0:
            b.recv_reduce(x[:], frm=peer)
        elif b.rank == peer:
            b.send(x[:], to=0)
    for peer in range(1, b.size):
        if b.rank == 0:
            b.send(x[:], to=peer)
        elif b.rank == peer:
            b.recv(x[:], frm=0)


def _frames(call: Callable[[], object]) -> list[str]:
    """Return the functions of Python's that a call enters."""
    found: list[str] = []

    def look(frame: Any, event: str, _: object) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)

    sys.setprofile(look)
    call()
    sys.setprofile(None)
    return found[1:]


def _asks(asynchronously: bool) -> list[list[str]]:
    """Make calls that ask for algorithms; return what each enters from its second time on."""
    comm, found = pycoll.init(), []
    for wanted in ("ring", "".join(["ri", "ng"]), "two_shot", through_rank_0):
        for op in ("sum", "max"):
            x = np.full(100, comm.rank + 1.0)
            for turn in range(4):
                x[:] = comm.rank + 1
                call = lambda: comm.allreduce(x, op=op, algorithm=wanted)  # noqa: B023, E731
                entered = _frames(call)
                assert (x == (sum(range(comm.size + 1)) if op == "sum" else comm.size)).all()
                if turn:
                    found.append(entered)
            if asynchronously:  # the same plan, by the other path
                comm.allreduce(x, op=op, algorithm=wanted, async_op=True).wait()
        assert comm.plan("allreduce", x, algorithm=wanted).algorithm in (wanted, "through_rank_0")
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_that_ask_for_an_algorithm_are_one_native_call(size: int) -> None:
    for found in pycoll.spawn(lambda: _asks(size == 2), size):
        assert len(found) == 24
        # One that took longer than a millisecond is only carried to its end.
        assert not {"run", "again"} & {name for entered in found for name in entered}


def _wrong() -> list[list[str]]:
    """Ask for what there is not, before and after there are plans; return what is said."""
    comm, found = pycoll.init(), []
    x = np.ones(16)
    for _ in range(2):
        said: list[str] = []
        for wanted in ("rings", "pairwise", "", 3, [], {}, object, True, (), "ring "):
            with pytest.raises((PycollError, TypeError)) as error:
                comm.allreduce(x, algorithm=wanted)  # type: ignore[call-overload]
            said.append(f"{type(error.value).__name__}: {error.value}")
        found.append(said)
        comm.allreduce(x, algorithm="ring")
        comm.allreduce(x, algorithm="ring")
    comm.close()
    with pytest.raises(PycollError, match="closed"):
        comm.allreduce(x, algorithm="ring")
    return found


def test_an_algorithm_that_there_is_not_is_refused_the_same_each_time() -> None:
    ((first, second),) = pycoll.spawn(_wrong, 1)
    assert first == second
    assert first[0].startswith("UsageError: algorithm is 'rings', want one of ")
    assert "algorithm is a list, want the name of a built-in" in first[4]


def _forgets() -> int:
    """Forget all plans amid calls that ask for algorithms of one's own."""
    comm, x = pycoll.init(), np.ones(8)
    dispatcher = comm._engine.dispatcher
    for turn in range(30):
        wanted = pycoll.Algorithm(lambda b: through_rank_0(b), pycoll.allreduce)
        for _ in range(2):
            x[:] = 1
            comm.allreduce(x, algorithm=wanted)
        other = dispatcher.of(wanted)
        assert other is dispatcher.of(wanted)
        if turn % 10 == 0:
            comm._collectives.launch.plans.forget()
            assert other.call(0, x, None, "sum", 0) is None
            assert other is not dispatcher.of(wanted)
    return int(x[0])


def test_plans_are_forgotten_whoever_asked_for_them() -> None:
    assert pycoll.spawn(_forgets, 2) == [2, 2]


def test_a_dispatcher_and_an_algorithm_that_hold_each_other_are_collected() -> None:
    class Wanted:
        dispatcher: Any

    wanted = Wanted()
    wanted.dispatcher = load.fastcall.Dispatcher(0, 1.0)
    other = wanted.dispatcher.of(wanted)
    assert other is wanted.dispatcher.of(wanted)
    assert wanted.dispatcher.of(None) is wanted.dispatcher
    with pytest.raises(TypeError, match="unhashable"):
        wanted.dispatcher.of([])
    gone = weakref.ref(wanted)
    del wanted, other
    gc.collect()
    assert gone() is None
