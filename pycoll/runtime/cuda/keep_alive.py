"""KeepAlive: arrays that a GPU may still use, and that nothing else keeps until it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycoll.runtime.cuda.stream import Event

#: So many are gathered before it is looked whether those before them can go.
_MANY = 32


class KeepAlive:
    """What the launches of one device communicator use.

    Two generations: an event stands behind all launches of the older one, since its launches
    follow each other. To ask whether the GPU is idle would not do: who asks has just launched.
    """

    def __init__(self, device: int, capturing: Callable[[int], bool]) -> None:
        self._device = device
        self._capturing = capturing  #: whether a stream is captured into a graph
        self._new: list[Any] = []
        self._old: list[Any] = []
        self._end: Event | None = None  #: of what uses the old ones
        self._of_graphs: list[Any] = []

    def add(self, what: Any, stream: int) -> None:
        """Hold what the last launch, on a stream, uses."""
        self._new.append(what)
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
        self._new, self._old, self._end = [], [], None

    def close(self) -> None:
        """Let go of everything: nothing runs any more."""
        self.drain()
        self._of_graphs = []
