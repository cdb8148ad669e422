"""Any array as an ArrayView: where its bytes lie and what they are.

Arrays of numpy and torch, and whatever offers the buffer protocol or DLPack; what lies in the
memory of a GPU is looked at by `runtime.cuda.view`. For the host's this is the slow path, taken at
the first call of a kind: it is here that an array which cannot be served is refused with the
reason. Later calls find their plan in `_fastcall` and come past here no more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.dtypes import BY_NAME, DTYPES, DType
from pycoll.errors import UsageError

if TYPE_CHECKING:
    import numpy

#: Buffer-protocol format characters whose size is not in their name: by kind and itemsize.
_SIGNED, _UNSIGNED, _FLOATS = "bhilqn", "BHILQN", "efd"


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
        UsageError: It is not an array, not contiguous, on a device that is not a GPU of CUDA, or of
            a dtype not served.
    """
    torch = sys.modules.get("torch")  # its tensors exist only where it has been imported
    if torch is not None and isinstance(x, torch.Tensor):
        return _on_gpu(x, who) if x.is_cuda else _of_torch(x, who)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
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
    if dtype is not None and y.dtype is not dtype:
        raise UsageError(f"{who} has dtype {y.dtype.name}, want {dtype.name} as x has")
    if shape is not None and y.shape != shape:
        raise UsageError(f"{who} has shape {y.shape}, want {shape} as x has")
    if not y.writable:
        raise UsageError(f"{who} is read-only; pass an array that can be written")
    return y


def empty(like: ArrayView, shape: tuple[int, ...]) -> ArrayView:
    """Return a new array of the kind (numpy, torch) and dtype of another; numpy for the rest."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like.owner, torch.Tensor):
        return view(like.owner.new_empty(shape), "the new array")
    import numpy

    return view(numpy.empty(shape, like.dtype.name), "the new array")


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


def served(name: str, who: str) -> DType:
    """Return the DType called ``name``; UsageError says what to do where there is none."""
    try:
        return BY_NAME[name]
    except KeyError:
        names = ", ".join(d.name for d in DTYPES)
        raise UsageError(
            f"{who} has dtype {name}, which is not served; {_cure(name)} (served: {names})"
        ) from None


def _cure(name: str) -> str:
    if name.startswith("complex"):
        return "pass its real and imaginary parts as one real array, x.view('float64')"
    if name.startswith("bool"):
        return "pass x.view('uint8'): max is any, min is all"
    return "convert it to one that is"


#: numpy.dtype → DType of those that were served; a dtype takes long to tell its name.
_NUMPY_DTYPES: dict[Any, DType] = {}


def _of_numpy(x: numpy.ndarray[Any, Any], owner: Any, who: str) -> ArrayView:
    dtype = _NUMPY_DTYPES.get(x.dtype) or served(x.dtype.name, who)
    if not x.dtype.isnative:
        raise UsageError(
            f"{who} has dtype {x.dtype.str!r}, whose bytes are swapped; "
            "pass x.astype(x.dtype.newbyteorder('='))"
        )
    if not x.flags.c_contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {x.shape}, strides {x.strides}); "
            f"pass numpy.ascontiguousarray({who.rpartition(' ')[2]}) with out="
        )
    _NUMPY_DTYPES[x.dtype] = dtype
    address: int = x.__array_interface__["data"][0]
    return ArrayView(owner, address, x.size, dtype, x.shape, x.flags.writeable, x)


def _module_of_gpus() -> Any:
    # Loaded at the first array of a GPU: most programs have none.
    from pycoll.runtime.cuda import view as gpu

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
        UsageError: It is of a layout or dtype that is not served, or not contiguous.
    """
    if str(x.layout) != "torch.strided":
        raise UsageError(f"{who} has layout {x.layout}, which is not served; pass x.to_dense()")
    dtype = served(str(x.dtype).removeprefix("torch."), who)
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
    form = buffer.format.lstrip("@=<") if sys.byteorder == "little" else buffer.format
    kind = next(
        (
            kind
            for kind, letters in (("int", _SIGNED), ("uint", _UNSIGNED), ("float", _FLOATS))
            if len(form) == 1 and form in letters
        ),
        None,
    )
    dtype = served(f"{kind}{8 * buffer.itemsize}" if kind else f"format {buffer.format!r}", who)
    if not buffer.c_contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {buffer.shape}, strides {buffer.strides}); "
            "pass a copy with out="
        )
    import numpy

    flat = numpy.frombuffer(buffer, numpy.uint8) if buffer.nbytes else numpy.empty(0, numpy.uint8)
    address: int = flat.__array_interface__["data"][0]
    shape = buffer.shape or ()
    count = buffer.nbytes // buffer.itemsize
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
        cure = "; pass numpy.asarray(x)" if hasattr(x, "__array__") else ""
        raise UsageError(
            f"{who} is a {type(x).__name__} whose memory cannot be shared: {error}{cure}"
        ) from error
    return _of_numpy(shared, x, who)


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
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    if not _TORCH_CODES:
        named = ((getattr(torch, d.name, None), d.code) for d in DTYPES)
        _TORCH_CODES.update((dtype, code) for dtype, code in named if dtype is not None)
    code = _TORCH_CODES.get(x.dtype)
    if code is None or not (x.is_cpu and x.layout is torch.strided and x.is_contiguous()):
        return None
    start: int = x.data_ptr()
    nbytes: int = x.nbytes
    if out is None or out is x:
        return start, start, nbytes, nbytes, code
    if not (isinstance(out, torch.Tensor) and out.dtype is x.dtype):
        return None
    if not (out.is_cpu and out.layout is torch.strided and out.is_contiguous()):
        return None
    if alike and out.shape != x.shape:
        return None
    return start, out.data_ptr(), nbytes, out.nbytes, code
