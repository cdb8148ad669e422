"""Recovery: how the survivors of a broken communicator agree on who they are.

The router leads it. Every survivor reports to it; once all that may still come have come, or the
time is up, it proposes a *view*: the ranks of the new communicator. Who has joined that accepts,
and once all have accepted, the view is chosen and the router commits it. If a router is lost, the
survivors report what they have accepted to the next, which finds out what may have been chosen and
proposes that again. A rank never goes back to a router of a lower rank, so routers are numbered as
the ballots of Paxos are.

Two views must never be chosen, and some ranks only seem to be dead. So a view may leave out
whoever is proved dead; but whoever is only silent, if those who have reported are more than half
of the members, or half of them with the lowest. A member that died counts among them: it may have
hung up here before, and have accepted another router's view, of which nobody here knows. Only who
has said here that it accepts nothing any more, and what it had accepted, does not count.

Nothing here reads a clock or a socket. `tests/bootstrap/test_recovery_model.py` tries what can
happen among a few ranks, all of it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from pycoll.errors import BootstrapError

_BALLOT = struct.Struct("<II")  # router, turn
_PROPOSAL = struct.Struct("<IIIIII")  # ballot, name of the view, numbers of ranks and of voters
_REPORT = struct.Struct("<IBB")  # proposals that were accepted; whether one is chosen; out

LATE = "it came too late"  #: why a rank is out


class Ballot(NamedTuple):
    """Which proposal; of two the greater is the later, for whoever hears of both."""

    router: int  #: rank of the job that proposes it
    turn: int  #: of its proposals

    def pack(self) -> bytes:
        """Return it as it travels."""
        return _BALLOT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Ballot:
        """Read what `pack` wrote."""
        if len(data) != _BALLOT.size:
            raise BootstrapError(f"ballot: {len(data)} bytes, want {_BALLOT.size}")
        return cls(*_BALLOT.unpack(data))


class View(NamedTuple):
    """Who is in a new communicator."""

    name: Ballot  #: of the first proposal of it
    ranks: tuple[int, ...]  #: of the job, in the order of the old communicator


class Proposal(NamedTuple):
    """A view, and those who must accept it until it is chosen."""

    ballot: Ballot
    view: View
    voters: tuple[int, ...]

    def pack(self) -> bytes:
        """Return it as it travels."""
        ranks, voters = self.view.ranks, self.voters
        head = _PROPOSAL.pack(*self.ballot, *self.view.name, len(ranks), len(voters))
        return head + struct.pack(f"<{len(ranks) + len(voters)}I", *ranks, *voters)

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Proposal, bytes]:
        """Read what `pack` wrote; return what follows it, too."""
        if len(data) >= _PROPOSAL.size:
            *numbers, ranks, voters = _PROPOSAL.unpack_from(data)
            end = _PROPOSAL.size + 4 * (ranks + voters)
            if end <= len(data):
                listed = struct.unpack_from(f"<{ranks + voters}I", data, _PROPOSAL.size)
                view = View(Ballot(*numbers[2:]), listed[:ranks])
                return cls(Ballot(*numbers[:2]), view, listed[ranks:]), data[end:]
        raise BootstrapError(f"proposal: {len(data)} bytes, which are too few")


class Report(NamedTuple):
    """What a survivor tells a router."""

    accepted: tuple[Proposal, ...] = ()  #: in the order that it accepted them
    chosen: Proposal | None = None  #: of which it knows that it is chosen
    out: bool = False  #: it has raised, and accepts nothing any more

    def pack(self) -> bytes:
        """Return it as it travels."""
        head = _REPORT.pack(len(self.accepted), self.chosen is not None, self.out)
        told = (*self.accepted, *([self.chosen] if self.chosen else []))
        return head + b"".join(proposal.pack() for proposal in told)

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote."""
        if len(data) < _REPORT.size:
            raise BootstrapError(f"report: {len(data)} bytes, want at least {_REPORT.size}")
        count, chosen, out = _REPORT.unpack_from(data)
        rest, told = data[_REPORT.size :], []
        for _ in range(count + bool(chosen)):
            proposal, rest = Proposal.unpack(rest)
            told.append(proposal)
        if rest:
            raise BootstrapError(f"report: {len(rest)} bytes too many")
        return cls(tuple(told[:count]), told[-1] if chosen else None, bool(out))


class Verdict(enum.Enum):
    """What a router tells a survivor."""

    PROPOSED = enum.auto()  #: join the view and accept it
    CHOSEN = enum.auto()  #: all have accepted it
    OUT = enum.auto()  #: this rank is left out, or nobody may go on


class Word(NamedTuple):
    """From the router to one survivor."""

    rank: int
    verdict: Verdict
    proposal: Proposal | None = None
    text: str = ""  #: of OUT


def majority(reported: Collection[int], members: Collection[int]) -> bool:
    """Tell whether those who reported may leave out members that are only silent."""
    inside = set(reported) & set(members)
    return 2 * len(inside) > len(members) or (
        2 * len(inside) == len(members) and min(members) in inside
    )


@dataclass
class Recovery:
    """A router's side of the recovery of one communicator.

    Attributes:
        router: The rank that runs the router.
        ranks: Of the broken communicator, as the job numbers them, in its order.
    """

    router: int
    ranks: tuple[int, ...]
    reports: dict[int, Report] = field(default_factory=dict)  #: of those who are here, or died here
    dead: set[int] = field(default_factory=set)  #: proved to be dead, or as good as that
    known: set[int] = field(
        default_factory=set
    )  #: and have accepted nothing that is not known here
    silent: set[int] = field(default_factory=set)  #: not waited for any more
    proposal: Proposal | None = None  #: the present one
    accepted: set[int] = field(default_factory=set)  #: by whom
    chosen: bool = False
    over: bool = False  #: nobody may go on
    turn: int = 0

    def report(self, rank: int, report: Report) -> list[Word]:
        """Take what a survivor says that wants to go on."""
        if self.over or rank in self.silent or rank in self.dead:
            return [Word(rank, Verdict.OUT, text=LATE)]
        if self.chosen:
            return [Word(rank, Verdict.CHOSEN, self.proposal)]
        self.reports[rank] = report
        if report.out:
            self._miss(rank)
            self.known.add(rank)
        return self._decide()

    def accept(self, rank: int, ballot: Ballot) -> list[Word]:
        """Note that a survivor has joined the view that was proposed to it."""
        present = self.proposal
        if present is None or present.ballot != ballot or rank not in present.voters:
            return []
        self.accepted.add(rank)
        if self.chosen or not self.accepted.issuperset(present.voters):
            return []
        self.chosen = True
        return [Word(other, Verdict.CHOSEN, present) for other in present.voters]

    def leave(self, rank: int) -> list[Word]:
        """Note that a rank has told this router that it has closed the communicator.

        It told before what it had accepted, unless nobody listened to that any more.
        """
        if rank not in self.ranks or rank in self.silent or rank in self.dead:
            return []
        self._miss(rank)
        self.known.add(rank)
        return self._decide()

    def lose(self, rank: int, proved: bool) -> list[Word]:
        """Note that a rank is gone.

        Args:
            rank: Of the job.
            proved: It is dead, and not only silent.
        """
        if rank not in self.ranks or rank in self.dead or (rank in self.silent and not proved):
            return []
        self._miss(rank, proved)
        return self._decide()

    def _miss(self, rank: int, proved: bool = True) -> None:
        """Propose nothing to a rank any more."""
        self.silent.discard(rank)
        (self.dead if proved else self.silent).add(rank)
        if self.proposal and not self.chosen and rank in self.proposal.voters:
            self.proposal = None

    def expire(self) -> list[Word]:
        """Wait no longer: for those who have not reported, or have not accepted."""
        late = set(self.waiting())
        if not late:
            return []
        self.silent |= late
        self.proposal = None
        told = late & self.reports.keys()
        return [*(Word(rank, Verdict.OUT, text=LATE) for rank in sorted(told)), *self._decide()]

    def waiting(self) -> list[int]:
        """Return those whom all wait for."""
        if self.chosen or self.over:
            return []
        if self.proposal:
            return [rank for rank in self.proposal.voters if rank not in self.accepted]
        gone = self.dead | self.silent
        return [rank for rank in self.ranks if rank not in gone and rank not in self.reports]

    def _here(self) -> list[int]:
        gone = self.dead | self.silent
        return [rank for rank in self.ranks if rank in self.reports and rank not in gone]

    def _decide(self) -> list[Word]:
        here = self._here()
        if self.chosen or self.over or self.proposal or self.waiting() or not here:
            return []
        if chosen := next((r.chosen for r in self.reports.values() if r.chosen), None):
            self.proposal, self.chosen = chosen, True
            return [Word(rank, Verdict.CHOSEN, chosen) for rank in here]
        if self.silent and not majority(here, [r for r in self.ranks if r not in self.known]):
            self.over = True
            return [Word(rank, Verdict.OUT, text=self._minority(here)) for rank in here]
        self.turn += 1
        ballot = Ballot(self.router, self.turn)
        view = self._perhaps_chosen() or View(ballot, tuple(here))
        self.proposal, self.accepted = Proposal(ballot, view, tuple(here)), set()
        return [Word(rank, Verdict.PROPOSED, self.proposal) for rank in here]

    def _perhaps_chosen(self) -> View | None:
        """Return the view of which a silent rank may know that it is chosen, if there is one.

        It is that of the last proposal: who proposed this knew that no other had been chosen.
        """
        found = {proposal for report in self.reports.values() for proposal in report.accepted}
        view = max(found).view if found else None
        for last in found:
            voters = [self.reports[rank] for rank in last.voters if rank in self.reports]
            all_have = all(last in report.accepted for report in voters)
            if last.view == view and all_have and self.silent.intersection(last.voters):
                return view
        return None

    def _minority(self, here: Collection[int]) -> str:
        return (
            f"of {len(self.ranks)} ranks {len(here)} have come, {len(self.dead)} are dead and "
            f"{len(self.silent)} are silent: they may go on elsewhere"
        )
