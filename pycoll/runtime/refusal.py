"""Refusals: calls and messages that a rank made, and that raised there before they began.

They have their numbers all the same, so that the next call of that rank is not taken for them; who
made such a call without being refused waits in vain, and is told what the other rank had called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from pycoll.runtime.native import bindings

#: How long a rank waits for what a peer has to say of what it was refused: where it may have been
#: refused nothing, and where it is certain to say something, or to be gone.
_SAY_SECONDS = 1.0
_SURE_SECONDS = 10.0


class Refusals:
    """What is known of those of all ranks.

    Args:
        comm: The native communicator.
        moved: Notified when something is noted; whoever asks for what is here holds it.
    """

    def __init__(self, comm: Any, moved: threading.Condition) -> None:
        self._comm, self._moved = comm, moved
        #: Texts by rank and number of the call; 0: messages, the last.
        self._texts: dict[int, dict[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def note(self, rank: int, number: int, text: str) -> None:
        """Note a call that a rank was refused, or messages (number 0)."""
        with self._moved:
            calls = self._texts.setdefault(rank, {})
            calls[number] = text
            for old in sorted(calls.keys() - {0})[: -bindings.STATUS_CALLS]:
                del calls[old]
            self._moved.notify_all()

    def text(self, rank: int, number: int) -> str:
        """Return what is told of a call that a rank was refused; empty: nothing."""
        return self._texts.get(rank, {}).get(number, "")

    def first_made(self, ranks: Iterable[int]) -> int | None:
        """Return the first call that some rank was refused, and some of ``ranks`` not."""
        numbers = {n for calls in self._texts.values() for n in calls if n}
        some = list(ranks)
        made = (n for n in numbers if any(self._made(rank, n) for rank in some))
        return min(made, default=None)

    def _made(self, rank: int, number: int) -> bool:
        """Tell whether a mapped rank is known to have made a call, and was not refused it."""
        signature = bindings.status_call(self._comm, rank, number)
        if signature == bindings.FORGOTTEN:
            # What was refused is kept longer than the status knows it, but not for ever.
            refused = self._texts.get(rank, {}).keys() - {0}
            all_kept = len(refused) < bindings.STATUS_CALLS or number > min(refused)
            return all_kept and number not in refused
        return signature not in (0, bindings.REFUSED)

    def messages(self, ranks: Iterable[int], gone: Callable[[], bool]) -> list[tuple[int, str]]:
        """Return what messages ranks were refused last; what is said of them may be on its way.

        Args:
            ranks: One of them was refused a message.
            gone: Tells whether it cannot say so any more.
        """
        some = list(ranks)
        with self._moved:
            # What is said of it takes another way than the messages.
            self._moved.wait_for(
                lambda: gone() or any(self.text(rank, 0) for rank in some), _SURE_SECONDS
            )
            return [(rank, self.text(rank, 0)) for rank in some if self.text(rank, 0)]

    def last_messages(self) -> list[tuple[int, str]]:
        """Return what is known of the messages that each rank was refused last."""
        with self._moved:
            return [(rank, calls[0]) for rank, calls in self._texts.items() if 0 in calls]

    def first_uneven(self, size: int) -> list[tuple[int, str]]:
        """Return who of all ranks was refused the first call that not all were, and its texts."""
        with self._moved:
            # What is said of it takes another way than the kernels' messages.
            self._moved.wait_for(lambda: bool(self._uneven(size)), _SAY_SECONDS)
            first = min(self._uneven(size), default=0)
            told = sorted(self._texts.items())
        return [(rank, calls[first]) for rank, calls in told if first in calls]

    def _uneven(self, size: int) -> set[int]:
        """Return the calls that some ranks were refused, and not all, as far as is known."""
        numbers = {n for calls in self._texts.values() for n in calls}
        return {n for n in numbers if not all(self._was_refused(r, n) for r in range(size))}

    def _was_refused(self, rank: int, number: int) -> bool:
        # The status of a mapped rank shows it before the rank's news of it arrive.
        return number in self._texts.get(rank, ()) or (
            bindings.status_call(self._comm, rank, number) == bindings.REFUSED
        )
