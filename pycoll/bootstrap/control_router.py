"""Control router: what one rank does with the frames of all; pure logic, no sockets or clocks.

It begins on rank 0. One that takes its place knows nothing, and is told: each rank that comes says
what groups it is in, what it has said there and heard, and who it knows is gone. So everything that
is said here may be said twice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from pycoll.bootstrap.framing import CALLS, Frame, FrameType, pack_blobs
from pycoll.bootstrap.group import Group, Once, Poll
from pycoll.bootstrap.reasons import DIED, WENT_ON
from pycoll.bootstrap.recovery import Ballot, Recovery, Report, Verdict, Word
from pycoll.errors import BootstrapError

SECONDS = struct.Struct("<d")
RANK = struct.Struct("<I")
POLL_SECONDS = 0.5  #: how long a rank may take to say its status

#: A frame and the rank that it goes to.
Outgoing = tuple[int, Frame]


def rank_list(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 1, 2, 5", at most eight of them."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"


class ControlRouter:
    """Completes exchanges and tells every rank what became of the others.

    Args:
        size: Number of ranks.
        rank: Of this process.
        expected: Ranks that are still to come; None, where all are here.
        until: When those who have not come are lost.
    """

    def __init__(
        self,
        size: int,
        rank: int = 0,
        expected: Iterable[int] | None = None,
        until: float = math.inf,
    ) -> None:
        self._size = size
        self._rank = rank
        self._successor = expected is not None
        self._expected, self._until = set(expected or ()), until
        self._groups: dict[int, Group] = {}
        if expected is None:
            self._groups[0] = everyone = Group(0, range(size))
            everyone.join(*range(size))
        self._gone: dict[int, str] = {}  #: ranks whose connection has ended, and the reason
        self._dead: set[int] = set()  #: those that are proved dead
        self._parted: set[Group] = set()  # groups with farewells that nobody has been told of

    def receive(self, rank: int, frame: Frame, now: float) -> list[Outgoing]:
        """Take a frame that came from `rank`; farewells are kept for `flush`.

        Raises:
            BootstrapError: A rank of this protocol version does not send such a frame.
        """
        # Whatever else comes finds them told: each rank hears all things in the order they came.
        told = [] if frame.kind is FrameType.CLOSED else self.flush()
        return told + self._receive(rank, frame, now)

    def flush(self) -> list[Outgoing]:
        """Tell of those who have left since this was last called: one frame for all of a group.

        All ranks of a job leave at about the same time, and a frame for each would be size² of
        them.
        """
        out: list[Outgoing] = []
        parted, self._parted = self._parted, set()
        for group in parted:
            if frame := group.farewells():
                out += [(other, frame) for other in sorted(group.present)]
        return out

    def _receive(self, rank: int, frame: Frame, now: float) -> list[Outgoing]:
        if frame.rank != rank:
            raise BootstrapError(f"rank {rank} sent a frame of rank {frame.rank}")
        self._expected.discard(rank)
        if frame.kind is FrameType.JOIN:
            return self._join(rank, frame)
        if frame.kind is FrameType.HEARD:
            return self._hear_of(rank, frame)
        group = self._groups.get(frame.group)
        # What was on its way while its rank told all anew comes behind the rank's farewell.
        if group is None and (self._successor or frame.kind is FrameType.CLOSED):
            return []  # told twice; the group is forgotten
        if group is None or rank not in group.joined:
            raise BootstrapError(f"rank {rank} sent {frame.kind.name} to a group that it is not in")
        if frame.kind is FrameType.CONTRIBUTE:
            return self._contribute(group, rank, frame, now)
        if frame.kind is FrameType.ABORT:
            return self._tell(group, rank, frame)
        if frame.kind is FrameType.ONCE:
            return self._want(group, rank, frame.key)
        if frame.kind is FrameType.MADE:
            return self._made(group, rank, frame)
        if frame.kind is FrameType.CLOSED:
            if len(frame.body) != CALLS.size:
                raise BootstrapError(
                    f"rank {rank} sent CLOSED with {len(frame.body)} bytes, want 8"
                )
            group.went_on.discard(rank)  # it has said here before what it had accepted
            return self._leave(group, rank, frame)
        if frame.kind is FrameType.RECOVER:
            return self._recover(group, rank, frame.body)
        if frame.kind is FrameType.ACCEPT:
            return self._accept(group, rank, Ballot.unpack(frame.body))
        if frame.kind is FrameType.ASK:
            return self._ask(group, rank, now)
        if frame.kind is FrameType.STATUS:
            return self._note(group, rank, frame.body)
        raise BootstrapError(
            f"rank {rank} sent {frame.kind.name}, which only the control router sends"
        )

    def lost(self, rank: int, reason: str) -> list[Outgoing]:
        """Note that the connection to `rank` ended; nothing is said if it had left every group."""
        proved = reason == DIED
        if rank in self._gone:
            return self._bury(rank) if proved and rank not in self._dead else []
        self._gone[rank] = reason
        self._expected.discard(rank)
        if proved:
            self._dead.add(rank)
        mine = [group for group in self._groups.values() if rank in group.index]
        missed = any(rank not in group.left for group in mine)
        out = self.flush() if missed else []
        for group in mine:
            group.lose(rank)
            out += self._pass_on(group, rank) + self._miss(group, rank) + self._tidy(group)
        if missed:
            frame = Frame(FrameType.LOST, rank, reason)
            present = set().union(*(group.present for group in self._groups.values()))
            out += [(other, frame) for other in sorted(present)]
        return out

    def parted(self, rank: int) -> bool:
        """Tell whether a rank has left all that it was in."""
        # A router that took another's place may not have been told yet what that rank was in.
        mine = [group for group in self._groups.values() if rank in group.index]
        return all(rank in group.left for group in mine) and bool(mine or not self._successor)

    def needed(self) -> bool:
        """Tell whether other ranks depend on this router."""
        groups = self._groups.values()
        others = (len(group.present) > (self._rank in group.present) for group in groups)
        return bool(self._expected) or any(others)

    def coming(self) -> set[int]:
        """Return who is still to come here."""
        return self._expected

    def absent(self, now: float) -> list[int]:
        """Return who has not come here in time; each is to be `lost`."""
        return sorted(self._expected) if self._until <= now else []

    def expire(self, looked: float, now: float | None = None) -> list[Outgoing]:
        """Fail the exchanges, and answer the questions, whose deadline has passed.

        Args:
            looked: Until when all that came has been heard.
            now: From when on is counted what begins; the same by default.
        """
        out: list[Outgoing] = []
        for group in self._groups.values():
            for key, gathering in list(group.gatherings.items()):
                if gathering.deadline > looked:
                    continue
                del group.gatherings[key]
                absent = [i for i, r in enumerate(group.ranks) if r not in gathering.blobs]
                text = f"{rank_list(absent)} did not come within {gathering.seconds:g} s"
                group.failed[key] = text
                frame = Frame(FrameType.MISSING, 0, key, text.encode(), group.number)
                out += [(rank, frame) for rank in gathering.blobs]
            if group.poll and group.poll.deadline <= looked:
                out += self._answer(group)
            if group.recovery and group.recovery_until <= looked:
                begun = group.recovery_until > -math.inf
                out += self._words(group, group.recovery.expire() if begun else [])
                if group.recovery.waiting():
                    begins = looked if now is None else now
                    group.recovery_until = begins + group.recovery_seconds
        return out

    def next_deadline(self) -> float:
        """Return when `expire` has work next; infinity if nothing is pending."""
        due = self._until if self._expected else math.inf
        for group in self._groups.values():
            due = min([due, *(g.deadline for g in group.gatherings.values())])
            due = min(due, group.recovery_until)
            if group.poll:
                due = min(due, group.poll.deadline)
        return due

    def _join(self, rank: int, frame: Frame) -> list[Outgoing]:
        if len(frame.body) % RANK.size or not frame.body:
            raise BootstrapError(f"rank {rank} sent JOIN with {len(frame.body)} bytes")
        ranks = struct.unpack(f"<{len(frame.body) // RANK.size}I", frame.body)
        group = self._groups.get(frame.group)
        if group is None or group.ranks != ranks:
            if len(set(ranks)) < len(ranks) or max(ranks) >= self._size or rank not in ranks:
                raise BootstrapError(f"rank {rank} joined a group of {rank_list(list(ranks))}")
            if group is not None:
                raise BootstrapError(f"rank {rank} joined group {frame.group:x} with other ranks")
            group = self._groups[frame.group] = Group(frame.group, ranks)
            for gone in self._gone.keys() & group.index.keys():
                group.lose(gone)
        if rank not in group.index:
            raise BootstrapError(f"rank {rank} joined a group of {rank_list(list(ranks))}")
        if rank in group.joined:
            return []
        group.join(rank)
        said = [(rank, earlier) for kept in group.said.values() for earlier in kept]
        missed = group.gone - group.left
        said += [(rank, Frame(FrameType.LOST, gone, self._gone[gone])) for gone in sorted(missed)]
        if group.complete():
            group.said.clear()
        if group.poll:  # the others were asked before it came; it is waited for as they are
            said.append((rank, Frame(FrameType.ASK, 0, group=group.number)))
        return said

    def _hear_of(self, rank: int, frame: Frame) -> list[Outgoing]:
        """Take what a rank heard from an earlier router: that another left a group, or is lost."""
        if len(frame.body) not in (RANK.size, RANK.size + CALLS.size):
            raise BootstrapError(f"rank {rank} sent HEARD with {len(frame.body)} bytes")
        (other,) = RANK.unpack_from(frame.body)
        if other >= self._size:
            raise BootstrapError(f"rank {rank} has heard of rank {other}")
        if len(frame.body) == RANK.size:
            return [] if other == self._rank else self.lost(other, frame.key)
        group = self._groups.get(frame.group)
        if group is None or other not in group.index:
            return []
        group.join(other)
        # What it accepted before it left only itself tells, who comes if it lives; see `WENT_ON`.
        if frame.key.startswith(WENT_ON) and other not in group.left:
            group.went_on.add(other)
        left = Frame(FrameType.CLOSED, other, frame.key, frame.body[RANK.size :], group.number)
        return self._leave(group, other, left)

    def _contribute(self, group: Group, rank: int, frame: Frame, now: float) -> list[Outgoing]:
        if len(frame.body) < SECONDS.size:
            raise BootstrapError(f"rank {rank} sent a contribution of {len(frame.body)} bytes")
        (seconds,) = SECONDS.unpack_from(frame.body)
        if not 0 <= seconds <= 86400:
            raise BootstrapError(f"rank {rank} sent a timeout of {seconds} s")
        key, number = frame.key, group.number
        if key in group.failed:  # too late: the others have given up
            return [(rank, Frame(FrameType.MISSING, 0, key, group.failed[key].encode(), number))]
        gathering = group.gathering(key, now + seconds, seconds)
        # A rank that gave up on a slow rank 0 and tries again replaces what it said before.
        gathering.blobs[rank] = frame.body[SECONDS.size :]
        if len(gathering.blobs) < len(group.ranks):
            return []
        del group.gatherings[key]
        everything = pack_blobs([gathering.blobs[rank] for rank in group.ranks])
        complete = Frame(FrameType.GATHERED, 0, key, everything, number)
        return [(rank, complete) for rank in group.ranks]

    def _leave(self, group: Group, rank: int, frame: Frame) -> list[Outgoing]:
        if rank in group.left:
            return self._miss(group, rank)
        group.leave(rank)
        group.remember(frame)
        group.parting.append(frame)
        self._parted.add(group)
        return self._pass_on(group, rank) + self._miss(group, rank) + self._tidy(group)

    def _tell(self, group: Group, rank: int, frame: Frame) -> list[Outgoing]:
        group.remember(frame)
        return [(other, frame) for other in sorted(group.present - {rank})]

    def _tidy(self, group: Group) -> list[Outgoing]:
        """Forget a group that everyone has left; do not wait for the status of who has."""
        if group.over():
            del self._groups[group.number]
            return []
        return self._answer(group) if group.poll and group.poll.heard(group.present) else []

    # What is made once. The first rank that wants it makes it; who comes later waits, or has it at
    # once. If its maker leaves, or lets go of it, the next that waits makes it.

    def _want(self, group: Group, rank: int, key: str) -> list[Outgoing]:
        once = group.onces.get(key)
        if once is None:
            group.drop_onces()
            group.onces[key] = Once(rank)
        elif once.blob is not None:
            return self._give(group, key, once, [rank])
        elif once.maker != rank:
            if rank not in once.waiting:
                once.waiting.append(rank)
            return []
        return [(rank, Frame(FrameType.MAKE, 0, key, group=group.number))]

    def _made(self, group: Group, rank: int, frame: Frame) -> list[Outgoing]:
        # A router that took another's place may hear of it first from who has made it.
        once = group.onces.setdefault(frame.key, Once(rank))
        if once.blob is not None:
            return []
        if not frame.body:
            return self._pass(group, frame.key, once) if once.maker == rank else []
        once.blob, once.given = frame.body[1:], {rank}
        waiting, once.waiting = once.waiting, []
        return self._give(group, frame.key, once, [other for other in waiting if other != rank])

    def _give(self, group: Group, key: str, once: Once, ranks: list[int]) -> list[Outgoing]:
        assert once.blob is not None
        once.given.update(ranks)
        if group.index.keys() <= once.given:
            del group.onces[key]  # nobody will want it any more
        frame = Frame(FrameType.MADE, 0, key, once.blob, group.number)
        return [(rank, frame) for rank in ranks]

    def _pass_on(self, group: Group, rank: int) -> list[Outgoing]:
        """Have others make what a rank that is gone was to make."""
        out: list[Outgoing] = []
        for key, once in list(group.onces.items()):
            once.waiting = [other for other in once.waiting if other != rank]
            if once.maker == rank and once.blob is None:
                out += self._pass(group, key, once)
        return out

    def _pass(self, group: Group, key: str, once: Once) -> list[Outgoing]:
        if not once.waiting:
            del group.onces[key]
            return []
        once.maker = once.waiting.pop(0)
        return [(once.maker, Frame(FrameType.MAKE, 0, key, group=group.number))]

    # Recovery: `Recovery` decides, and hears here of what happens.

    def _recover(self, group: Group, rank: int, body: bytes) -> list[Outgoing]:
        if len(body) < SECONDS.size:
            raise BootstrapError(f"rank {rank} sent RECOVER with {len(body)} bytes")
        (seconds,) = SECONDS.unpack_from(body)
        if not 0 <= seconds <= 86400:
            raise BootstrapError(f"rank {rank} sent a timeout of {seconds} s")
        report = Report.unpack(body[SECONDS.size :])
        words = []
        if group.recovery is None:
            group.recovery = Recovery(self._rank, group.ranks)
            group.recovery_seconds = seconds
            for left in group.left - group.went_on:
                group.recovery.leave(left)
            for gone in group.gone:
                words += group.recovery.lose(gone, gone in self._dead)
        words += group.recovery.report(rank, report)
        return self._words(group, words)

    def _accept(self, group: Group, rank: int, ballot: Ballot) -> list[Outgoing]:
        return self._words(group, group.recovery.accept(rank, ballot)) if group.recovery else []

    def _miss(self, group: Group, rank: int) -> list[Outgoing]:
        """Have those who recover go on without a rank that has left, or is gone."""
        if group.recovery is None:
            return []
        words = []
        if rank in group.left - group.went_on:
            words += group.recovery.leave(rank)
        if rank in group.gone:
            words += group.recovery.lose(rank, rank in self._dead)
        return self._words(group, words)

    def _bury(self, rank: int) -> list[Outgoing]:
        """Note that a rank which was silent is dead."""
        self._dead.add(rank)
        mine = [group for group in self._groups.values() if rank in group.index]
        return [one for group in mine for one in self._miss(group, rank)]

    def _words(self, group: Group, words: list[Word]) -> list[Outgoing]:
        """Return what a recovery says, as frames, and have `expire` see what it waits for."""
        assert group.recovery is not None
        if not group.recovery.waiting():
            group.recovery_until = math.inf
        elif group.recovery_until == math.inf or words:
            group.recovery_until = -math.inf  # from the next look at the clock on
        return [(word.rank, self._word(group, word)) for word in words]

    def _word(self, group: Group, word: Word) -> Frame:
        if word.verdict is Verdict.OUT:
            return Frame(FrameType.OUT, word.rank, "", word.text.encode(), group.number)
        assert word.proposal is not None
        kind = FrameType.PROPOSED if word.verdict is Verdict.PROPOSED else FrameType.CHOSEN
        return Frame(kind, word.rank, "", word.proposal.pack(), group.number)

    # Statuses. However many ranks ask, each rank is asked once, and all askers get one answer.

    def _ask(self, group: Group, rank: int, now: float) -> list[Outgoing]:
        if group.poll:
            group.poll.askers.add(rank)
            return []
        group.poll = Poll({rank}, now + POLL_SECONDS)
        frame = Frame(FrameType.ASK, 0, group=group.number)
        return [(other, frame) for other in sorted(group.present)]

    def _note(self, group: Group, rank: int, status: bytes) -> list[Outgoing]:
        group.statuses[rank] = status
        if not group.poll:
            return []
        group.poll.answered.add(rank)
        return self._answer(group) if group.poll.heard(group.present) else []

    def _answer(self, group: Group) -> list[Outgoing]:
        assert group.poll is not None
        askers, group.poll = group.poll.askers & group.present, None
        blobs = pack_blobs([group.statuses.get(rank, b"") for rank in group.ranks])
        frame = Frame(FrameType.STATUSES, 0, "", blobs, group.number)
        return [(rank, frame) for rank in sorted(askers)]
