"""How ranks become a communicator: exchange what they are, then map each other's memory."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import time
from typing import Any, NamedTuple, Protocol

from pycoll.errors import BootstrapError, PycollError, UnavailableError
from pycoll.runtime import bindings

#: Slots per edge: one is filled while the other is read, and two more hide a late reader.
SLOTS = 4
#: Bytes of a slot where there are few ranks: a tile fits the second-level cache twice.
SLOT_BYTES = 256 << 10
#: What all slots of a rank may take; they are touched, and so cost memory, only as edges are used.
BUDGET_BYTES = 32 << 20
#: Microseconds to poll before sleeping, where every rank has a core. Longer than a small call
#: takes; not much longer, since a foreign process may have taken the core of the rank waited for.
SPIN = 50
#: Address space that all heaps may take together in each process, of the 128 TiB that it has.
HEAPS_BYTES = 1 << 45
#: How long a rank may take to answer once all are known to be there.
ANSWER_SECONDS = 60.0
#: How long a rank that failed to reach one peer still serves the rest.
AFTER_TROUBLE_SECONDS = 1.0


class Bootstrap(Protocol):
    """What is used here of a bootstrap."""

    rank: int
    size: int

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank's blob to every rank."""


class World(NamedTuple):
    """What all ranks agree on: rank 0's word, and what is counted from every rank's."""

    rank: int
    size: int
    cores: int  #: that the ranks may run on, together
    algorithm: str | None  #: rank 0's PYCOLL_ALGORITHM
    slots: int
    slot_bytes: int


def slot_bytes(size: int) -> int:
    """Return the bytes of a slot, so that a rank's edges to all others fit the budget."""
    fair = BUDGET_BYTES // (SLOTS * max(1, 2 * (size - 1)))
    return int(max(4096, min(SLOT_BYTES, 1 << (fair.bit_length() - 1))))


def heap_bytes(size: int) -> int:
    """Return how much address space this rank would give each rank's heap."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    whole = HEAPS_BYTES if limit == resource.RLIM_INFINITY else min(HEAPS_BYTES, limit // 2)
    return min(memory, whole // size) >> 12 << 12


def join(bootstrap: Bootstrap, algorithm: str | None, timeout: float) -> tuple[World, Any]:
    """Meet the other ranks; return what all agree on and the connected engine.

    Raises:
        BootstrapError: The ranks run different versions, or a peer's memory cannot be reached.
    """
    rank, size = bootstrap.rank, bootstrap.size
    mine = {
        "version": bindings.version(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "algorithm": algorithm,
        "heap": heap_bytes(size),
    }
    theirs = [_parse(i, b) for i, b in enumerate(_gather(bootstrap, mine, timeout))]
    _same_version([str(t.get("version")) for t in theirs])
    cores = len({cpu for t in theirs for cpu in t["cpus"]})
    world = World(rank, size, cores, theirs[0]["algorithm"], SLOTS, slot_bytes(size))
    try:
        comm = bindings.comm_open(
            rank,
            size,
            slots=world.slots,
            slot_bytes=world.slot_bytes,
            heap_bytes=min(t["heap"] for t in theirs),
            spin=SPIN if size <= cores else 0,
        )
    except PycollError as error:
        if cure := _cure(error):
            raise UnavailableError(f"{error}{cure}") from error
        raise
    try:
        blobs = bootstrap.allgather(bindings.comm_address(comm), timeout)
        trouble = _connect(comm, world, blobs, min(timeout, ANSWER_SECONDS))
        # The last step tells all ranks what went wrong on any; it is also the barrier behind which
        # nobody needs to be served.
        everyone = [b.decode() for b in bootstrap.allgather(trouble.encode(), timeout)]
        if any(everyone):
            raise BootstrapError("; ".join(text for text in everyone if text))
        bindings.comm_sealed(comm)
    except BaseException:
        bindings.comm_close(comm)
        raise
    return world, comm


def _gather(bootstrap: Bootstrap, mine: dict[str, Any], timeout: float) -> list[bytes]:
    return bootstrap.allgather(json.dumps(mine).encode(), timeout)


def _parse(rank: int, blob: bytes) -> dict[str, Any]:
    try:
        said = json.loads(blob)
        if not isinstance(said["cpus"], list) or not isinstance(said["heap"], int):
            raise ValueError("cpus or heap")
    except (ValueError, TypeError, KeyError) as error:
        raise BootstrapError(
            f"rank {rank} introduced itself with {blob[:60]!r}, which this version "
            f"({bindings.version()}) does not understand: {error}"
        ) from None
    return dict(said)


def _same_version(versions: list[str]) -> None:
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise BootstrapError(
                f"rank {rank} runs pycoll {version}, rank 0 runs {versions[0]}; "
                "install the same version for every rank"
            )


def _connect(comm: Any, world: World, blobs: list[bytes], timeout: float) -> str:
    """Connect to every peer while serving those that connect here; return what failed."""
    waiting = [p for p in range(world.size) if p != world.rank]
    unserved, trouble = world.size - 1, ""
    deadline = time.monotonic() + timeout
    ready = select.poll()
    ready.register(bindings.comm_wakeup(comm), select.POLLIN)
    while waiting or unserved:
        still = []
        for peer in waiting:
            code = bindings.comm_connect(comm, peer, blobs[peer])
            if code == bindings.AGAIN:
                still.append(peer)
            elif code < 0 and not trouble:
                trouble = _reason(code, comm, f"rank {world.rank} cannot reach rank {peer}")
                # Serve the others for a moment more; the peer in question may never come.
                deadline = min(deadline, time.monotonic() + AFTER_TROUBLE_SECONDS)
        waiting = still
        unserved -= bindings.comm_poll(comm)
        if time.monotonic() > deadline:
            absent = f"no answer from ranks {waiting}" if waiting else "not every rank connected"
            return trouble or f"rank {world.rank}: {absent} within {timeout:g} s"
        if waiting or unserved:
            ready.poll(10)
    return trouble


def _reason(code: int, comm: Any, what: str) -> str:
    try:
        bindings.raise_for(code, comm, what)
    except PycollError as error:
        return f"{error}{_cure(error)}"


def _cure(error: PycollError) -> str:
    """Return what to do where there is no address space left."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if getattr(error, "errno", None) != errno.ENOMEM or limit == resource.RLIM_INFINITY:
        return ""
    return f"; address space is limited to {limit >> 10} KiB: ulimit -v unlimited"
