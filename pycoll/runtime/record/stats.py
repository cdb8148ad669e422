"""Stats: what a communicator has counted since it was made."""

from __future__ import annotations

from dataclasses import dataclass, field


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
