"""Libraries against each other on GPU memory, in turns: the timing rules, for one rank.

All ranks do the same. In each repeat every library has one turn, in rotated order: one checked
call on poisoned memory, then a block of calls back to back, timed by the GPU's own events. The time
of a repeat is the slowest rank's. In the mode "graph" the block is a CUDA graph's replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cudriver import Driver, Graph
from device import Array, Pool

from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import rotated
from pycoll.dtypes import BY_NAME
from pycoll.runtime.native import cuda

MODES = ("eager", "graph")
#: Calls in a graph: its own launch is then little beside them.
IN_GRAPH = 16
BLOCK_SECONDS = 0.005
MOST_CALLS = 2000
METHOD = (
    "ranks are streams; libraries alternate within one process, in rotated order; per repeat one "
    "checked call on poisoned memory, then one block of back-to-back calls, at least "
    f"{BLOCK_SECONDS * 1e3:g} ms long, by CUDA events; the slowest rank counts; min, median and "
    f"p99 over the repeats; graph: {IN_GRAPH} calls captured once, replayed"
)


class Library(Protocol):
    """One rank's side of a library."""

    name: str

    def bind(self, problem: Problem, x: Array, out: Array, stream: int) -> Callable[[], object]:
        """Return a call that enqueues the problem on a stream; loads what it takes.

        A broadcast is in place in ``out``.
        """

    def ran(self) -> dict[str, Any]:
        """Return what the last bound call has run as, by the words of a row, as far as is known."""


class Ranks(Protocol):
    """All ranks of the contest."""

    def gather(self, value: float) -> list[float]:
        """Give every rank what each passed; all leave together."""


@dataclass
class Contestant:
    """A library's call, and its times."""

    library: Library
    call: Callable[[], object]
    graph: Graph | None
    replays: int = 1
    wrong: int = 0
    samples: list[float] | None = None

    @property
    def calls(self) -> int:
        """Collectives of one block."""
        return self.replays * (IN_GRAPH if self.graph else 1)

    def enqueue(self) -> None:
        """Enqueue a block."""
        run = self.graph.launch if self.graph else self.call
        for _ in range(self.replays):
            run()


class Contest:
    """One rank's arrays and clock.

    Args:
        device: Its GPU.
        ranks: All ranks.
        nbytes: Of the longest message: two such arrays are held at a time.
        comm: The communicator whose `empty` gives the arrays; None: they are memory of this
            rank's own.
    """

    def __init__(self, device: int, ranks: Ranks, nbytes: int, comm: Any = None) -> None:
        self._device, self.ranks, self._comm = device, ranks, comm
        self._owners: list[Any] = []
        self._driver = Driver(device)
        self._pool = Pool(device, 2 * nbytes + (1 << 20))
        self.stream = cuda.stream(device)
        self._start, self._end = (cuda.event(device, timing=True) for _ in range(2))

    def run(
        self, problem: Problem, libraries: Sequence[Library], mode: str, repeats: int
    ) -> list[dict[str, Any]]:
        """Time all libraries on one problem; returns a row for each."""
        self._pool.reset()
        self._owners.clear()
        x = self._empty(problem.input.size, problem.input.dtype).put(problem.input)
        out = self._empty(problem.expected.size, problem.expected.dtype)
        found = [self._enter(library, problem, x, out, mode) for library in libraries]
        try:
            for contestant in found:
                self._calibrate(contestant)
            for repeat in range(repeats):
                for contestant in rotated(found, repeat):
                    self._turn(contestant, problem, x, out)
        finally:
            for contestant in found:
                if contestant.graph:
                    contestant.graph.close()
        return [self._row(contestant, problem, mode) for contestant in found]

    def copy_seconds(self, nbytes: int, repeats: int = 5) -> float:
        """Return how long a copy within the GPU takes that reads and writes so many bytes."""
        self._pool.reset()
        one, other = (self._pool.empty(nbytes, "uint8") for _ in range(2))

        def copy() -> None:
            cuda.copy(self._device, other.address, one.address, nbytes, self.stream)

        copy()
        return statistics.median(self._seconds(copy) for _ in range(repeats))

    def _empty(self, count: int, dtype: Any) -> Array:
        if self._comm is None or count == 0:
            return self._pool.empty(count, dtype)
        owner = self._comm.empty(count, str(dtype), device="cuda")
        self._owners.append(owner)
        address, _ = owner.__cuda_array_interface__["data"]
        return Array(self._pool, address, (count,), BY_NAME[str(dtype)])

    def _enter(
        self, library: Library, problem: Problem, x: Array, out: Array, mode: str
    ) -> Contestant:
        call = library.bind(problem, x, out, self.stream)
        self.ranks.gather(0.0)
        call()  # connections are made, kernels are loaded
        cuda.stream_wait(self._device, self.stream)
        graph = None
        self.ranks.gather(0.0)
        if mode == "graph":
            graph = Graph(self._driver, self.stream)
            with graph.capture():
                for _ in range(IN_GRAPH):
                    call()
        return Contestant(library, call, graph, samples=[])

    def _calibrate(self, contestant: Contestant) -> None:
        """Find how many calls fill a block, alike on all ranks."""
        while True:
            seconds = max(self.ranks.gather(self._block(contestant)))
            if seconds >= BLOCK_SECONDS or contestant.calls >= MOST_CALLS:
                return
            before = contestant.replays
            wanted = int(1.2 * before * BLOCK_SECONDS / max(seconds, 1e-7))
            contestant.replays = max(before + 1, min(10 * before, wanted))

    def _turn(self, contestant: Contestant, problem: Problem, x: Array, out: Array) -> None:
        out.fill(0xA5)
        if problem.operation.name == "broadcast" and x.nbytes:
            cuda.copy(self._device, out.address, x.address, x.nbytes, self.stream)
            cuda.stream_wait(self._device, self.stream)
        self.ranks.gather(0.0)
        contestant.call()
        cuda.stream_wait(self._device, self.stream)
        wrong = problem.wrong(out.get())
        seconds = max(self.ranks.gather(self._block(contestant)))
        wrong += problem.wrong(out.get())
        contestant.wrong += int(sum(self.ranks.gather(wrong)))
        if contestant.samples is not None:
            contestant.samples.append(seconds / contestant.calls)

    def _block(self, contestant: Contestant) -> float:
        self.ranks.gather(0.0)
        return self._seconds(contestant.enqueue)

    def _seconds(self, enqueue: Callable[[], object]) -> float:
        cuda.event_record(self._device, self._start, self.stream)
        enqueue()
        cuda.event_record(self._device, self._end, self.stream)
        cuda.event_wait(self._device, self._end)
        return cuda.event_seconds(self._device, self._start, self._end)

    def _row(self, contestant: Contestant, problem: Problem, mode: str) -> dict[str, Any]:
        micros = sorted(seconds * 1e6 for seconds in contestant.samples or ())
        median = statistics.median(micros)
        algbw = problem.nbytes / median * 1e-3
        return {
            "library": contestant.library.name,
            "mode": mode,
            "ranks": problem.size,
            "collective": problem.operation.name,
            "dtype": str(problem.expected.dtype),
            "op": problem.op.name.lower(),
            "nbytes": problem.nbytes,
            "count": problem.count,
            "arrays": "own" if self._comm is None else "empty",
            **contestant.library.ran(),
            "calls": contestant.calls,
            "time_us": {
                "min": micros[0],
                "median": median,
                "p99": micros[-(-len(micros) * 99 // 100) - 1],
            },
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * problem.operation.crossings(problem.size),
            "wrong": contestant.wrong,
        }
