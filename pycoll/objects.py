"""Objects of Python between the ranks of a Communicator, as pickles.

A header for each pickle travels first, and what came is loaded if it is what its rank vouched
for. What stops a rank behind the headers (Ctrl-C, no memory for the object) breaks the
communicator for all.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.errors import TransportError, UsageError, quoted
from pycoll.runtime.pickle_header import (
    EVERYONE,
    FAILED,
    HEADER_BYTES,
    PickleHeader,
    PickleHeaders,
)
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    import numpy

    from pycoll.collectives import Collectives
    from pycoll.runtime.engine import Engine
    from pycoll.vector_collectives import VectorCollectives

    Bytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

#: Blocks of one length may waste so many bytes; where they would waste more, each has its own.
_WASTE_BYTES = 1 << 20


class Objects:
    """What moves the objects of one communicator."""

    def __init__(
        self, engine: Engine, collectives: Collectives, counted: VectorCollectives
    ) -> None:
        self._engine = engine
        self._collectives = collectives
        self._counted = counted
        self.rank, self.size = engine.world.rank, engine.world.size

    @cached_property
    def headers(self) -> PickleHeaders:
        """What goes before pickles, and says whose they are."""
        engine = self._engine
        return PickleHeaders(engine.bootstrap.secret, self.rank, leave=engine.world.remote)

    def broadcast(self, obj: Any, root: int, timeout: float | None) -> Any:
        """Return the object of rank ``root``."""
        with self._engine.order.begins("broadcast_object"):
            self._begin(root, "broadcast_object")
            options = CallOptions(
                root=root, timeout=timeout, purpose=f"broadcast_object(root {root})"
            )
            mine = _pickled([obj], 1) if self.rank == root else _Pickled([], 1)
            headers = self._announce("broadcast", mine, options)
        (header,) = _all_pickled("broadcast", mine, headers, options)
        with self._engine.order.entirely(options.purpose):
            data = _room(_rounded(header.length), mine.pickles)
            self._collectives.launch.run("broadcast", data, None, options)
            found = _vouched(header, data, root, options)
        return obj if self.rank == root else pickle.loads(found)

    def allgather(self, obj: Any, timeout: float | None) -> list[Any]:
        """Return the objects of all ranks."""
        with self._engine.order.begins("allgather_object"):
            self._begin(0, "allgather_object")
            options = CallOptions(timeout=timeout, purpose="allgather_object()")
            mine = _pickled([obj], 1)
            headers = self._announce("allgather", mine, options)
        _all_pickled("allgather", mine, headers, options)
        with self._engine.order.entirely(options.purpose):
            lengths = [header.length for header in headers]
            every = self._pickles_of_all(mine.pickles, lengths, options)
            found = _all_vouched(headers, every, options)
        return [obj if r == self.rank else pickle.loads(data) for r, data in enumerate(found)]

    def gather(self, obj: Any, root: int, timeout: float | None) -> list[Any] | None:
        """Return the objects of all ranks on rank ``root``; None elsewhere."""
        with self._engine.order.begins("gather_object"):
            self._begin(root, "gather_object")
            options = CallOptions(timeout=timeout, purpose=f"gather_object(root {root})")
            mine = _pickled([obj], 1)
            headers = self._announce("allgather", mine, options)
        _all_pickled("allgather", mine, headers, options)
        with self._engine.order.entirely(options.purpose):
            lengths = [header.length for header in headers]
            out = _room(sum(lengths), []) if self.rank == root else None
            own = _room(0, mine.pickles)
            self._counted.within("gatherv", options.method, own, lengths, out, root, False, timeout)
            if out is None:
                return None
            found = _all_vouched(headers, _cut(out, lengths), options)
        return [obj if r == self.rank else pickle.loads(data) for r, data in enumerate(found)]

    def scatter(self, objs: Sequence[Any] | None, root: int, timeout: float | None) -> Any:
        """Return the one of ``objs``, of rank ``root``, that is this rank's."""
        with self._engine.order.begins("scatter_object"):
            self._begin(root, "scatter_object")
            options = CallOptions(
                root=root, timeout=timeout, purpose=f"scatter_object(root {root})"
            )
            is_root = self.rank == root
            mine = _pickled(objs, self.size) if is_root else _Pickled([], self.size)
            headers = self._announce("broadcast", mine, options)
        _all_pickled("broadcast", mine, headers, options)
        with self._engine.order.entirely(options.purpose):
            lengths = [header.length for header in headers]
            own = _room(lengths[self.rank], [])
            every = _room(0, mine.pickles) if is_root else None
            self._counted.within(
                "scatterv", options.method, every, lengths, own, root, False, timeout
            )
            found = _vouched(headers[self.rank], own, root, options)
        return objs[root] if is_root and objs is not None else pickle.loads(found)

    def _pickles_of_all(
        self, pickles: list[bytes], lengths: list[int], options: CallOptions
    ) -> list[Bytes]:
        import numpy

        widest = _rounded(max(lengths))
        if self.size * widest - sum(lengths) <= max(_WASTE_BYTES, sum(lengths)):
            out = numpy.empty((self.size, widest), numpy.uint8)
            return list(
                self._collectives.launch.run("allgather", _room(widest, pickles), out, options)
            )
        found = []
        for root, length in enumerate(lengths):
            found.append(_room(_rounded(length), pickles if root == self.rank else []))
            self._collectives.launch.run("broadcast", found[-1], None, options._replace(root=root))
        return found

    def _begin(self, root: int, who: str) -> None:
        from pycoll.runtime.plan.request import rank_of

        self._engine.life.require_usable(who)
        rank_of(root, self.size, f"{who}: root")
        if self._engine.bootstrap.public:
            raise UsageError(
                f"{who}: anybody who reaches rank 0 over the network could have joined this job, "
                "and a pickle makes its reader run anything: set PYCOLL_SECRET to the same output "
                "of `openssl rand -hex 32` on every rank"
            )

    def _announce(
        self, collective: str, mine: _Pickled, options: CallOptions
    ) -> list[PickleHeader]:
        """Exchange the headers of pickles, or that a rank could not make its own.

        In a broadcast there is a pickle for each rank, or one for all of them.
        """
        import numpy

        what, each = options.purpose, mine.want > 1
        number = self._engine.next_call()
        nothing: list[bytes | None] = [None] * mine.want
        said = [
            self.headers.write(what, number, pickle, receiver if each else EVERYONE)
            for receiver, pickle in enumerate(mine.pickles or nothing)
        ]
        x = numpy.frombuffer(bytearray(b"".join(said)), numpy.int64)
        ahead = options._replace(purpose=f"lengths of {what}")
        headers = []
        with self._engine.order.entirely(what, self._engine.order.count()):
            data = self._collectives.launch.run(collective, x, None, ahead).tobytes()
            for i, start in enumerate(range(0, len(data), HEADER_BYTES)):
                sender = options.root if collective == "broadcast" else i
                one = data[start : start + HEADER_BYTES]
                receiver = i if each else EVERYONE
                headers.append(self.headers.read(what, number, one, sender, receiver))
        return headers


class _Pickled(NamedTuple):
    pickles: list[bytes]  #: none on a rank that has nothing to say, or could not make one of them
    want: int  #: how many of them there are on a rank that has
    error: Exception | None = None


def _pickled(objects: Sequence[Any] | None, want: int) -> _Pickled:
    """Pickle what this rank has to say; keep the error, for the others must hear of it first."""
    try:
        listed = isinstance(objects, Sequence) or hasattr(objects, "__array__")
        if objects is None or not listed or len(objects) != want:
            what = (
                f"{len(objects)} objects" if isinstance(objects, list | tuple) else quoted(objects)
            )
            raise UsageError(f"scatter_object: objs is {what}, want {want} objects on the root")
        pickles = [pickle.dumps(obj, protocol=5) for obj in objects]
    except Exception as error:  # an object's own methods may raise anything
        return _Pickled([], want, error)
    return _Pickled(pickles, want)


def _all_pickled(
    collective: str, mine: _Pickled, headers: list[PickleHeader], options: CallOptions
) -> list[PickleHeader]:
    """Return the headers; raise if a rank could not make its pickles. All ranks raise alike."""
    if mine.error is not None:
        raise mine.error
    failed = [i for i, header in enumerate(headers) if header.length == FAILED]
    if failed:
        rank = options.root if collective == "broadcast" else failed[0]
        who = options.purpose.partition("(")[0]
        raise UsageError(f"{who}: rank {rank} could not pickle its object; see its message")
    return headers


def _rounded(length: int) -> int:
    """Round up, so that few lengths, and so few plans, are ever used."""
    return 1 << max(6, (length - 1).bit_length())


def _room(length: int, pickles: list[bytes]) -> Bytes:
    """Return an array that holds pickles one behind the other and has ``length`` at least."""
    import numpy

    total = sum(map(len, pickles))
    room = numpy.zeros(max(length, total), numpy.uint8)  # all of it leaves this process
    room[:total] = numpy.frombuffer(b"".join(pickles), numpy.uint8)
    return room


def _cut(data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
    """Return the parts of ``data`` that have these lengths."""
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [data[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def _vouched(header: PickleHeader, data: Bytes, sender: int, options: CallOptions) -> memoryview:
    """Return the pickle with which ``data`` begins, if its rank vouched for that."""
    found = data[: header.length].data
    if not header.holds(found):
        raise TransportError(
            f"{options.purpose}: what came for rank {sender}'s object is not what it sent: "
            "somebody between the ranks changed it; it was not loaded"
        )
    return found


def _all_vouched(
    headers: list[PickleHeader], every: list[Bytes], options: CallOptions
) -> list[memoryview]:
    pairs = zip(headers, every, strict=True)
    return [_vouched(header, data, i, options) for i, (header, data) in enumerate(pairs)]
