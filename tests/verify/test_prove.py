from __future__ import annotations

import pytest

import pycoll
from pycoll.algorithms import algorithm, get, names
from pycoll.errors import DeadlockError, PostconditionError, ScheduleError, UsageError
from pycoll.program.lower import compile_all
from pycoll.schedule import NotDirect, ScheduleBuilder, allreduce
from pycoll.verify import Verdict, verify, verify_programs
from pycoll.verify.certificates import FORMS, Form

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
