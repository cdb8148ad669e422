"""Exchange: what the ranks of a checked call tell each other, and where their bytes differ."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pycoll import log
from pycoll.errors import PycollError
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.runtime.check.memory import Message
    from pycoll.runtime.dispatch import Dispatcher

#: What errors call the check's own calls.
PURPOSE = "check for silent corruption"
#: Parts of a message whose checksums are compared at a time.
_PARTS = 512
_ABSENT = -1


class Garbled(PycollError):
    """What a rank told of its results came with wrong bytes itself."""


class Exchange:
    """Gathers of a few numbers of each rank, which all ranks make alike.

    Args:
        launch: What runs calls.
        timeout: Seconds that each may take; the communicator's by default.
    """

    def __init__(self, launch: Dispatcher, timeout: float | None) -> None:
        self._launch = launch
        self._options = CallOptions(timeout=timeout, purpose=PURPOSE)
        self.size = launch.engine.world.size

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """Return the numbers of all ranks, which give equally many.

        Raises:
            Garbled: Some came wrong both times.
            PycollError: What any call raises.
        """
        import numpy

        row = numpy.array([*values, 0], numpy.int64)
        row[-1] = zlib.crc32(row[:-1].data)
        # Twice: a flip in one of them is no reason to leave the others alone with the next step.
        twice = numpy.concatenate([row, row])
        said = self._launch.run("allgather", twice, None, self._options)
        found = []
        for rank, pair in enumerate(said.reshape(self.size, 2, -1)):
            whole = [one for one in pair if one[-1] == zlib.crc32(one[:-1].data)]
            if len(whole) < 2:
                text = "what rank %d told of its results came with wrong bytes"
                log.warning("check", text, rank)
                if not whole:
                    raise Garbled(text % rank)
                warnings.warn(f"PYCOLL_CHECK: {text % rank}, once of twice", stacklevel=2)
            found.append(whole[0][:-1].tolist())
        return found

    def texts(self, values: Sequence[bytes], nbytes: int) -> list[list[bytes]]:
        """Return bytes of all ranks, of which none is longer than ``nbytes``; padded to that."""
        width = -(-nbytes // 8) * 8
        whole = b"".join(value.ljust(width, b"\0") for value in values)
        words = [
            int.from_bytes(whole[at : at + 8], "little", signed=True)
            for at in range(0, len(whole), 8)
        ]
        found = []
        for row in self.gather(words):
            said = b"".join(word.to_bytes(8, "little", signed=True) for word in row)
            found.append([said[at : at + nbytes] for at in range(0, len(said), width)])
        return found

    def extent(self, values: Sequence[Message | None]) -> tuple[int, int] | None:
        """Return the first byte, and the last, in which messages of all ranks are not all alike.

        Args:
            values: This rank's; None: it has none. All that there are have one length, and all
                ranks give equally many.

        Returns:
            The two places; None where no byte differs any more.
        """
        mine = max((value.nbytes for value in values if value is not None), default=0)
        nbytes = max(row[0] for row in self.gather([mine]))
        first = self._narrowed(values, nbytes, 0)
        last = self._narrowed(values, nbytes, -1)
        return None if first is None or last is None else (first, last)

    def _narrowed(self, values: Sequence[Message | None], nbytes: int, which: int) -> int | None:
        start, stop = 0, nbytes
        while stop > start:
            step = max(1, -(-(stop - start) // _PARTS))
            begins = range(start, stop, step)
            said = []
            for value in values:
                known = [
                    _ABSENT if value is None else value.part(at, min(at + step, stop)).checksum()
                    for at in begins
                ]
                said += known + [_ABSENT] * (_PARTS - len(known))
            columns = zip(*self._split(self.gather(said)), strict=True)
            differing = [i for i, sums in enumerate(columns) if len({*sums} - {_ABSENT}) > 1]
            if not differing:
                return None
            start = begins[differing[which]]
            stop = min(start + step, stop)
            if step == 1:
                return start
        return None

    @staticmethod
    def _split(rows: list[list[int]]) -> list[list[int]]:
        return [row[at : at + _PARTS] for row in rows for at in range(0, len(row), _PARTS)]
