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
    buffers = comm._engine.launcher.buffers
    read_only = x.copy()
    read_only.flags.writeable = False
    return [
        buffers(read_only, None, "sum"),
        buffers(x[::2], None, "sum"),
        buffers(x.astype(">f4"), None, "sum"),
        buffers(x.astype("complex64"), None, "sum"),
        buffers(x[:4], x[2:6], "sum"),
        buffers(x, x.reshape(2, 4).copy(), "sum"),
        buffers(x, None, "median"),
        buffers(x, None, "prod"),
        buffers("x", None, "sum"),
        buffers(x, None, 3),
    ]


def test_what_has_no_plan_is_handed_back() -> None:
    assert pycoll.spawn(_refusals, 1) == [[None] * 10]
