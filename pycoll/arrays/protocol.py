"""What a type checker is told of arrays: what any library's must have. Nothing runs of this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol


class SupportsDLPack(Protocol):
    """An array that DLPack shares, such as one of numpy, torch or cupy."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a capsule of its memory."""


class OnGpu(Protocol):
    """An array in the memory of a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Say where it lies, and what it is."""


if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import Buffer, TypeVar

    #: What methods take.
    Array: TypeAlias = SupportsDLPack | Buffer | OnGpu
    #: The type of an array that goes in, and of one that comes out: by default that of the first.
    X = TypeVar("X", bound=Array)
    Out = TypeVar("Out", bound=Array, default=X)
    #: What a call returns.
    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
