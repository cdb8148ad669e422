"""Spawn: the ranks of ``--ranks``, or this process as the rank that its launcher made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycoll
from pycoll.bootstrap import launcher, torchrun
from pycoll.config import Config
from pycoll.errors import UsageError

_DAY = 86400.0  #: measuring may take long; a rank that waits for another has its own deadline


def run(ranks: int | None, work: Callable[..., int], *arguments: Any) -> int:
    """Run ``work`` as one rank, or as so many new ones; return the worst exit code.

    Raises:
        UsageError: Ranks are to be started, and a launcher has done so.
    """
    if ranks is None:
        return work(*arguments)
    started_by = launcher(Config.load())
    if started_by == "torchrun":
        started_by = torchrun.program()
    if started_by != "single":
        raise UsageError(f"--ranks starts ranks, but {started_by} has done so; leave --ranks out")
    codes: list[int] = pycoll.spawn(work, ranks, *arguments, timeout=_DAY)
    return max(codes)
