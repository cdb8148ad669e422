"""Group: the ranks of one communicator, as rank 0's router knows them."""

from __future__ import annotations

import hashlib
import math
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from pycoll.bootstrap.framing import Frame, FrameType, pack_farewells
from pycoll.bootstrap.recovery import Recovery

ONCES = 256  #: things made once that not all ranks have asked for
KEPT = 4  #: aborts of a kind, or farewells, of one rank


def number_of(parent: int, key: str, ranks: Sequence[int]) -> int:
    """Return the number under which the frames of a group travel; every member finds the same."""
    text = struct.pack(f"<Q{len(ranks)}I", parent, *ranks) + key.encode()
    # The number 0 is that of all ranks.
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") or 1


class Gathering:
    """An exchange that not every rank has come to."""

    def __init__(self, deadline: float, seconds: float) -> None:
        self.deadline = deadline
        self.seconds = seconds
        self.blobs: dict[int, bytes] = {}


@dataclass
class Once:
    """What one rank of a group makes for all that want it."""

    maker: int  #: the rank that has been asked to make it
    waiting: list[int] = field(default_factory=list)  #: others that want it
    blob: bytes | None = None  #: None: it is not made yet
    given: set[int] = field(default_factory=set)  #: ranks that have it


@dataclass
class Poll:
    """A round in which every rank of a group is asked for its status."""

    askers: set[int]
    deadline: float
    answered: set[int] = field(default_factory=set)

    def heard(self, present: Set[int]) -> bool:
        """Tell whether there is nobody left to wait for."""
        return present <= self.answered


class Group:
    """Who is in a group, what its ranks are doing together, and what latecomers must hear."""

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.ranks = tuple(ranks)
        self.index = {rank: i for i, rank in enumerate(self.ranks)}
        # Kept up to date by `join`, `leave` and `lose`: each event asks for them, of which there
        # are as many as ranks, so that nobody may run through all ranks to find them.
        self.joined: set[int] = set()
        self.left: set[int] = set()  #: closed their communicator
        self.went_on: set[int] = set()  #: of these, as others say, those that accepted a view
        self.gone: set[int] = set()  #: their connection has ended
        self.present: set[int] = set()  #: hold this communicator open
        self._expected = set(self.ranks)  # may still join
        self._remaining = set(self.ranks)  # have neither left nor gone
        #: Farewells that the others have not been told of; their ranks have left.
        self.parting: list[Frame] = []
        self.gatherings: dict[str, Gathering] = {}
        self.failed: dict[str, str] = {}
        # What latecomers are to hear. Of what a rank says often, only the last is kept, and it
        # displaces nothing else: a rank may be refused any number of calls before it gives up.
        self.said: defaultdict[tuple[int, str], deque[Frame]] = defaultdict(
            lambda: deque(maxlen=KEPT)
        )
        self.onces: dict[str, Once] = {}
        self.poll: Poll | None = None
        self.statuses: dict[int, bytes] = {}  #: the last that each rank said
        self.recovery: Recovery | None = None  #: once some rank wants to go on without others
        self.recovery_seconds = 0.0  #: how long is waited for each step of it
        self.recovery_until = math.inf

    def join(self, *ranks: int) -> None:
        """Note that ranks have opened this communicator."""
        self.joined.update(ranks)
        self._expected.difference_update(ranks)
        self.present.update(self._remaining.intersection(ranks))

    def leave(self, rank: int) -> None:
        """Note that a rank has closed it."""
        self.left.add(rank)
        self._part(rank)

    def lose(self, rank: int) -> None:
        """Note that the connection to a rank has ended."""
        self.gone.add(rank)
        self._expected.discard(rank)
        self._part(rank)

    def _part(self, rank: int) -> None:
        self.present.discard(rank)
        self._remaining.discard(rank)

    def complete(self) -> bool:
        """Tell whether nobody is still to join."""
        return not self._expected

    def over(self) -> bool:
        """Tell whether every rank has left, or is gone."""
        return not self._remaining

    def farewells(self) -> Frame | None:
        """Return one frame for all that left since this was last called; None if nobody did."""
        parted, self.parting = self.parting, []
        if len(parted) < 2:
            return parted[0] if parted else None
        return Frame(FrameType.LEFT, 0, "", pack_farewells(parted), self.number)

    def drop_onces(self) -> None:
        """Forget the oldest of the things that are made, where some ranks never ask for them."""
        made = [key for key, once in self.onces.items() if once.blob is not None]
        for key in made[: max(0, len(made) - ONCES)]:
            del self.onces[key]

    def remember(self, frame: Frame) -> None:
        """Keep an abort or a farewell for those who have not joined yet."""
        if not self.complete():
            self.said[frame.rank, frame.key].append(frame)

    def gathering(self, key: str, deadline: float, seconds: float) -> Gathering:
        """Return the exchange of this name, whose earliest deadline holds for all."""
        found = self.gatherings.setdefault(key, Gathering(deadline, seconds))
        if deadline < found.deadline:
            found.deadline, found.seconds = deadline, seconds
        return found
