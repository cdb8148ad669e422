"""Line: where in the user's program a call was made, and whether amid another one."""

from __future__ import annotations

import os
import sys
from typing import Any

#: Modules whose frames are not the user's.
_OURS = (
    "pycoll.communicator",
    "pycoll.collectives",
    "pycoll.vector_collectives",
    "pycoll.groups",
    "pycoll.point_to_point",
    "pycoll.objects",
    "pycoll.profiler",
    "pycoll.corruption",
    "pycoll.runtime.",
    "pycoll.interop.",
    "contextlib",  # of what is made for a block
    "torch.",  # which calls its process group on behalf of the user
)

#: Modules whose frames are those of calls.
_CALLS = (
    "pycoll.communicator",
    "pycoll.interop.torch_calls",
    "pycoll.runtime.plan.persistent",
)


def amid(comm: Any) -> bool:
    """Tell whether the present call on ``comm`` was made amid another one of this thread.

    A signal handler or a finalizer makes such calls: the user's frame stands between the two.
    """
    frame, outside = sys._getframe(1), False
    while frame.f_back is not None:
        frame = frame.f_back
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(("pycoll.", "contextlib")):
            outside = True
        elif outside and name in _CALLS and _of(frame.f_locals.get("self")) is comm:
            return True
    return False


def _of(caller: Any) -> Any:
    return getattr(getattr(caller, "_engine", None), "comm", None)


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
