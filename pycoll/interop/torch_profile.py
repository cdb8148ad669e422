"""torch.profiler sees a process group's calls as it sees those of torch's own backends.

One event for each call ("pycoll:all_reduce"), with the shapes and dtypes of what this rank brings;
of a call beside its caller, one for beginning it and one for each wait. Where no profiler runs
nothing happens, and nothing is spent but a look at a flag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import profiler

from pycoll.interop.torch_name import NAME


def profiling() -> bool:
    """Tell whether a profiler of torch runs in this process."""
    return bool(profiler._is_profiler_enabled)


@contextlib.contextmanager
def recorded(name: str, inputs: Any = ()) -> Iterator[None]:
    """Show what is done inside to torch's profiler.

    Args:
        name: Of the call.
        inputs: Tensors, or lists of lists of some.
    """
    found = torch.autograd._record_function_with_args_enter(f"{NAME}:{name}", *_flat(inputs))
    try:
        yield
    finally:
        torch.autograd._record_function_with_args_exit(found)


def _flat(inputs: Any) -> list[Any]:
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    listed = isinstance(inputs, list | tuple)  # else it is about to be refused
    return [tensor for part in inputs for tensor in _flat(part)] if listed else []
