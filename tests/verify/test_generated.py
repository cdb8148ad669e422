from __future__ import annotations

import oracle
import pytest
from correct import generate

from pycoll.program.lower import compile_all
from pycoll.schedule import NotDirect
from pycoll.verify import verify


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_generated_schedules_that_are_right_are_accepted(first: int) -> None:
    for seed in range(first, first + 250):
        algorithm, size = generate(seed)
        assert verify(algorithm, size, average=seed % 3 == 0)
        try:
            assert verify(algorithm, size, direct=True)
        except NotDirect:
            assert size > 1


def test_the_generator_is_right_by_running_too() -> None:
    for seed in range(1000, 1020):
        algorithm, size = generate(seed)
        assert oracle.wrong(compile_all(algorithm, size), runs=3) == ""
