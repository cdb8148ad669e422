"""Transport: how the ranks of a communicator reach those whose memory they do not map.

By RDMA verbs if each rank that has such peers could open its rails; else by libfabric if each has
the same provider of it for RDMA hardware; else all of them use TCP. Between two ranks nothing else
would do: both ends of a connection must be of one kind.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pycoll import log
from pycoll.errors import BootstrapError, PycollError, UnavailableError
from pycoll.fabric import Fabric, Rails
from pycoll.runtime.native import bindings, libfabric, load, verbs
from pycoll.runtime.net import providers, rails
from pycoll.runtime.net.providers import Place

SHM, TCP, VERBS, LIBFABRIC = "shm", "tcp", "verbs", "libfabric"

#: What else is wrong is not told after so many reasons.
_REASONS = 3
#: Bytes of a reason.
_REASON = 400
#: From `agree` to who called `pycoll.init`.
_CALLERS = 6


class Bootstrap(Protocol):
    """What is used here of a bootstrap."""

    rank: int
    whole: bool  #: the job, not a group of it

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank's blob to every rank."""

    def describe(self, rank: int) -> str:
        """Return a rank's name for messages."""

    def address(self, iface: str | None) -> str:
        """Return this host's address, of this interface if one is named."""


class NetOptions(NamedTuple):
    """What the settings say; all but `rails`, `iface` and `gpu` are rank 0's, on every rank."""

    transport: str = "auto"
    fabric: Fabric = Fabric()
    rails: Rails | None = None
    provider: str = ""  #: of libfabric; "": any
    iface: str | None = None
    gpu: str = ""  #: bus id of this rank's, whose memory the data is in; "": it is the host's


class Reachability(NamedTuple):
    """How remote peers are reached; alike on all ranks but for `rails`."""

    transport: str
    wire: float = 0.0  #: bytes per second each way of a host's rails, of the least; 0: unknown
    rdma: bool = False  #: by RDMA hardware, or what stands for it
    software: bool = False  #: some of these rails are the kernel's work, as Soft-RoCE is
    rails: tuple[str, ...] = ()  #: names of this rank's


class Capability(NamedTuple):
    """What a rank tells the others of its rails, or of its endpoint of libfabric."""

    layer: str = ""  #: of the rails, or the provider, that it has opened; "": none
    lack: str = ""  #: why none, and what mends it
    device: bool = False  #: its machine has an RDMA device, of use or not
    asked: bool = False  #: what is lacking was asked for by name
    speeds: dict[str, int] | None = None  #: of its rails by name, bits per second; 0: unknown
    provider: str = ""  #: of libfabric, for RDMA hardware, where it has no rails; "": none
    kinds: tuple[str, ...] = ()  #: see `LocalRails`, as the next
    software: bool = False

    def meets(self, other: Capability) -> bool:
        """Tell whether the rails of two ranks can be connected."""
        return self.layer == other.layer or not set(self.kinds).isdisjoint(other.kinds)

    def encode(self) -> bytes:
        """Return what `parse` reads."""
        return json.dumps(self).encode()

    @classmethod
    def parse(cls, rank: int, blob: bytes) -> Capability | None:
        """Read what a rank says; None: it has no remote peers.

        Raises:
            BootstrapError: No rank of this version says that.
        """
        if not blob:
            return None
        try:
            fields = json.loads(blob)
            if not isinstance(fields, list) or len(fields) != len(cls._fields):
                raise ValueError("fields")
            said = cls(*fields)
            speeds = (said.speeds or {}).values()
            kinds = [*map(type, (*said[:4], said.provider, said.software))]
            if kinds != [str, str, bool, bool, str, bool]:
                raise ValueError("types")
            if not all(isinstance(speed, int) for speed in speeds):
                raise ValueError("speeds")
            if not (isinstance(said.kinds, list) and all(isinstance(k, str) for k in said.kinds)):
                raise ValueError("kinds")
            said = said._replace(kinds=tuple(said.kinds))
        except (ValueError, AttributeError) as error:
            raise BootstrapError(
                f"rank {rank} says of its RDMA ports {blob[:60]!r}, want what this version "
                f"({load.version()}) says: {error}"
            ) from None
        return said


class Selected(NamedTuple):
    """What follows, alike on every rank."""

    transport: str
    trouble: str = ""  #: why the communicator cannot be made
    warning: str = ""  #: what the user should know


def agree(
    comm: Any,
    bootstrap: Bootstrap,
    wanted: NetOptions,
    hosts: Sequence[int],
    memory: int | None,
    timeout: float,
    again: bool = False,
) -> Reachability:
    """Open the network of a communicator whose ranks do not all share memory.

    Args:
        comm: Its engine, before the first of its remote peers.
        bootstrap: Its ranks; every one calls this.
        wanted: What the settings say.
        hosts: Number of every rank's host.
        memory: Number of the NUMA node that this rank runs on, or -1; None: it has no remote
            peers.
        timeout: Seconds until a wait for another rank fails.
        again: These ranks had it before: one that has it no more raises before the others hear of
            it, who can go on without it.

    Raises:
        UnavailableError: Some rank has not what the settings ask for.
    """
    if wanted.transport == TCP:
        _say(bootstrap, TCP, "PYCOLL_TRANSPORT=tcp")
        return Reachability(TCP)
    remote = memory is not None
    if wanted.transport == LIBFABRIC:
        return _agree_libfabric(comm, bootstrap, wanted, hosts, remote, timeout, again)
    mine = None if memory is None else _open(comm, wanted, memory, timeout, bootstrap.rank)
    if mine and not mine.layer and wanted.transport != VERBS and providers.possible():
        place = _place(bootstrap, wanted, hosts)
        mine = mine._replace(provider=providers.fast(wanted.provider, place))
    if again:
        alone = _alone(mine, bootstrap.rank, len(hosts))
        if trouble := decide(alone, wanted.transport == VERBS, bootstrap.describe).trouble:
            raise UnavailableError(trouble)
    blobs = bootstrap.allgather(mine.encode() if mine else b"", timeout)
    said = [Capability.parse(rank, blob) for rank, blob in enumerate(blobs)]
    verdict = decide(said, wanted.transport == VERBS, bootstrap.describe)
    if verdict.trouble:
        raise UnavailableError(verdict.trouble)
    if verdict.transport == LIBFABRIC:
        return _agree_libfabric(comm, bootstrap, wanted, hosts, remote, timeout, again)
    if verdict.transport == TCP and mine and mine.layer:
        bindings.comm_net(comm, "")
    if verdict.transport == TCP:
        _fall_back(bootstrap, verdict.warning)
        return Reachability(TCP)
    _say(bootstrap, VERBS, "all of them have opened RDMA ports")
    software = any(one.software for one in said if one is not None)
    own = tuple((mine and mine.speeds) or ())
    return Reachability(VERBS, wire(said, hosts), True, software, own)


def _fall_back(bootstrap: Bootstrap, warning: str) -> None:
    if warning and bootstrap.whole and bootstrap.rank == 0:
        warnings.warn(warning, RuntimeWarning, stacklevel=_CALLERS + 1)
    _say(bootstrap, TCP, warning or "none of them has an RDMA device")


def _by_tcp(lacks: str) -> str:
    return (
        f"ranks of other hosts are reached by TCP and not by RDMA: {lacks}; "
        "PYCOLL_TRANSPORT=tcp says that this is meant"
    )


def _agree_libfabric(
    comm: Any,
    bootstrap: Bootstrap,
    wanted: NetOptions,
    hosts: Sequence[int],
    remote: bool,
    timeout: float,
    again: bool,
) -> Reachability:
    """Open this rank's endpoint of libfabric, and see whether all have one of the same provider."""
    mine = None
    if remote:
        mine = _endpoint(comm, wanted.provider, _place(bootstrap, wanted, hosts), timeout)
    wants = "PYCOLL_TRANSPORT=libfabric wants one provider on all ranks: "
    required, alone = wanted.transport == LIBFABRIC, _alone(mine, bootstrap.rank, len(hosts))
    if again and required and (trouble := lacking(alone, bootstrap.describe)):
        raise UnavailableError(f"{wants}{trouble}")
    blobs = bootstrap.allgather(mine.encode() if mine else b"", timeout)
    said = [Capability.parse(rank, blob) for rank, blob in enumerate(blobs)]
    if trouble := lacking(said, bootstrap.describe):
        if required:
            raise UnavailableError(f"{wants}{trouble}")
        bindings.comm_net(comm, "")
        _fall_back(bootstrap, _by_tcp(trouble))
        return Reachability(TCP)
    names = {one.layer for one in said if one}
    _say(bootstrap, LIBFABRIC, f"all of them have opened provider {', '.join(names)}")
    return Reachability(LIBFABRIC, wire(said, hosts), all(one.provider for one in said if one))


def _alone(mine: Capability | None, rank: int, size: int) -> list[Capability | None]:
    """Return what all say, but of the others nothing."""
    return [mine if other == rank else None for other in range(size)]


def _place(bootstrap: Bootstrap, wanted: NetOptions, hosts: Sequence[int]) -> Place:
    rank = bootstrap.rank
    return Place(bootstrap.address(wanted.iface), hosts[:rank].count(hosts[rank]))


def lacking(said: Sequence[Capability | None], name: Callable[[int], str]) -> str:
    """Say which ranks have no endpoint of libfabric, or another provider's; "" if none.

    Args:
        said: Of every rank; None of those without remote peers.
        name: Of a rank, for messages.
    """
    known = {rank: one for rank, one in enumerate(said) if one is not None}
    lacks = {rank: one.lack for rank, one in known.items() if not one.layer}
    layers = {rank: one.layer for rank, one in known.items() if one.layer}
    first = next(iter(layers), -1)
    for rank, layer in layers.items():
        if layer != layers[first]:
            lacks[rank] = (
                f"its provider is {layer}, that of rank {first} is {layers[first]}; "
                "PYCOLL_FABRIC names one for all"
            )
    return _told(lacks, name) if lacks else ""


def _endpoint(comm: Any, provider: str, place: Place, timeout: float) -> Capability:
    try:
        found = providers.find(provider, place)
        libfabric.comm_fabric(comm, found.name, *place, timeout)
    except (UnavailableError, OSError) as error:
        return Capability(lack=_reason(error)[:_REASON], device=True)
    fast = found.name if found.rdma else ""
    return Capability(found.name, device=True, speeds={found.domain: found.speed}, provider=fast)


def _say(bootstrap: Bootstrap, transport: str, why: str) -> None:
    if bootstrap.rank == 0:
        log.info(
            "transport", "ranks that share no memory reach each other by %s: %s", transport, why
        )


def wire(said: Sequence[Capability | None], hosts: Sequence[int]) -> float:
    """Return the bytes per second each way of the host whose rails together have the fewest."""
    rails_of: dict[int, dict[str, int]] = {}  # the ranks of a host may use the same
    for one, host in zip(said, hosts, strict=True):
        if one is not None:
            rails_of.setdefault(host, {}).update(one.speeds or {})
    return min(sum(speeds.values()) / 8 for speeds in rails_of.values())


def decide(
    said: Sequence[Capability | None], required: bool, name: Callable[[int], str]
) -> Selected:
    """Return what follows from what the ranks say.

    Args:
        said: Of every rank; None of those without remote peers.
        required: RDMA by verbs or nothing.
        name: Of a rank, for messages.
    """
    known = {rank: one for rank, one in enumerate(said) if one is not None}
    ready = {rank: one for rank, one in known.items() if one.layer}
    lacks = {rank: one.lack for rank, one in known.items() if not one.layer}
    asked = {rank: one.lack for rank, one in known.items() if one.asked}
    if asked:
        return Selected(TCP, trouble=_told(asked, name))
    firsts: dict[tuple[str, ...], int] = {}  # of each kind of rails, the first rank that has them
    for rank, one in ready.items():
        if (apart := next((r for r in firsts.values() if not one.meets(ready[r])), None)) is None:
            firsts.setdefault((one.layer, *one.kinds), rank)
            continue
        lacks[rank] = (
            f"its RDMA ports are {one.layer} and cannot reach those of rank {apart}, which are "
            f"{ready[apart].layer}; PYCOLL_RAILS names others"
        )
    if not lacks:
        return Selected(VERBS)
    if required:
        return Selected(
            TCP, trouble=f"PYCOLL_TRANSPORT=verbs wants RDMA between hosts: {_told(lacks, name)}"
        )
    fast = {one.provider for one in known.values()}
    if len(fast) == 1 and "" not in fast:
        return Selected(LIBFABRIC)
    expected = ready or any(one.device for one in known.values())
    return Selected(TCP, warning=_by_tcp(_told(lacks, name)) if expected else "")


def _open(comm: Any, wanted: NetOptions, memory: int, timeout: float, rank: int) -> Capability:
    try:
        found = rails.find(wanted.rails, memory, wanted.gpu)
    except UnavailableError as error:
        return Capability(lack=str(error)[:_REASON], device=True, asked=True)
    except OSError as error:
        return Capability(lack=_reason(error)[:_REASON], device=True)
    if not found.rails:
        return Capability(lack=found.lack[:_REASON], device=found.device)
    try:
        verbs.comm_rails(comm, wanted.fabric, found.rails, timeout, found.far)
    except (UnavailableError, OSError) as error:
        return Capability(lack=_reason(error)[:_REASON], device=True)
    speeds = {f"{r.device}:{r.port}": n for r, n in zip(found.rails, found.speeds, strict=True)}
    ports = [f"{name} ({n / 1e9:g} Gb/s)" if n else name for name, n in speeds.items()]
    log.info("transport", "rank %d: RDMA ports %s, %s", rank, ", ".join(ports), found.layer)
    if found.others:
        log.info("transport", "rank %d: RDMA ports left out: %s", rank, "; ".join(found.others))
    return Capability(
        found.layer, device=True, speeds=speeds, kinds=found.kinds, software=found.software
    )


def _reason(error: PycollError | OSError) -> str:
    return str(getattr(error, "strerror", None) or error)


def _told(lacks: dict[int, str], name: Callable[[int], str]) -> str:
    """Say who lacks what, each reason once."""
    by_reason: dict[str, list[int]] = {}
    for rank, lack in lacks.items():
        by_reason.setdefault(lack, []).append(rank)
    parts = []
    for lack, (first, *others) in list(by_reason.items())[:_REASONS]:
        same = f" (so on {len(others)} ranks more)" if others else ""
        parts.append(f"{name(first)}: {lack}{same}")
    if left := len(lacks) - sum(len(ranks) for ranks in list(by_reason.values())[:_REASONS]):
        parts.append(f"and {left} ranks more")
    return "; ".join(parts)
