"""What `measure` found: the times of the ways to run two things, and whether one of them gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from pycoll.errors import UsageError, quoted

#: The ways, in the order of the table.
SEQUENTIAL, CONCURRENT, PRIORITY, SHAPED, BOTH, PARTITION, COPIES = WAYS = (
    "sequential",
    "concurrent",
    "priority",
    "shaped",
    "both",
    "partition",
    "copies",
)
MEANING = {
    SEQUENTIAL: "one after the other on one stream",
    CONCURRENT: "two streams of one priority",
    PRIORITY: "the collective's stream has the highest priority",
    SHAPED: "the computation leaves room on every SM",
    BOTH: "shaped, and the higher priority",
    PARTITION: "each on SMs of its own",
    COPIES: "the collective by copy engines, on no SM",
}
#: Less than this is no gain, however steady the times are.
LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Measured:
    """Seconds of each repeat; of several ranks, the slowest rank's."""

    compute: tuple[float, ...]  #: alone
    collective: tuple[float, ...]  #: alone
    ways: Mapping[str, tuple[float, ...]]  #: by name, see `WAYS`; a way that did not run is absent
    note: str = ""  #: why a way is absent

    def seconds(self, way: str) -> float:
        """Return the median of a way; UsageError where it did not run."""
        return statistics.median(self._times("way", way))

    def _times(self, what: str, way: str) -> tuple[float, ...]:
        found = self.ways.get(way) if isinstance(way, str) else None
        if found is None:
            raise UsageError(
                f"overlap: {what} is {quoted(way)}, want one that ran: {', '.join(self.ways)}"
            )
        return found

    @property
    def best(self) -> str:
        """The way that gains most over sequential; ``sequential`` itself where none does."""
        fastest = min(self.ways, key=self.seconds)
        return fastest if self.faster(fastest, SEQUENTIAL) else SEQUENTIAL

    @property
    def gain(self) -> float:
        """What part of the sequential time the best way saves; 0 where none gains."""
        return self.saving(self.best, SEQUENTIAL)

    @property
    def hidden(self) -> float:
        """What part of the collective's own time the best way hides behind the computation."""
        alone = statistics.median(self.collective)
        saved = self.seconds(SEQUENTIAL) - self.seconds(self.best)
        return min(1.0, max(0.0, saved / alone)) if alone > 0 else 0.0

    @property
    def verdict(self) -> str:
        """One sentence: which way is best, or that there is no gain."""
        best = self.best
        if best == SEQUENTIAL:
            return "no gain: no way is faster than sequential"
        hidden = f"hides {self.hidden:.0%} of the collective"
        text = f"{best} saves {self.gain:.1%} of sequential and {hidden}"
        if best == CONCURRENT or CONCURRENT not in self.ways:
            return text
        if self.faster(best, CONCURRENT):
            return f"{text}; {self.saving(best, CONCURRENT):.1%} of plain concurrent"
        return f"{text}; no gain over plain concurrent"

    def saving(self, way: str, over: str) -> float:
        """Return what part of the time of ``over`` a way saves; below 0: it is slower."""
        base = statistics.median(self._times("over", over))
        return 1 - self.seconds(way) / base if base > 0 else 0.0

    def faster(self, way: str, than: str) -> bool:
        """Tell whether a way is faster beyond doubt.

        Its median saves at least 1 %, and of the repeats of both, which alternate, three quarters
        of the one lie below three quarters of the other.
        """
        self._times("way", way), self._times("than", than)
        if way == than or self.saving(way, than) < LEAST_GAIN:
            return False
        return _quartile(self.ways[way], 3) < _quartile(self.ways[than], 1)

    def as_dict(self) -> dict[str, object]:
        """Return what a JSON file of results holds; times in microseconds."""
        return {
            "compute_us": _micros(self.compute),
            "collective_us": _micros(self.collective),
            "ways_us": {way: _micros(times) for way, times in self.ways.items()},
            "best": self.best,
            "gain": self.gain,
            "hidden": self.hidden,
            "verdict": self.verdict,
            "note": self.note,
        }

    def __repr__(self) -> str:
        return f"<overlap.Measured {self.verdict}; print it for all>"

    def __str__(self) -> str:
        """Return the table."""
        lines = [f"{'':<12} {'median us':>11} {'low':>11} {'high':>11} {'saves':>8}"]
        for name, times in (("compute", self.compute), ("collective", self.collective)):
            lines.append(f"{name:<12} {_row(times)} {'':>8}  alone")
        for way, times in self.ways.items():
            saves = "" if way == SEQUENTIAL else f"{self.saving(way, SEQUENTIAL):.1%}"
            lines.append(f"{way:<12} {_row(times)} {saves:>8}  {MEANING[way]}")
        lines += [self.note] if self.note else []
        return "\n".join([*lines, self.verdict])


def _quartile(times: tuple[float, ...], which: int) -> float:
    if len(times) < 2:
        return times[0]
    return statistics.quantiles(times, n=4, method="inclusive")[which - 1]


def _row(times: tuple[float, ...]) -> str:
    values = statistics.median(times), min(times), max(times)
    return " ".join(f"{value * 1e6:>11.2f}" for value in values)


def _micros(times: tuple[float, ...]) -> list[float]:
    return [round(seconds * 1e6, 3) for seconds in times]
