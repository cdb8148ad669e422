"""Times a computation beside a collective, in several ways, by the GPU's own events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pycoll.arguments import integer
from pycoll.benchmark.oob import Gather
from pycoll.benchmark.timing import rotated
from pycoll.overlap.result import (
    BOTH,
    CONCURRENT,
    COPIES,
    PARTITION,
    PRIORITY,
    SEQUENTIAL,
    SHAPED,
    WAYS,
    Measured,
)

MOST_REPEATS = 1_000_000
#: Enqueues work on the stream that it is given, and does not wait for it.
Enqueue = Callable[[Any], object]


class Stream(Protocol):
    """A queue of the GPU."""

    def record(self, event: Any) -> None:
        """Let ``event`` happen when all that is enqueued so far has ended."""

    def wait(self, event: Any) -> None:
        """Let what is enqueued from now on begin after ``event``."""

    def synchronize(self) -> None:
        """Wait on the host until everything enqueued has ended."""


class Parts(Protocol):
    """A GPU's SMs in two parts, each with a stream."""

    @property
    def computation(self) -> Stream:
        """For the computation."""

    @property
    def communication(self) -> Stream:
        """For the collective."""

    @property
    def sms(self) -> tuple[int, int]:
        """How many SMs each has, in this order."""

    def close(self) -> None:
        """Wait for both, and give the SMs back."""


class Gpu(Protocol):
    """What `measure` needs of a GPU."""

    def stream(self, high: bool) -> Stream:
        """Return a new stream, of the highest or of the default priority."""

    def partition(self, sms: int) -> Parts:
        """Part the SMs: so many for the collective; asked only where that way is wanted."""

    def event(self) -> Any:
        """Return a new event that keeps the time."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two events that have happened."""


def run(
    gpu: Gpu,
    gather: Gather,
    compute: Enqueue,
    collective: Enqueue,
    shaped: Enqueue | None,
    repeats: int,
    note: str = "",
    *,
    parts: Parts | None = None,
    copies: Enqueue | None = None,
) -> Measured:
    """Time every way ``repeats`` times, in turns; all ranks call this alike.

    Args:
        gpu: Where.
        gather: Gives every rank what each rank passed; all leave it together.
        compute: Enqueues the computation.
        collective: Enqueues the collective.
        shaped: Enqueues the computation in its shaped form; without it two ways are left out.
        repeats: How often each way is timed.
        note: What the result says of ways that are left out.
        parts: The SMs in two parts; without them that way is left out.
        copies: Enqueues the collective by copy engines; without it that way is left out.

    Raises:
        UsageError: ``repeats`` is less than 1, or more than a million.
    """
    repeats = integer("overlap.measure: repeats", repeats, 1, MOST_REPEATS)
    bench = _Bench(gpu, gather)
    turns: dict[str, Callable[[], float]] = {
        "compute": lambda: bench.one(compute),
        "collective": lambda: bench.one(collective),
        SEQUENTIAL: lambda: bench.one(compute, collective),
        CONCURRENT: lambda: bench.two(compute, collective, high=False),
        PRIORITY: lambda: bench.two(compute, collective, high=True),
    }
    if shaped is not None:
        turns[SHAPED] = lambda: bench.two(shaped, collective, high=False)
        turns[BOTH] = lambda: bench.two(shaped, collective, high=True)
    if parts is not None:
        apart = parts.computation, parts.communication
        turns[PARTITION] = lambda: bench.apart(compute, collective, *apart)
    if copies is not None:
        turns[COPIES] = lambda: bench.two(compute, copies, high=True)
    for turn in turns.values():  # kernels are loaded, peers are met
        turn()
    times: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(repeats):
        # The order rotates, so that none always follows the same one.
        for name in rotated(list(turns), repeat):
            times[name].append(turns[name]())
    samples = {
        name: tuple(float(max(each)) for each in zip(*gather(values), strict=True))
        for name, values in times.items()
    }
    ways = {way: samples[way] for way in WAYS if way in samples}
    return Measured(samples["compute"], samples["collective"], ways, note)


class _Bench:
    def __init__(self, gpu: Gpu, gather: Gather) -> None:
        self._gpu, self._gather = gpu, gather
        self._main = gpu.stream(high=False)
        self._side = {high: gpu.stream(high) for high in (False, True)}
        self._start, self._end = gpu.event(), gpu.event()
        self._joined, self._computed = gpu.event(), gpu.event()

    def one(self, *work: Enqueue) -> float:
        """Time work on one stream."""
        self._gather(0.0)
        self._main.record(self._start)
        for enqueue in work:
            enqueue(self._main)
        return self._ended()

    def two(self, compute: Enqueue, collective: Enqueue, high: bool) -> float:
        """Time a computation and, beside it, a collective."""
        side = self._side[high]
        self._gather(0.0)
        self._main.record(self._start)
        side.wait(self._start)
        # The computation first: so the collective finds SMs that are full, as it does in life.
        compute(self._main)
        collective(side)
        side.record(self._joined)
        self._main.wait(self._joined)
        return self._ended()

    def apart(
        self, compute: Enqueue, collective: Enqueue, computation: Stream, communication: Stream
    ) -> float:
        """Time a computation on one part of the GPU beside a collective on the other."""
        self._gather(0.0)
        self._main.record(self._start)
        for stream, enqueue, joined in (
            (computation, compute, self._computed),
            (communication, collective, self._joined),
        ):
            stream.wait(self._start)
            enqueue(stream)
            stream.record(joined)
            self._main.wait(joined)
        return self._ended()

    def _ended(self) -> float:
        self._main.record(self._end)
        self._main.synchronize()
        return self._gpu.seconds(self._start, self._end)
