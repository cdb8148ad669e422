"""Node lists as Slurm writes them: "node[01-03,07],login1" → names in order."""

from __future__ import annotations

import re

from pycoll.errors import BootstrapError

#: More than any machine has; a list that stands for more is a mistake or an attack.
MOST = 1 << 20
#: A comma between two items, not one inside of brackets.
_BETWEEN = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def expand(text: str) -> list[str]:
    """Return the names of a node list, in order.

    Raises:
        BootstrapError: It is not a node list.
    """
    names: list[str] = []
    for item in _BETWEEN.split(text.strip()):
        names += _expand(item.strip(), text)
        if len(names) > MOST:
            raise BootstrapError(f"node list {_short(text)} has more than {MOST} nodes")
    return names


def _expand(item: str, text: str) -> list[str]:
    """Expand every pair of brackets of one item; the last pair runs fastest."""
    pieces = _BRACKETS.split(item)
    names = [""]
    for index, piece in enumerate(pieces):
        tails = _numbers(piece, text) if index % 2 else [piece]
        if len(names) * len(tails) > MOST:
            raise BootstrapError(f"node list {_short(text)} has more than {MOST} nodes")
        names = [name + tail for name in names for tail in tails]
    if any(not name or set(name) & set("[], \t\n") for name in names):
        raise BootstrapError(f"node list {_short(text)} has the item {_short(item)}, want a name")
    return names


def _numbers(ranges: str, text: str) -> list[str]:
    """Return the numbers of "01-03,7" as they are written, with their zeros."""
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST:
            raise BootstrapError(
                f"node list {_short(text)} has the range {_short(part)}, want 3 or 01-16"
            )
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        if len(found) > MOST:
            raise BootstrapError(f"node list {_short(text)} has more than {MOST} nodes")
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
