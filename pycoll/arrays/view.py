"""ArrayView: where an array's bytes lie and what they are; Family: what a library is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pycoll.dtypes import DType


class Device(NamedTuple):
    """A memory that arrays lie in."""

    kind: str  #: "cpu" or "cuda"
    number: int = 0  #: of the GPU, as CUDA counts

    def __str__(self) -> str:
        return "the host" if self.kind == "cpu" else f"{self.kind}:{self.number}"


HOST = Device("cpu")


@dataclass(frozen=True, eq=False)
class Family:
    """A kind of arrays, such as torch's: what is asked of one. `families` has the table of all.

    What is said of an array is said of its *whole*: of what `take` makes of an object, which may be
    the object itself, its buffer, or what DLPack hands over.
    """

    #: (object, who) → its whole; None: it is of another family. UsageError: its memory is not to be
    #: had.
    take: Callable[[Any, str], Any]
    #: (whole, who) → the type of its elements; UsageError: they are not a fixed number of bytes.
    dtype: Callable[[Any, str], DType]
    contiguous: Callable[[Any], bool]  #: whether its elements follow each other in the order of C
    address: Callable[[Any], int]  #: of its first element
    copy: str  #: how a user makes a contiguous array of one called {}
    #: (whole, shape, dtype) → a new array beside it, by default of its dtype; None: it makes none
    empty: Callable[[Any, tuple[int, ...], DType | None], Any]
    shape: Callable[[Any], tuple[int, ...]] = lambda whole: tuple(whole.shape)
    strides: Callable[[Any], Any] = lambda whole: whole.strides  #: as its library counts them
    writable: Callable[[Any], bool] = lambda whole: True
    device: Callable[[Any], Device] = lambda whole: HOST
    flat: Callable[[Any], Any] = lambda whole: whole.reshape(-1)  #: with one axis, as a view
    #: (whole, first, end) → neighbouring rows of it, as a view
    rows: Callable[[Any, int, int], Any] = lambda whole, first, end: whole[first:end]

    # Of arrays in a GPU's memory.

    #: object → where it lies, if it is of this family and that is easily said
    spot: Callable[[Any], Spot | None] = lambda x: None
    given: Callable[[Any], int | None] = lambda whole: None  #: the stream that it names itself
    #: (number of the device, stream that the array names itself) → what work on it is ordered by
    stream: Callable[[int, int | None], int] = lambda number, given: given or 0
    #: Tells the library's allocator that a stream uses an array (whole, number of the device,
    #: stream); False: it cannot be told.
    record: Callable[[Any, int, int], bool] = lambda whole, number, stream: False


class Spot(NamedTuple):
    """An array that is contiguous in a GPU's memory."""

    kind: tuple[Any, ...]  #: what must be alike: library, dtype, shape, device
    address: int
    nbytes: int
    family: Family
    number: int  #: of the device
    given: int | None = None  #: the stream that it names itself


class ArrayView(NamedTuple):
    """A contiguous array."""

    owner: Any  #: what the user passed
    address: int
    count: int  # type: ignore[assignment]  #: elements; what a tuple counts, nobody asks
    dtype: DType
    shape: tuple[int, ...]
    writable: bool
    pin: Any  #: its whole: keeps the memory alive and where it is, or the address means nothing
    device: Device
    family: Family

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.count * self.dtype.itemsize

    def overlaps(self, other: ArrayView) -> bool:
        """Tell whether the two have a byte in common."""
        return intersect(self.address, self.nbytes, other.address, other.nbytes)

    def stream(self) -> int:
        """Return the stream that work on it is to be ordered by."""
        return self.family.stream(self.device.number, self.family.given(self.pin))

    def record(self, stream: int) -> bool:
        """Tell whoever frees its memory that a stream uses it; False: it is to be held."""
        return self.family.record(self.pin, self.device.number, stream)


# Which arrays alias. What may alias, and how, is in `operands`.


def intersect(a: int, abytes: int, b: int, bbytes: int) -> bool:
    """Tell whether two ranges of memory have a byte in common; an empty one may lie anywhere."""
    return a < b + bbytes and b < a + abytes and abytes > 0 < bbytes


def written_twice(arrays: Iterable[tuple[ArrayView, bool]]) -> int | None:
    """Return the number of the first of many arrays found to intersect one that is written.

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
