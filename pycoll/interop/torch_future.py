"""Futures of torch: DDP and its hooks wait for those, and not for works."""

from __future__ import annotations

import queue
import threading

from pycoll.interop.torch_work import Pending


class Completer:
    """Gives the futures of works their values; a thread from the first one that is not over.

    Collectives end in the order in which they began, so one thread waits for each in turn. What a
    hook adds by ``then()`` runs on it. A hook that waits there for another future finds it
    complete: that is waited for at once, in the hook.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._works: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()

    def complete(self, work: Pending) -> None:
        """Fulfil the future of a work, at once if that is over, else beside the caller."""
        if threading.current_thread() is self._thread or work.is_completed():
            work.fulfil()
            return
        if self._thread is None:
            # A daemon: at the end of the interpreter nobody asks for what did not come.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._works.put(work)

    def close(self) -> None:
        """End the thread, behind the works that it has; they must be over, or about to be."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._works.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work.fulfil()


class Beside:
    """The same for transfers, which end in any order: a thread for each, which hardly any asks."""

    def complete(self, work: Pending) -> None:
        """Fulfil the future of a work."""
        if work.is_completed():
            work.fulfil()
        else:
            threading.Thread(target=work.fulfil, name="pycoll transfer", daemon=True).start()
