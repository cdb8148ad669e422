"""torch on the stand-in's GPU: torch's own products on its CPU, in the order of streams.

The stand-in's device memory is memory of the host, so a tensor of the CPU over it is what a tensor
of the GPU would be. It says that it is one. A product is first made of tensors of the same shapes,
strides and dtypes, so that torch refuses what it refuses; then it is enqueued on the stream that is
current, as a kernel of the stand-in that calls torch. Whatever else is no view is refused here.

Memory comes from a caching allocator, which gives out again what was freed, in the order of the
stream that it was taken on, and behind those that `record_stream` has named. Who uses it later
finds it overwritten.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fakecuda
import torch
from device import Pool

from pycoll.errors import UsageError
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.native import cuda
from pycoll.runtime.native.load import ffi

#: What only looks at a tensor, or at its memory under another shape.
_VIEWS = {"view", "__getitem__", "is_conj", "is_neg", "is_contiguous", "stride", "size", "dim"}
_VIEWS |= {"data_ptr", "numel", "__get__", "__len__", "__repr__", "reshape", "as_subclass"}
_NUMBER = 0  #: the GPU
_OVERWRITTEN = 0xA5


class Tensor(torch.Tensor):
    """A tensor of the CPU over memory of the GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    device = property(lambda self: torch.device("cuda", _NUMBER))  # type: ignore[assignment]

    def get_device(self) -> int:
        return _NUMBER

    def new_empty(self, shape: Any, *, dtype: Any = None, **_: Any) -> Any:
        return _gpu().empty(tuple(shape), dtype or self.dtype)

    def record_stream(self, stream: Any) -> None:
        _gpu().recorded(self.data_ptr(), int(stream.cuda_stream))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.matmul:
            return _gpu().matmul(*args, **kwargs)
        if getattr(func, "__name__", "") not in _VIEWS:
            raise NotImplementedError(f"the played torch has no {func}")
        return super().__torch_function__(func, types, args, kwargs)


class ExternalStream:
    """A stream that is there."""

    def __init__(self, cuda_stream: int, device: int = _NUMBER) -> None:
        # Small numbers are torch's own streams, of which there are none here.
        assert cuda_stream == 0 or cuda_stream > 4096, cuda_stream
        self.cuda_stream, self.device = cuda_stream, device


class _Thread(threading.local):
    """What each rank has, all of which are threads."""

    gpu: Gpu | None = None
    stream = ExternalStream(0)


_mine = _Thread()


def _gpu() -> Gpu:
    assert _mine.gpu is not None, "no gpu() was made by this thread"
    return _mine.gpu


@contextlib.contextmanager
def current(stream: ExternalStream) -> Iterator[None]:
    """Make a stream the current one of this thread: `torch.cuda.stream`."""
    before, _mine.stream = _mine.stream, stream
    try:
        yield
    finally:
        _mine.stream = before


@ctypes.CFUNCTYPE(None, ctypes.c_uint64)
def _called(number: int) -> None:
    """Run a product, on the thread of a stream."""
    try:
        _products.pop(number)()
    except BaseException as error:  # ctypes would only print it
        failed.append(error)


_products: dict[int, Any] = {}
_numbers = iter(range(1, 1 << 62))
failed: list[BaseException] = []  #: by products that had been enqueued


class Gpu:
    """One rank's torch: its tensors, its allocator, its kernels."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        self._pool = Pool(_NUMBER, nbytes)
        module = cuda.module(_NUMBER, fakecuda.image(product={"like": "fakecuda_call"}))
        self._kernel = cuda.function(_NUMBER, module, "product")
        self._free: dict[tuple[int, int], list[int]] = {}
        self._recorded: dict[int, set[int]] = {}
        self.freed = 0  #: how many allocations were
        _mine.gpu = self

    def empty(self, shape: tuple[int, ...], dtype: Any = torch.float32) -> Tensor:
        """Return a tensor whose memory is freed with it, as the allocator frees."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        stream = _mine.stream.cuda_stream
        if freed := self._free.get((stream, nbytes)):
            address = freed.pop()
        else:
            address = self._pool.empty(nbytes, "uint8").address
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, self._freed, address, nbytes, stream).atexit = False
        return (
            torch.frombuffer(memory, dtype=dtype)[: math.prod(shape)]
            .view(shape)
            .as_subclass(Tensor)
        )

    def tensor(self, values: Any) -> Tensor:
        """Return a tensor with the values of a numpy array, which it has when this returns."""
        made = self.empty(values.shape, torch.from_numpy(values).dtype)
        self._pool.put(made.data_ptr(), values.reshape(-1))
        return made

    def get(self, tensor: Tensor, stream: int) -> Any:
        """Return a numpy array of what a tensor holds when a stream has done all it was given."""
        cuda.stream_wait(_NUMBER, stream)
        return tensor.as_subclass(torch.Tensor).contiguous().numpy().copy()

    @property
    def stream(self) -> int:
        """A stream of its own."""
        return self._pool.stream

    def recorded(self, address: int, stream: int) -> None:
        """Remember that a stream uses an allocation beside the one that it was taken on."""
        self._recorded.setdefault(address, set()).add(stream)

    def _freed(self, address: int, nbytes: int, stream: int) -> None:
        if not self._pool.open:  # the test is over
            return
        for other in self._recorded.pop(address, ()):
            Event(_NUMBER, other).hold_back(stream)
        self.freed += 1
        try:  # as whoever is given it next may
            cuda.fill(_NUMBER, address, _OVERWRITTEN, nbytes, stream)
        except UsageError:  # the stream that it was taken on is gone, where nobody takes any more
            return
        self._free.setdefault((stream, nbytes), []).append(address)

    def matmul(self, a: Any, b: Any, *, out: Any = None) -> Any:
        """`torch.matmul`."""
        assert out is not None, "the played torch makes no output"
        for each in (a, b, out):
            if not each.is_cuda:
                raise RuntimeError("Expected all tensors to be on the same device")
        if not a.dtype.is_floating_point:
            raise RuntimeError(f'"addmm_cuda" not implemented for {a.dtype}')
        torch.matmul(_like(a), _like(b), out=_like(out))  # raises what torch does
        plain = [each.as_subclass(torch.Tensor) for each in (a, b, out)]
        number = next(_numbers)
        _products[number] = lambda: torch.matmul(plain[0], plain[1], out=plain[2])
        function = ctypes.cast(_called, ctypes.c_void_p).value or 0
        given = [ffi.new("uint64_t *", function), ffi.new("uint64_t *", number)]
        stream = _mine.stream.cuda_stream
        cuda.launch(_NUMBER, self._kernel, (1, 1, 1), (1, 1, 1), given, stream)
        return out


def _like(tensor: Tensor) -> Any:
    """Return a tensor of the CPU of the same form."""
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
    return made.zero_()


def as_tensor(x: Any) -> Tensor:
    """Return a tensor over what has `__cuda_array_interface__`: `torch.as_tensor`."""
    shown = x.__cuda_array_interface__
    assert shown["strides"] is None
    dtype = getattr(torch, str(x.dtype))
    nbytes = max(1, math.prod(shown["shape"]) * dtype.itemsize)
    memory = (ctypes.c_char * nbytes).from_address(shown["data"][0])
    memory.owner = x
    flat = torch.frombuffer(memory, dtype=dtype)[: math.prod(shown["shape"])]
    return flat.view(shown["shape"]).as_subclass(Tensor)


@contextlib.contextmanager
def played() -> Iterator[None]:
    """Have torch find the stand-in's GPU."""
    have = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: _NUMBER,
        "current_stream": lambda device=None: _mine.stream,
        "stream": current,
        "ExternalStream": ExternalStream,
    }
    with contextlib.ExitStack() as stack:
        for name, what in have.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, what))
        stack.enter_context(mock.patch.object(torch, "as_tensor", as_tensor))
        yield
    assert not failed, failed
