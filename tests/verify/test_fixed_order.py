"""What is said of an algorithm that folds in another order than the fixed one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pycoll
from pycoll.algorithms import algorithm, get
from pycoll.errors import PostconditionError, UsageError
from pycoll.program.lower import compile_all
from pycoll.schedule import ScheduleBuilder, allreduce
from pycoll.verify import fixed_order
from pycoll.verify.fixed_order import canonical, difference, differs, written
from pycoll.verify.gate import TooLargeError
from pycoll.verify.values import Values


@algorithm(allreduce)
def last_chunk_backwards(b: ScheduleBuilder) -> None:
    """Fold in order but for one chunk of one rank's result, which is in no other's."""
    b.chunks(2)
    for peer in range(b.size):
        if peer != b.rank:
            b.send(b.input[0], to=peer)
            b.send(b.input[1], to=peer)
    b.recv_reduce(b.output[0], frm=range(b.size))
    b.recv_reduce(b.output[1], frm=range(b.size - 1, -1, -1))


def test_the_tree_is_that_of_a_loop() -> None:
    values = Values(allreduce, 4, 2)
    assert written(values, canonical(values, 1, 0b1111)) == "(((0+1)+2)+3)"
    assert written(values, canonical(values, 0, 0b1010)) == "(1+3)"
    assert written(values, canonical(values, 0, 0b0100)) == "2"
    assert written(values, values.scale(canonical(values, 0, 0b1111))) == "(((0+1)+2)+3)/size"
    assert written(values, 0) == "nothing"


def test_a_long_tree_is_cut() -> None:
    values = Values(allreduce, 20, 1)
    text = written(values, canonical(values, 0, (1 << 20) - 1))
    assert text == "((((((((...+12)+13)+14)+15)+16)+17)+18)+19)"


def test_one_chunk_is_enough_to_differ() -> None:
    assert differs(last_chunk_backwards, 3) == (
        "it folds chunk 1 on rank 0 as (0+(1+2)), and not as ((0+1)+2)"
    )
    assert differs(last_chunk_backwards, 2) == ""


def test_one_rank_is_enough_to_differ() -> None:
    right = compile_all(get("one_shot"), 3)
    assert difference(right, allreduce) == ""

    @algorithm(allreduce)
    def one_shot(b: ScheduleBuilder) -> None:
        b.chunks(1)
        for k in range(1, b.size):
            b.send(b.input[:], to=(b.rank + k) % b.size)
        b.recv_reduce(b.output[:], frm=range(b.size - 1, -1, -1))

    wrong = replace(compile_all(one_shot, 3)[2], digest=right[0].digest)
    mixed = (*right[:2], wrong)
    assert "chunk 0 on rank 2 as (0+(1+2))" in difference(mixed, allreduce)


def test_verify_proves_it_on_request() -> None:
    verdict = pycoll.verify("two_shot", 5, order="fixed")
    assert "two_shot is correct, in the fixed order, at 5 ranks: " in str(verdict)
    assert verdict.order == "fixed"
    for form in ({"direct": True}, {"average": True}, {"direct": True, "average": True}):
        assert pycoll.verify("two_shot", 5, order="fixed", **form)
    assert pycoll.verify("ring", 5).order == "free"
    text = "ring at 5 ranks is right, but not in the fixed order: it folds chunk 1 on rank 0"
    with pytest.raises(PostconditionError, match=text):
        pycoll.verify("ring", 5, order="fixed")
    with pytest.raises(UsageError, match="order is 'fast', want 'fixed' or 'free'"):
        pycoll.verify("ring", 5, order="fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="order is 'fixed', but allgather folds nothing"):
        pycoll.verify("ring", 5, collective="allgather", order="fixed")


def test_many_ranks_that_are_proved_by_a_few_are_compared_one_by_one() -> None:
    with pytest.raises(PostconditionError, match="not in the fixed order: it folds chunk 0"):
        pycoll.verify("recursive_doubling", 64, order="fixed")
    assert pycoll.verify("ordered_chain", 40, order="fixed")


def test_what_is_too_large_is_compared_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_order, "LIMIT", 50)
    differs.cache_clear()
    with pytest.raises(TooLargeError, match="too long to compare with the fixed order"):
        pycoll.verify("two_shot", 7, order="fixed")
    assert pycoll.verify("two_shot", 7, order="fixed", whole=True)
