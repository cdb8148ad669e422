"""The choice of algorithm: a pure function that answers for every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.algorithms import names
from pycoll.cost import choose, model
from pycoll.errors import UsageError
from pycoll.program.isa import CHUNK_UNIT


def test_the_model_knows_every_built_in() -> None:
    assert set(model.WORK) == set(names("allreduce"))


@given(st.integers(0, 1 << 34), st.integers(1, 300), st.integers(1, 128))
def test_every_input_has_a_choice(nbytes: int, size: int, cores: int) -> None:
    choice = choose("allreduce", nbytes, size, cores)
    assert choice.algorithm in names("allreduce")
    assert choice.tile > 0
    assert choice.tile % CHUNK_UNIT == 0
    assert choice.direct in (None, *names("allreduce"))
    assert choice == choose("allreduce", nbytes, size, cores)
    assert choice.reason


def test_small_messages_take_few_steps_and_large_ones_little_work() -> None:
    for size in (2, 4, 8, 16):
        small = model.WORK[choose("allreduce", 8, size, size).algorithm](size)
        large = model.WORK[choose("allreduce", 1 << 28, size, size).algorithm](size)
        assert small.steps <= (size - 1).bit_length()
        assert large.copied + large.folded <= 4


def test_what_the_user_asks_for_wins() -> None:
    choice = choose("allreduce", 8, 4, 4, "ring")
    assert (choice.algorithm, choice.direct, choice.reason) == ("ring", None, "asked for")
    assert choose("allreduce", 1 << 24, 4, 4, "ring").direct == "ring"


def test_a_single_rank_never_takes_the_direct_form() -> None:
    assert choose("allreduce", 1 << 28, 1, 1).direct is None


def test_unknown_collective() -> None:
    with pytest.raises(UsageError, match="collective is 'gather', want 'allreduce' or 'barrier'"):
        choose("gather", 8, 2, 2)
