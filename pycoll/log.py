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
    from logging import Handler, Logger

    from pycoll.verbosity import Verbosity

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
    if "logging" in sys.modules or _asked():
        _logger().getChild(subject).log(level, text, *values)


@cache
def _asked() -> Verbosity | None:
    """Return what PYCOLL_LOG asks for; None: nothing."""
    return Config.load().log


@cache
def _logger() -> Logger:
    import logging

    logger = logging.getLogger("pycoll")
    logger.addHandler(logging.NullHandler())  # or `logging` would show warnings by itself
    if asked := _asked():
        _show(logger, asked)
    return logger


#: Of this process, with the loggers that have it.
_handlers: list[tuple[Logger, Handler]] = []


def _show(logger: Logger, asked: Verbosity) -> None:
    """Show what is said from the levels on that are asked for."""
    import logging

    host, trouble = os.uname().nodename, ""
    handler: Handler = logging.StreamHandler()
    if asked.file:
        path = asked.path(host, os.getpid())
        try:
            handler = logging.FileHandler(path)
        except OSError as error:  # a job does not end because nobody can read what it says
            trouble = f"PYCOLL_LOG names {path}, which cannot be written: {error.strerror}"
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s {host}:%(process)d %(levelname)s %(name)s: %(message)s")
    )
    subjects = [logger.getChild(subject) for subject, _ in asked.subjects]
    for one, (_, level) in zip(subjects, asked.subjects, strict=True):
        one.setLevel(level.upper())
    if asked.level:
        logger.setLevel(asked.level.upper())
    for one in [logger] if asked.level else subjects:
        one.addHandler(handler)
        _handlers.append((one, handler))
    if trouble:
        (subjects or [logger])[0].warning(trouble)


def _forked() -> None:
    """In the child of a fork: its file, whose name may have the process id in it, is another."""
    for logger, handler in _handlers:
        logger.removeHandler(handler)
    _handlers.clear()
    _logger.cache_clear()


os.register_at_fork(after_in_child=_forked)
