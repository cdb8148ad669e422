"""Held: arrays that a GPU may still use, and that nothing else keeps until it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycoll.runtime.cuda.stream import Event

if TYPE_CHECKING:
    from pycoll.runtime.cuda.device_comm import DeviceComm

#: So many are gathered before it is looked whether those before them can go.
_MANY = 32


class KeepAlive:
    """What one plane's launches use.

    Two generations: an event stands behind all launches of the older one, since a plane's launches
    follow each other. To ask whether the GPU is idle would not do: who asks has just launched.
    """

    def __init__(self, plane: DeviceComm) -> None:
        self._plane = plane
        self._new: list[Any] = []
        self._old: list[Any] = []
        self._end: Event | None = None  #: of what uses the old ones
        self._of_graphs: list[Any] = []

    def add(self, what: Any, stream: int) -> None:
        """Hold what the last launch, on a stream, uses."""
        self._new.append(what)
        if len(self._new) < _MANY or self._plane.capturing(stream):
            return
        if self._end is None or self._end.happened():
            self._end = Event(self._plane.device, stream)
            self._old, self._new = self._new, []

    def for_graph(self, what: Any) -> None:
        """Hold what a graph may use: as long as the plane, for nobody says when it has gone."""
        self._of_graphs.append(what)

    def drain(self) -> None:
        """Let go of everything but what graphs use; all that was launched has ended."""
        self._new, self._old, self._end = [], [], None

    def close(self) -> None:
        """Let go of everything: nothing runs any more."""
        self.drain()
        self._of_graphs = []
