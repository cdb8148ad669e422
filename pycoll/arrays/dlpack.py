"""DLPack: an array's memory as a capsule, given and taken, where no library does it.

Only what it needs of version 0: one device, contiguous or not, and who is to be told at the end.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from pycoll.dtypes import DType
from pycoll.errors import UsageError

CUDA = 2  #: memory of a GPU, as DLPack numbers devices

_NAME, _USED = b"dltensor", b"used_dltensor"
#: DLPack's codes of kinds of elements; their names have the number of bits behind that.
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
# A destructor sees its capsule when nobody refers to it any more: as an address, not as an object.
_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

#: Address of what was given away → it and the array, until the taker says that it is done.
_given: dict[int, Any] = {}


def _delete(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


def _discard(capsule: int) -> None:
    if _valid_at(capsule, _NAME):  # else somebody took it, and calls the deleter
        _given.pop(_pointer_at(capsule, _NAME) or 0, None)


# Called from C at any time, so they live as long as the process.
_deleter, _destructor = _Deleter(_delete), _Destructor(_discard)


def export(address: int, shape: tuple[int, ...], dtype: DType, number: int, owner: Any) -> Any:
    """Return a capsule of contiguous memory of a GPU; ``owner`` lives until its taker is done.

    Raises:
        BufferError: DLPack has no name for the dtype.
    """
    kind = "bool" if dtype.name == "bool" else dtype.name.rstrip("0123456789")
    code = next((code for code, name in _KINDS.items() if name == kind), None)
    if code is None:
        raise BufferError(f"DLPack has no name for {dtype.name}")
    managed = _Managed()
    lengths = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    tensor = managed.tensor
    tensor.data, tensor.device, tensor.number = address, CUDA, number
    tensor.ndim, tensor.shape = len(shape), lengths
    tensor.code = code
    tensor.bits, tensor.lanes = 8 * dtype.itemsize, 1
    managed.deleter = _deleter
    at = ctypes.addressof(managed)
    _given[at] = managed, lengths, owner
    return _new(at, _NAME, _destructor)


class Taken(NamedTuple):
    """An array that somebody gave as a capsule."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    number: int
    strides: tuple[int, ...] | None  #: in elements; None: contiguous
    owner: Any  #: tells the giver when it is collected


class _Owner:
    def __init__(self, managed: _Managed) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.pointer(self._managed))


def take(capsule: Any, who: str) -> Taken:
    """Take what a capsule gives.

    Raises:
        UsageError: It was taken already, or is of a later version of DLPack.
    """
    if not _valid(capsule, _NAME):
        raise UsageError(f"{who}: its __dlpack__ gave {capsule!r}, want a fresh 'dltensor' capsule")
    managed = _Managed.from_address(_pointer(capsule, _NAME))
    _rename(capsule, _USED)
    owner, t = _Owner(managed), managed.tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    kind = _KINDS.get(t.code, f"code {t.code} of DLPack with ")
    lanes = "" if t.lanes == 1 else f"x{t.lanes}"
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    return Taken(
        (t.data or 0) + t.offset,
        shape,
        "bool" if kind == "bool" else f"{kind}{t.bits}{lanes}",
        t.device,
        t.number,
        strides,
        owner,
    )


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Tell whether elements of ``item`` units follow each other in the order of C."""
    want = item
    if 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != want:
            return False
        want *= length
    return True
