"""KeepAlive: arrays that a GPU may still use, and that nothing else keeps until it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pycoll.runtime.cuda.stream import Event

#: So many are gathered before it is looked whether those before them can go.
_MANY = 32
#: Seconds from one look to the next whether a communicator that holds arrays has come to rest.
_LOOK_SECONDS = 0.25


class KeepAlive:
    """What the launches of one device communicator use.

    Two generations: an event stands behind all launches of the older one, since its launches
    follow each other. To ask whether the GPU is idle would not do: who asks has just launched.
    When no more calls are made a thread asks that, so that the last arrays go, too.

    Args:
        device: As CUDA counts.
        capturing: Whether a stream is captured into a graph.
        resting: Whether all that was launched has ended well, asked by another thread.
    """

    def __init__(
        self, device: int, capturing: Callable[[int], bool], resting: Callable[[], bool]
    ) -> None:
        self._device, self._capturing, self._resting = device, capturing, resting
        self._new: list[Any] = []
        self._old: list[Any] = []
        self._end: Event | None = None  #: of what uses the old ones
        self._of_graphs: list[Any] = []
        self._guard = threading.RLock()  #: a signal handler may call, too
        self._closed = threading.Event()
        self._filled = threading.Event()
        self._looker: threading.Thread | None = None  #: from the first array on

    def add(self, what: Any, stream: int) -> None:
        """Hold what the last launch, on a stream, uses."""
        with self._guard:
            self._new.append(what)
            if not self._filled.is_set():
                self._filled.set()
                self._start()
            if len(self._new) < _MANY or self._capturing(stream):
                return
            if self._end is None or self._end.happened():
                self._end = Event(self._device, stream)
                self._old, self._new = self._new, []

    def for_graph(self, what: Any) -> None:
        """Hold what a graph may use until the end, for nobody says when the graph has gone."""
        self._of_graphs.append(what)

    def drain(self) -> None:
        """Let go of everything but what graphs use; all that was launched has ended."""
        with self._guard:
            self._new, self._old, self._end = [], [], None

    def close(self) -> None:
        """Let go of everything: nothing runs any more."""
        self._closed.set()
        self._filled.set()
        if self._looker not in (None, threading.current_thread()):
            self._looker.join()
        self.drain()
        self._of_graphs = []

    def _start(self) -> None:
        if self._looker is None:
            looker = threading.Thread(target=self._look, name="pycoll-keep-alive", daemon=True)
            self._looker = looker
            looker.start()

    def _look(self) -> None:
        while self._filled.wait() and not self._closed.wait(_LOOK_SECONDS):
            self._filled.clear()
            self._let_go()

    def _let_go(self) -> None:
        with self._guard:
            old, new, end = self._old, self._new, self._end
            self._old, self._new, self._end = [], [], None
        # All of these were launched before they were added, and so before this.
        if not self._resting():
            with self._guard:
                self._old, self._new = [*old, *self._old], [*new, *self._new]
                self._end = self._end or end
            self._filled.set()
