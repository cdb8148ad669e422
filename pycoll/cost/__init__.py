"""What a collective costs, and so which algorithm to run."""

from __future__ import annotations

from pycoll.cost.select import Choice, choose

__all__ = ["Choice", "choose"]
