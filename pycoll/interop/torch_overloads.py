"""The forms in which a process group's methods can be called.

torch's own functions pass lists of tensors and an object with options. Whoever holds a group may
also pass one tensor, and what the options would hold: ``group.allreduce(x, ReduceOp.MAX)``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

_OPERATIONS = (ReduceOp, type(ReduceOp.SUM))  #: torch has one class for the names, and one for all


def options(kind: Callable[[], Any], *given: Any) -> Any:
    """Return torch's options of a call.

    Args:
        kind: Makes the options that hold where nothing is said.
        given: Such options; or what they would hold, each known by its type: an operation, a
            timeout, the number of the root. None says nothing.

    Raises:
        TypeError: It is neither, or a call of this kind has no such option.
    """
    found = None
    for value in given:
        if value is None:
            continue
        if hasattr(value, "asyncOp"):
            return value
        found = kind() if found is None else found
        name, said = _option(value)
        if not hasattr(found, name):
            raise TypeError(f"got {value!r}, want {kind.__name__} or what it holds")
        setattr(found, name, said)
    return kind() if found is None else found


def _option(value: Any) -> tuple[str, Any]:
    if isinstance(value, timedelta):
        return "timeout", value
    if isinstance(value, _OPERATIONS):
        return "reduceOp", value
    if hasattr(value, "__index__"):
        return "rootRank", operator.index(value)
    return "", value  # no options have that


def listed(tensors: Any) -> Any:
    """Return tensors as a list, of one where one was given."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def nested(one_each: Any, one: Any) -> tuple[Any, Any]:
    """Return what a rank has for each, and what it has once, in lists as torch's functions do.

    Args:
        one_each: A list of tensors, one for each rank; or a list of such a list.
        one: A tensor, or a list of one.
    """
    return ([one_each], [one]) if isinstance(one, torch.Tensor) else (one_each, one)
