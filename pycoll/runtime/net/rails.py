"""Rails: the ports of RDMA devices by which this rank reaches ranks of other hosts."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pycoll.errors import UnavailableError
from pycoll.fabric import MAX_RAILS, Rail, Rails
from pycoll.runtime.native import verbs
from pycoll.runtime.native.verbs import Port
from pycoll.sysfs import HOST, RDMA, natural
from pycoll.topology.distance import Distance, between, card

ACTIVE = 4
LAYERS = {1: "InfiniBand", 2: "Ethernet"}
GID_TYPES = {0: "InfiniBand", 1: "RoCE v1", 2: "RoCE v2"}
_ROCE = 2  #: link layer
SOFT_ROCE = "rdma_rxe"  #: driver
_MAPPED = bytes(10) + b"\xff\xff"  #: before an IPv4 address
_LINK_LOCAL = b"\xfe\x80"  #: how an IPv6 address without a network begins
_STATES = {
    0: "cannot be opened",
    1: "is down: plug in its cable, or ip link set its interface up",
    2: "waits for a subnet manager, which a switch runs, or a host: apt-get install opensm",
    3: "waits for the subnet manager to activate it",
    5: "was active and has lost its link",
}


class LocalRails(NamedTuple):
    """What a rank can use, or why it can use nothing."""

    rails: tuple[Rail, ...] = ()
    speeds: tuple[int, ...] = ()  #: of each, bits per second each way; 0: unknown
    layer: str = ""  #: of their links, and the kind of address, for people
    kinds: tuple[str, ...] = ()  #: by which each of them can be connected with a port of that kind
    lack: str = ""  #: why there are none, and what mends it
    device: bool = True  #: this machine has an RDMA device, of use or not
    software: bool = False  #: one of them is the kernel's work
    far: tuple[bool, ...] = ()  #: of each, whether another is nearer to the GPU; (): none is
    others: tuple[str, ...] = ()  #: the ports that it does not use, each with the reason

    @classmethod
    def of(cls, ports: Sequence[Port], rails: tuple[Rail, ...], gpu: str) -> LocalRails:
        """Look up what else is to be known of these rails."""
        by_name = {(port.device, port.port): port for port in ports}
        mine = [by_name[rail.device, rail.port] for rail in rails]
        each = [kinds(p, r.gid) for p, r in zip(mine, rails, strict=True)]
        layer = " and ".join(sorted({", or ".join(one) for one in each}))
        common = sorted(set(each[0]).intersection(*each))
        speeds = tuple(port.speed for port in mine)
        software = any(port.driver == SOFT_ROCE for port in mine)
        away = [_distance(port, gpu) for port in mine] if gpu else []
        far = tuple(one > min(away) for one in away) if len(set(away)) > 1 else ()
        return cls(rails, speeds, layer, tuple(common), software=software, far=far)


def find(named: Rails | None, memory: int, gpu: str = "") -> LocalRails:
    """Return the rails of this rank.

    Args:
        named: What PYCOLL_RAILS names; by default those that `choose` finds best.
        memory: Number of the NUMA node that this rank runs on, or -1.
        gpu: Bus id of the GPU that the data is for; "": it is the host's.

    Raises:
        UnavailableError: A port that is named is not there, or cannot be used.
    """
    lack = verbs.verbs_missing()
    ports = [] if lack else verbs.verbs_ports()
    if named is not None:
        if lack:
            raise UnavailableError(f"PYCOLL_RAILS is {named}, but {lack}")
        found = LocalRails.of(ports, pick(ports, named), gpu)
        unnamed = [p for p in ports if Rail(p.device, p.port) not in _places(found.rails)]
        return found._replace(others=tuple(f"{name(p)} is not named" for p in unnamed))
    if chosen := choose([port for port in ports if not flaw(port)], memory, gpu):
        found = LocalRails.of(ports, chosen, gpu)
        return found._replace(others=tuple(_others(ports, found, memory, gpu)))
    lack = lack or "; ".join(f"{name(port)} {flaw(port)}" for port in ports)
    return LocalRails(lack=lack or "there is no RDMA device", device=bool(ports) or seen())


def choose(usable: Sequence[Port], memory: int, gpu: str = "") -> tuple[Rail, ...]:
    """Return the best of the ports that can be used.

    Only ports of one kind can reach each other: the one with more bandwidth in this host. Of those
    the near ones, and of many the fastest. The ranks at one memory share all of them. A port that
    has only a link-local address, as every IPv6 interface does, counts where no other has more.
    """
    usable = [port for port in usable if not _link_local(port)] or usable
    of_kind: dict[str, list[Port]] = defaultdict(list)
    for port in usable:
        for kind in kinds(port):
            of_kind[kind].append(port)
    if not of_kind:
        return ()
    best = max(sorted(of_kind), key=lambda one: sum(max(1, p.speed) for p in of_kind[one]))
    fastest = sorted(near(of_kind[best], memory, gpu), key=lambda port: (-port.speed, _order(port)))
    chosen = sorted(fastest[:MAX_RAILS], key=_order)  # alike on alike hosts: rail i meets rail i
    return tuple(Rail(port.device, port.port) for port in chosen)


def _places(rails: Sequence[Rail]) -> set[Rail]:
    return {Rail(rail.device, rail.port) for rail in rails}


def _others(ports: Sequence[Port], found: LocalRails, memory: int, gpu: str) -> Iterator[str]:
    """Say of the ports that were not chosen why not, as `choose` went about it."""
    chosen = [port for port in ports if Rail(port.device, port.port) in found.rails]
    for port in ports:
        if port in chosen:
            continue
        if why := flaw(port):
            pass
        elif _link_local(port) and not any(map(_link_local, chosen)):
            why = "has only a link-local address"
        elif not set(kinds(port)).intersection(*map(kinds, chosen)):
            why = f"is {', or '.join(kinds(port))}, of which there is less bandwidth"
        elif port not in near([*chosen, port], memory, gpu):
            why = f"is farther from {'the GPU' if gpu else 'the memory of this rank'}"
        else:
            why = f"is one more than {MAX_RAILS}"
        yield f"{name(port)} {why}"


def near(ports: Sequence[Port], memory: int, gpu: str = "") -> list[Port]:
    """Return the ports that are nearest to the data.

    To a GPU's those to which the least lies between on PCI (`topology.distance`), as what is
    farther goes through the root complex, or between sockets. To the host's those on the NUMA node
    of the data, or all where none is: the link between sockets is slower than several NICs.
    """
    away = [_distance(port, gpu) for port in ports] if gpu else []
    if away and min(away) != Distance.UNKNOWN:
        return [port for port, far in zip(ports, away, strict=True) if far == min(away)]
    return [port for port in ports if port.numa_node == memory >= 0] or list(ports)


def pick(ports: Sequence[Port], named: Rails) -> tuple[Rail, ...]:
    """Return the ports that the user named, each with its number.

    Raises:
        UnavailableError: One is not there, or cannot be used; says what there is.
    """
    chosen = []
    for rail in named:
        meant = [p for p in ports if p.device == rail.device and rail.port in (0, p.port)]
        if not meant:
            there = ", ".join(map(name, ports)) or "none"
            raise UnavailableError(
                f"PYCOLL_RAILS names {rail}, which is not a port of an RDMA device here; "
                f"there are {there}"
            )
        usable = [p for p in meant if not flaw(p, rail.gid)]
        if not usable:
            why = "; ".join(f"{name(p)} {flaw(p, rail.gid)}" for p in meant)
            raise UnavailableError(f"PYCOLL_RAILS names {rail}, but {why}")
        chosen += [Rail(p.device, p.port, rail.gid) for p in usable]
    if len(chosen) > MAX_RAILS:
        raise UnavailableError(
            f"PYCOLL_RAILS names {len(chosen)} ports ({Rails(chosen)}), want at most {MAX_RAILS}"
        )
    return tuple(chosen)


def flaw(port: Port, gid: int = -1) -> str:
    """Return why a port cannot be used, as the end of a sentence; "" if it can.

    Args:
        port: The port.
        gid: Index of the address that the user wants; -1: any.
    """
    if port.state != ACTIVE:
        return _STATES.get(port.state, f"is in state {port.state}")
    if port.link_layer not in LAYERS:
        return "is neither InfiniBand nor Ethernet"
    if port.link_layer == _ROCE and port.gid_index < 0 and gid < 0:
        return "has no address: ip addr add gives its interface one"
    if gid >= 0 and (address := _gid(port, gid)) is not None and not any(address):
        return f"has no address with the number {gid} (GID): see /{_folder(port)}/gids"
    return ""


def kinds(port: Port, gid: int = -1) -> tuple[str, ...]:
    """Return of what two ports must have one in common to be connected, in words, the best first.

    Args:
        port: The port.
        gid: Index of its address; -1: those that the engine would choose, of each family the best.
    """
    if port.link_layer != _ROCE:
        return (LAYERS[port.link_layer],)
    address, number = port.gid, port.gid_type
    if gid not in (-1, port.gid_index) and (named := _gid(port, gid)) is not None:
        address, number = named, _gid_type(port, gid)
    families = ["IPv4", "IPv6"] if address.startswith(_MAPPED) else ["IPv6", "IPv4"]
    had = families if gid == -1 and port.other_family else families[:1]
    name = GID_TYPES.get(number, f"GID type {number}")
    return tuple(f"Ethernet, {name} over {family}" for family in had)


def _distance(port: Port, gpu: str) -> Distance:
    return between(gpu, card(port.device))


def _link_local(port: Port) -> bool:
    return port.link_layer == _ROCE and port.gid.startswith(_LINK_LOCAL)


def _folder(port: Port) -> str:
    return f"{RDMA}/{port.device}/ports/{port.port}"


def _gid(port: Port, number: int) -> bytes | None:
    """Return an address of a port, zeros if it has none there; None if nobody can tell."""
    if not HOST.names(f"{_folder(port)}/gids"):
        return None
    try:
        return socket.inet_pton(socket.AF_INET6, HOST.text(f"{_folder(port)}/gids/{number}") or "")
    except OSError:  # also of an entry that is empty
        return bytes(16)


def _gid_type(port: Port, number: int) -> int:
    text = HOST.text(f"{_folder(port)}/gid_attrs/types/{number}")
    return port.gid_type if text is None else 2 if "v2" in text else 1


def describe(port: Port) -> str:
    """Return what a user wants to know of a port, in one line."""
    speed = f"{port.speed / 1e9:g} Gb/s" if port.speed else "speed unknown"
    layer = LAYERS.get(port.link_layer, f"link layer {port.link_layer}")
    node = f"NUMA node {port.numa_node}" if port.numa_node >= 0 else "NUMA node unknown"
    parts = ["active" if port.state == ACTIVE else "not active", speed, layer, node]
    if port.link_layer == _ROCE and port.gid_index >= 0:
        address = socket.inet_ntop(socket.AF_INET6, port.gid).removeprefix("::ffff:")
        kind = GID_TYPES.get(port.gid_type, f"GID type {port.gid_type}")
        parts.insert(3, f"{kind} at {address} (GID {port.gid_index})")
    return ", ".join([*parts, *filter(None, [port.driver])])


def name(port: Port) -> str:
    """Return a port as PYCOLL_RAILS would name it."""
    return str(Rail(port.device, port.port))


def seen() -> bool:
    """Tell whether the kernel has an RDMA device, even if programs cannot use it."""
    return bool(HOST.names(RDMA))


def _order(port: Port) -> tuple[object, ...]:
    return natural(port.device), port.port
