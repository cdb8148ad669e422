"""Which arrays are served, and what the message says to do about the others."""

from __future__ import annotations

import array
import ctypes
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.arrays import driver, families
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.dtype import dtype_named, require_reduced
from pycoll.arrays.host import BUFFER, DLPACK, NUMPY
from pycoll.arrays.interface import INTERFACE
from pycoll.arrays.torch import pointers
from pycoll.dtypes import BFLOAT16, BY_NAME, FLOAT32, FLOAT64, INT64, UINT8
from pycoll.errors import UnavailableError, UsageError


def refused(x: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        families.look(x, "allreduce: x")


@pytest.mark.parametrize("name", [n for n in BY_NAME if n != "bfloat16"])
def test_numpy_arrays_of_every_dtype(name: str) -> None:
    x = np.zeros((2, 3), name)
    seen = families.look(x, "x")
    assert seen.dtype is BY_NAME[name]
    assert seen.address == x.ctypes.data
    assert (seen.count, seen.nbytes, seen.shape) == (6, x.nbytes, (2, 3))
    assert seen.writable
    assert seen.owner is x


@given(st.integers(0, 40), st.integers(0, 7), st.booleans())
def test_offset_slices_keep_their_address(count: int, start: int, writable: bool) -> None:
    x = np.zeros(50, "int16").view("uint8")[start : start + count]
    x.flags.writeable = writable
    seen = families.look(x, "x")
    assert (seen.count, seen.writable, seen.dtype) == (count, writable, UINT8)
    if count:
        assert seen.address == x.ctypes.data


def test_scalars_and_empty_arrays() -> None:
    assert families.look(np.array(3.0), "x").shape == ()
    assert families.look(np.array(3.0), "x").count == 1
    assert families.look(np.empty((0, 4)), "x").count == 0
    assert families.look(b"", "x").count == 0
    assert not families.look(np.float32(2), "x").writable


@pytest.mark.parametrize(
    ("x", "dtype", "count", "writable"),
    [
        (array.array("f", [1, 2]), FLOAT32, 2, True),
        (array.array("l", [1]), INT64, 1, True),
        (bytearray(3), UINT8, 3, True),
        (b"abc", UINT8, 3, False),
        ((ctypes.c_double * 4)(), FLOAT64, 4, True),
        (memoryview(bytearray(8)).cast("q"), INT64, 1, True),
    ],
)
def test_objects_with_the_buffer_protocol(x: Any, dtype: Any, count: int, writable: bool) -> None:
    seen = families.look(x, "x")
    assert (seen.dtype, seen.count, seen.writable) == (dtype, count, writable)
    assert seen.address
    assert seen.owner is x


def test_memory_stays_where_it_is_while_a_view_of_it_lives() -> None:
    x = array.array("d", [1.0] * 100)
    seen = families.look(x, "x")
    with pytest.raises(BufferError):
        x.extend([0.0])
    del seen
    x.extend([0.0])


def test_what_dlpack_hands_over_lives_as_long_as_the_view() -> None:
    class Lazy:
        """Makes its memory when it is asked, and keeps none of it."""

        def __dlpack__(self, **options: Any) -> Any:
            made = np.arange(4.0)
            ends.append(weakref.ref(made))
            return made.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    ends: list[Any] = []
    seen = families.look(Lazy(), "x")
    assert ends[0]() is not None
    del seen
    assert ends[0]() is None


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(4, 2, dtype=torch.bfloat16)[1:]
    seen = families.look(x, "x")
    assert (seen.dtype, seen.shape, seen.address) == (BFLOAT16, (3, 2), x.data_ptr())
    out, start = torch.empty_like(x), x.data_ptr()
    assert pointers(x, None, True) == (start, start, 12, 12, BFLOAT16.code)
    assert pointers(x, out, True) == (start, out.data_ptr(), 12, 12, BFLOAT16.code)
    for wrong in (out.float(), out[:1], np.zeros(6), torch.zeros(2, 3).bfloat16().T):
        assert pointers(x, wrong, True) is None
    assert pointers(np.zeros(3), None, True) is None
    assert pointers(x.T, None, True) is None
    twice = torch.zeros(12).bfloat16()
    assert pointers(x, twice, False) == (start, twice.data_ptr(), 12, 24, BFLOAT16.code)


def test_new_arrays_are_of_the_same_kind() -> None:
    torch = pytest.importorskip("torch")
    made = families.empty(families.look(torch.zeros(3, dtype=torch.bfloat16), "x"), (2, 3)).owner
    assert (made.dtype, made.shape) == (torch.bfloat16, (2, 3))
    for x in (np.zeros(3, "int8"), array.array("b", [1])):
        made = families.empty(families.look(x, "x"), (4,)).owner
        assert (type(made), made.dtype, made.shape) == (np.ndarray, np.int8, (4,))


def test_rows_are_views() -> None:
    torch = pytest.importorskip("torch")
    for x in (
        np.zeros((4, 3)),
        torch.zeros((4, 3), dtype=torch.float64),
        array.array("d", [0.0] * 12),
        memoryview(np.zeros((4, 3))),
    ):
        whole = families.look(x, "x")
        part = families.rows(whole, 1, 3) if len(whole.shape) > 1 else families.rows(whole, 3, 9)
        assert (part.address, part.count) == (whole.address + 24, 6)
        assert part.writable


def test_not_contiguous() -> None:
    refused(
        np.ones((3, 4)).T,
        r"^allreduce: x is not contiguous \(shape \(4, 3\), strides \(8, 32\)\); "
        r"pass numpy.ascontiguousarray\(x\) with out=$",
    )
    refused(np.ones(8)[::2], r"not contiguous \(shape \(4,\), strides \(16,\)\)")
    refused(memoryview(bytearray(8))[::2], r"not contiguous .* pass a copy with out=")


def test_dtypes_that_are_only_moved() -> None:
    def unreduced(x: Any, message: str) -> None:
        seen = families.look(x, "allreduce: x")
        with pytest.raises(UsageError, match=message):
            require_reduced(seen.dtype, "allreduce: x")

    unreduced(np.ones(2, bool), r"dtype bool, .*not reduced; pass x.view\('uint8'\)")
    unreduced(np.ones(2, complex), r"dtype complex128, .* real and imaginary parts")
    unreduced(np.ones(2, "int16"), r"int16, .*convert it to one that is \(reduced: float64, flo")
    unreduced(np.array(["a"]), "dtype U1, which can be moved")
    unreduced(np.ones(2, ">f4"), r"dtype >f4, .*; pass x.astype")
    unreduced(array.array("h", [1]), "dtype int16, which can be moved")
    unreduced(memoryview(bytearray(2)).cast("?"), r"dtype bool, which can be moved")


def test_structures_are_named_by_their_fields() -> None:
    kind = np.dtype([("a", "i4"), ("b", ">f8")])
    name = "[('a', '<i4'), ('b', '>f8')]"
    seen = families.look(np.zeros(3, kind), "x")
    assert (seen.dtype.name, seen.dtype.itemsize, seen.nbytes) == (name, 12, 36)
    assert families.look(np.zeros(3, kind).view(np.recarray), "x").dtype is seen.dtype
    assert families.look(np.zeros(3, [("b", "i4"), ("a", ">f8")]), "x").dtype != seen.dtype
    wide = [np.dtype([(f"field{i}", "f8") for i in range(50)] + [(last, "f8")]) for last in "ab"]
    one, other = (families.look(np.zeros(1, w), "x").dtype for w in wide)
    assert one.name[:60] == other.name[:60]
    assert one != other
    assert len(one.name) < 80


def test_elements_that_lie_elsewhere_are_refused() -> None:
    refused(np.array([[]], object), "dtype object, want elements of a fixed number of bytes.*_obj")
    refused((ctypes.py_object * 2)(), "want elements of a fixed number|format 'O'")
    pointers = (ctypes.POINTER(ctypes.c_int) * 2)()
    refused(pointers, r"elements of format '&<i' in the buffer protocol.*cast\('B'\)")


def test_what_is_no_array() -> None:
    refused([3.0], r"x is a list, want an array .* lists of arrays are for allreduce")
    refused(3.0, r"x is a float, want an array .* for a number pass numpy.array\(\[x\]\)")
    refused(None, "x is a NoneType, want an array")

    class Elsewhere:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("on a device")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    refused(Elsewhere(), "x is a Elsewhere whose memory cannot be shared")


def test_dtypes_by_name() -> None:
    assert dtype_named("float32", "x") is FLOAT32
    assert dtype_named("int16", "x").itemsize == 2
    with pytest.raises(UsageError, match="x has dtype float4x2, want one of float64, float32"):
        dtype_named("float4x2", "x")


SHOWN = {"typestr": "<f8", "shape": (3,), "data": (0x7000, False)}


class Units(np.ndarray):
    """A subclass, as libraries of physical units have it."""

    __cuda_array_interface__: Any = SHOWN


class Everything(array.array):
    """Shows a buffer, and says that it lies on a GPU, too: as managed memory could."""

    __cuda_array_interface__: Any = SHOWN

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class OnGpu:
    """Says where it lies in two ways."""

    __cuda_array_interface__: Any = SHOWN

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("its interface says it all")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class OnHost(OnGpu):
    """Has DLPack, and says by it that it lies on the host."""

    __cuda_array_interface__ = None

    def __dlpack__(self, **options: Any) -> Any:
        return np.zeros(3).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize(
    ("x", "family"),
    [
        (np.zeros(3), NUMPY),
        (np.zeros(3).view(Units), NUMPY),
        (Everything("d", [0, 0, 0]), BUFFER),
        (bytes(3), BUFFER),
        (OnGpu(), INTERFACE),
        (CudaArray(0x7000, (3,), FLOAT64, 1, None), INTERFACE),
        (OnHost(), DLPACK),
    ],
)
def test_an_object_is_of_the_first_family_that_takes_it(x: Any, family: Any, monkeypatch) -> None:
    monkeypatch.setattr(driver, "gpu_of", lambda address: 1)
    seen = families.look(x, "x")
    assert seen.family is family
    assert seen.owner is x
    assert (seen.count, seen.shape) == (3, (3,))
    assert str(seen.device) == ("cuda:1" if family is INTERFACE else "the host")


def test_what_is_made_for_a_subclass_is_a_plain_array() -> None:
    made = families.empty(families.look(np.zeros(3).view(Units), "x"), (2, 2))
    assert type(made.owner) is np.ndarray


def test_without_a_driver_no_memory_is_that_of_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(driver, "gpu_of", driver._none)
    refused(OnGpu(), "x is a OnGpu at 0x7000, where CUDA's driver knows of no memory of a GPU")


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, ValueError])
def test_a_new_array_that_there_is_no_memory_for(error: Any) -> None:
    def full(*_: object) -> None:
        raise error("all 7 bytes are taken")

    like = families.look(np.zeros(3), "x")
    like = like._replace(family=replace(like.family, empty=full))
    with pytest.raises(
        UnavailableError,
        match=r"^no memory for a new array of shape \(9,\) and dtype uint8: all 7 .*; pass a small",
    ):
        families.empty(like, (9,), UINT8)
