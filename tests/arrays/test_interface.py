"""Arrays on GPUs as they are seen: of torch, of cupy, of others; libraries are played here."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pycoll.arrays import cupy as of_cupy
from pycoll.arrays import dlpack, families, operands
from pycoll.arrays import torch as of_torch
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.cupy import CUPY
from pycoll.arrays.interface import INTERFACE, LEGACY
from pycoll.arrays.torch import TORCH
from pycoll.arrays.view import HOST, Device
from pycoll.dtypes import BFLOAT16, FLOAT32, UINT8
from pycoll.errors import UnavailableError, UsageError


class Tensor:
    """A tensor of torch on a GPU, as far as pycoll asks."""

    is_cuda, is_sparse, is_quantized, nbytes = True, False, False, 20
    layout = "torch.strided"
    dtype = "torch.bfloat16"

    def __init__(self, *shape: int, contiguous: bool = True) -> None:
        self.shape, self.device = shape, SimpleNamespace(type="cuda", index=3)
        self._contiguous = contiguous
        self.used_on: list[Any] = []

    def get_device(self) -> int:
        return int(self.device.index)

    def data_ptr(self) -> int:
        return 0x7000

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def stride(self) -> tuple[int, ...]:
        return (1,) * len(self.shape)

    def is_conj(self) -> bool:
        return self.dtype == "torch.complex64"

    def is_neg(self) -> bool:
        return False

    def is_contiguous(self) -> bool:
        return self._contiguous

    def new_empty(self, shape: tuple[int, ...], dtype: Any = None) -> Tensor:
        made = Tensor(*shape)
        if dtype is not None:
            made.dtype = dtype
        return made

    def record_stream(self, stream: Any) -> None:
        self.used_on.append(stream)


@pytest.fixture
def torch(monkeypatch) -> Any:
    module: Any = ModuleType("torch")
    module.Tensor, module.uint8, module.strided = Tensor, "torch.uint8", "torch.strided"
    module.cuda = SimpleNamespace(
        current_stream=lambda number: SimpleNamespace(cuda_stream=0xC0 + number),
        ExternalStream=lambda handle, device: (handle, device),
        is_initialized=lambda: True,
        current_device=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_a_tensor_of_torch(torch) -> None:
    x = Tensor(2, 5)
    seen = families.look(x, "allreduce: x")
    assert (seen.address, seen.count, seen.dtype, seen.shape) == (0x7000, 10, BFLOAT16, (2, 5))
    assert seen.device == Device("cuda", 3)
    assert str(seen.device) == "cuda:3"
    assert seen.owner is x
    assert seen.family is TORCH
    assert seen.stream() == 0xC3
    assert seen.record(0xABC)
    assert x.used_on == [(0xABC, 3)]
    made = families.empty(seen, (7,))
    assert (made.count, made.dtype) == (7, BFLOAT16)
    assert families.empty(seen, (9,), UINT8).dtype is UINT8


def test_tensors_that_are_refused(torch) -> None:
    with pytest.raises(UsageError, match=r"not contiguous.*pass x\.contiguous\(\) with out="):
        families.look(Tensor(2, 5, contiguous=False), "allreduce: x")
    sparse = Tensor(2)
    sparse.layout = "torch.sparse_coo"
    with pytest.raises(UsageError, match="layout torch"):
        families.look(sparse, "allreduce: x")
    sparse.layout, sparse.dtype = "torch.strided", "torch.complex64"
    with pytest.raises(UsageError, match="the conjugate or the negative"):
        families.look(sparse, "allreduce: x")


class CupyArray:
    """An array of cupy, as far as pycoll asks."""

    __cuda_array_interface__ = None  # that there is one tells that it lies on a GPU

    def __init__(self, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size = int(np.prod(shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = (4,)
        self.flags = SimpleNamespace(c_contiguous=True)
        self.device = _OnDevice(1)
        self.data = SimpleNamespace(ptr=0x9000)


class _OnDevice:
    entered = 0

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> None:
        _OnDevice.entered += 1

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def cupy(monkeypatch) -> Any:
    module: Any = ModuleType("cupy")
    module.ndarray, module.empty = CupyArray, CupyArray
    module.cuda = SimpleNamespace(
        get_current_stream=lambda number: SimpleNamespace(ptr=0xD0 + number),
        is_available=lambda: True,
        Device=lambda: SimpleNamespace(id=1),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_an_array_of_cupy(cupy) -> None:
    x = CupyArray((4, 2))
    seen = families.look(x, "allreduce: x")
    assert (seen.address, seen.count, seen.dtype, seen.shape) == (0x9000, 8, FLOAT32, (4, 2))
    assert seen.device == Device("cuda", 1)
    assert seen.family is CUPY
    assert seen.stream() == 0xD1
    assert not seen.record(0xABC)  # its pool cannot be told: who uses it elsewhere holds it
    assert families.empty(seen, (3,)).shape == (3,)
    assert families.empty(seen, (9,), UINT8).dtype is UINT8
    assert _OnDevice.entered == 2
    x.flags.c_contiguous = False
    with pytest.raises(UsageError, match=r"pass cupy\.ascontiguousarray\(x\) with out="):
        families.look(x, "allreduce: x")


def test_where_an_array_lies_is_said_at_a_glance(torch, cupy) -> None:
    x, y = Tensor(2, 5), CupyArray((4, 2))
    seen = families.spot(x)
    assert seen == ((TORCH, "torch.bfloat16", (2, 5), 3), 0x7000, 20, TORCH, 3, None)
    assert families.spot(y) == ((CUPY, np.dtype("f4"), (4, 2), 1), 0x9000, 32, CUPY, 1, None)
    own = families.spot(CudaArray(0x5000, (3,), FLOAT32, 2, None, stream=7))
    assert own is not None
    assert own[1:] == (0x5000, 12, INTERFACE, 2, 7)
    y.flags.c_contiguous = False
    conjugate = Tensor(2)
    conjugate.dtype = "torch.complex64"  # its memory holds the conjugates of its elements
    for slow in (Tensor(2, contiguous=False), conjugate, y, np.zeros(3), None):
        assert families.spot(slow) is None


def test_which_device_is_current(torch, cupy) -> None:
    assert (of_torch.device(), of_cupy.device()) == (3, 1)
    torch.cuda.is_initialized = cupy.cuda.is_available = lambda: False
    assert (of_torch.device(), of_cupy.device()) == (None, None)
    assert not of_cupy.usable()


def test_a_library_that_another_thread_is_importing(monkeypatch) -> None:
    """Its module is there, and nothing in it yet."""
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    x = np.zeros(3, np.float32)
    seen = families.look(x, "x")
    assert seen.count == 3
    assert families.empty(seen, (2,)).shape == (2,)
    assert of_torch.pointers(x, None, True) is None
    shown = {"shape": (4,), "typestr": "|O8", "data": (0x7000, False), "version": 3}
    with pytest.raises(UsageError, match="x has"):  # as if they were not there at all
        families.look(SimpleNamespace(__cuda_array_interface__=shown), "x")
    assert of_torch.device() is None
    assert of_cupy.device() is None


def test_the_array_of_our_own() -> None:
    owner = object()
    x = CudaArray(0x5000, (6, 4), FLOAT32, 2, owner)
    assert (x.size, x.nbytes, len(x), x.dtype) == (24, 96, 6, np.float32)
    seen = families.look(x, "x")
    assert (seen.address, seen.shape, seen.device) == (0x5000, (6, 4), Device("cuda", 2))
    part = families.rows(seen, 2, 5)
    assert (part.address, part.shape) == (0x5000 + 32, (3, 4))
    assert families.flat(seen).shape == (24,)
    assert x.reshape(-1, 8).shape == (3, 8)
    assert x.reshape((4, 6)).shape == (4, 6)
    assert x[7:].__cuda_array_interface__["data"] == (0, False)
    for wrong in (lambda: x[3], lambda: x[::2]):
        with pytest.raises(UsageError, match="CudaArray"):
            wrong()
    with pytest.raises(UsageError, match="does not hold 24 elements"):
        x.reshape(5, -1)
    assert seen.family.empty(seen.pin, (3,), None) is None  # a communicator has to say from where
    with pytest.raises(TypeError, match="no length"):
        len(CudaArray(0x5000, (), FLOAT32, 2, owner))


def test_what_it_gives_by_dlpack_is_what_was_put_in() -> None:
    x = CudaArray(0x5000, (6, 4), BFLOAT16, 2, object())
    assert not hasattr(x, "__cuda_array_interface__")  # which has no name for bfloat16
    before = sys.getrefcount(x)
    capsule = x.__dlpack__()
    taken = dlpack.take(capsule, "x")
    assert taken[:6] == (0x5000, (6, 4), "bfloat16", dlpack.CUDA, 2, None)
    with pytest.raises(UsageError, match="want a fresh 'dltensor' capsule"):
        dlpack.take(capsule, "x")
    assert sys.getrefcount(x) > before
    del capsule, taken
    assert sys.getrefcount(x) == before
    capsule = x.__dlpack__()  # nobody takes this one
    del capsule
    assert sys.getrefcount(x) == before
    seen = families.look(x, "x")
    assert (seen.address, seen.dtype, seen.shape) == (0x5000, BFLOAT16, (6, 4))
    assert seen.device == Device("cuda", 2)
    assert families.rows(seen, 1, 2).address == 0x5008


def test_dlpack_is_read_by_others() -> None:
    """Numpy takes only memory of the host: say so in the capsule, and it reads the rest."""
    values = np.arange(12, dtype="f4").reshape(3, 4)
    capsule = dlpack.export(values.ctypes.data, (3, 4), FLOAT32, 0, values)
    at = ctypes.pythonapi.PyCapsule_GetPointer
    at.restype, at.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.c_int32.from_address(at(capsule, b"dltensor") + 8).value = 1  # kDLCPU
    host = SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0))
    assert np.from_dlpack(host).tolist() == values.tolist()


def test_dlpack_of_others() -> None:
    class Other:
        def __init__(self, strides: tuple[int, ...] | None) -> None:
            self._x = CudaArray(0x8000, (2, 3), FLOAT32, 0, self)
            self._strides = strides

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, stream: int) -> Any:
            assert stream == LEGACY  # on which the call runs: the giver puts itself before
            return self._x.__dlpack__()

    seen = families.look(Other(None), "x")
    assert (seen.address, seen.device) == (0x8000, Device("cuda", 0))

    class Refuses(Other):
        def __dlpack__(self, stream: int) -> Any:
            raise BufferError("it requires grad")

    with pytest.raises(UsageError, match="cannot be shared: it requires grad"):
        families.look(Refuses(None), "x")


def test_dlpack_of_an_array_that_is_not_contiguous(monkeypatch) -> None:
    x = CudaArray(0x8000, (2, 3), FLOAT32, 0, None)
    taken = dlpack.take(x.__dlpack__(), "x")._replace(strides=(1, 2))
    monkeypatch.setattr(dlpack, "take", lambda capsule, who: taken)
    other = SimpleNamespace(__dlpack__=lambda stream: None, __dlpack_device__=lambda: (2, 0))
    want = r"^send: x is not contiguous \(shape \(2, 3\), strides \(4, 8\)\); pass a contiguous cop"
    with pytest.raises(UsageError, match=want):
        families.look(other, "send: x")


def test_an_array_without_elements_lies_where_it_says() -> None:
    shown = {"shape": (0, 3), "typestr": "<f4", "data": (0, False), "version": 3}
    for more, number in (({}, 0), ({"__dlpack_device__": lambda: (2, 5)}, 5)):
        seen = families.look(SimpleNamespace(__cuda_array_interface__=shown, **more), "x")
        assert (seen.address, seen.nbytes, seen.device) == (0, 0, Device("cuda", number))


def test_a_gpu_without_memory_says_so(torch, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Tensor, "new_empty", full)
    with pytest.raises(UnavailableError, match=r"array .*: CUDA out of memory;"):
        families.empty(families.look(Tensor(2), "x"), (7,))


@pytest.mark.parametrize(
    ("shape", "strides", "item", "contiguous"),
    [
        ((2, 3), [3, 1], 1, True),
        ((2, 3), [1, 2], 1, False),
        ((1, 3), [99, 1], 1, True),
        ((0, 3), [7, 7], 1, True),
        ((2, 3), [12, 4], 4, True),
        ((), [], 1, True),
    ],
)
def test_contiguity(shape: Any, strides: Any, item: int, contiguous: bool) -> None:
    assert dlpack.is_contiguous(shape, strides, item) == contiguous


def test_memories_do_not_mix() -> None:
    there, here = CudaArray(0x5000, (3,), FLOAT32, 0, None), np.zeros(3, "f4")
    views = [families.look(x, "x") for x in (there, here)]
    assert operands.together(views[:1], "x") == Device("cuda", 0)
    assert operands.together([], "x") == HOST
    with pytest.raises(UsageError, match="one array is on cuda:0 and another on the host"):
        operands.together(views, "allreduce")
