"""Any array as an ArrayView: where its bytes lie and what they are.

Arrays of numpy and torch, and whatever offers the buffer protocol or DLPack; what lies in the
memory of a GPU is looked at by `interface`. For the host's this is the slow path, taken at
the first call of a kind: it is here that an array which cannot be served is refused with the
reason. Later calls find their plan in `_fastcall` and come past here no more.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.dtypes import DTYPES, MOVED, DType, element
from pycoll.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    import numpy


class Device(NamedTuple):
    """A memory that arrays lie in."""

    kind: str  #: "cpu" or "cuda"
    number: int = 0  #: of the GPU, as CUDA counts

    def __str__(self) -> str:
        return "the host" if self.kind == "cpu" else f"{self.kind}:{self.number}"


HOST = Device("cpu")


@dataclass(frozen=True, slots=True)
class ArrayView:
    """A contiguous array."""

    owner: Any  #: what the user passed
    address: int
    count: int  #: elements
    dtype: DType
    shape: tuple[int, ...]
    writable: bool
    pin: Any  #: keeps the memory alive and where it is: without it, the address means nothing
    device: Device = HOST

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.count * self.dtype.itemsize

    def overlaps(self, other: ArrayView) -> bool:
        """Tell whether the two share memory without being the same memory."""
        if self.address == other.address and self.nbytes == other.nbytes:
            return False
        if not (self.nbytes and other.nbytes):  # an empty array may lie anywhere
            return False
        return (
            self.address < other.address + other.nbytes
            and other.address < self.address + self.nbytes
        )


def view(x: Any, who: str) -> ArrayView:
    """Look at an array.

    Args:
        x: The array.
        who: What it is to the user, such as ``allreduce: x``; begins every message.

    Raises:
        UsageError: It is not an array, not contiguous, on a device that is not a GPU of CUDA, or
            its elements are not of a fixed number of bytes.
    """
    # Tensors exist only where torch has been imported, which another thread may be doing now.
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if isinstance(x, tensor):
        return _on_gpu(x, who) if x.is_cuda else _of_torch(x, who)
    ndarray: Any = getattr(sys.modules.get("numpy"), "ndarray", ())
    if isinstance(x, ndarray):
        return _of_numpy(x, x, who)
    try:
        buffer = memoryview(x)
    except (TypeError, BufferError):  # the second where the protocol has no name for its dtype
        return _on_gpu(x, who) if _is_on_gpu(x) else _of_dlpack(x, who)
    return _of_buffer(x, buffer, who)


def together(views: Iterable[ArrayView], who: str) -> Device:
    """Return the device that arrays lie on; HOST where there are none.

    Raises:
        UsageError: They lie on several.
    """
    found: Device | None = None
    for each in views:
        if found is not None and each.device != found:
            raise UsageError(
                f"{who}: one array is on {found} and another on {each.device}; pass arrays that "
                "lie together, such as x.cpu() or out.cuda()"
            )
        found = each.device
    return found or HOST


def result(x: ArrayView, out: Any, who: str) -> ArrayView:
    """Look at ``out`` (None: in place) and check that it can take a result like ``x``.

    Raises:
        UsageError: It is read-only, differs from ``x`` in dtype or shape, or overlaps it partly.
    """
    if out is None or out is x.owner:
        if not x.writable:
            raise UsageError(f"{who}: x is read-only; pass an array to write the result to as out=")
        return x
    y = target(out, x.dtype, f"{who}: out", x.shape)
    together((x, y), who)
    if x.overlaps(y):
        raise UsageError(
            f"{who}: out begins {y.address - x.address} bytes from x and overlaps it; "
            "pass the same array (in place) or one that shares no memory with x"
        )
    return y


def target(
    out: Any, dtype: DType | None, who: str, shape: tuple[int, ...] | None = None
) -> ArrayView:
    """Look at an array that a result goes to.

    Args:
        out: The array.
        dtype: That it must have, as the input has; None where there is no input.
        who: What it is to the user, such as ``gather: out``.
        shape: That it must have, as the input has; None where another will do.

    Raises:
        UsageError: It is none, has another dtype or shape, or is read-only.
    """
    y = view(out, who)
    if dtype is not None and y.dtype != dtype:
        raise UsageError(f"{who} has dtype {y.dtype.name}, want {dtype.name} as x has")
    if shape is not None and y.shape != shape:
        raise UsageError(f"{who} has shape {y.shape}, want {shape} as x has")
    require_writable(y, who)
    return y


def require_writable(y: ArrayView, who: str) -> None:
    """Check that an array can be written; UsageError says what to pass instead."""
    if not y.writable:
        name = who.rpartition(": ")[2]
        copy = f", such as a copy, numpy.array({name})" if y.device == HOST else ""
        raise UsageError(f"{who} is read-only; pass an array that can be written{copy}")


def empty(like: ArrayView, shape: tuple[int, ...]) -> ArrayView:
    """Return a new array of the kind (numpy, torch) and dtype of another; numpy for the rest.

    Raises:
        UnavailableError: This rank has no memory for it.
    """
    import numpy

    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    try:
        if isinstance(like.owner, tensor):
            return view(like.owner.new_empty(shape), "the new array")
        return view(numpy.empty(shape, numpy.asarray(like.pin).dtype), "the new array")
    except (MemoryError, RuntimeError, ValueError) as error:  # torch and numpy each have their own
        if isinstance(error, UsageError):
            raise
        raise UnavailableError(
            f"no memory for a new array of shape {shape} and dtype {like.dtype.name}: {error}; "
            "pass a smaller one, or out="
        ) from None


def shared(arrays: Iterable[tuple[ArrayView, bool]]) -> int | None:
    """Return the number of the first array found to share memory that is written.

    Args:
        arrays: Each with whether it is written; None is returned if every byte that is written
            belongs to one of them alone.
    """
    spans = sorted(
        (a.address, a.address + a.nbytes, i, written)
        for i, (a, written) in enumerate(arrays)
        if a.nbytes
    )
    written_to = end = 0  # of the spans so far: the furthest byte written, the furthest of any
    for start, stop, i, written in spans:
        if start < written_to or (written and start < end):
            return i
        end = max(end, stop)
        if written:
            written_to = max(written_to, stop)
    return None


def flat(x: ArrayView) -> ArrayView:
    """Return the array with one axis, as a view."""
    whole = x.pin
    if isinstance(whole, memoryview):
        import numpy

        whole = numpy.asarray(whole)
    return view(whole.reshape(-1), "x")


def rows(x: ArrayView, first: int, end: int) -> ArrayView:
    """Return the part of an array from row ``first`` to ``end`` of its first axis, as a view."""
    whole = x.pin  # of what numpy knows nothing, a slice of the owner could be a copy
    if isinstance(whole, memoryview) and whole.ndim != 1:  # which cannot be sliced
        import numpy

        whole = numpy.asarray(whole)
    return view(whole[first:end], "the part of x")


def require_reduced(dtype: DType, who: str) -> None:
    """Check that a reduction serves a dtype; UsageError says what to pass instead."""
    if not dtype.reduces:
        names = ", ".join(d.name for d in DTYPES)
        raise UsageError(
            f"{who} has dtype {dtype.name}, which can be moved but not reduced; "
            f"{_cure(dtype)} (reduced: {names})"
        )


def _cure(dtype: DType) -> str:
    name = dtype.name
    if name in ("complex64", "complex128"):
        real = "float32" if name == "complex64" else "float64"
        return f"pass its real and imaginary parts as one real array, x.view('{real}')"
    if name == "bool":
        return "pass x.view('uint8'): max is any, min is all"
    if name.startswith((">", "<")):
        return "pass x.astype(x.dtype.newbyteorder('='))"
    return "convert it to one that is"


def dtype_named(name: str, who: str) -> DType:
    """Return the DType that a library without numpy's dtypes calls ``name``; UsageError if none."""
    found = _NAMED.get(name)
    if found is None:
        raise UsageError(f"{who} has dtype {name}, want one of {', '.join(_NAMED)}")
    return found


_NAMED = {d.name: d for d in (*DTYPES, *MOVED)}


def dtype_of(kind: numpy.dtype[Any], who: str) -> DType:
    """Return the DType of a dtype of numpy.

    Raises:
        UsageError: Its elements are not of a fixed number of bytes, such as Python's objects.
    """
    found = _NUMPY_DTYPES.get(kind)
    if found is None:
        if kind.hasobject or kind.itemsize == 0:
            raise UsageError(
                f"{who} has dtype {kind.name}, want elements of a fixed number of bytes, at least "
                "one; Python's objects are for broadcast_object, allgather_object, gather_object "
                "and scatter_object"
            )
        found = _NUMPY_DTYPES[kind] = element(_name(kind), kind.itemsize)
    return found


def _name(kind: numpy.dtype[Any]) -> str:
    """Name a dtype of numpy so that no two are called alike."""
    import numpy

    if kind.names is not None:
        # A record array's is the same type under another class. Long ones are cut for messages.
        text = str(numpy.dtype((numpy.void, kind)))
        if len(text) <= _LONGEST_NAME:
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return f"{text[:_LONGEST_NAME]}...#{digest}"
    if not kind.isnative:
        return kind.str
    return kind.str[1:] if kind.type in (numpy.bytes_, numpy.str_, numpy.void) else kind.name


_LONGEST_NAME = 60

#: numpy.dtype → DType of those that were seen; a dtype takes long to tell its name.
_NUMPY_DTYPES: dict[Any, DType] = {}


def _of_numpy(x: numpy.ndarray[Any, Any], owner: Any, who: str) -> ArrayView:
    dtype = _NUMPY_DTYPES.get(x.dtype) or dtype_of(x.dtype, who)
    if not x.flags.c_contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {x.shape}, strides {x.strides}); "
            f"pass numpy.ascontiguousarray({who.rpartition(' ')[2]}) with out="
        )
    address: int = x.__array_interface__["data"][0]
    return ArrayView(owner, address, x.size, dtype, x.shape, x.flags.writeable, x)


def _module_of_gpus() -> Any:
    # Loaded at the first array of a GPU: most programs have none.
    from pycoll.arrays import interface as gpu

    return gpu


def _is_on_gpu(x: Any) -> bool:
    """Tell whether an object without the buffer protocol says that it lies in a GPU's memory."""
    if hasattr(x, "__cuda_array_interface__"):
        return True
    try:
        kind = int(x.__dlpack_device__()[0])
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False
    return kind == _DL_CUDA


#: DLPack's number of memory that CUDA allocated.
_DL_CUDA = 2


def _on_gpu(x: Any, who: str) -> ArrayView:
    found: ArrayView = _module_of_gpus().view(x, who)
    return found


def of_tensor(x: Any, who: str) -> DType:
    """Return the DType of a torch tensor, on whatever device.

    Raises:
        UsageError: It is of a layout that is not served, quantized, not contiguous, or its
            memory does not hold its elements as they are.
    """
    if str(x.layout) != "torch.strided":
        raise UsageError(f"{who} has layout {x.layout}, which is not served; pass x.to_dense()")
    if x.is_quantized:
        raise UsageError(f"{who} is quantized, which is not served; pass x.int_repr()")
    if x.is_conj() or x.is_neg():
        raise UsageError(
            f"{who} is the conjugate or the negative of what its memory holds; "
            "pass x.resolve_conj().resolve_neg()"
        )
    name = str(x.dtype).removeprefix("torch.")
    dtype = _NAMED.get(name) or element(name, x.dtype.itemsize)
    if not x.is_contiguous():
        raise UsageError(
            f"{who} is not contiguous (shape {tuple(x.shape)}, strides {x.stride()}); "
            f"pass {who.rpartition(' ')[2]}.contiguous() with out="
        )
    return dtype


def _of_torch(x: Any, who: str) -> ArrayView:
    if x.device.type != "cpu":
        raise UsageError(f"{who} is on {x.device}, which is not served; pass x.cpu()")
    dtype = of_tensor(x, who)
    return ArrayView(x, x.data_ptr(), x.numel(), dtype, tuple(x.shape), True, x)


def _of_buffer(x: Any, buffer: memoryview, who: str) -> ArrayView:
    import numpy

    try:
        dtype = dtype_of(numpy.asarray(buffer).dtype, who)
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{who} has elements of format {buffer.format!r} in the buffer protocol, which numpy "
            "does not read; pass memoryview(x).cast('B')"
        ) from None
    if not buffer.c_contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {buffer.shape}, strides {buffer.strides}); "
            "pass a copy with out="
        )
    flat = numpy.frombuffer(buffer, numpy.uint8) if buffer.nbytes else numpy.empty(0, numpy.uint8)
    address: int = flat.__array_interface__["data"][0]
    shape = buffer.shape or ()
    count = buffer.nbytes // dtype.itemsize
    return ArrayView(x, address, count, dtype, tuple(shape), not buffer.readonly, buffer)


def _of_dlpack(x: Any, who: str) -> ArrayView:
    if not hasattr(x, "__dlpack__"):
        cure = "for a number pass numpy.array([x])"
        if isinstance(x, list | tuple):
            cure = "lists of arrays are for allreduce and broadcast"
        raise UsageError(
            f"{who} is a {type(x).__name__}, want an array (numpy, torch, the buffer protocol or "
            f"DLPack); {cure}"
        )
    import numpy

    try:
        shared = numpy.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(x, _tracers()):
            raise UsageError(
                f"{who} is a {type(x).__name__}: what JAX traces (jit, grad, vmap) has no memory "
                "yet; call outside of it, or pass the call to jax.pure_callback"
            ) from None
        cure = "; pass numpy.asarray(x)" if hasattr(x, "__array__") else ""
        raise UsageError(
            f"{who} is a {type(x).__name__} whose memory cannot be shared: "
            f"{' '.join(str(error).split())}{cure}"
        ) from error
    return _of_numpy(shared, x, who)


def _tracers() -> Any:
    """Return the class of the stand-ins with which JAX traces a function, where it is loaded."""
    return getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", ())


#: torch.dtype → number that native code knows it by; filled at the first tensor.
_TORCH_CODES: dict[Any, int] = {}


def tensors(x: Any, out: Any, alike: bool) -> tuple[int, int, int, int, int] | None:
    """Return the addresses, bytes and dtype's code of torch tensors that need no second look.

    The per-call path of torch. None sends the caller to `view`, which finds the reason.

    Args:
        x: The input.
        out: The result; None where it goes to ``x``.
        alike: Whether the two must have one shape.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not isinstance(x, torch.Tensor):
            return None
    except AttributeError:  # another thread is importing it: there are no tensors yet
        return None
    if not _TORCH_CODES:
        # Not those of complex numbers: whether one is a conjugate is looked at by `of_tensor`.
        known = (d for d in (*DTYPES, *MOVED) if not d.name.startswith("complex"))
        named = ((getattr(torch, d.name, None), d.code) for d in known)
        _TORCH_CODES.update((dtype, code) for dtype, code in named if dtype is not None)
    code = _TORCH_CODES.get(x.dtype)
    if code is None or not (x.is_cpu and x.layout is torch.strided and x.is_contiguous()):
        return None
    if x.is_neg():  # its memory holds the opposite of its elements
        return None
    start: int = x.data_ptr()
    nbytes: int = x.nbytes
    if out is None or out is x:
        return start, start, nbytes, nbytes, code
    if not (isinstance(out, torch.Tensor) and out.dtype is x.dtype):
        return None
    if not (out.is_cpu and out.layout is torch.strided and out.is_contiguous()) or out.is_neg():
        return None
    if alike and out.shape != x.shape:
        return None
    return start, out.data_ptr(), nbytes, out.nbytes, code
