"""What went wrong with a call on a GPU, told alike to every rank.

A kernel waits for its peers by itself, with a deadline; no status says what it does. So
what is known of a failure is what the kernel left behind, and who of the ranks is gone.
"""

from __future__ import annotations

from typing import Any, Protocol

from pycoll.errors import CollectiveTimeout, MismatchError, PeerLostError
from pycoll.runtime.call_site import user_line
from pycoll.runtime.failure import Cause, Failure, calls_text
from pycoll.runtime.native import codes, device_comm
from pycoll.runtime.native.bindings import RankStatus


class Launches(Protocol):
    """What is used here of a device communicator."""

    native: Any
    text: str  #: the call that was launched last

    def calls(self) -> int:
        """Return how many calls this rank has launched."""

    def captured(self) -> bool:
        """Tell whether a graph may still launch plans, which nobody counts."""

    def gone(self, peer: int) -> None:
        """Note that a rank has left or died."""


class DeviceFailure(Failure):
    """The failure of one device communicator."""

    def __init__(self, launches: Launches, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._launches = launches

    def on_lost(self, rank: int, reason: str) -> None:
        """Note that a rank is gone, also where kernels that wait for its messages see it."""
        super().on_lost(rank, reason)
        self._launches.gone(rank)

    def look(self) -> None:
        """Break it if what was launched, or a graph, can never end without a rank."""
        if self.error is not None:
            return
        launched, captured = self._launches.calls(), self._launches.captured()
        for rank, gone in list(self._departed.items()):
            left = self._control.calls_of(rank) is not None
            if launched > gone.calls or (captured and not left):
                # The number of a dead rank's calls is unknown: what it left unfinished cannot end.
                after = f" after {calls_text(gone.calls)} on its GPU" if left else ""
                text = (
                    f"{self._name(rank)} {gone.how}{after} and takes no part in call {launched} on "
                    f"the GPU, {self._launches.text}"
                )
                self._break(PeerLostError(text), Cause.LOST, rank)
                return
        if self._refusals:
            self._look_for_refused(self.statuses.own())

    def _look_for_departed(self, own: RankStatus) -> None:
        self.look()

    def describe(self, where: str = "") -> str:
        """Return what this rank called last, or the text of a queued call."""
        return where or self._launches.text

    def _time_out(self, timeout: float) -> None:
        stuck = device_comm.device_comm_stuck(self._launches.native)
        text = f"{self._launches.text} did not finish within {timeout:g} s on the GPU"
        if stuck is not None and stuck.peer >= 0:
            text += (
                f": rank {self._rank} waits for rank {stuck.peer} (count {stuck.got}, want "
                f"{stuck.want}; instruction {stuck.instruction} of block {stuck.block})"
            )
        self._break(CollectiveTimeout(text), Cause.TIMEOUT, self._rank)
        self._tell("timeout", text)

    def _transfer_failed(self, native: codes.Error, where: str) -> None:
        if native.code != codes.TIMEDOUT:
            super()._transfer_failed(native, where)
            return
        line = where.rpartition(" at ")[2]
        text = f"{native.text} (at {line})" if line else native.text
        self._break(CollectiveTimeout(text), Cause.TIMEOUT, self._rank)
        self._tell("timeout", text)

    def _placed(self, where: str) -> str:
        """Say where a message was sent or received, or else which call has found out.

        Nobody notes the line of each launch, and a kernel fails long after it.
        """
        return super()._placed(where) if " at " in where else f"found by the call at {user_line()}"

    def _agree_on_mismatch(self) -> MismatchError:
        stuck = device_comm.device_comm_stuck(self._launches.native)
        whose = "" if stuck is None else f"; rank {stuck.peer} sent the message of another call"
        for rank, call in self._refusals.first_uneven(self._size):
            whose += f"; rank {rank} had called {call}"
        text = f"ranks called different things: rank {self._rank}: {self._launches.text}{whose}"
        self._tell("transfer", text)
        return MismatchError(text)
