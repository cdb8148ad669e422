"""Screen: a terminal that a program takes over, and gives back as it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

#: The alternate screen, without a cursor; and back.
_ENTER, _LEAVE = b"\033[?1049h\033[?25l", b"\033[?25h\033[?1049l"
_USUAL = (24, 80)
#: What ends a program: the terminal is given back first.
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The terminal, between `__enter__` and `__exit__`.

    Args:
        out: Descriptor of the terminal.
        keys: Where keys come from; None: nowhere.
    """

    def __init__(self, out: int, keys: int | None) -> None:
        self._out, self._keys = out, keys
        self._ended = keys is None  #: nobody presses any key
        self._mode: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._woken = self._wake = -1
        self._wakeup = -1  #: what was to be woken before

    def __enter__(self) -> Screen:
        # A signal must end the wait for keys, which Python would begin anew.
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        self._wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in _ENDINGS:
            self._handlers[number] = signal.signal(number, _end)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _resized)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever presses Ctrl-C twice is to have the terminal back, too.
        self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._woken)
        os.close(self._wake)

    def size(self) -> tuple[int, int]:
        """Return how many lines and columns there are."""
        try:
            columns, rows = os.get_terminal_size(self._out)
        except OSError:
            return _USUAL
        return (rows or _USUAL[0], columns or _USUAL[1])

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, which fit, in place of what was there."""
        # A line is emptied first: behind its last column that would take the last letter.
        shown = b"\r\n".join(b"\033[K" + line.encode("utf-8", "replace") for line in lines)
        self._write(b"\033[H" + shown + b"\033[J")

    def wait(self, seconds: float) -> bytes:
        """Return the keys that were pressed; b"" when the time is up, or the size has changed."""
        keys = [] if self._keys is None or self._ended else [self._keys]
        ready, _, _ = select.select([self._woken, *keys], [], [], max(0.0, seconds))
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self._keys is None or self._keys not in ready:
            return b""
        pressed = os.read(self._keys, 64)
        self._ended = not pressed
        return pressed

    def _take(self) -> None:
        if self._keys is not None:
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._write(_ENTER)

    def _give_back(self) -> None:
        try:
            self._write(_LEAVE)
        finally:
            if self._mode is not None and self._keys is not None:
                termios.tcsetattr(self._keys, termios.TCSANOW, self._mode)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()  # SIGCONT has come

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]


def _resized(number: int, frame: FrameType | None) -> None:
    """Let the wait for keys end."""


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
