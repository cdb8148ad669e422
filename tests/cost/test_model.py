"""The α–β–γ model: predictions are positive and grow with what they count."""

from __future__ import annotations

import pytest

from pycoll.cost import model
from pycoll.cost.model import Machine


@pytest.mark.parametrize("algorithm", model.WORK)
def test_more_bytes_or_more_ranks_per_core_cost_more(algorithm: str) -> None:
    roomy, crowded = Machine(8, 8), Machine(8, 2)
    times = [model.seconds(algorithm, n, roomy) for n in (8, 1 << 12, 1 << 20, 1 << 28)]
    assert times == sorted(times)
    assert times[0] > 0
    assert model.seconds(algorithm, 8, crowded) > model.seconds(algorithm, 8, roomy)


@pytest.mark.parametrize("algorithm", model.WORK)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_work_is_defined_for_every_size(algorithm: str, size: int) -> None:
    work = model.WORK[algorithm](size)
    assert work.steps >= 0
    assert work.messages >= 0
    assert work.copied >= 0


def test_ranks_that_have_a_core_each_take_no_turns() -> None:
    assert Machine(2, 2).turns == Machine(2, 16).turns == 1
    assert Machine(8, 2).turns == 4
