"""Arrays in memory that every peer can reach: what ``comm.empty`` gives."""

from __future__ import annotations

import contextlib
import gc
import math
import operator
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pycoll.arrays.dtype import dtype_of
from pycoll.errors import UnavailableError, UsageError, quoted
from pycoll.runtime.native import bindings

if TYPE_CHECKING:
    import numpy

#: Axes that an array may have: numpy 1 had room for so many, and numpy 2 has for twice as many.
_AXES = 32


class Heap:
    """The registered memory of one communicator.

    An array's memory is freed once nothing refers to it: not the array, a view of it, nor a
    tensor made from it. The native heap belongs to the thread that makes calls, and Python may
    collect an array in any thread at any time; so a dead array's memory only joins a queue, which
    the next allocation empties. A closed communicator stays mapped while arrays of it live.
    """

    # An array may be collected at any point of what follows, in the very thread that is there: a
    # finalizer takes no lock, but relies on single operations of dicts, deques and lists.

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._open = [comm]  #: empty once it is closed: who pops it closes it
        self._lock = threading.RLock()
        self._live: dict[int, tuple[int, weakref.finalize[..., Any]]] = {}  #: by address: bytes
        self._dead: deque[int] = deque()
        self._closed = False
        _heaps.add(self)

    def empty(self, shape: int | Iterable[int], dtype: Any) -> Any:
        """Return a numpy array whose elements have no set value."""
        import numpy

        axes, kind = lengths(shape), numpy_dtype(dtype)
        count = math.prod(axes)
        buffer = self._allocate(count * kind.itemsize)
        return numpy.frombuffer(buffer, kind, count).reshape(axes)

    def _allocate(self, nbytes: int) -> Any:
        address = self._find_room(nbytes)
        if address is None:
            gc.collect()  # arrays in reference cycles
            address = self._find_room(nbytes)
        if address is None:
            raise UnavailableError(
                f"empty: no room for {nbytes} bytes beside {len(self._live)} arrays of this "
                "communicator; delete some of them, or use numpy.empty"
            )
        buffer = bindings.heap_buffer(address, max(1, nbytes))
        finalizer = weakref.finalize(buffer, self._discard, address)
        finalizer.atexit = False  # the process's end frees it
        self._live[address] = (nbytes, finalizer)
        return buffer

    def _discard(self, address: int) -> None:
        self._live.pop(address, None)
        self._dead.append(address)
        self._close_if_unused()

    def _find_room(self, nbytes: int) -> int | None:
        if nbytes > sys.maxsize:  # more than there are addresses
            return None
        with self._lock:
            while self._dead:
                bindings.heap_free(self._comm, self._dead.popleft())
            return bindings.heap_alloc(self._comm, nbytes)

    def holds(self, address: int, nbytes: int) -> bool:
        """Tell whether this memory lies in an array of `empty`."""
        return any(
            start <= address and address + nbytes <= start + length
            for start, (length, _) in self._live.copy().items()
        )

    def close(self) -> None:
        """Close the native communicator, now or when the last array is gone."""
        self._closed = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._live:
            with contextlib.suppress(IndexError):
                bindings.comm_close(self._open.pop())

    def forked(self) -> None:
        """In the child of a fork: free nothing, ever; the memory is the parent's."""
        for _, finalizer in self._live.copy().values():
            finalizer.detach()
        self._live.clear()
        while self._open:
            bindings.comm_forked(self._open.pop())


def numpy_dtype(dtype: Any) -> numpy.dtype[Any]:
    """Return the dtype of a new array; UsageError if there is none, or it cannot be moved."""
    import numpy

    try:
        kind: numpy.dtype[Any] = numpy.dtype(dtype)
    except Exception:  # numpy has many, SyntaxError among them
        raise UsageError(
            f"empty: numpy knows no dtype {quoted(dtype)}; for bfloat16 make it uint16 and pass "
            "torch.from_numpy(x).view(torch.bfloat16)"
        ) from None
    if kind.subdtype is not None:
        raise UsageError(
            f"empty: dtype is {quoted(dtype)}, an array of {kind.base}: give that, and its lengths "
            "as shape"
        )
    dtype_of(kind, "empty: the array")
    return kind


def lengths(shape: int | Iterable[int]) -> tuple[int, ...]:
    """Return the lengths of a new array's axes."""
    try:
        axes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        axes = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        axes = (-1,)
    if min(axes, default=0) < 0 or max(axes, default=0) > sys.maxsize or len(axes) > _AXES:
        raise UsageError(
            f"empty: shape is {quoted(shape)}, want a length or at most {_AXES} lengths, each from "
            f"0 to {sys.maxsize}"
        )
    return axes


#: Those of closed communicators, too, whose arrays live on.
_heaps: weakref.WeakSet[Heap] = weakref.WeakSet()


def _forget_all() -> None:
    for heap in list(_heaps):
        heap.forked()


os.register_at_fork(after_in_child=_forget_all)
