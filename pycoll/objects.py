"""Objects of Python between the ranks of a Communicator, as pickles."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.counted import Counted
from pycoll.errors import UsageError
from pycoll.runtime.asked import Asked

if TYPE_CHECKING:
    import numpy

    Bytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

_FAILED = -1  #: instead of a length: this rank has no pickle
#: Blocks of one length may waste so many bytes; where they would waste more, each has its own.
_WASTE_BYTES = 1 << 20


class Objects(Counted):
    """What ranks do together with objects that `pickle` serves.

    A pickle can make its reader run anything: these methods trust the ranks of the job, whose
    connections are authenticated. The lengths travel first. Where a rank cannot pickle its object
    the error is raised there, and UsageError on the others; the communicator is as good as before.
    What stops a rank behind the lengths (Ctrl-C, no memory for the object) breaks it for all.
    """

    def broadcast_object(self, obj: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """Return the object of rank ``root``.

        Args:
            obj: The object, on the root; elsewhere it is not looked at.
            root: The rank that has it.
            timeout: Seconds, for the length and again for the object.
        """
        self._check_root(root, "broadcast_object")
        asked = Asked(root=root, timeout=timeout, purpose=f"broadcast_object(root {root})")
        mine = _pickled([obj] if self.rank == root else [], 1)
        (length,) = self._lengths("broadcast", mine, asked)
        with self._engine.entirely(asked.purpose):
            data = _room(_rounded(length), mine.pickles)
            self._launch.run("broadcast", data, None, asked)
        return obj if self.rank == root else pickle.loads(data.data)

    def allgather_object(self, obj: Any, timeout: float | None = None) -> list[Any]:
        """Return the objects of all ranks, in order of rank.

        Args:
            obj: This rank's object.
            timeout: Seconds, for the lengths and again for the objects.
        """
        asked = Asked(timeout=timeout, purpose="allgather_object()")
        mine = _pickled([obj], 1)
        lengths = self._lengths("allgather", mine, asked)
        with self._engine.entirely(asked.purpose):
            found = self._pickles_of_all(mine.pickles, lengths, asked)
        return [obj if r == self.rank else pickle.loads(data.data) for r, data in enumerate(found)]

    def gather_object(
        self, obj: Any, root: int = 0, timeout: float | None = None
    ) -> list[Any] | None:
        """Return the objects of all ranks, in order of rank, on rank ``root``; None elsewhere.

        Args:
            obj: This rank's object.
            root: The rank that gets them.
            timeout: Seconds, for the lengths and again for the objects.
        """
        self._check_root(root, "gather_object")
        asked = Asked(timeout=timeout, purpose=f"gather_object(root {root})")
        mine = _pickled([obj], 1)
        lengths = self._lengths("allgather", mine, asked)
        with self._engine.entirely(asked.purpose):
            out = _room(sum(lengths), []) if self.rank == root else None
            own = _room(0, mine.pickles)
            self._gatherv("gather_object", own, lengths, out, root, timeout=timeout)
        if out is None:
            return None
        found = _cut(out, lengths)
        return [obj if r == self.rank else pickle.loads(data.data) for r, data in enumerate(found)]

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, timeout: float | None = None
    ) -> Any:
        """Return the one of ``objs``, of rank ``root``, that is this rank's.

        Args:
            objs: On the root, an object for each rank; elsewhere it is not looked at.
            root: The rank that has them.
            timeout: Seconds, for the lengths and again for the objects.
        """
        asked = Asked(root=root, timeout=timeout, purpose=f"scatter_object(root {root})")
        self._check_root(root, "scatter_object")
        is_root = self.rank == root
        mine = _pickled(objs if is_root else [], self.size)
        lengths = self._lengths("broadcast", mine, asked)
        with self._engine.entirely(asked.purpose):
            own = _room(lengths[self.rank], [])
            every = _room(0, mine.pickles) if is_root else None
            self._scatterv("scatter_object", every, lengths, own, root, timeout=timeout)
        return objs[root] if is_root and objs is not None else pickle.loads(own.data)

    def _pickles_of_all(
        self, pickles: list[bytes], lengths: list[int], asked: Asked
    ) -> list[Bytes]:
        import numpy

        widest = _rounded(max(lengths))
        if self.size * widest - sum(lengths) <= max(_WASTE_BYTES, sum(lengths)):
            out = numpy.empty((self.size, widest), numpy.uint8)
            return list(self._launch.run("allgather", _room(widest, pickles), out, asked))
        found = []
        for root, length in enumerate(lengths):
            found.append(_room(_rounded(length), pickles if root == self.rank else []))
            self._launch.run("broadcast", found[-1], None, asked._replace(root=root))
        return found

    def _check_root(self, root: int, who: str) -> None:
        from pycoll.runtime.request import rank_of

        self._engine.require_usable(who)
        rank_of(root, self.size, f"{who}: root")

    def _lengths(self, collective: str, mine: _Pickled, asked: Asked) -> list[int]:
        """Exchange the lengths of pickles; raise if a rank could not make its own."""
        import numpy

        x = numpy.array(mine.lengths, numpy.int64)
        asked = asked._replace(purpose=f"lengths of {asked.purpose}")
        lengths = [int(n) for n in self._launch.run(collective, x, None, asked)]
        if mine.error is not None:
            raise mine.error
        if _FAILED in lengths:
            rank = asked.root if collective == "broadcast" else lengths.index(_FAILED)
            what = asked.purpose.removeprefix("lengths of ").partition("(")[0]
            raise UsageError(f"{what}: rank {rank} could not pickle its object; see its message")
        return lengths


class _Pickled(NamedTuple):
    pickles: list[bytes]
    lengths: list[int]
    error: Exception | None


def _pickled(objects: Sequence[Any] | None, want: int) -> _Pickled:
    """Pickle what this rank has to say; keep the error, for the others must hear of it first."""
    try:
        if objects is None or len(objects) not in (0, want):
            what = "nothing" if objects is None else f"{len(objects)} objects"
            raise UsageError(f"scatter_object: objs is {what}, want {want} objects on the root")
        pickles = [pickle.dumps(obj, protocol=5) for obj in objects]
    except Exception as error:  # an object's own methods may raise anything
        return _Pickled([], [_FAILED] * want, error)
    return _Pickled(pickles, [len(p) for p in pickles] or [0] * want, None)


def _rounded(length: int) -> int:
    """Round up, so that few lengths, and so few plans, are ever used."""
    return 1 << max(6, (length - 1).bit_length())


def _room(length: int, pickles: list[bytes]) -> Bytes:
    """Return an array that holds pickles one behind the other and has ``length`` at least."""
    import numpy

    total = sum(map(len, pickles))
    room = numpy.empty(max(length, total), numpy.uint8)
    room[:total] = numpy.frombuffer(b"".join(pickles), numpy.uint8)
    return room


def _cut(data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
    """Return the parts of ``data`` that have these lengths."""
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [data[end - n : end] for end, n in zip(ends, lengths, strict=True)]
