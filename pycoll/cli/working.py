"""Working: a line on the terminal that says what takes long, and for how long already."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

#: Seconds before the line appears: what is quick says nothing.
QUIET = 1.0


@contextlib.contextmanager
def working(what: str, quiet: float = QUIET) -> Iterator[None]:
    """Show ``what`` and the seconds on standard error while the body runs, if that is a terminal.

    The line is gone again when the body has ended. A file or a pipe gets nothing.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        wait = quiet
        while not ended.wait(wait):
            seconds = time.monotonic() - began
            text = f"\r\033[K{what}: {seconds:.0f} s so far; Ctrl-C ends it"
            print(text, end="", file=sys.stderr, flush=True)
            wait = 1.0

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()
        if time.monotonic() - began >= quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
