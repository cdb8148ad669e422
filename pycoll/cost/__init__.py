"""What a collective costs, and so which algorithm to run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pycoll.cost.question import Choice, Question, Switch
from pycoll.cost.select import Selector, choose
from pycoll.cost.tuning import Tuning

if TYPE_CHECKING:
    from pycoll.cost.explanation import Explanation, explain
    from pycoll.cost.machine import Machine, Rates
    from pycoll.cost.prediction import predict
    from pycoll.cost.selectors import selector
    from pycoll.cost.store import load

__all__ = [
    "Choice",
    "Explanation",
    "Machine",
    "Question",
    "Rates",
    "Selector",
    "Switch",
    "Tuning",
    "choose",
    "explain",
    "load",
    "predict",
    "selector",
]

#: What the first call of a job does not need.
_HOMES = {
    "Explanation": "explanation",
    "explain": "explanation",
    "Machine": "machine",
    "Rates": "machine",
    "predict": "prediction",
    "selector": "selectors",
    "load": "store",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pycoll.cost' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pycoll.cost.{home}"), name)
    globals()[name] = value
    return value
