"""Algorithm: an SPMD function and the collective that it computes."""

from __future__ import annotations

import hashlib
import inspect
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
        try:
            text = inspect.getsource(self.function).encode()
        except OSError:
            code = self.function.__code__
            text = code.co_code + repr((code.co_names, code.co_consts)).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()
