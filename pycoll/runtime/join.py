"""How ranks become a communicator: exchange what they are, then map each other's memory.

Two ranks are *mapped* if handing over their memory worked both ways, never because names agree;
any other two are *remote* to each other, and reach each other by `net.connections`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pycoll import log
from pycoll.bootstrap.control_router import rank_list
from pycoll.config import Config
from pycoll.errors import BootstrapError, PycollError, UnavailableError
from pycoll.fabric import Fabric
from pycoll.program.slots import SLOT_BYTES, SLOTS
from pycoll.runtime import arenas, room
from pycoll.runtime.arenas import Arenas
from pycoll.runtime.host import locality
from pycoll.runtime.host.locality import Locality
from pycoll.runtime.native import bindings, codes, load
from pycoll.runtime.net import rails, transport
from pycoll.runtime.net.transport import NetOptions, Reachability
from pycoll.schedule.placement import Placement

#: Microseconds to poll before sleeping, where every rank of the host has a core. Longer than a
#: small call takes; not much longer, since a foreign process may have taken the core of the rank
#: waited for.
SPIN = 50
#: How long a rank may take to answer once all are known to be there.
ANSWER_SECONDS = 60.0
#: Peers that a rank connects to at a time.
AT_ONCE = 16
#: Milliseconds until a rank looks again whether a peer has answered, at most.
LONGEST_PAUSE = 10
#: How long a rank that failed to reach one peer still serves the rest.
AFTER_TROUBLE_SECONDS = 1.0
#: How long a rank that cannot reach one of those that it reached before waits to hear why. A death
#: is known within milliseconds, unless the machine is very busy.
REASON_SECONDS = 5.0


class Gathering(Protocol):
    """An allgather that has begun."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def finish(self) -> list[bytes]:
        """Return every rank's blob."""


class Bootstrap(Protocol):
    """What is used here of a bootstrap."""

    rank: int
    size: int
    whole: bool  #: the job, not a group of it

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank's blob to every rank."""

    def begin(self, blob: bytes, timeout: float, notice: Callable[[], None]) -> Gathering:
        """The same, without waiting; ``notice`` is called once it has ended."""

    def describe(self, rank: int) -> str:
        """Return a rank's name for messages."""

    def address(self, iface: str | None) -> str:
        """Return this host's address, of this interface if one is named."""

    def check(self) -> None:
        """Raise what keeps the ranks from meeting any more, if anything does."""


#: Begins to gather what a rank has to say; ``notice`` is called once that has ended.
Begin = Callable[[Callable[[], None]], Gathering]


class World(NamedTuple):
    """What all ranks agree on, but for `rank`, `mapped` and `rails`."""

    rank: int
    size: int
    cores: int  #: that the ranks of a host may run on together, where they are scarcest
    algorithm: str | None  #: rank 0's PYCOLL_ALGORITHM
    slots: int
    slot_bytes: int  #: the longest message of most plans, and of what the model foresees
    long_slot_bytes: int  #: the longest message of any plan
    budget: int  #: what all messages to a rank may take, in bytes
    small_bytes: int  #: of a message between hosts that has a small slot, at most; 0: none has
    mapped: tuple[bool, ...]  #: of each rank, whether this one shares its memory
    lazy: bool  #: whoever shares memory is mapped when that is first needed
    remote: bool  #: some two ranks do not share memory
    direct: bool  #: direct forms can run: every rank maps the whole arena of every other
    transport: str  #: what passes between such: "verbs", "libfabric" or "tcp"; "shm" where none
    wire: float  #: bytes per second each way of a host's rails together, of the least; 0: unknown
    rdma: bool  #: by RDMA hardware
    software: bool  #: some of these rails are the kernel's work, as Soft-RoCE is
    rails: tuple[str, ...]  #: names of this rank's RDMA ports
    hosts: tuple[int, ...]  #: number of each rank's host
    placement: Placement


def join(
    bootstrap: Bootstrap,
    config: Config,
    gpu: str | None = None,
    reunion: Reunion | None = None,
) -> tuple[World, Any, Arenas, Sequence[Introduction], list[bytes]]:
    """Meet the other ranks.

    Args:
        bootstrap: The ranks.
        config: The settings.
        gpu: Bus id of the GPU whose kernels make the calls; the memory of all edges will be pinned
            then. None: the host's threads do.
        reunion: What the ranks know of each other; None: nothing.

    Returns:
        What all agree on, the connected engine, its peers' memory, what the ranks said, and the
        summary of each one's reunion.

    Raises:
        BootstrapError: The ranks run different versions, or a peer's memory cannot be reached.
        UnavailableError: There is no memory, or no RDMA where the settings ask for it.
    """
    rank, size, pinned = bootstrap.rank, bootstrap.size, gpu is not None
    theirs = reunion.said if reunion else _introductions(bootstrap, config)
    places = [said.place for said in theirs]
    hosts = locality.hosts(places)
    kinds = list({id(said): said for said in theirs}.values())  # ranks of a host mostly share one
    per_host = max(Counter(hosts).values())
    spacious = min(said.room for said in kinds)
    apart = len({said.domain for said in kinds}) > 1  # also in containers of one host
    rdma = _rdma(theirs, apart)
    each = _slot_bytes(spacious, hosts, bootstrap.whole, pinned or rdma)
    longest = room.longest_slot_bytes(size, bootstrap.whole and not (apart or pinned or rdma))
    long = _slot_bytes(spacious, hosts, bootstrap.whole, pinned or rdma, longest)
    slot = room.with_trailer(each) if rdma else long
    share = min(said.memory for said in kinds) // per_host
    budget = room.budget_bytes(bootstrap.whole, share)
    ring = SLOTS * room.fair_bytes(size, bootstrap.whole)
    whole = room.eager(size, pinned)
    small = 0
    if apart and not pinned:
        held = room.held(size, per_host)
        small = room.small_bytes(size, slot, held, spacious, budget, rdma)
    comm = _open(rank, places, slot, small, ring, min(said.heap for said in kinds), whole)
    try:
        summary = reunion.summary if reunion else b""
        told = bootstrap.allgather(summary + bindings.comm_address(comm), config.timeout)
        summaries = [blob[: len(summary)] for blob in told]
        addresses = [blob[len(summary) :] for blob in told]
        if reunion and reunion.accept and whole:
            mapped, near = _map_again(comm, bootstrap, addresses, reunion.accept, config.timeout)
        else:
            domains = None if whole else _domains(theirs, hosts)
            mapped, near = _map(comm, bootstrap, addresses, domains, config.timeout)
        again = reunion is not None
        by = _reach(comm, bootstrap, config, theirs, mapped, hosts, gpu or "", again)
    except BaseException:
        bindings.comm_close(comm)
        raise
    world = World(
        *(rank, size, locality.scarcest(places), theirs[0].algorithm),
        *(SLOTS, each, long, budget, small),
        tuple(bool(mapped[rank] >> peer & 1) for peer in range(size)),
        near is not None,
        by.transport != transport.SHM,
        whole and by.transport == transport.SHM,
        by.transport,
        by.wire,
        by.rdma,
        by.software,
        by.rails,
        hosts,
        locality.placement(places, mapped),
    )
    return world, comm, Arenas(comm, near or {}), theirs, summaries


def of_some(said: Sequence[Introduction], ranks: Sequence[int], whole: bool) -> list[Introduction]:
    """Return what some ranks would say in a group of their own.

    Args:
        said: What all of a communicator have said.
        ranks: Of it, in the order of the group.
        whole: The communicator is the job, not a group of it.
    """
    share = room.GROUPS if whole else 1
    found: dict[int, Introduction] = {}  # ranks of a host mostly share one object
    for rank in ranks:
        mine = said[rank]
        if id(mine) not in found:
            heap = min(mine.heap * len(said) // share // len(ranks), mine.memory)
            found[id(mine)] = mine._replace(heap=heap >> 12 << 12, room=mine.room // share)
    return [found[id(said[rank])] for rank in ranks]


def _rdma(theirs: Sequence[Introduction], apart: bool) -> bool:
    """Tell whether RDMA may pin the slots, of each peer that it connects."""
    wanted, seen = theirs[0].transport, any(said.rdma for said in theirs)
    return wanted == transport.VERBS or (apart and seen and wanted != transport.TCP)


def _slot_bytes(
    spacious: int,
    hosts: tuple[int, ...],
    whole: bool,
    pinned: bool,
    longest: int = SLOT_BYTES,
) -> int:
    """Return the bytes of a slot, where every rank has room for so many bytes of slots."""
    size, near = len(hosts), Counter(hosts).most_common(1)[0][1]
    if pinned:
        return room.fair_bytes(size, whole)
    held = room.held(size, near, pinned)
    return room.slot_bytes(size, held, spacious, whole, longest)


def _open(
    rank: int,
    places: list[Locality],
    slot: int,
    small: int,
    ring: int,
    heap: int,
    whole: bool,
) -> Any:
    """Return the engine of this rank, which reaches nobody yet."""
    cores, near = locality.cores(places, places[rank].host)
    spin = SPIN if near <= cores else 0
    try:
        return bindings.comm_open(
            rank,
            len(places),
            slots=SLOTS,
            slot_bytes=slot,
            small_bytes=small,
            ring_bytes=ring,
            windows=not whole,
            heap_bytes=heap,
            spin=spin,
        )
    except PycollError as error:
        if cure := _cure(error):
            raise UnavailableError(f"{error}{cure}") from error
        raise


def _reach(
    comm: Any,
    bootstrap: Bootstrap,
    config: Config,
    theirs: Sequence[Introduction],
    mapped: list[int],
    hosts: tuple[int, ...],
    gpu: str,
    again: bool,
) -> Reachability:
    """Open the way to the peers that are not mapped; end connecting."""
    rank, size, by = bootstrap.rank, bootstrap.size, Reachability(transport.SHM)
    remote = [peer for peer in range(size) if not mapped[rank] >> peer & 1]
    if any(bits + 1 != 1 << size for bits in mapped):
        # Only here: to look for RDMA devices takes longer than all else where there are many.
        first = theirs[0]
        wanted = NetOptions(
            first.transport, first.fabric, config.rails, first.provider, config.iface, gpu
        )
        here = theirs[rank].place.memory if remote else None
        by = transport.agree(comm, bootstrap, wanted, hosts, here, config.timeout, again)
    elif rank == 0:
        log.info("transport", "shm: every rank maps the memory of all %d", size)
    if remote:
        log.debug("transport", "rank %d: shares no memory with ranks %s", rank, remote)
    for peer in remote:
        bindings.comm_remote(comm, peer)
    bindings.comm_sealed(comm)
    return by


class Introduction(NamedTuple):
    """What a rank says of itself."""

    version: str
    algorithm: str | None
    heap: int
    room: int  #: of address space for slots, bytes
    memory: int  #: of its host, bytes
    rdma: bool  #: its machine has an RDMA device, of use or not
    place: Locality
    domain: str  #: equal for ranks that may open each other's memory
    transport: str
    fabric: Fabric
    provider: str  #: of libfabric; "": any


class Reunion(NamedTuple):
    """What ranks know of each other that were in one communicator before."""

    said: Sequence[Introduction]  #: in the order of the new one
    summary: bytes  #: of what this rank has inherited; of the same length on all
    accept: Begin | None  #: says that this rank has joined; None: some two did not map each other


def _introductions(bootstrap: Bootstrap, config: Config) -> list[Introduction]:
    """Tell the other ranks who this one is; return what each says, this one too."""
    mine = Locality.mine()
    said = {
        "version": load.version(),
        "algorithm": config.algorithm,
        "transport": config.transport,
        "verbs": str(config.verbs),
        "fabric": config.fabric or "",
        "heap": room.heap_bytes(bootstrap.size, bootstrap.whole),
        "room": room.slots_room(bootstrap.whole),
        "host_memory": room.memory_bytes(),
        "rdma": rails.seen(),
        "domain": arenas.domain(mine.host),
        **mine.encode(),
    }
    blobs = bootstrap.allgather(json.dumps(said).encode(), config.timeout)
    known: dict[bytes, Introduction] = {}  # ranks of a host mostly say the same
    theirs = []
    for rank, blob in enumerate(blobs):
        if blob not in known:
            known[blob] = _introduction(rank, blob)
        theirs.append(known[blob])
    _same_version([said.version for said in theirs])
    return theirs


def _introduction(rank: int, blob: bytes) -> Introduction:
    try:
        said = json.loads(blob)
        version, heap = str(said.get("version")), said["heap"]
        space, memory, rdma = said["room"], said["host_memory"], said["rdma"]
        if not all(isinstance(bytes_, int) for bytes_ in (heap, space, memory)):
            raise ValueError("heap, room or host_memory")
        if not isinstance(rdma, bool):
            raise ValueError("rdma")
        there, domain, by = Locality.parse(said), str(said["domain"]), said["transport"]
        if by not in ("auto", transport.VERBS, transport.LIBFABRIC, transport.TCP):
            raise ValueError("transport")
        provider = said["fabric"]
        if not isinstance(provider, str):
            raise ValueError("fabric")
        fabric = Fabric.parse(said["verbs"])
        return Introduction(
            *(version, said.get("algorithm"), heap, space, memory, rdma),
            *(there, domain, by, fabric, provider),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BootstrapError(
            f"rank {rank} introduced itself with {blob[:60]!r}, which this version "
            f"({load.version()}) does not understand: {error}"
        ) from None


def _same_version(versions: list[str]) -> None:
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise BootstrapError(
                f"rank {rank} runs pycoll {version}, rank 0 runs {versions[0]}; "
                "install the same version for every rank"
            )


def _domains(theirs: Sequence[Introduction], hosts: tuple[int, ...]) -> list[list[int]] | None:
    """Return the ranks of each host, if those of none differ in what they may open; else None."""
    ranks: dict[str, list[int]] = {}
    for rank, said in enumerate(theirs):
        ranks.setdefault(f"{said.domain}", []).append(rank)
    return list(ranks.values()) if len(ranks) == len(set(hosts)) else None


def _map(
    comm: Any,
    bootstrap: Bootstrap,
    addresses: list[bytes],
    domains: list[list[int]] | None,
    timeout: float,
) -> tuple[list[int], dict[int, bytes] | None]:
    """Find out, as bits, with whom each rank shares memory.

    Args:
        comm: The engine.
        bootstrap: The ranks.
        addresses: Of the engine of each.
        domains: Those that may open each other's memory when they need it; None: all map now.
        timeout: Seconds.

    Returns:
        The bits of every rank, and the addresses of peers that are still to be mapped; None: there
        are none.
    """
    if domains is not None:
        failed = _try(comm, bootstrap.rank, domains, addresses)
        said = _served(comm, bootstrap, failed.encode(), timeout)
        if not any(said):
            return _near(comm, bootstrap.rank, domains, addresses)
        if bootstrap.rank == 0:
            first = next(blob for blob in said if blob).decode(errors="replace")
            log.info("transport", "every rank maps all that it can, at once: %s", first)
    mapped, trouble = _connect(comm, bootstrap, addresses, min(timeout, ANSWER_SECONDS))
    bits = sum(1 << peer for peer in mapped)
    # It tells all ranks what went wrong on any; behind it nobody needs to be served.
    said = _served(comm, bootstrap, f"{bits:x} {trouble}".encode(), timeout)
    reached, troubles = [], []
    for rank, blob in enumerate(said):
        number, _, text = blob.decode(errors="replace").partition(" ")
        try:
            reached.append(int(number, 16))
        except ValueError:
            raise BootstrapError(f"rank {rank} says that it reached {number[:60]!r}") from None
        troubles.append(text)
    if any(troubles):
        raise BootstrapError("; ".join(text for text in troubles if text))
    return _both_ways(reached), None


def _map_again(
    comm: Any, bootstrap: Bootstrap, addresses: list[bytes], accept: Begin, timeout: float
) -> tuple[list[int], None]:
    """The same among ranks of which each mapped every other before.

    A rank that cannot reach another waits to hear why: that one is gone, or has gone to another
    view. If it hears nothing, it raises, and the others go on without it.

    Raises:
        BootstrapError: This rank cannot reach one that lives.
    """
    rank, size = bootstrap.rank, len(addresses)
    mapped, trouble = _connect(comm, bootstrap, addresses, min(timeout, ANSWER_SECONDS))
    until = time.monotonic() + REASON_SECONDS
    while len(mapped) < size:
        bootstrap.check()
        if time.monotonic() > until:
            lost = rank_list(sorted({*range(size)} - mapped))
            raise BootstrapError(trouble or f"rank {rank} no longer shares memory with {lost}")
        bindings.comm_accept(comm)
        time.sleep(LONGEST_PAUSE / 1000)
    _serve(comm, accept, timeout)
    return [(1 << size) - 1] * size, None


def _try(comm: Any, rank: int, domains: list[list[int]], blobs: list[bytes]) -> str:
    """Map a few of the ranks that may share memory; return what failed; empty: nothing."""
    mine = next(domain for domain in domains if rank in domain)
    for peer in sorted(arenas.attempts(rank, mine)):
        code = bindings.comm_try(comm, peer, blobs[peer])
        if code:
            return _reason(code, comm, f"rank {rank} cannot open the memory of rank {peer}")
    return ""


def _near(
    comm: Any, rank: int, domains: list[list[int]], blobs: list[bytes]
) -> tuple[list[int], dict[int, bytes]]:
    """Tell the engine who will be mapped; return with whom each rank shares memory, and those."""
    mapped, near = [0] * len(blobs), {}
    for domain in domains:
        bits = sum(1 << peer for peer in domain)
        for peer in domain:
            mapped[peer] = bits
        if rank in domain:
            near = {peer: blobs[peer] for peer in domain if peer != rank}
    for peer in near:
        bindings.comm_near(comm, peer)
    return mapped, near


def _both_ways(reached: list[int]) -> list[int]:
    """Return, of every rank, the bits of the peers that it reached and that reached it."""
    size = len(reached)
    if all(bits == (1 << size) - 1 for bits in reached):  # mostly; the rest takes size² steps
        return reached
    mutual = [1 << rank for rank in range(size)]
    for rank, bits in enumerate(reached):
        for peer in range(rank):
            if bits >> peer & 1 and reached[peer] >> rank & 1:
                mutual[rank] |= 1 << peer
                mutual[peer] |= 1 << rank
    return mutual


def _connect(
    comm: Any, bootstrap: Bootstrap, blobs: list[bytes], timeout: float
) -> tuple[set[int], str]:
    """Connect to every peer while serving those that connect here.

    Returns:
        The peers that are mapped now, and what failed.

    Raises:
        PeerLostError: One is gone, whom nobody could answer for.
    """
    rank = bootstrap.rank
    mapped, trouble = {rank}, ""
    # Not all ranks begin with the same peer, and none asks about hundreds whenever one answers.
    waiting = [(rank + step) % len(blobs) for step in range(1, len(blobs))]
    deadline = time.monotonic() + timeout
    ready = select.poll()
    ready.register(bindings.comm_connect_fd(comm), select.POLLIN)
    pause = 1
    while waiting:
        still = []
        for peer in waiting[:AT_ONCE]:
            code = bindings.comm_connect(comm, peer, blobs[peer])
            if code == codes.AGAIN:
                still.append(peer)
            elif code >= 0:
                mapped.add(peer)
            elif code != codes.UNMAPPABLE and not trouble:
                trouble = _reason(code, comm, f"rank {rank} cannot reach rank {peer}")
                # Serve the others for a moment more; the peer in question may never come.
                deadline = min(deadline, time.monotonic() + AFTER_TROUBLE_SECONDS)
        waiting = still + waiting[AT_ONCE:]
        bindings.comm_accept(comm)
        if waiting:
            bootstrap.check()
        if waiting and time.monotonic() > deadline:
            names = ", ".join(map(bootstrap.describe, waiting[:8]))
            absent = f"{bootstrap.describe(rank)}: no answer from {names} within {timeout:g} s"
            return mapped, trouble or absent
        # Whoever comes wakes it; that a peer has answered it has to look for.
        if len(still) == min(AT_ONCE, len(waiting)):
            ready.poll(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            pause = 1
    return mapped, trouble


def _served(comm: Any, bootstrap: Bootstrap, blob: bytes, timeout: float) -> list[bytes]:
    """Exchange blobs, and serve the peers that still connect until all have come to this."""
    return _serve(comm, lambda notice: bootstrap.begin(blob, timeout, notice), timeout)


def _serve(comm: Any, begin: Begin, timeout: float) -> list[bytes]:
    """Begin something, and serve the peers that still connect until it is done."""
    # A socket, not an eventfd: a notice that comes too late must not write to a reused number.
    ended, told = socket.socketpair()

    def notice() -> None:
        with contextlib.suppress(OSError):  # closed: nobody waits any more
            told.send(b"\0")

    with ended, told:
        gathering = begin(notice)
        ready = select.poll()
        ready.register(bindings.comm_connect_fd(comm), select.POLLIN)
        ready.register(ended, select.POLLIN)
        until = time.monotonic() + timeout
        while not gathering.done() and time.monotonic() < until:
            bindings.comm_accept(comm)
            ready.poll(100)
        return gathering.finish()


def _reason(code: int, comm: Any, what: str) -> str:
    try:
        codes.raise_for(code, comm, what)
    except PycollError as error:
        return f"{error}{_cure(error)}"


def _cure(error: PycollError) -> str:
    """Return what to do where there is no address space left."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if getattr(error, "errno", None) != errno.ENOMEM or limit == resource.RLIM_INFINITY:
        return ""
    return f"; address space is limited to {limit >> 10} KiB: ulimit -v unlimited"
