"""Algorithm: an SPMD function and the collective that it computes."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pycoll.errors import UsageError, quoted
from pycoll.schedule.collective import Collective

if TYPE_CHECKING:
    from pycoll.schedule.builder import ScheduleBuilder


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One rank's side of a collective, as a function over a ScheduleBuilder.

    Attributes:
        function: Called for one rank, writes its steps.
        collective: What it computes.

    Raises:
        UsageError: ``function`` is no function, or ``collective`` none such as `pycoll.allreduce`.

    Example:
        >>> pycoll.Algorithm(lambda b: None, pycoll.allreduce).collective
        <pycoll.allreduce, a collective>
    """

    function: Callable[[ScheduleBuilder], None]
    collective: Collective

    def __post_init__(self) -> None:
        if not (callable(self.function) and hasattr(self.function, "__name__")):
            raise UsageError(
                f"algorithm: function is {quoted(self.function)}, want a function of a "
                "ScheduleBuilder"
            )
        if not isinstance(self.collective, Collective):
            raise UsageError(
                f"algorithm: collective is {quoted(self.collective)}, want one such as "
                "pycoll.allreduce"
            )

    def __repr__(self) -> str:
        return f"<pycoll.Algorithm {self.name} for {self.collective.name}>"

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    def __call__(self, b: ScheduleBuilder) -> None:
        """Write one rank's steps.

        Args:
            b: Where they go.

        Raises:
            ScheduleError: They cannot be right.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> pycoll.algorithms.get("ring")(b)
            >>> len(b.steps)
            4
        """
        self.function(b)

    def digest(self) -> str:
        """Return a hexadecimal digest of the source, or of the bytecode where there is no source.

        Returns:
            32 digits; alike for algorithms of one source.

        Example:
            >>> len(pycoll.algorithms.get("ring").digest())
            32
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.blake2b(_text(self.function, set()).encode(), digest_size=16).hexdigest()


def _text(function: Callable[..., None], seen: set[int]) -> str:
    """Return the source of a function and what tells it from others of the same source."""
    seen.add(id(function))
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = _code(code) if code else ""
    kept = [*(getattr(function, "__defaults__", None) or ())]
    kept += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is empty yet
            kept.append(cell.cell_contents)
    return "\n".join([text, *(_value(value, seen) for value in kept)])


def _code(code: types.CodeType) -> str:
    """Return the bytecode; the text of a function within would name an address."""
    consts = (_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return repr((code.co_code, code.co_names, *consts))


def _value(value: object, seen: set[int]) -> str:
    """Return a text of what a function keeps, the same in every process."""
    if isinstance(value, Algorithm):
        return value.name if id(value.function) in seen else _text(value.function, seen)
    if isinstance(value, tuple | list):
        return f"({' '.join(_value(item, seen) for item in value)})"
    if value is None or isinstance(value, str | bytes | int | float | Collective):
        return repr(value)
    if callable(value) and hasattr(value, "__code__"):
        return value.__code__.co_name if id(value) in seen else _text(value, seen)
    return type(value).__qualname__  # its text may name an address
