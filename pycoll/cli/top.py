"""``pycoll top``: what the ranks of this machine's jobs do now."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from pycoll import config

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycoll.top.screen import Screen
    from pycoll.top.text import Line
    from pycoll.top.view import Snapshot

_LEAST, _MOST = 0.05, 86400.0
_KEY = re.compile(rb"\033[\[O].|.", re.DOTALL)
_DOWN, _UP = (b"j", b"\033[B", b"\033OB"), (b"k", b"\033[A", b"\033OA")
_QUIT = (b"q", b"Q", b"\x03")


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "top",
        help="show what the ranks of this machine do now",
        description="Show the jobs that run on this machine, from their shared memory alone: no "
        "rank notices. In a terminal, q or Ctrl-C ends it, and arrows move; elsewhere it prints "
        "a table each interval.",
    )
    parser.add_argument("job", nargs="?", default="", metavar="JOB", help="how a job's id begins")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="seconds between two looks (default 1)",
    )
    parser.add_argument("--once", action="store_true", help="look twice, print once, and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--pid", type=int, metavar="PID", help="only the job of this process")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the jobs until it is ended."""
    # Loaded here: it needs the engine.
    from pycoll.runtime.record.arenas import Arenas
    from pycoll.top.view import View

    # Every rank that is looked at takes a descriptor.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    arenas, view = Arenas(), View(os.uname().nodename, options.job, options.pid)

    def look() -> Snapshot:
        return view.next(arenas.look())

    if options.once:
        look()  # which the rates begin at
        time.sleep(options.interval)
        _print(look(), options.json)
        return 0
    try:
        if options.json or config.dumb() or not sys.stdout.isatty():
            _follow(look, options)
        else:
            _live(look, options.interval)
    except KeyboardInterrupt:  # as such views are ended
        pass
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST <= seconds <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}, want seconds, {_LEAST:g} to {_MOST:g}")
    return seconds


def _print(snapshot: Snapshot, as_json: bool) -> None:
    from pycoll.top.text import lines

    if as_json:
        print(json.dumps(snapshot.told()), flush=True)
    else:
        print("\n".join(line.text for line in lines(snapshot)), flush=True)


def _follow(look: Callable[[], Snapshot], options: argparse.Namespace) -> None:
    """Print a table, or a line of JSON, each interval."""
    look()
    while True:
        time.sleep(options.interval)
        _print(look(), options.json)
        if not options.json:
            print(flush=True)


def _live(look: Callable[[], Snapshot], interval: float) -> None:
    """Show a table in the terminal."""
    from pycoll.top.screen import Screen
    from pycoll.top.text import lines

    keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    with Screen(sys.stdout.fileno(), keys) as screen:
        snapshot, due, first = look(), time.monotonic() + interval, 0
        while True:
            shown = lines(snapshot, screen.size()[1])
            first = _draw(screen, shown, first)
            for key in _KEY.findall(screen.wait(due - time.monotonic())):  # several, if fast
                if key in _QUIT:
                    return
                first += (key in _DOWN) - (key in _UP)
            if time.monotonic() >= due:
                snapshot, due = look(), time.monotonic() + interval


def _draw(screen: Screen, shown: list[Line], first: int) -> int:
    """Draw what fits, the head always; return the first line below it that was drawn."""
    from pycoll.top.text import coloured

    room = screen.size()[0]
    first = max(0, min(first, len(shown) - room))
    some = [*shown[:1], *shown[1 + first :]][:room]
    if first + room < len(shown) and room > 2:
        some[-1] = shown[0]._replace(text=f"... {len(shown) - first - room + 1} more lines: arrows")
    screen.draw([coloured(line) if config.coloured() else line.text for line in some])
    return first
