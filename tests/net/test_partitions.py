"""A network that falls apart: at most one side goes on, and whoever does not is told so."""

from __future__ import annotations

import pytest
from partitions import Story, tell

pytestmark = pytest.mark.net


#: A side with rank 0 and without, even halves, healed in time, late and never, ranks that die, too.
SEEDS = (1, 2, 3, 4, 5, 9, 12, 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_most_one_side_goes_on(seed: int) -> None:
    tell(seed)


def test_the_seeds_stand_for_all_that_may_happen() -> None:
    stories = [Story.of(seed) for seed in SEEDS]
    assert {story.heals is None for story in stories} == {True, False}
    assert {story.killed is None for story in stories} == {True, False}
    assert {0 in story.away for story in stories} == {True, False}
    assert any(2 * len(story.away) == story.hosts and not story.heals for story in stories)
