"""torch.compile must not look into what a process group does.

torch's C++ calls a process group's methods from inside compiled code (DDP's buffers, say), and
Dynamo would take each such method for a frame to be compiled. A group of torch's own is C++ and
has no frames; these of ours are marked to be run as they are, with all that they call.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import torch


def run_as_it_is(kind: Any) -> Any:
    """Mark the methods of a class; returns it. Of a torch that has no such marks, does nothing."""
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    mark = getattr(frames, "set_code_exec_strategy", None)
    if mark is None:
        return kind
    skip = frames._FrameAction.SKIP
    for value in vars(kind).values():
        function = inspect.unwrap(value) if callable(value) else None
        for each in {value, function}:
            if isinstance(each, FunctionType):
                mark(each.__code__, frames._FrameExecStrategy(skip, skip))
    return kind
