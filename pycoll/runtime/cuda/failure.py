"""What went wrong with a call on a GPU, told alike to every rank.

A kernel waits for its peers by itself, with a deadline; nobody writes on the call board for it. So
what is known of a failure is what the kernel left behind, and who of the ranks is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycoll.errors import CollectiveTimeout, MismatchError, PeerLostError
from pycoll.runtime.failure import REFUSED_SECONDS, Cause, Faults, calls_text
from pycoll.runtime.native import bindings, device_comm
from pycoll.runtime.native.bindings import RankStatus

if TYPE_CHECKING:
    from pycoll.runtime.cuda.device_comm import DeviceComm


class DeviceFailure(Faults):
    """The failure of one plane."""

    def __init__(self, plane: DeviceComm) -> None:
        bootstrap = plane.bootstrap
        super().__init__(plane.comm, bootstrap.control, plane.world, bootstrap.describe)
        self._plane = plane

    def look(self) -> None:
        """Break the plane if what was launched, or a graph, can never end without a rank."""
        if self.failure is not None:
            return
        launched, captured = self._plane.calls(), self._plane.captured()
        for rank, gone in list(self._departed.items()):
            left = self._control.calls_of(rank) is not None
            if launched > gone.calls or (captured and not left):
                # The number of a dead rank's calls is unknown: what it left unfinished cannot end.
                after = f" after {calls_text(gone.calls)} on its GPU" if left else ""
                text = (
                    f"{self._name(rank)} {gone.how}{after} and takes no part in call {launched} on "
                    f"the GPU, {self._plane.text}"
                )
                self._break(PeerLostError(text), Cause.LOST, rank)
                return
        if self._refused:
            self._look_for_refused(self.boards.own())

    def _look_for_departed(self, own: RankStatus) -> None:
        self.look()

    def describe(self, where: str = "") -> str:
        """Return what this rank called last, or the text of a queued call."""
        return where or self._plane.text

    def _time_out(self, timeout: float) -> None:
        stuck = device_comm.device_comm_stuck(self._plane.native)
        text = f"{self._plane.text} did not finish within {timeout:g} s on the GPU"
        if stuck is not None and stuck.peer >= 0:
            text += (
                f": rank {self._rank} waits for rank {stuck.peer} (count {stuck.got}, want "
                f"{stuck.want}; instruction {stuck.instruction} of block {stuck.block})"
            )
        self._break(CollectiveTimeout(text), Cause.TIMEOUT, self._rank)
        self._tell("timeout", text)

    def _agree_on_mismatch(self) -> MismatchError:
        stuck = device_comm.device_comm_stuck(self._plane.native)
        whose = "" if stuck is None else f"; rank {stuck.peer} sent the message of another call"
        for rank, call in self._refused_alone():
            whose += f"; rank {rank} had called {call}"
        text = f"ranks called different things: rank {self._rank}: {self._plane.text}{whose}"
        self._tell("transfer", text)
        return MismatchError(text)

    def _refused_alone(self) -> list[tuple[int, str]]:
        """Return who was refused the first call that not all ranks were, and what is told of it."""
        with self._moved:
            # What is said of it takes another way than the kernels' messages.
            self._moved.wait_for(lambda: bool(self._uneven()), REFUSED_SECONDS)
            first = min(self._uneven(), default=0)
            told = sorted(self._refused.items())
        return [(rank, calls[first]) for rank, calls in told if first in calls]

    def _uneven(self) -> set[int]:
        """Return the calls that some ranks were refused, and not all, as far as is known."""
        numbers = {n for calls in self._refused.values() for n in calls}
        return {n for n in numbers if not all(self._was_refused(r, n) for r in range(self._size))}

    def _was_refused(self, rank: int, number: int) -> bool:
        # The board of a mapped rank shows it before the rank's news of it arrive.
        return number in self._refused.get(rank, ()) or (
            bindings.status_call(self._comm, rank, number) == bindings.REFUSED
        )
