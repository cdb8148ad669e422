"""Line: where in the user's program a call was made."""

from __future__ import annotations

import os
import sys

#: Modules whose frames are not the user's.
_OURS = (
    "pycoll.communicator",
    "pycoll.collectives",
    "pycoll.counted",
    "pycoll.groups",
    "pycoll.messages",
    "pycoll.objects",
    "pycoll.runtime.",
    "pycoll.interop.",
    "torch.",  # which calls its process group on behalf of the user
)


def user_line() -> str:
    """Return ``file:line`` of the user's frame that called into pycoll."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    try:
        here = os.getcwd() + os.sep
    except FileNotFoundError:  # somebody removed the directory
        here = ""
    return f"{frame.f_code.co_filename.removeprefix(here)}:{frame.f_lineno}"
