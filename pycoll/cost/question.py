"""Question and Choice: what a choice of algorithm may depend on, and what it says."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from pycoll.order import FREE
from pycoll.program.slots import BUDGET_BYTES, SLOT_BYTES, SLOTS, SMALL_BYTES

if TYPE_CHECKING:
    from pycoll.schedule.placement import Placement


class Switch(enum.Enum):
    """What an NVSwitch does for the arrays of a call that all ranks reach (NVLink SHARP)."""

    NONE = "nothing"
    STORES = "stores"  #: to all ranks; they fold themselves
    FOLDS = "folds and stores"


class Question(NamedTuple):
    """One call as the choice sees it; every rank of a communicator asks the same."""

    collective: str  #: a name in COLLECTIVES, or "barrier"
    nbytes: int  #: bytes of the message, all blocks together
    size: int  #: number of ranks
    cores: int  #: cores of a host that its ranks may run on; the fewest where hosts differ
    placement: Placement | None = None  #: None: all ranks share one host
    remote: bool = False  #: some two ranks share no memory
    wanted: str | None = None  #: the algorithm that the user asked for; its tile is still chosen
    dtype: str = "float32"  #: for selectors; the model folds all types at the speed of memory
    slots: int = SLOTS  #: of an edge
    slot_bytes: int = SLOT_BYTES
    budget: int = BUDGET_BYTES  #: bytes that all messages to a rank may take
    small_bytes: int = SMALL_BYTES  #: of a message between hosts that has a small slot, at most
    rdma: bool = False  #: ranks of different hosts reach each other by RDMA; else by TCP
    #: bytes per second each way of a host's RDMA rails together, the least of all hosts; 0: unknown
    wire: float = 0.0
    software: bool = False  #: some of these rails are the kernel's work, as Soft-RoCE is
    device: str = "cpu"  #: what memory the arrays lie in: "cpu" or "cuda"
    unproved: bool = False  #: what takes too long to prove may run
    without: tuple[str, ...] = ()  #: algorithms that have turned out to take too long to prove
    switch: Switch = Switch.NONE  #: what NVLink's switch does where all arrays are of `empty`
    order: str = FREE  #: "fixed": only what folds in the order of the ranks may run


class Choice(NamedTuple):
    """How a collective of one size is to run."""

    algorithm: str
    tile: int  #: bytes wanted of a chunk per turn of the loop; a multiple of 64
    stream: bool  #: write the result past the cache
    direct: str | None  #: whose direct form to use where every array allows it
    reason: str
