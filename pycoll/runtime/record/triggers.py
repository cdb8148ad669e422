"""Triggers: a record is written when a communicator breaks, and on SIGUSR1, by a thread of its own.

The main thread may hang in a call, and whoever finds out that a communicator broke holds locks.
The thread exists only where PYCOLL_RECORD says where to; it sleeps until there is something to do.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from pycoll import log
from pycoll.errors import UsageError, described, quoted
from pycoll.runtime.native import trace

#: How long the calls of a communicator that broke may take to end, so that the record shows it.
_ENDING_SECONDS = 0.1
#: How long a communicator that is closed waits for a record of it.
_SETTLE_SECONDS = 5.0
#: How long the clocks' alignment may take then: whoever carries the control plane may be gone.
_ALIGN_SECONDS = 0.3
#: By which a record is written, where the program does not handle them itself.
WATCHED = (signal.SIGUSR1, signal.SIGTERM)


class Triggers:
    """What makes a process write records.

    Args:
        directory: Where to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reasons: deque[str] = deque()
        self._turn = threading.Condition()
        self._busy = False  #: the thread is at a record
        self._told = False  #: there is a record of an error
        self._woken = os.eventfd(0, os.EFD_CLOEXEC)
        #: Descriptor → signal. Launchers end ranks by SIGTERM as soon as another has died.
        self._signalled: dict[int, signal.Signals] = {}
        for number in WATCHED:
            fd = trace.signal_watch(number)
            if fd is not None:
                self._signalled[fd] = number
            elif number == signal.SIGUSR1:
                log.warning("record", "SIGUSR1 is handled by the program: it writes no record")
        self._thread = threading.Thread(target=self._run, name="pycoll-record", daemon=True)
        self._thread.start()

    def broke(self, error: BaseException) -> None:
        """Write a record, as this broke a communicator; any thread may say it."""
        self._reasons.append(described(error))
        os.eventfd_write(self._woken, 1)

    def settle(self) -> None:
        """Wait until there is no record to be written, before a communicator goes."""
        if threading.current_thread() is not self._thread:
            with self._turn:
                self._turn.wait_for(lambda: not (self._busy or self._ready(0)), _SETTLE_SECONDS)

    def _ready(self, seconds: float | None) -> list[int]:
        return select.select([self._woken, *self._signalled], [], [], seconds)[0]

    def _run(self) -> None:
        while True:
            self._ready(None)
            with self._turn:
                self._busy = True
                ready = self._ready(0)
                for fd in ready:
                    os.eventfd_read(fd)
            came = [self._signalled[fd] for fd in ready if fd != self._woken]
            if signal.SIGTERM in came or self._woken in ready:
                time.sleep(_ENDING_SECONDS)  # another rank has died, mostly, and calls end
            reasons = [self._reasons.popleft() for _ in range(len(self._reasons))]
            # Behind an error's record comes nothing that says more.
            if reasons or signal.SIGUSR1 in came or not self._told:
                self._write("; ".join([*reasons, *(number.name for number in came)]))
            self._told = self._told or bool(reasons)
            with self._turn:
                self._busy = False
                self._turn.notify_all()
            if signal.SIGTERM in came:
                trace.signal_forget(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)

    def _write(self, reason: str) -> None:
        from pycoll.runtime.record.recorder import record

        try:
            made = record(reason, _ALIGN_SECONDS)
            if made["comms"]:  # else all were closed meanwhile
                self._directory.mkdir(parents=True, exist_ok=True)
                path = self._directory / name_of(made)
                write(made, path)
                log.info("record", "rank %d: wrote %s, as of %s", made["rank"], path, reason)
        except Exception as error:  # what came of it must not end the thread
            log.warning("record", "no record can be written: %s", described(error))


def recorded(reason: str, path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return a record, which is written to a file, or into a directory, if there is one.

    Raises:
        UsageError: It cannot be written.
    """
    from pycoll.runtime.record.recorder import record

    made = record(reason)
    if path is None:
        return made
    try:
        if not os.fspath(path):
            raise ValueError("it is empty")
        to = Path(path)
        write(made, to / name_of(made) if to.is_dir() else to)
    except (OSError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"record: path is {quoted(path)}, want a file or a directory that can be written "
            f"({why})"
        ) from None
    return made


def name_of(made: dict[str, Any]) -> str:
    """Return the name that a record has among those of a job."""
    return f"pycoll-record.{made['job']}.{made['rank']}.json"


def write(made: dict[str, Any], to: Path) -> None:
    """Write a record to a file.

    Raises:
        OSError: It cannot be written.
    """
    # Under another name first: whoever reads it meanwhile gets the one before.
    handle, name = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(made, file)
        os.chmod(name, 0o644)
        os.replace(name, to)
    except BaseException:
        os.unlink(name)
        raise


_triggers: Triggers | None = None


def begin(directory: Path | None) -> None:
    """Have this process write records, if that is wanted; the first directory counts."""
    global _triggers
    if directory is not None and _triggers is None:
        _triggers = Triggers(directory)
        atexit.register(_let_end)


def broke(error: BaseException) -> None:
    """Write a record, if that is wanted, as this broke a communicator."""
    if _triggers:
        _triggers.broke(error)


def settle() -> None:
    """Wait for a record that is to be written."""
    if _triggers:
        _triggers.settle()


def _let_end() -> None:
    """Have SIGTERM end this process again: soon no thread runs that would do it.

    SIGUSR1 stays as it is, as it would end the process, too.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # and no handler of the program
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forget() -> None:
    global _triggers
    atexit.unregister(_let_end)
    if _triggers:
        for number in WATCHED:
            trace.signal_forget(number)
    _triggers = None


os.register_at_fork(after_in_child=_forget)
