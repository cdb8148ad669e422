"""KeepAlive: arrays that a GPU may still use, and that nothing else keeps until it is done."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from pycoll.runtime.cuda.stream import Event

#: So many are gathered before a call looks whether those before them can go.
_MANY = 32


class KeepAlive:
    """What the launches of one device communicator use.

    Two generations: an event stands behind all launches of the older one, since its launches
    follow each other. To ask whether the GPU is idle would not do: who asks has just launched.
    When calls pause, the thread of `Reclaimer` takes one after the other from both.

    Args:
        device: Number of the GPU.
        capturing: Tells whether a stream is captured into a graph.
        notice: Is called when something is held.
    """

    def __init__(
        self, device: int, capturing: Callable[[int], bool], notice: Callable[[], None]
    ) -> None:
        self._device, self._capturing, self._notice = device, capturing, notice
        self._new: deque[Any] = deque()
        self._old: deque[Any] = deque()
        self._end: Event | None = None  #: of what uses the old ones
        self._of_graphs: list[Any] = []

    def __bool__(self) -> bool:
        """Tell whether anything is held, but for what graphs use."""
        return bool(self._new or self._old)

    def add(self, what: Any, stream: int) -> None:
        """Hold what the last launch, on a stream, uses."""
        self._new.append(what)
        self._notice()
        if len(self._new) < _MANY or self._capturing(stream):
            return
        if self._end is None or self._end.happened():
            self._end = Event(self._device, stream)
            self._old, self._new = self._new, deque()

    def for_graph(self, what: Any) -> None:
        """Hold what a graph may use until the end, for nobody says when the graph has gone."""
        self._of_graphs.append(what)

    def let_go(self) -> None:
        """Let go of what was held first; all that was launched has ended. Any thread."""
        for group in (self._old, self._new):
            with contextlib.suppress(IndexError):  # its own thread has let go of it
                group.popleft()
                return

    def drain(self) -> None:
        """Let go of everything but what graphs use; all that was launched has ended."""
        self._new, self._old, self._end = deque(), deque(), None

    def close(self) -> None:
        """Let go of everything: nothing runs any more."""
        self.drain()
        self._of_graphs = []
