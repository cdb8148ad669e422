"""Places: the lines of the user's code that the event ring has, by number and instruction.

Native code reads them from the interpreter's own frames (native/python/place.c), which have another
layout in each version of Python. So it is tried out before it is believed.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path
from types import CodeType

from pycoll.runtime.native.load import fastcall

#: What the names of files begin with that are none of the user's; calls that pycoll makes amid a
#: `with` have a frame of contextlib behind theirs.
_FOLDERS = [
    f"{Path(__file__).parents[2]}{os.sep}",
    contextlib.contextmanager.__code__.co_filename,
]
_TRIAL = "\n\ndef where(place):\n    up = 1\n    return place()\n"
_TRIAL_LINE = 5


def begin() -> bool:
    """Have calls note where they were made; False: it is not known how, with this Python."""
    if not fastcall.place_begin(tuple(_FOLDERS)):
        return False
    names: dict[str, object] = {}
    exec(compile(_TRIAL, "<pycoll: a trial of places>", "exec"), names)
    found = names["where"](fastcall.place)  # type: ignore[operator]
    if line_of(found) == f"<pycoll: a trial of places>:{_TRIAL_LINE}":
        return True
    fastcall.place_begin(None)
    return False


def not_users(folder: str) -> None:
    """Take the frames of modules in a folder for none of the user's, as pycoll's are."""
    if folder not in _FOLDERS:
        _FOLDERS.append(folder)
        begin()


def line_of(place: int) -> str | None:
    """Return ``file:line`` of a place; None where it is not known."""
    number, offset = place >> 32, place & 0xFFFFFFFF
    codes = fastcall.places()
    if not 0 < number <= len(codes):
        return None
    code = codes[number - 1]
    line = _lines(code).get(offset)
    return f"{code.co_filename}:{line}" if line else None


@cache
def _lines(code: CodeType) -> dict[int, int]:
    spans = ((begin, end, line) for begin, end, line in code.co_lines() if line)
    return {at: line for begin, end, line in spans for at in range(begin, end, 2)}
