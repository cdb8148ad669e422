"""What a GPU takes at least: for a flag between two blocks, and for a copy by some blocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import device
import kernels
import numpy as np

from pycoll.runtime.native import cuda, load

REPEATS = 5


class Floors:
    """The kernels of `kernels` that show it, and their memory; nothing else may run meanwhile.

    Args:
        number: The GPU.
        carried: Where compiled kernels may lie.
        stand_in: Play them: few words, few rounds.
    """

    def __init__(self, number: int, carried: Path | None, stand_in: bool) -> None:
        self._device = number
        self.count = (1 << 16) if stand_in else (16 << 20)  #: words of a copy, half of the memory
        self.rounds = 50 if stand_in else 10_000
        self._threads = 4 if stand_in else kernels.THREADS
        self._handles = (kernels.played if stand_in else kernels.load)(number, carried)
        self._pool = device.Pool(number, 16 * self.count + (1 << 20))
        self.words = self._pool.empty(2 * self.count, "int64").fill(0)
        self._start, self._end = (cuda.event(number, timing=True) for _ in range(2))
        self.hop, self.copy = cache(self.hop_seconds), cache(self._copy)

    def launch_seconds(self) -> float:
        """Return the seconds of an empty kernel, of many in a row."""

        def launches() -> None:
            for _ in range(self.rounds // 10):
                self._launch("idle", 1, 1, 0, 0)

        return self.seconds(launches) / (self.rounds // 10)

    def fence_seconds(self) -> float:
        """Return the seconds of a store and a fence of system scope."""
        run = lambda: self._launch("fences", 1, 1, 1, self.rounds)  # noqa: E731
        return self.seconds(run) / self.rounds

    def hop_seconds(self) -> float:
        """Return the seconds from a release in one block until another has acquired it.

        Raises:
            RuntimeError: The two blocks did not answer each other.
        """
        run = lambda: self._launch("pingpong", 2, 1, 0, self.rounds)  # noqa: E731
        took = self.seconds(run, lambda: self.words.fill(0))
        flags = self.words.get()[:32]
        if not flags[0] == flags[16] == self.rounds:
            raise RuntimeError(f"two blocks: {flags[0]} and {flags[16]}, want {self.rounds}")
        return took / self.rounds / 2

    def _copy(self, blocks: int) -> float:
        """Return the bytes per second that a copy by so many blocks reads and writes.

        Raises:
            RuntimeError: What was copied is not there.
        """
        half = np.arange(self.count)
        self.words.put(np.concatenate([half, np.zeros_like(half)]))
        run = lambda: self._launch("copy", blocks, self._threads, self.count, 1)  # noqa: E731
        took = self.seconds(run)
        if not np.array_equal(self.words.get()[self.count :], half):
            raise RuntimeError(f"what {blocks} blocks copied is not there")
        return 2 * 8 * self.count / took

    def seconds(self, work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
        """Return the median of what the GPU's own events say of some work.

        Args:
            work: Enqueues it; it has run once before.
            before: Is called before each run, and not timed; waits for what it enqueues.
        """
        before()
        work()
        found = []
        for _ in range(REPEATS):
            before()
            cuda.event_record(self._device, self._start, self._pool.stream)
            work()
            cuda.event_record(self._device, self._end, self._pool.stream)
            cuda.event_wait(self._device, self._end)
            found.append(cuda.event_seconds(self._device, self._start, self._end))
        return statistics.median(found)

    def _launch(self, name: str, blocks: int, threads: int, words: int, rounds: int) -> None:
        new = load.ffi.new
        arguments = [new("uint64_t *", self.words.address), new("uint64_t *", words)]
        arguments.append(new("uint32_t *", rounds))
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        cuda.launch(self._device, self._handles[name], grid, block, arguments, self._pool.stream)
