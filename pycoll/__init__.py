"""Collective communication: short Python algorithms, proved, then run natively.

Importing this package loads names only; numpy and the native engine come with `init`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pycoll.errors import (
    BootstrapError,
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    CorruptionError,
    DeadlockError,
    InternalError,
    LostError,
    MismatchError,
    PeerLostError,
    PostconditionError,
    PycollError,
    RaceError,
    RevokedError,
    ScheduleError,
    TransportError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from pycoll.algorithms import Algorithm, algorithm
    from pycoll.bootstrap import spawn
    from pycoll.communicator import Communicator, init, join, joining
    from pycoll.interop.mpi import from_mpi
    from pycoll.profiler import CallEvent, Profiler, register_profiler
    from pycoll.runtime.plan.persistent import Plan
    from pycoll.runtime.record.stats import CallStats, Stats
    from pycoll.runtime.work import Work
    from pycoll.schedule import (
        ScheduleBuilder,
        allgather,
        allreduce,
        alltoall,
        broadcast,
        gather,
        reduce,
        reduce_scatter,
        scatter,
    )
    from pycoll.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "BootstrapError",
    "BrokenError",
    "CallEvent",
    "CallStats",
    "ClosedError",
    "CollectiveTimeout",
    "Communicator",
    "CorruptionError",
    "DeadlockError",
    "InternalError",
    "LostError",
    "MismatchError",
    "PeerLostError",
    "Plan",
    "PostconditionError",
    "Profiler",
    "PycollError",
    "RaceError",
    "RevokedError",
    "ScheduleBuilder",
    "ScheduleError",
    "Stats",
    "TransportError",
    "UnavailableError",
    "UsageError",
    "Work",
    "__version__",
    "algorithm",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "from_mpi",
    "gather",
    "init",
    "join",
    "joining",
    "reduce",
    "reduce_scatter",
    "register_profiler",
    "scatter",
    "spawn",
    "verify",
]

#: Where the names live that are loaded at first use.
_HOMES = {
    "Algorithm": "pycoll.algorithms",
    "algorithm": "pycoll.algorithms",
    "spawn": "pycoll.bootstrap",
    "Communicator": "pycoll.communicator",
    "init": "pycoll.communicator",
    "join": "pycoll.communicator",
    "joining": "pycoll.communicator",
    "from_mpi": "pycoll.interop.mpi",
    "CallEvent": "pycoll.profiler",
    "Profiler": "pycoll.profiler",
    "register_profiler": "pycoll.profiler",
    "Plan": "pycoll.runtime.plan.persistent",
    "CallStats": "pycoll.runtime.record.stats",
    "Stats": "pycoll.runtime.record.stats",
    "Work": "pycoll.runtime.work",
    "ScheduleBuilder": "pycoll.schedule",
    "allgather": "pycoll.schedule",
    "allreduce": "pycoll.schedule",
    "alltoall": "pycoll.schedule",
    "broadcast": "pycoll.schedule",
    "gather": "pycoll.schedule",
    "reduce": "pycoll.schedule",
    "reduce_scatter": "pycoll.schedule",
    "scatter": "pycoll.schedule",
    "verify": "pycoll.verify",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pycoll' has no attribute {name!r}")
    module = importlib.import_module(home)
    # `pycoll.verify` is a package that can be called: importing it already bound the name.
    value = globals().get(name) or getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
