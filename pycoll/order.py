"""Order: in which the contributions of the ranks are folded, as a user asks for it."""

from __future__ import annotations

from typing import Any, Literal

from pycoll.errors import UsageError, quoted

#: "free": any order, the fastest; "fixed": that of the ranks, see ``pycoll.verify.fixed_order``.
OrderName = Literal["free", "fixed"]
FREE: OrderName = "free"
FIXED: OrderName = "fixed"
ORDERS = (FREE, FIXED)


def require_order(who: str, value: Any) -> OrderName:
    """Return an order that the user named; UsageError if there is no such."""
    for known in ORDERS:
        if value.__class__ is str and value == known:
            return known
    raise UsageError(f"{who}: order is {quoted(value)}, want 'fixed' or 'free'")
