from __future__ import annotations

import correct
import oracle
import paths
import pytest

from pycoll.program.lower import compile_all
from pycoll.schedule import COLLECTIVES, NotDirect
from pycoll.verify import verify


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_generated_schedules_that_are_right_are_accepted(first: int) -> None:
    for seed in range(first, first + 250):
        algorithm, size = (correct if seed % 4 else paths).generate(seed)
        assert verify(algorithm, size, average=seed % 3 == 0 and algorithm.collective.reduces)
        try:
            assert verify(algorithm, size, direct=True)
        except NotDirect:
            assert size > 1


def test_the_generator_is_right_by_running_too() -> None:
    for seed in range(1000, 1020):
        algorithm, size = correct.generate(seed)
        assert oracle.wrong(compile_all(algorithm, size), runs=3) == ""


def test_the_generator_of_other_collectives_is_right_by_running_too() -> None:
    seen = set()
    for seed in range(1000, 1060):
        algorithm, size = paths.generate(seed)
        assert oracle.wrong(compile_all(algorithm, size), algorithm.collective, runs=3) == ""
        assert verify(algorithm, size)
        seen.add(algorithm.collective.name)
    assert seen == {*COLLECTIVES} - {"allreduce"}
