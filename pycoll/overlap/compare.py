"""The ways to run a collective beside a computation, compared by arithmetic: no GPU, no clock.

When a way lets the collective begin, and what it costs the computation, follows from how many
blocks an SM holds, how many waves of blocks there are, and what the computation is short of:

- Blocks are placed as others end. Of one priority, the computation's blocks come first, as they
  were launched first; so a collective that finds no room begins with the last wave at best.
- With a higher priority it begins when the first blocks end, after one wave.
- A shaped computation leaves room on every SM, and a part has SMs of its own: it begins at once.
- Fewer blocks on an SM, or fewer SMs, cost a computation that is bound by memory nothing as long
  as enough of its bytes are on their way; one that computes, as much as it lacks warps or SMs.

All times are reckoned: `pycoll.overlap.measure` tells what is so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pycoll.errors import UnavailableError, UsageError, quoted
from pycoll.overlap.advice import Advice
from pycoll.overlap.advice import advise as capped
from pycoll.overlap.machine import Machine
from pycoll.overlap.occupancy import beside, resident
from pycoll.overlap.result import BOTH, CONCURRENT, COPIES, PARTITION, PRIORITY, SEQUENTIAL, SHAPED
from pycoll.overlap.workload import COPIED, Communication, Computation

MEMORY, COMPUTE, UNKNOWN = "memory", "compute", "unknown"

#: Seconds until memory answers, under load: what has to be on its way is this, times the rate.
LATENCY = 700e-9
#: Bytes that a thread has on their way, as kernels that load 16 bytes at a time have.
IN_FLIGHT = 16
#: Warps that keep the arithmetic of an SM busy: four for each of its schedulers, as a multiply-add
#: takes four cycles, and the next may depend on it.
BUSY_WARPS = 16
#: Of ways that are within this of the fastest, the one that changes least is advised.
ALIKE = 0.01
#: From the one that changes least.
SIMPLE = SEQUENTIAL, CONCURRENT, PRIORITY, PARTITION, SHAPED, BOTH, COPIES


@dataclass(frozen=True)
class Way:
    """One way, as it is reckoned."""

    name: str
    possible: bool
    seconds: float  #: until both have ended; infinite where it is not possible
    begins: float  #: seconds until the collective finds its places
    slowdown: float  #: the computation's time, by its time alone
    reason: str


@dataclass(frozen=True)
class Comparison:
    """What `pycoll.overlap.advise` found; ``str()`` of it is a table."""

    bound: str  #: what the computation is short of: "memory", "compute" or "unknown"
    compute: float  #: seconds of the computation alone
    collective: float  #: seconds of the collective alone
    natural: int  #: blocks of the computation on an SM
    waves: int  #: of blocks
    advice: Advice  #: how shaping would cap it
    sms: int  #: of a part for the collective; 0 where there can be none
    ways: Mapping[str, Way]

    @property
    def best(self) -> str:
        """The fastest way, or of several alike the one that changes least."""
        least = min(way.seconds for way in self.ways.values())
        alike = {name for name, way in self.ways.items() if way.seconds <= least * (1 + ALIKE)}
        return next(name for name in SIMPLE if name in alike)

    @property
    def gain(self) -> float:
        """What part of the sequential time the best way would save."""
        return 1 - self.ways[self.best].seconds / self.ways[SEQUENTIAL].seconds

    @property
    def verdict(self) -> str:
        """One sentence: which way should win, and why."""
        best = self.ways[self.best]
        if self.best == SEQUENTIAL:
            return f"sequential, as no way is reckoned to gain {ALIKE:.0%}"
        return f"{best.name} should win, saving {self.gain:.1%} of sequential: {best.reason}"

    def __repr__(self) -> str:
        return f"<overlap.Comparison {self.best}, reckoned; print it for all>"

    def __str__(self) -> str:
        """Return the table."""
        lines = [f"{'':<12} {'us':>10} {'begins':>10} {'slowdown':>9}  reckoned, not measured"]
        for way in self.ways.values():
            numbers = f"{'-':>10} {'-':>10} {'-':>9}"
            if way.possible:
                times = f"{way.seconds * 1e6:>10.1f} {way.begins * 1e6:>10.1f}"
                numbers = f"{times} {way.slowdown:>8.2f}x"
            lines.append(f"{way.name:<12} {numbers}  {way.reason}")
        return "\n".join([*lines, self.verdict])


def compare(
    work: Computation, collective: Communication, machine: Machine, copies: bool
) -> Comparison:
    """Return what each way is reckoned to take.

    Args:
        work: The computation.
        collective: What runs beside it.
        machine: Where.
        copies: Whether there is a form of the collective that copy engines do.

    Raises:
        UsageError: No SM holds a block of the computation, or all SMs not those of the collective.
        UnavailableError: A time is neither given nor known of the GPU.
    """
    return _Reckoning(work, collective, machine).comparison(copies)


class _Reckoning:
    def __init__(self, work: Computation, collective: Communication, machine: Machine) -> None:
        self.work, self.collective, self.machine = work, collective, machine
        self.sm, self.sms = machine.sm, machine.sms
        self.natural = resident(work.block, self.sm)
        if not self.natural:
            raise UsageError(
                f"overlap.advise: the computation's block is {quoted(work.block)}, want one that "
                "an SM has room for"
            )
        self.full = self.natural * self.sms  #: blocks of a wave
        self.waves = -(-work.grid // self.full)
        #: The collective's blocks on an SM that is empty.
        self.own = resident(collective.block, self.sm)
        if self.own * self.sms < collective.blocks:
            raise UsageError(
                f"overlap.advise: {self.sms} SMs hold {self.own * self.sms} blocks of the "
                f"collective, want all {collective.blocks}, as they wait for one another"
            )
        self.bound = self._bound()
        self.compute, self.takes = self._compute(), self._takes()
        self.advice = capped(work.block, collective.block, self.sm)

    # ---- what the two take alone

    def _bound(self) -> str:
        work, rates = self.work, self.machine.rates
        if rates is None or not (work.flops and work.nbytes):
            return UNKNOWN
        peak = rates.tensor if work.tensor else rates.plain
        return MEMORY if work.nbytes / rates.memory >= work.flops / peak else COMPUTE

    def _compute(self) -> float:
        work, rates = self.work, self.machine.rates
        if work.seconds:
            return float(work.seconds)
        if rates is None:
            raise UnavailableError(
                "overlap.advise: no data sheet of this GPU is known, to reckon the computation's "
                "time by; want its seconds"
            )
        peak = rates.tensor if work.tensor else rates.plain
        return max(work.nbytes / rates.memory, work.flops / peak)

    def _takes(self) -> float:
        if self.collective.seconds:
            return float(self.collective.seconds)
        if self.machine.rates is None:
            raise UnavailableError(
                "overlap.advise: no data sheet of this GPU is known, to reckon the collective's "
                "time by; want its seconds"
            )
        return self.collective.sent / self.machine.rates.link

    # ---- room

    def places(self, blocks: int) -> int:
        """Return how many blocks of the collective fit beside so many, spread over all SMs."""
        each, more = divmod(blocks, self.sms)
        of = self.collective.block, self.work.block
        return more * beside(*of, each + 1, self.sm) + (self.sms - more) * beside(
            *of, each, self.sm
        )

    def begins(self) -> tuple[float, str]:
        """Return when a collective of the same priority finds its places, and why then."""
        wanted, grid = self.collective.blocks, self.work.grid
        held = self.places(min(grid, self.full))
        if held >= wanted:
            return 0.0, f"there is room for {held} blocks of the collective, which has {wanted}"
        last = grid % self.full
        if self.waves > 1 and last and (left := self.places(last)) >= wanted:
            part = (self.waves - 1) / self.waves
            return self.compute * part, (
                f"wave {self.waves} of {self.waves} has {last} blocks of {self.full}, which leave "
                f"room for {left} blocks of the collective; before that there is room for {held} "
                f"of {wanted}"
            )
        return self.compute, (
            f"it finds room for {held} blocks of {wanted} until the last of {self.waves} waves "
            f"ends ({self.natural} blocks per SM)"
        )

    def crowded(self) -> float:
        """Return what part of the computation's blocks is displaced while the collective runs."""
        of = self.collective.block, self.work.block
        counts = range(self.natural, -1, -1)
        left = next((n for n in counts if beside(*of, n, self.sm)), 0)
        touched = min(self.collective.blocks, self.sms) / self.sms
        return touched * (self.natural - left) / self.natural

    # ---- what it costs the computation

    def slower(self, blocks: int, sms: int) -> tuple[float, str]:
        """Return the time with so many blocks on each of so many SMs, by the time alone."""
        warps, before = self.work.block.warps * blocks, self.work.block.warps * self.natural
        rates = self.machine.rates
        if self.bound == MEMORY and rates is not None:
            wanted = rates.memory * LATENCY
            there = blocks * sms * self.work.block.threads * IN_FLIGHT
            alone = self.full * self.work.block.threads * IN_FLIGHT
            factor = max(1.0, wanted / there) / max(1.0, wanted / alone)
            return factor, (
                f"bound by memory: {there / 1e3:,.0f} KB on their way, of {wanted / 1e3:,.0f} KB "
                "that its rate wants"
            )
        if sms == self.sms and self.bound == COMPUTE:
            factor = max(1.0, min(BUSY_WARPS, before) / warps)
            return factor, f"bound by compute: {warps} warps per SM of {before}"
        if sms == self.sms:
            reason = f"nothing is known of it: {blocks} of {self.natural} blocks"
            return self.natural / blocks, reason
        if self.work.persistent:
            return self.sms / sms, (
                f"persistent: launch {blocks * sms} blocks, not {self.work.grid}, for {sms} SMs"
            )
        waves = -(-self.work.grid // (blocks * sms))
        return waves / self.waves, f"{waves} waves in place of {self.waves}"

    # ---- the ways

    def way(
        self, name: str, begins: float, slowdown: float, reason: str, serial: bool = False
    ) -> Way:
        compute = self.compute * slowdown
        total = compute + self.takes if serial else max(compute, begins + self.takes)
        rates = self.machine.rates
        if rates is not None:  # the two share the memory
            total = max(total, (self.work.nbytes + 2 * self.collective.sent) / rates.memory)
        return Way(name, True, total, begins, slowdown, reason)

    @staticmethod
    def never(name: str, reason: str) -> Way:
        return Way(name, False, math.inf, math.inf, math.inf, reason)

    def priority(self, begins: float) -> Way:
        if begins == 0:
            return self.way(PRIORITY, 0.0, 1.0, "it begins at once without, too")
        if self.waves == 1 or self.work.persistent:
            reason = "no block of the computation ends before all do, so a priority places nothing"
            return self.way(PRIORITY, begins, 1.0, reason)
        first = min(begins, self.compute / self.waves)
        loss = 0.0 if self.bound == MEMORY else self.crowded()
        loss *= min(self.takes, self.compute - first) / self.compute
        reason = f"it begins as the first of {self.waves} waves ends"
        return self.way(PRIORITY, first, 1 + loss, reason)

    def shaped(self, name: str) -> Way:
        advice, wanted = self.advice, self.collective.blocks
        if not self.work.padded:
            return self.never(name, "a library chooses its launches itself: no padding")
        if advice.capped == advice.natural:
            return self.never(name, advice.reason)
        pair, padding = (self.collective.block, self.work.block), advice.pad_bytes
        held = self.sms * beside(*pair, advice.capped, self.sm, padding)
        if held < wanted:
            return self.never(name, f"room for {held} blocks of the collective, which has {wanted}")
        slowdown, why = self.slower(advice.capped, self.sms)
        reason = (
            f"{advice.capped} of {advice.natural} blocks per SM by {advice.pad_bytes:,} B of "
            f"padding leave room for {held} blocks of the collective at any time; {why}"
        )
        return self.way(name, 0.0, slowdown, reason)

    def part(self) -> int:
        """Return how many SMs the collective would get; 0: they cannot be parted so."""
        unit, least = self.machine.unit, self.machine.least
        wanted = max(least, -(-self.collective.blocks // self.own))
        sms = -(-wanted // unit) * unit if unit else 0
        return sms if sms and self.sms - sms >= least else 0

    def partition(self) -> Way:
        sms = self.part()
        if not sms:
            return self.never(PARTITION, f"{self.sms} SMs cannot be parted for the collective")
        slowdown, why = self.slower(self.natural, self.sms - sms)
        reason = (
            f"{sms} SMs hold the collective's {self.collective.blocks} blocks, {self.own} each; "
            f"the computation has {self.sms - sms} of {self.sms}: {why}"
        )
        return self.way(PARTITION, 0.0, slowdown, reason)

    def copies(self, there: bool) -> Way:
        kind = self.collective.kind
        if kind not in COPIED:
            return self.never(COPIES, f"a copy engine folds nothing, as {kind} wants")
        if not there:
            return self.never(COPIES, "no form by copy engines was said to be there (copies=True)")
        return self.way(COPIES, 0.0, 1.0, "copy engines take no SM")

    def comparison(self, copies: bool) -> Comparison:
        begins, why = self.begins()
        ways = [
            self.way(SEQUENTIAL, self.compute, 1.0, "one after the other", serial=True),
            self.way(CONCURRENT, begins, 1.0, why),
            self.priority(begins),
            self.shaped(SHAPED),
            self.shaped(BOTH),
            self.partition(),
            self.copies(copies),
        ]
        return Comparison(
            self.bound,
            self.compute,
            self.takes,
            self.natural,
            self.waves,
            self.advice,
            self.part(),
            {way.name: way for way in ways},
        )
