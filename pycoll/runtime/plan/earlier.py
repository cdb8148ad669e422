"""Earlier: what the ranks of a communicator that was shrunk had chosen, for those that are left.

To choose anew takes a simulation of each algorithm. So the first calls of the survivors run what
ran before, where a certificate covers it for fewer ranks too; from the call `SETTLED` on all of
them run what is best for as many as they are.

A rank may have died as a choice was on its way, so that some know it and some do not. As survivors
meet they compare what they know, and forget what some do not; then each finds its answer by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from typing import TYPE_CHECKING, NamedTuple

from pycoll.algorithms import get
from pycoll.cost import Choice
from pycoll.errors import PycollError
from pycoll.order import FREE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycoll.cost import Question
    from pycoll.runtime.join import World
    from pycoll.schedule import Algorithm

#: Number of the first call of a communicator that is chosen for the ranks that it has.
SETTLED = 33
#: Choices that are kept.
MOST = 1024
#: Of so many last choices ranks may know some that others do not.
TAIL = 3
SUMMARY = struct.Struct(f"<I{'8s' * TAIL}")  #: how many, and digests of all, of all but one, ...


class Subject(NamedTuple):
    """What is asked of any number of ranks."""

    collective: str  #: or "barrier"
    nbytes: int
    wanted: str | None
    dtype: str
    direct: bool  #: whether all arrays of `empty` are reached by all ranks
    order: str = FREE

    @classmethod
    def of(cls, asked: Question, direct: bool) -> Subject:
        """Return what of a question holds for any number of ranks."""
        return cls(asked.collective, asked.nbytes, asked.wanted, asked.dtype, direct, asked.order)


class Choices:
    """What one communicator has chosen, and what it knows of the one that it comes from.

    Args:
        inherited: What was chosen there; None: it comes from none.
    """

    def __init__(self, inherited: dict[Subject, Choice] | None = None) -> None:
        self.inherits = inherited is not None
        self.alike = False  #: all ranks have inherited the same
        self._inherited = inherited or {}
        self._found: dict[Subject, Choice] = {}

    def heirs(self) -> Choices:
        """Return what the survivors of this communicator begin with."""
        return Choices({**self._inherited, **self._found})

    def summary(self) -> bytes:
        """Return what others need to see what they have inherited alike, `SUMMARY.size` bytes."""
        known = [repr((subject, choice[:-1])) for subject, choice in self._inherited.items()]
        digests, sofar = [b""] * TAIL, hashlib.blake2b(digest_size=8)
        for number, text in enumerate(["", *known]):
            sofar.update(text.encode())
            if number + TAIL > len(known):
                digests[len(known) - number] = sofar.digest()
        return SUMMARY.pack(len(known), *digests)

    def agree(self, summaries: Sequence[bytes]) -> None:
        """Keep what all ranks have inherited alike, if their summaries show what that is.

        Ranks choose in the same order, so that they differ in the last choices, if at all.
        """
        counts, digests = zip(*((n, d) for n, *d in map(SUMMARY.unpack, summaries)), strict=True)
        least = min(counts)
        if max(counts) - least >= TAIL:
            return
        if len({d[n - least] for n, d in zip(counts, digests, strict=True)}) > 1:
            return
        self._inherited = dict(itertools.islice(self._inherited.items(), least))
        self.alike = True

    def note(self, subject: Subject, choice: Choice) -> None:
        """Keep what was chosen."""
        if len(self._found) >= MOST:
            self._found.clear()
        self._found[subject] = choice

    def find(self, subject: Subject, world: World, collective: str, average: bool) -> Choice | None:
        """Return what ran before, if it is certified for these ranks.

        Args:
            subject: What is asked.
            world: The ranks.
            collective: Whose algorithm serves it.
            average: Whether the result is divided by the number of ranks.
        """
        from pycoll.verify import by_certificate
        from pycoll.verify.certificates import Form

        choice = self._inherited.get(subject)
        if choice is None:
            return None

        def covers(algorithm: Algorithm, direct: bool) -> bool:
            form = Form(direct, average)
            try:
                found = by_certificate(algorithm, world.size, world.slots, form, world.placement)
            except PycollError:
                return False
            return found is not None

        try:
            if not covers(get(choice.algorithm, collective), False):
                return None
            if choice.direct is not None and not covers(get(choice.direct, collective), True):
                choice = choice._replace(direct=None)
        except PycollError:  # a user's, which is not known by its name
            return None
        return choice._replace(reason="as before some ranks were lost")
