"""Group: the ranks of one communicator, as rank 0's router knows them."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pycoll.bootstrap.framing import Frame

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

    def heard(self, present: set[int]) -> bool:
        """Tell whether there is nobody left to wait for."""
        return present <= self.answered


class Group:
    """Who is in a group, what its ranks are doing together, and what latecomers must hear."""

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.ranks = tuple(ranks)
        self.index = {rank: i for i, rank in enumerate(self.ranks)}
        self.joined: set[int] = set()
        self.left: set[int] = set()  #: closed their communicator
        self.gone: set[int] = set()  #: their connection has ended
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

    @property
    def present(self) -> set[int]:
        """The ranks that hold this communicator open."""
        return self.joined - self.left - self.gone

    def complete(self) -> bool:
        """Tell whether nobody is still to join."""
        return self.index.keys() <= self.joined | self.gone

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
