"""A GPU of which only the clock is there: streams are times, and work takes what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from pycoll.errors import UsageError
from pycoll.overlap.limits import limits


class Event:
    def __init__(self) -> None:
        self.time: float | None = None


class Stream:
    def __init__(self, gpu: Simulated, high: bool) -> None:
        self.gpu, self.high, self.time = gpu, high, 0.0
        self.waited = False
        self.part = 1.0  #: of the SMs

    def record(self, event: Event) -> None:
        event.time = self.time

    def wait(self, event: Event) -> None:
        assert event.time is not None, "waits for an event that was never recorded"
        self.time = max(self.time, event.time)

    def synchronize(self) -> None:
        self.waited = True


class Simulated:
    """A GPU on which a computation holds all SMs, or leaves room.

    A collective on a stream of normal priority begins when the computation has ended, or, where
    that leaves room, a fifth into it. On one of high priority it begins half way in; where there
    is room, at once.
    """

    def __init__(self, sway: Callable[[], float] = lambda: 1.0) -> None:
        self.began = self.busy = 0.0
        self.room = False
        self.sway = sway  #: what a time is multiplied by: noise
        self.log: list[str] = []
        self.limits = limits((9, 0))
        self.closed = False  #: whether a partition was

    def stream(self, high: bool) -> Stream:
        return Stream(self, high)

    def partition(self, sms: int) -> SimpleNamespace:
        if sms % 8:
            raise UsageError(f"overlap.partition: GPU 0 cannot part {sms}")
        parts = Stream(self, False), Stream(self, True)
        for stream, count in zip(parts, (132 - sms, sms), strict=True):
            stream.part = count / 132
        self.closed = False
        names = dict(zip(("computation", "communication"), parts, strict=True))
        return SimpleNamespace(**names, sms=(132 - sms, sms), close=self._close)

    def _close(self) -> None:
        self.closed = True

    def event(self) -> Event:
        return Event()

    def seconds(self, start: Event, end: Event) -> float:
        assert start.time is not None
        assert end.time is not None
        return end.time - start.time

    def compute(self, seconds: float, room: bool = False) -> Callable[[Stream], None]:
        def enqueue(stream: Stream) -> None:
            self.log.append("shaped" if room else "compute")
            self.began, self.room = stream.time, room
            stream.time = self.busy = stream.time + seconds / stream.part * self.sway()

        return enqueue

    def collective(self, seconds: float) -> Callable[[Stream], None]:
        def enqueue(stream: Stream) -> None:
            self.log.append("collective high" if stream.high else "collective")
            delay = {(0, 0): 1.0, (0, 1): 0.2, (1, 0): 0.5, (1, 1): 0.0}[stream.high, self.room]
            begin = self.began + delay * (self.busy - self.began)
            if stream.part < 1:  # SMs of its own
                begin = 0.0
            stream.time = max(stream.time, begin) + seconds * self.sway()

        return enqueue
