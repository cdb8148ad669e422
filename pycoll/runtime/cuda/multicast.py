"""Multicast: an address of NVLink's switch at which the heaps of all ranks lie at once.

The switch folds what lies at one offset of all heaps, and stores to all of them. The driver waits
for GPUs that are still to be added, for ever if their ranks have given up: so all ranks take each
step together, and go on without it when one could not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycoll.bootstrap import passing
from pycoll.cost import Switch
from pycoll.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT32,
    UINT64,
    DType,
    ReduceOp,
)
from pycoll.errors import PycollError, UsageError
from pycoll.runtime.native import cuda, device_comm

if TYPE_CHECKING:
    from pycoll.config import Config
    from pycoll.runtime.join import World

Gather = Callable[[str], Sequence[bytes]]

#: Seconds to wait for each rank's descriptors, which has said that it is about to send them.
_PATIENCE = 20.0
_INTEGERS = (INT32, UINT32, INT64, UINT64)
_FLOATS = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)
#: The ranks of which device images keep a bit each.
_MOST_RANKS = 64


def lack(world: World, device: int, config: Config, gather: Gather) -> str:
    """Return why the ranks do without, the same on all of them; "" if nothing is known yet.

    Raises:
        UsageError: The ranks were given different settings; on all of them.
    """
    mine = [config.cuda_multicast, config.cuda_heap, *_device(device)]
    said = [json.loads(blob) for blob in gather(json.dumps(mine))]
    settings, heaps, uuids, lacks = zip(*said, strict=True)
    for rank, setting in enumerate(settings):
        if setting != settings[0]:
            raise UsageError(
                f"PYCOLL_CUDA_MULTICAST is {setting} on rank {rank} and {settings[0]} on rank 0; "
                "give all ranks the same"
            )
    if settings[0] == "off":
        return "off, by PYCOLL_CUDA_MULTICAST"
    if len(set(world.hosts)) > 1 or not 1 < world.size <= _MOST_RANKS:
        return f"it is for 2 to {_MOST_RANKS} ranks of one host"
    if len(set(heaps)) > 1 or heaps[0] == 0:
        return "there is no heap for it, by PYCOLL_CUDA_HEAP"
    for rank, text in enumerate(lacks):
        if text:
            return f"rank {rank}: {text}"
    for rank, uuid in enumerate(uuids):
        if (first := uuids.index(uuid)) < rank:
            return f"ranks {first} and {rank} share a GPU"
    return ""


def _device(device: int) -> tuple[str, str]:
    """Return which GPU it is, and what keeps it from multicast."""
    try:
        return cuda.device(device).uuid.hex(), cuda.multicast(device)
    except PycollError as error:  # which opening it will say again
        return "", str(error)


def serves(rounds: bool, dtype: DType, op: ReduceOp) -> Switch:
    """Return what a switch does for a call: PC_SWITCH_FOLDS of native/gpu/device.h, where it may.

    Args:
        rounds: It may fold floats, which it adds in an order of its own.
        dtype: Of the elements.
        op: Of the call; of one that does not reduce it is of no account.
    """
    if dtype in _INTEGERS:
        folds = op is not ReduceOp.PROD
    else:
        folds = rounds and dtype in _FLOATS and op in (ReduceOp.SUM, ReduceOp.AVG)
    return Switch.FOLDS if folds else Switch.STORES


def open_all(
    native: Any, comm: Any, world: World, config: Config, gather: Gather, timeout: float
) -> str:
    """Have the object made, all GPUs added, all heaps bound and the address mapped.

    Returns:
        "" or why not, the same on all ranks, which then close their device communicators.
    """
    rank, first = world.rank, world.rank == 0
    peers = [peer for peer in range(world.size) if peer != rank]
    mine: list[int] = []
    theirs: dict[int, list[int]] = {}

    def export() -> None:
        mine.append(device_comm.multicast_export(native, comm))
        if first:
            mine.append(device_comm.multicast_create(native, comm))

    def exchange() -> None:
        # A rank that has given up waits in `_together` for those who wait for it here.
        patience = min(timeout / 4, _PATIENCE)
        theirs.update(passing.exchange(rank, peers, mine, gather, patience))

    def join() -> None:
        device_comm.multicast_join(native, comm, -1 if first else theirs[0][1])
        for peer in peers:
            device_comm.multicast_reach(native, comm, peer, theirs[peer][0])

    def bind() -> None:
        device_comm.multicast_bind(native, comm)

    def give_address() -> None:
        device_comm.multicast_map(native, comm, config.cuda_multicast == "on")

    try:
        for step in (export, exchange, join, bind, give_address):
            if failed := _together(step, rank, gather):
                return failed
        return ""
    finally:
        passing.close([*mine, *(fd for fds in theirs.values() for fd in fds)])


def _together(step: Callable[[], None], rank: int, gather: Gather) -> str:
    """Take a step; return which ranks could not, and why, the same on all of them."""
    error = ""
    try:
        step()
    except PycollError as failure:
        error = f"rank {rank}: {failure}"
    return "; ".join(said.decode() for said in gather(error) if said)
