from __future__ import annotations

import pytest

import pycoll
from pycoll.algorithms import Algorithm, algorithm, get, names
from pycoll.errors import DeadlockError, PostconditionError, ScheduleError, UsageError
from pycoll.program.lower import compile_all
from pycoll.schedule import NotDirect, Placement, ScheduleBuilder, allreduce
from pycoll.schedule.placement import Level
from pycoll.verify import Verdict, verify, verify_programs
from pycoll.verify import algorithm as subject
from pycoll.verify.certificates import FORMS, Form
from pycoll.verify.gate import TooLargeError

SIZES = (*range(1, 18), 32)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", names("allreduce"))
def test_every_algorithm_is_right_at_every_size(name: str, form: Form) -> None:
    for size in SIZES:
        try:
            assert verify(name, size, direct=form.direct, average=form.average)
        except NotDirect:
            assert form.direct
            assert (name, size) not in {("two_shot", n) for n in SIZES}


def test_the_ring_of_64_ranks() -> None:
    assert verify("ring", 64).tiles == (1, 2, 6)  # bench/verification.py measures how long it takes


def test_a_verdict_says_what_was_proved() -> None:
    verdict = verify("ring", 4, slots=3)
    assert verdict
    assert (verdict.name, verdict.size, verdict.slots) == ("ring", 4, 3)
    assert verdict.tiles == (1, 2, 5)
    programs = compile_all(get("ring"), 4)
    assert verdict.instructions == sum(len(p.instructions) for p in programs)
    assert verdict.origin == "proof"


def test_programs_are_proved_without_their_algorithm() -> None:
    verdict = verify_programs(compile_all(get("two_shot"), 3), allreduce)
    assert verdict.name == "allreduce"


def test_the_package_itself_can_be_called() -> None:
    assert isinstance(pycoll.verify("ring", size=3), Verdict)


@algorithm(allreduce)
def forgetful(b: ScheduleBuilder) -> None:
    b.chunks(1)
    if b.rank:
        b.send(b.output[0], to=0)
        b.recv(b.output[0], frm=0)
    else:
        for peer in range(1, b.size):
            b.recv_reduce(b.output[0], frm=peer)
            b.send(b.output[0], to=peer)  # too early: the later ranks are not in it yet


@algorithm(allreduce)
def polite(b: ScheduleBuilder) -> None:
    b.chunks(1)
    for peer in range(b.size):
        if peer != b.rank:
            b.recv_reduce(b.output[0], frm=peer)  # everyone waits for the others to begin
            b.send(b.output[0], to=peer)


@algorithm(allreduce)
def lonely(b: ScheduleBuilder) -> None:
    b.chunks(1)
    if b.rank == 0:
        b.send(b.output[0], to=1)


def test_the_errors_of_a_users_algorithm_name_rank_and_chunk() -> None:
    message = r"rank 1, .*chunk 0 of OUT lacks the contribution of rank 2"
    with pytest.raises(PostconditionError, match=message) as caught:
        verify(forgetful, 3)
    assert vars(caught.value)["chunk"] == 0
    with pytest.raises(DeadlockError, match="waits in a circle"):
        verify(polite, 2)
    with pytest.raises(ScheduleError, match="rank 0 sends 1 messages to rank 1, which receives 0"):
        verify(lonely, 2)


def test_the_collective_of_an_algorithm_is_its_own() -> None:
    assert verify(forgetful, 1, collective="allreduce")
    message = "^collective is 'gather', but forgetful is an algorithm for allreduce$"
    with pytest.raises(UsageError, match=message):
        verify(forgetful, 1, collective="gather")
    with pytest.raises(UsageError, match=r"^algorithm is 'no such'"):
        verify("no such", 3, collective="allgather")


@algorithm("allreduce")
def own_first(b: ScheduleBuilder) -> None:
    """Fold all in an order that begins with one's own: alike on all ranks, and not equal."""
    b.chunks(1)
    for k in range(1, b.size):
        b.send(b.input[0], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[0], frm=[(b.rank + k) % b.size for k in range(b.size)])


def ring_but_one(odd: str) -> Algorithm:
    """Return the ring, of which rank 47 is ``odd``."""

    @algorithm("allreduce")
    def ring_but_one(b: ScheduleBuilder) -> None:
        get("ring")(b)
        if b.rank == 47 and odd == "right":
            b.copy(b.output[0], b.scratch[0])
        if b.rank == 47 and odd == "wrong":
            b.reduce(b.output[0], b.output[0])

    return ring_but_one


def test_a_few_stand_for_all_and_all_are_compared_where_that_is_quick(monkeypatch):
    monkeypatch.setattr(subject, "ALL", 1 << 17)
    monkeypatch.setattr(subject, "SOME", 1 << 15)
    verdict = verify("ring", 64)
    assert (verdict.by, verdict.compared) == ("1 rank for all, by rotation of 64", 64)
    assert "by rotation of 64; all do the same" in str(verdict)
    verdict = verify("hierarchical", 1024, placement=nodes(1024, 8))
    assert verdict.by == "8 ranks for all, by rotation of 128"
    assert 8 < verdict.compared < 1024
    assert "each of the others compares its own program before it runs it" in str(verdict)
    assert verify("ring", 64, whole=True).by == "rank by rank"


def test_what_is_wrong_on_all_ranks_alike_is_refused():
    with pytest.raises(PostconditionError, match="rank 1"):
        verify(own_first, 64)


def test_one_rank_that_is_not_like_the_others_is_found():
    """A few ranks are asked what the group may be; this one is none of them."""
    assert verify(ring_but_one("not at all"), 64).compared == 64
    assert verify(ring_but_one("right"), 64).by == "rank by rank"
    with pytest.raises(PostconditionError, match="rank 47"):
        verify(ring_but_one("wrong"), 64)


def test_what_is_too_large_says_how_to_verify_it_all_the_same():
    with pytest.raises(TooLargeError, match=r"do not all do the same.*; whole=True \(--whole\)"):
        verify("two_shot", 1024)
    with pytest.raises(TooLargeError, match="its ranks are proved one by one"):
        verify("two_shot", 1024, direct=True)


def test_what_is_not_alike_and_large_is_proved_where_whole_says_so(monkeypatch):
    monkeypatch.setattr(subject, "LIMIT", 100)
    with pytest.raises(TooLargeError, match="more than 100 chunks"):
        verify("double_binary_tree", 40)
    assert verify("double_binary_tree", 40, whole=True).by == "rank by rank"
    odd = ring_but_one("right")
    with pytest.raises(TooLargeError, match="rank 47 is not like the others"):
        verify(odd, 64)
    monkeypatch.setattr(subject, "ALL", 100)
    monkeypatch.setattr(subject, "SOME", 100)
    assert verify(odd, 64).compared == 3  # it finds out by itself before it runs


@pytest.mark.parametrize(
    ("name", "each", "by", "all_compared"),
    [
        ("ring", 0, "1 rank for all, by rotation of 1024", False),
        ("hierarchical", 8, "8 ranks for all, by rotation of 128", False),
        # Ranks that cut their ranges are run to be compared, chunk by chunk.
        ("bruck", 0, "1 rank for all, by rotation of 1024", False),
        ("recursive_doubling", 0, "1 rank for all, by XOR below 1024", True),
        ("double_binary_tree", 0, "rank by rank", True),
    ],
)
def test_the_stages_of_a_proof_of_many_ranks(name, each, by, all_compared, monkeypatch):
    monkeypatch.setattr(subject, "ALL", 1 << 17)
    monkeypatch.setattr(subject, "SOME", 1 << 15)
    stages: list[str] = []
    form, placement = Form(direct=False, average=False), nodes(1024, each) if each else None
    verdict = subject.proved(get(name), 1024, 4, form, placement, progress=stages.append)
    assert verdict.by == by
    assert stages[:2] == ["looking for ranks that do the same", f"proving {by}"]
    assert (verdict.how() in (by, f"{by}; all do the same")) == all_compared


def test_a_placement_of_other_ranks_is_refused():
    with pytest.raises(UsageError, match="size is 64, but level 'node' of the placement has 128"):
        verify("hierarchical", 64, placement=nodes(128, 8))


def nodes(size: int, each: int) -> Placement:
    return Placement.of(Level("node", tuple(rank // each for rank in range(size))))
