"""A wire that delays, loses and reorders frames: a process between two taps, `wire.py NEAR FAR`.

Each line of its input sets `delay loss reorder rate`; it ends with its input.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEAD = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI
FRAME = 65536
QUEUE = 1000  #: frames under way in one direction; what comes on top is lost, as in a switch
HELD_BACK = 0.005  #: seconds by which later frames overtake one


def tap(name: str) -> int:
    """Make a tap; returns the descriptor that its frames come from and go to."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEAD))
    return fd


class Wire:
    """Frames on their way, in the order in which they are due."""

    def __init__(self) -> None:
        self.delay = self.loss = self.reorder = self.rate = 0.0
        self._chance = random.Random(77)
        self._due: list[tuple[float, int, int, bytes]] = []
        self._sent = 0
        self._free: dict[int, float] = {}  #: when the last frame to a tap has been sent out
        self._under_way: dict[int, int] = {}

    def put(self, frame: bytes, to: int, now: float) -> None:
        """Send a frame to a tap."""
        if self._under_way.get(to, 0) >= QUEUE or self._chance.random() < self.loss:
            return
        leaves = now
        if self.rate:
            leaves = self._free[to] = max(now, self._free.get(to, 0.0)) + len(frame) / self.rate
        due = leaves + self.delay + HELD_BACK * (self._chance.random() < self.reorder)
        heapq.heappush(self._due, (due, self._sent, to, frame))
        self._sent += 1
        self._under_way[to] = self._under_way.get(to, 0) + 1

    def deliver(self, now: float) -> float | None:
        """Hand over what is due; returns the seconds until the next frame is."""
        while self._due and self._due[0][0] <= now:
            _, _, to, frame = heapq.heappop(self._due)
            self._under_way[to] -= 1
            with contextlib.suppress(OSError):  # the tap is down or full: the frame is lost
                os.write(to, frame)
        return max(0.0, self._due[0][0] - now) if self._due else None


def carry(near: int, far: int) -> None:
    """Carry frames both ways until the input ends."""
    wire = Wire()
    others = {near: far, far: near}
    wait: float | None = None
    while True:
        ready, _, _ = select.select([0, near, far], [], [], wait)
        now = time.monotonic()
        for fd in ready:
            if fd == 0:
                # Unbuffered: a line that a buffer held would not wake select.
                text = os.read(0, 4096).decode()
                if not text:
                    return
                wire.delay, wire.loss, wire.reorder, wire.rate = map(float, text.split())
                print("set", flush=True)
                continue
            for _ in range(64):
                try:
                    frame = os.read(fd, FRAME)
                except OSError:  # no frame is left, or the tap is down
                    break
                wire.put(frame, others[fd], now)
        wait = wire.deliver(time.monotonic())


if __name__ == "__main__":
    taps = [tap(name) for name in sys.argv[1:]]
    print("ready", flush=True)
    carry(*taps)
