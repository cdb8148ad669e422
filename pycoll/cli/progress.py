"""Progress: a line on the terminal that rewrites itself; a file or a pipe gets nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

#: Seconds before the line appears: what is quick says nothing.
QUIET = 1.0


def status(text: str) -> None:
    """Show a text in place of the last one; "" leaves an empty line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def working(what: str, quiet: float = QUIET) -> Iterator[Callable[[str], None]]:
    """Show ``what`` and the seconds on standard error while the body runs, if that is a terminal.

    The line is gone again when the body has ended. A file or a pipe gets nothing. The body gets a
    function that says at which stage it is.
    """
    doing = what

    def stage(text: str) -> None:
        nonlocal doing
        doing = f"{what}: {text}"

    if not sys.stderr.isatty():
        yield stage
        return
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        wait = quiet
        while not ended.wait(wait):
            seconds = time.monotonic() - began
            status(f"{doing}: {seconds:.0f} s so far; Ctrl-C ends it")
            wait = 1.0

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield stage
    finally:
        ended.set()
        shower.join()
        if time.monotonic() - began >= quiet:
            status("")
