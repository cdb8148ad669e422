"""Stats: what a communicator has counted since it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pycoll.runtime.record.kinds import Kind

if TYPE_CHECKING:
    from pycoll.runtime.native.trace import Totals


@dataclass(frozen=True)
class CallStats:
    """Calls of one kind."""

    calls: int = 0
    nbytes: int = 0  #: of all blocks of all calls; 0 where they are not known beforehand
    algorithms: dict[str, int] = field(default_factory=dict)  #: name → calls


@dataclass(frozen=True)
class Stats:
    """What a rank's communicator has counted since it was made."""

    calls: int  #: begun, on the host; refused ones included
    collectives: dict[str, CallStats]  #: by name, such as allreduce
    #: Times that nothing could be done, and the seconds in waits longer than some microseconds.
    waits: int
    waited_seconds: float
    rails: tuple[str, ...]  #: what leads to ranks that share no memory: RDMA ports, or a network
    sent: tuple[int, ...]  #: bytes by rail, of messages
    connections: int  #: RDMA connections that are to be up
    connections_up: int
    failures: int  #: RDMA connections that failed
    revivals: int  #: failed ones that came up again
    replayed: int  #: messages that were sent again
    work_requests: int  #: RDMA work requests that were posted to send


def by_call(totals: Totals) -> dict[str, CallStats]:
    """Return what a ring has counted by the calls' names, such as allreduce."""
    found: dict[str, CallStats] = {}
    for calls, text in totals.calls.values():
        if not calls:
            continue
        kind = Kind.read(text)
        one = found.setdefault(kind.call, CallStats())
        by = one.algorithms | {kind.algorithm: one.algorithms.get(kind.algorithm, 0) + calls}
        found[kind.call] = CallStats(one.calls + calls, one.nbytes + calls * kind.nbytes, by)
    return found
