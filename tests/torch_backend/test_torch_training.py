"""Training as it is written for torch ends with the weights that gloo's run ends with."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_training_ends_with_the_same_weights(jobs: Any, size: int) -> None:
    jobs.run(size, "training.py")
