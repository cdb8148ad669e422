"""Tuning: what was measured on one job's machine; rank 0's, and the same on every rank."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycoll.cost.machine import DEFAULT, Rates, hosts_of
from pycoll.cost.question import Question
from pycoll.errors import counted

VERSION = 1  #: of the JSON; another one is not read

Row = tuple[int, float]  #: bytes of the message, seconds of the slowest rank
Rows = tuple[Row, ...]  #: ascending


@dataclass(frozen=True)
class Tuning:
    """Measured rows of every algorithm, and the rates of the model fitted to them."""

    size: int
    hosts: tuple[int, ...] = ()  #: number of every rank's host; empty: all share one
    rates: Rates = DEFAULT
    rows: Mapping[tuple[str, str], Rows] = field(default_factory=dict)  #: by collective, algorithm

    def __repr__(self) -> str:
        rows = counted(sum(map(len, self.rows.values())), "measured row")
        return f"<pycoll Tuning of {counted(self.size, 'rank')}: {rows}>"

    def fits(self, question: Question) -> bool:
        """Tell whether the rows were measured among the same ranks; the rates always serve."""
        return (self.size, self.hosts) == (question.size, hosts_of(question))

    def measured(self, collective: str, algorithm: str, nbytes: int) -> float | None:
        """Return the seconds between measured rows, by their logarithms; None outside of them."""
        rows = self.rows.get((collective, algorithm), ())
        n = max(1, nbytes)
        if not rows or not rows[0][0] <= n <= rows[-1][0]:
            return None
        at = bisect_left(rows, (n, 0.0))
        if rows[at][0] == n:
            return rows[at][1]
        (low, t), (high, u) = rows[at - 1], rows[at]
        share = math.log(n / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(t) + share * math.log(u))

    def has(self, collective: str, algorithm: str, nbytes: int) -> bool:
        """Tell whether a message of this very size was measured."""
        return any(n == max(1, nbytes) for n, _ in self.rows.get((collective, algorithm), ()))

    def nearest(self, collective: str, algorithm: str, nbytes: int) -> Row | None:
        """Return the row from which to go on outside of the measured range."""
        rows = self.rows.get((collective, algorithm), ())
        if not rows:
            return None
        return rows[0] if nbytes < rows[0][0] else rows[-1]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, to be sent to the other ranks or stored."""
        table: dict[str, dict[str, list[list[float]]]] = {}
        for (collective, algorithm), rows in self.rows.items():
            table.setdefault(collective, {})[algorithm] = [list(row) for row in rows]
        return {
            "version": VERSION,
            "size": self.size,
            "hosts": list(self.hosts),
            "rates": self.rates._asdict(),
            "rows": table,
        }

    @classmethod
    def from_json(cls, blob: Mapping[str, Any]) -> Tuning:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is something else; the text says what.
        """
        try:
            if blob["version"] != VERSION:
                raise ValueError(f"version {blob['version']!r}, want {VERSION}")
            rows = {
                (str(collective), str(algorithm)): tuple((int(n), float(t)) for n, t in found)
                for collective, table in blob["rows"].items()
                for algorithm, found in table.items()
            }
            rates = Rates.of(blob["rates"])
            hosts = tuple(int(host) for host in blob["hosts"])
            made = cls(int(blob["size"]), hosts, rates, rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        for key, found in rows.items():
            sizes = [n for n, _ in found]
            if sizes != sorted(set(sizes)) or any(not 0 < t < math.inf for _, t in found):
                raise ValueError(f"rows of {' '.join(key)}: want ascending sizes and seconds > 0")
        if any(not 0 < rate < math.inf for rate in rates):
            raise ValueError("rates: want seconds > 0")
        return made
