"""Executor: what runs plans on the arrays of one kind of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycoll.dtypes import ReduceOp
    from pycoll.runtime.plan.buckets import Pair
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.persistent import Plan
    from pycoll.runtime.plan.request import CollectiveKind, Request
    from pycoll.runtime.work import Work


class Listed(Protocol):
    """A collective of a list of arrays."""

    def run(self) -> list[Any]:
        """Run it and return the results."""

    def submit(self) -> Work:
        """Queue it."""

    def bind(self) -> Plan:
        """Bind it to its arrays."""


class Executor(Protocol):
    """Runs collectives whose arrays lie in one kind of memory, such as the host's."""

    def again(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, options: CallOptions
    ) -> tuple[Any] | None:
        """Run a call that is like an earlier one; return its result, or None to have it looked at.

        Args:
            kind: The collective.
            x: The input, as the user passed it.
            out: Where the result goes; None: where `kind` says.
            op: How contributions combine.
            options: What else is asked for; it `repeats`.
        """

    def run(self, request: Request, options: CallOptions) -> Any:
        """Run a call and return its result."""

    def submit(self, request: Request, options: CallOptions) -> Work:
        """Start a call that runs beside its caller."""

    def bind(self, request: Request, options: CallOptions) -> Plan:
        """Bind a call to its arrays."""

    def listed(
        self, kind: CollectiveKind, pairs: Sequence[Pair], op: ReduceOp, options: CallOptions
    ) -> Listed:
        """Return a call of a list of arrays, each with where its result goes."""
