"""A command that runs in a guest."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from frames import Kind

if TYPE_CHECKING:
    from guest import Guest

SECONDS = 120.0  #: that a command may take unless told


class GuestError(Exception):
    """The guest, or a command in it, did not do what it should."""


class Command:
    """A command in the guest. What it has started ends with it."""

    def __init__(
        self, guest: Guest, number: int, argv: Sequence[str], echo: Mapping[Kind, IO[bytes]]
    ) -> None:
        self.argv = list(argv)
        self.pid = 0  #: in the guest, once it has started
        self.returncode: int | None = None  #: minus a signal's number if that ended it
        self._guest, self._number, self._echoes = guest, number, echo
        self._said = {Kind.OUT: bytearray(), Kind.ERR: bytearray()}

    @property
    def stdout(self) -> str:
        """What it has written until now."""
        return bytes(self._said[Kind.OUT]).decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has written until now."""
        return bytes(self._said[Kind.ERR]).decode(errors="replace")

    def wait(self, timeout: float = SECONDS) -> int:
        """Return its exit status, once it has ended and all that it started is gone.

        Raises:
            GuestError: It has not after so many seconds, and was killed.
        """
        self._guest._until(lambda: self.returncode is not None, self, "the end", timeout)
        assert self.returncode is not None
        return self.returncode

    def until(self, text: str, timeout: float = SECONDS) -> None:
        """Wait until it has written a text to its standard output.

        Raises:
            GuestError: It ended without, or has not after so many seconds and was killed.
        """
        want = text.encode()

        def done() -> bool:
            return want in self._said[Kind.OUT] or self.returncode is not None

        self._guest._until(done, self, repr(text), timeout)
        if want not in self._said[Kind.OUT]:
            raise GuestError(f"{self.describe()} and never said {text!r}")

    def line(self, number: int, timeout: float = SECONDS) -> str:
        """Return a line of its standard output, counted from 0, once it has written it.

        Raises:
            GuestError: It ended without, or has not after so many seconds and was killed.
        """
        said = self._said[Kind.OUT]
        want = f"line {number} of its output"
        self._guest._until(
            lambda: said.count(b"\n") > number or self.returncode is not None, self, want, timeout
        )
        if said.count(b"\n") <= number:
            raise GuestError(f"{self.describe()} and never wrote {want}")
        return self.stdout.splitlines()[number]

    def send(self, text: str) -> None:
        """Write to its standard input, if it was started with one."""
        if text:
            self._guest._send(Kind.INPUT, self._number, text.encode())

    def close_input(self) -> None:
        """End its standard input."""
        self._guest._send(Kind.INPUT, self._number)

    def signal(self, number: int) -> None:
        """Send a signal to its first process, unless that has ended."""
        self._guest._send(Kind.SIGNAL, self._number, str(int(number)).encode())

    def kill(self) -> None:
        """Kill it and all that it has started."""
        self._guest._send(Kind.SIGNAL, self._number, b"0")

    def describe(self) -> str:
        """Return how it stands, and all it said."""
        state = "runs" if self.returncode is None else f"ended with {self.returncode}"
        said = "".join(
            f"\n--- its {name}:\n{text.rstrip()}"
            for name, text in (("stdout", self.stdout), ("stderr", self.stderr))
            if text.strip()
        )
        return f"{' '.join(self.argv)} {state}{said}"

    def _echo(self, kind: Kind, body: bytes) -> None:
        if (stream := self._echoes.get(kind)) is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.write(body)
                stream.flush()

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.STARTED:
            self.pid = int(body)
        elif kind is Kind.EXIT:
            self.returncode = int(body)
        else:
            self._said[kind] += body
