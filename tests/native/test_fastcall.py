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
