"""What ranks write, cut into lines and passed on whole: no line has two ranks in it."""

from __future__ import annotations

import os
import re
import select
from collections import deque

LONGEST = 1 << 16  #: bytes of a line; a longer one is cut
MOST_HELD = 1 << 20  #: bytes that may wait for a reader before the ranks have to
_END = re.compile(rb"\r\n|[\r\n]")


class Sink:
    """One of this process's own streams, and what waits to be written to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.held = bytearray()
        self._deserted = False

    def full(self) -> bool:
        """Tell whether no more should be added for now."""
        return len(self.held) > MOST_HELD

    def add(self, line: bytes) -> None:
        """Add a line, without its end; it is dropped if nobody reads any more."""
        if not self._deserted:
            self.held += line + b"\n"

    def pass_on(self) -> bool:
        """Write what a pipe takes at once that can be written to; False if nobody reads it."""
        try:
            del self.held[: os.write(self.fd, self.held[: select.PIPE_BUF])]
        except BrokenPipeError:
            self._deserted = True
            self.held.clear()
        return not self._deserted


class Lines:
    """One stream of one rank."""

    def __init__(self, fd: int, prefix: str, sink: Sink, last: deque[str]) -> None:
        self.fd = fd
        self.sink = sink
        self._prefix = prefix.encode()
        self._last = last
        self._begun = b""  # a line whose end has not come
        self._returned = False  # the last byte was a carriage return, which ended a line

    def read(self) -> bool:
        """Pass on the lines that have become whole; False at the end of the stream."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            if self._begun:
                self._add(self._begun)
            return False
        if self._returned and data.startswith(b"\n"):
            data = data[1:]  # an end that came in two parts
            self._returned = False
        if data:
            self._returned = data.endswith(b"\r")
        *whole, self._begun = _END.split(self._begun + data)
        for line in whole:
            self._add(line)
        while len(self._begun) > LONGEST:
            self._add(self._begun[:LONGEST])
            self._begun = self._begun[LONGEST:]
        return True

    def _add(self, line: bytes) -> None:
        self.sink.add(self._prefix + line)
        self._last.append(line.decode(errors="replace"))
