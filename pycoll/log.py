"""What the library decides, for whoever wants to read it: loggers "pycoll.*" of `logging`.

To import `logging` takes longer than to import pycoll. Who listens has imported it; before that
nothing is said, unless PYCOLL_LOG asks for it. Nothing that happens in every call is said at all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from pycoll.config import Config

if TYPE_CHECKING:
    from logging import Logger

DEBUG, INFO, WARNING = 10, 20, 30  #: as `logging` numbers them


def debug(subject: str, text: str, *values: object) -> None:
    """Say what only explains the rest, by the logger ``pycoll.<subject>``."""
    _say(DEBUG, subject, text, values)


def info(subject: str, text: str, *values: object) -> None:
    """Say what was decided, and why."""
    _say(INFO, subject, text, values)


def warning(subject: str, text: str, *values: object) -> None:
    """Say what is worse than it could be."""
    _say(WARNING, subject, text, values)


@contextmanager
def silent() -> Iterator[None]:
    """Say nothing inside, and do not look yet whether anybody listens."""
    global _silent
    _silent = True
    try:
        yield
    finally:
        _silent = False


_silent = False


def _say(level: int, subject: str, text: str, values: tuple[object, ...]) -> None:
    if _silent:
        return
    if "logging" in sys.modules or _shown():
        _logger().getChild(subject).log(level, text, *values)


@cache
def _shown() -> str | None:
    """Return the level from which on standard error shows what is said; None: nothing."""
    return Config.load().log


@cache
def _logger() -> Logger:
    import logging

    logger = logging.getLogger("pycoll")
    logger.addHandler(logging.NullHandler())  # or `logging` would show warnings by itself
    if level := _shown():
        handler = logging.StreamHandler()
        who = f"{os.uname().nodename}:%(process)d"
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s {who} %(levelname)s %(name)s: %(message)s")
        )
        logger.addHandler(handler)
        logger.setLevel(level.upper())
    return logger
