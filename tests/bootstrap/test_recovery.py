"""A router's side of a recovery, a rank's, and how what they say travels."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap.control_router import RANK, SECONDS, ControlRouter
from pycoll.bootstrap.framing import CALLS, Frame, FrameType
from pycoll.bootstrap.reasons import CLOSED, DIED, HUNG_UP, WENT_ON
from pycoll.bootstrap.recovery import (
    LATE,
    Ballot,
    Proposal,
    Recovery,
    Report,
    Verdict,
    View,
    Word,
    majority,
)
from pycoll.bootstrap.survivor import Survivor
from pycoll.errors import BootstrapError, BrokenError

NAME = Ballot(0, 1)
NOTHING = Report()
PROPOSAL = Proposal(NAME, View(NAME, (0, 2)), (0, 2))

numbers = st.integers(0, 2**32 - 1)
ballots = st.builds(Ballot, numbers, numbers)
some_ranks = st.lists(numbers, max_size=5).map(tuple)
proposals = st.builds(Proposal, ballots, st.builds(View, ballots, some_ranks), some_ranks)
reports = st.builds(
    Report, st.lists(proposals, max_size=3).map(tuple), st.none() | proposals, st.booleans()
)


@given(reports)
def test_a_report_arrives_as_it_was_sent(report):
    assert Report.unpack(report.pack()) == report


@given(proposals, st.binary(max_size=8))
def test_a_proposal_arrives_as_it_was_sent(proposal, behind):
    assert Proposal.unpack(proposal.pack() + behind) == (proposal, behind)


@given(reports, st.data())
def test_a_report_that_is_cut_or_too_long_is_refused(report, data):
    whole = report.pack()
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BootstrapError, match=r"report: |proposal: "):
        Report.unpack(whole[:end])
    with pytest.raises(BootstrapError, match="1 bytes too many"):
        Report.unpack(whole + b"\0")


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_means_something(garbage):
    for read in (Report.unpack, Proposal.unpack, Ballot.unpack):
        with contextlib.suppress(BootstrapError):
            read(garbage)


def test_a_ballot_of_another_length_is_refused():
    assert Ballot.unpack(NAME.pack()) == NAME
    with pytest.raises(BootstrapError, match="ballot: 7 bytes, want 8"):
        Ballot.unpack(NAME.pack()[:7])


def test_counts_beyond_the_bytes_are_refused():
    with pytest.raises(BootstrapError, match="too few"):
        Proposal.unpack(struct.pack("<6I", 0, 1, 0, 1, 2**32 - 1, 2**32 - 1))


@pytest.mark.parametrize(
    ("reported", "members", "enough"),
    [
        ({0, 1}, {0, 1, 2}, True),
        ({1}, {0, 1, 2}, False),
        ({0, 1}, {0, 1, 2, 3}, True),  # half, with the lowest
        ({1, 2}, {0, 1, 2, 3}, False),
        ({0, 7, 8}, {0, 1, 2}, False),  # who is no member does not count
    ],
)
def test_majority(reported, members, enough):
    assert majority(reported, members) is enough


def of(words: list[Word], verdict: Verdict) -> list[int]:
    assert {word.verdict for word in words} <= {verdict}
    return [word.rank for word in words]


def after_reports(size: int, *ranks: int) -> tuple[Recovery, list[Word]]:
    recovery, words = Recovery(0, tuple(range(size))), []
    for rank in ranks:
        words = recovery.report(rank, Report())
    return recovery, words


def test_all_that_live_are_proposed_and_chosen_once_all_have_accepted():
    recovery, words = after_reports(3, 0, 2)
    assert (words, recovery.waiting()) == ([], [1])
    words = recovery.lose(1, True)
    assert of(words, Verdict.PROPOSED) == [0, 2]
    assert words[0].proposal == PROPOSAL
    assert recovery.accept(0, NAME) == []
    assert of(recovery.accept(2, NAME), Verdict.CHOSEN) == [0, 2]
    assert of(recovery.report(2, Report()), Verdict.CHOSEN) == [2]


def test_deaths_that_are_proved_leave_one_rank_that_goes_on():
    recovery, _ = after_reports(4, 3)
    recovery.lose(0, True), recovery.lose(1, True)
    assert of(recovery.lose(2, True), Verdict.PROPOSED) == [3]


def test_a_minority_is_out_and_hears_how_many_came():
    recovery, _ = after_reports(4, 1)
    recovery.lose(0, True)
    words = recovery.expire()
    assert of(words, Verdict.OUT) == [1]
    assert (
        words[0].text
        == "of 4 ranks 1 have come, 1 are dead and 2 are silent: they may go on elsewhere"
    )
    assert recovery.report(2, Report()) == [Word(2, Verdict.OUT, text=LATE)]


def test_a_rank_that_died_counts_among_the_members():
    """It may have accepted another router's view before, with those who are silent here."""
    recovery, _ = after_reports(5, 0, 1, 4)
    recovery.lose(4, True)
    assert of(recovery.expire(), Verdict.OUT) == [0, 1]


def test_a_rank_that_has_closed_the_communicator_here_does_not_count():
    recovery, _ = after_reports(5, 0, 1)
    recovery.leave(4)
    assert of(recovery.expire(), Verdict.PROPOSED) == [0, 1]


def test_a_rank_that_was_silent_and_closes_still_counts():
    """What it has accepted since nobody listened to it is known to nobody here."""
    recovery, _ = after_reports(4, 1)
    recovery.lose(0, False)
    assert recovery.leave(0) == []
    assert recovery.silent == {0}
    assert of(recovery.expire(), Verdict.OUT) == [1]


def test_a_silent_rank_that_is_proved_dead_is_silent_no_more():
    recovery, _ = after_reports(3, 1)
    recovery.lose(0, False)
    recovery.lose(0, True)
    assert of(recovery.lose(2, True), Verdict.PROPOSED) == [1]


def test_a_voter_that_raises_is_not_waited_for():
    recovery, words = after_reports(3, 0, 1, 2)
    assert of(words, Verdict.PROPOSED) == [0, 1, 2]
    recovery.accept(0, NAME)
    words = recovery.report(1, Report(out=True))
    assert of(words, Verdict.PROPOSED) == [0, 2]
    assert recovery.accept(2, NAME) == []  # of the proposal before
    assert recovery.waiting() == [0, 2]


def test_a_voter_that_does_not_accept_in_time_is_told_that_it_is_out():
    recovery, _ = after_reports(3, 0, 1, 2)
    recovery.accept(0, NAME), recovery.accept(2, NAME)
    words = recovery.expire()
    assert words[0] == Word(1, Verdict.OUT, text=LATE)
    assert of(words[1:], Verdict.PROPOSED) == [0, 2]


def test_a_view_that_a_silent_rank_may_have_returned_is_proposed_again():
    recovery = Recovery(1, (0, 1, 2))
    accepted = Proposal(NAME, View(NAME, (0, 1, 2)), (0, 1, 2))
    recovery.lose(0, False)
    recovery.report(1, Report((accepted,)))
    words = recovery.report(2, Report((accepted,)))
    assert words[0].proposal == Proposal(Ballot(1, 1), accepted.view, (1, 2))


def test_what_one_rank_knows_to_be_chosen_all_hear():
    recovery = Recovery(1, (0, 1, 2))
    recovery.lose(0, True)
    recovery.report(1, Report((PROPOSAL,), PROPOSAL))
    assert of(recovery.report(2, Report((PROPOSAL,))), Verdict.CHOSEN) == [1, 2]


# The same by the frames of the control plane.


def recover(rank: int, report: Report = NOTHING) -> Frame:
    return Frame(FrameType.RECOVER, rank, "", SECONDS.pack(5) + report.pack())


def successor(size: int, rank: int) -> ControlRouter:
    router = ControlRouter(size, rank, set(range(rank + 1, size)), until=100)
    join = struct.pack(f"<{size}I", *range(size))
    router.receive(rank, Frame(FrameType.JOIN, rank, "", join), 0)
    return router


def test_a_rank_that_went_on_is_not_dead_because_others_heard_it_close():
    """It lives in the view {0, 1}; rank 2, which came too late for that, heard it close."""
    router = successor(3, 2)
    router.lost(0, DIED)
    heard = Frame(FrameType.HEARD, 2, WENT_ON, RANK.pack(1) + CALLS.pack(0))
    router.receive(2, heard, 0)
    router.flush()
    assert router.receive(2, recover(2), 0) == []
    out = router.lost(1, HUNG_UP)
    assert [frame.kind for _, frame in out if frame.kind is not FrameType.LOST] == [FrameType.OUT]


def test_a_rank_that_went_on_says_itself_what_was_chosen():
    router = successor(3, 1)
    router.lost(0, DIED)
    router.receive(1, Frame(FrameType.HEARD, 1, WENT_ON, RANK.pack(2) + CALLS.pack(0)), 0)
    router.flush()
    assert router.receive(1, recover(1), 0) == []
    chosen = Proposal(NAME, View(NAME, (0, 2)), (0, 2))
    router.receive(2, Frame(FrameType.JOIN, 2, "", struct.pack("<3I", 0, 1, 2)), 0)
    out = router.receive(2, recover(2, Report((chosen,), chosen)), 0)
    assert {(rank, frame.kind) for rank, frame in out} == {
        (1, FrameType.CHOSEN),
        (2, FrameType.CHOSEN),
    }


def test_a_rank_that_closed_without_a_recovery_is_left_out():
    router = successor(3, 2)
    router.lost(0, DIED)
    router.receive(2, Frame(FrameType.HEARD, 2, CLOSED, RANK.pack(1) + CALLS.pack(0)), 0)
    router.flush()
    assert [frame.kind for _, frame in router.receive(2, recover(2), 0)] == [FrameType.PROPOSED]


def test_a_rank_of_which_a_new_router_knows_no_group_has_not_left_all():
    router = ControlRouter(3, 1, {2}, until=10)
    assert not router.parted(2)


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"", "RECOVER with 0 bytes"), (SECONDS.pack(-1), "timeout"), (SECONDS.pack(5), "report: 0")],
)
def test_a_recovery_that_is_garbled_is_refused(body, text):
    with pytest.raises(BootstrapError, match=text):
        ControlRouter(2).receive(1, Frame(FrameType.RECOVER, 1, "", body), 0)


# A rank's side.


class Sent(list):
    def __call__(self, kind: FrameType, body: bytes) -> None:
        self.append((kind, body))


def proposed(proposal: Proposal, kind: FrameType = FrameType.PROPOSED) -> Frame:
    return Frame(kind, 0, "", proposal.pack())


def test_a_survivor_accepts_what_it_has_joined_and_tells_the_next_router():
    sent = Sent()
    survivor = Survivor(sent, 5)
    survivor.begin()
    assert sent.pop() == (FrameType.RECOVER, SECONDS.pack(5) + Report().pack())
    survivor.hear(proposed(PROPOSAL))
    assert not survivor.accepted
    assert survivor.next() == PROPOSAL
    survivor.accept(PROPOSAL)
    assert sent.pop() == (FrameType.ACCEPT, NAME.pack())
    assert survivor.accepted
    assert survivor.joined(PROPOSAL)
    assert survivor.frame()[1] == SECONDS.pack(5) + Report((PROPOSAL,)).pack()
    assert survivor.chosen is None
    survivor.hear(proposed(PROPOSAL, FrameType.CHOSEN))
    assert survivor.chosen == PROPOSAL
    assert survivor.next() == PROPOSAL


def test_a_survivor_has_joined_one_view_at_a_time():
    """It has left the communicator of the view before, and would return this one for that."""
    survivor, name = Survivor(Sent(), 5), Ballot(0, 2)
    later = Proposal(name, View(name, (0,)), (0,))
    survivor.accept(PROPOSAL)
    survivor.accept(later)
    assert survivor.joined(later)
    assert not survivor.joined(PROPOSAL)


def test_a_survivor_accepts_at_once_what_is_proposed_again():
    sent = Sent()
    survivor = Survivor(sent, 0, grace=0)
    again = PROPOSAL._replace(ballot=Ballot(1, 1))
    survivor.hear(proposed(again))
    assert sent == [(FrameType.ACCEPT, again.ballot.pack())]
    assert survivor.next() is None


def test_what_is_heard_while_a_survivor_joins_cancels_that():
    survivor, cancelled = Survivor(Sent(), 5), []
    with survivor.joining(lambda: cancelled.append(True)):
        survivor.hear(Frame(FrameType.OUT, 0, "", LATE.encode()))
    assert (cancelled, survivor.next()) == ([True], LATE)


def test_what_was_heard_before_a_survivor_joins_cancels_that():
    survivor, cancelled = Survivor(Sent(), 5), []
    survivor.hear(proposed(PROPOSAL))
    with survivor.joining(lambda: cancelled.append(True)):
        assert cancelled == [True]


def test_a_survivor_acts_on_what_it_was_told_last():
    survivor = Survivor(Sent(), 0, grace=0)
    survivor.hear(proposed(PROPOSAL))
    survivor.hear(Frame(FrameType.OUT, 0, "", LATE.encode()))
    assert (survivor.next(), survivor.next()) == (LATE, None)


def test_a_survivor_that_accepts_as_it_joins_goes_on_once_the_view_is_chosen():
    sent, told = Sent(), []
    survivor = Survivor(sent, 5)
    with survivor.joining(lambda: told.append("another")):
        accepting = survivor.accepting(PROPOSAL, lambda: told.append("more"))
        assert sent == [(FrameType.ACCEPT, NAME.pack())]
        assert survivor.joined(PROPOSAL)
        assert not accepting.done()
        survivor.hear(proposed(PROPOSAL, FrameType.CHOSEN))
        assert (told, accepting.done(), accepting.finish()) == (["more"], True, [])
    assert survivor.next() == PROPOSAL


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameType.OUT, 0, "", LATE.encode()),
        proposed(Proposal(Ballot(0, 7), View(Ballot(0, 7), (0,)), (0,))),
    ],
    ids=["out", "another view"],
)
def test_a_survivor_that_accepts_as_it_joins_gives_up_for_another_view(frame):
    survivor, told = Survivor(Sent(), 5), []
    with survivor.joining(lambda: told.append("another")):
        accepting = survivor.accepting(PROPOSAL, lambda: told.append("more"))
        survivor.hear(frame)
        assert (told, accepting.done()) == (["more"], True)
        with pytest.raises(BrokenError, match="another view"):
            accepting.finish()


def test_a_survivor_that_has_heard_of_another_view_does_not_accept_this_one():
    sent = Sent()
    survivor = Survivor(sent, 5)
    with survivor.joining(lambda: None):
        survivor.hear(Frame(FrameType.OUT, 0, "", LATE.encode()))
        with pytest.raises(BrokenError, match="another view"):
            survivor.accepting(PROPOSAL, lambda: None)
    assert sent == []
    assert not survivor.accepted


def test_a_survivor_that_accepts_as_it_joins_does_not_wait_for_ever():
    """It goes on to join; that the router does not answer `next` finds out."""
    survivor = Survivor(Sent(), 0, grace=0)
    accepting = survivor.accepting(PROPOSAL, lambda: None)
    assert (accepting.done(), accepting.finish()) == (True, [])
    assert survivor.next() is None


def test_a_survivor_that_raises_says_so_to_each_router():
    sent = Sent()
    survivor = Survivor(sent, 5)
    survivor.raise_out()
    assert sent == [survivor.frame()]
    assert Report.unpack(sent[0][1][SECONDS.size :]).out
