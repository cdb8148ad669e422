"""The per-call path refuses what it does not serve, and takes element types by their width."""

from __future__ import annotations

import ctypes

import numpy as np

import pycoll


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
