"""Links: which connections carried bytes more slowly than the others like them.

A rate is bytes that were acknowledged, over the time in which something was on its way. Only links
that moved enough are compared: with the median of the links of their communicator that touch
neither of their two hosts, as a host's port slows all links into and out of it; where there is
none, with the median of all others. Each direction is a link of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycoll.trace.calls import Communicator
from pycoll.trace.clocks import Clocks
from pycoll.trace.finding import Finding
from pycoll.trace.words import amount, named, rate

#: A link is slow below this part of the others' median.
SLOW = 0.75
#: What a link must have moved, and how long, to be compared.
LEAST_BYTES, LEAST_NS = 1 << 20, 5_000_000


@dataclass(frozen=True, eq=False)
class Wire:
    """One direction of a connection. Ranks are those of the job; rates are bytes in a nanosecond.

    `like` is the median rate of the others; None where it is not compared.
    """

    comm: Communicator
    frm: int
    to: int
    hosts: tuple[int, int]
    rail: int
    rail_name: str
    sent: int
    busy_ns: int
    like: float | None = None

    @property
    def rate(self) -> float | None:
        """Bytes in a nanosecond, which are GB/s; None where nothing was on its way."""
        return self.sent / self.busy_ns if self.busy_ns else None

    @property
    def slow(self) -> bool:
        """Whether it is much slower than the others."""
        return self.like is not None and self.rate is not None and self.rate < SLOW * self.like

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "comm": self.comm.id,
            "from": self.frm,
            "to": self.to,
            "rail": self.rail,
            "rail_name": self.rail_name,
            "sent": self.sent,
            "busy_ns": self.busy_ns,
            "GBps": None if self.rate is None else round(self.rate, 4),
            "others_GBps": None if self.like is None else round(self.like, 4),
            "slow": self.slow,
        }


def wires(comm: Communicator, clocks: Clocks) -> list[Wire]:
    """Return the links of a communicator, each with the median of those it is compared with."""
    found, counts = [], []
    for rank, links in comm.links.items():
        for link in links:
            to, names = comm.ranks[link.peer], comm.rails[rank]
            hosts = clocks.host[rank], clocks.host[to]
            name = names[link.rail] if link.rail < len(names) else ""
            found.append(Wire(comm, rank, to, hosts, link.rail, name, link.sent, link.busy_ns))
            enough = link.sent >= LEAST_BYTES and link.busy_ns >= LEAST_NS
            counts.append(enough and hosts[0] != hosts[1])
    counted = [wire for wire, enough in zip(found, counts, strict=True) if enough]
    if len(counted) < 2:
        return found
    likes: dict[frozenset[int], float | None] = {}
    for wire in counted:
        ends = frozenset(wire.hosts)
        if ends not in likes:
            apart = [w.sent / w.busy_ns for w in counted if not ends.intersection(w.hosts)]
            likes[ends] = statistics.median_high(apart) if apart else None
    rates = sorted(w.sent / w.busy_ns for w in counted)
    return [
        _compared(
            wire,
            likes[frozenset(wire.hosts)] or _median_of_others(rates, wire.sent / wire.busy_ns),
        )
        if enough
        else wire
        for wire, enough in zip(found, counts, strict=True)
    ]


def _compared(wire: Wire, like: float) -> Wire:
    fields = {name: getattr(wire, name) for name in wire.__dataclass_fields__}
    return Wire(**{**fields, "like": like})


def _median_of_others(rates: list[float], own: float) -> float:
    """Return the upper median of sorted rates without one that equals ``own``."""
    middle = (len(rates) - 1) // 2
    return rates[middle] if own > rates[middle] else rates[middle + 1]


_End = Callable[[Wire], tuple[int, ...]]


def findings(found: list[Wire], clocks: Clocks) -> list[Finding]:
    """Name the slow links; a host's port where all its links are slow, to and from several hosts.

    The same of those one way only.

    Ranks of two hosts with several links between them are named together.
    """
    compared = [wire for wire in found if wire.like is not None]
    slow = {wire for wire in compared if wire.slow}
    said: list[Finding] = []
    for host in sorted({host for wire in slow for host in wire.hosts}):
        mine = [wire for wire in compared if host in wire.hosts]
        sides = [
            {wire.hosts[1 - end] for wire in mine if wire.hosts[end] == host} for end in (0, 1)
        ]
        if all(sides) and len(set.union(*sides)) > 1 and slow.issuperset(mine):
            said.append(_whole_port(mine, host, clocks))
            slow.difference_update(mine)
    for way, here, there in (("out of", 0, 1), ("into", 1, 0)):
        for by_rail in (False, True):
            group = _by(here, by_rail)
            for key in sorted({group(wire) for wire in slow}):
                mine = [wire for wire in compared if group(wire) == key]
                far = {wire.hosts[there] for wire in mine}
                if len(far) > 1 and all(wire.slow for wire in mine):
                    said.append(_port(mine, way, here, by_rail, clocks))
                    slow.difference_update(mine)
    for pair in sorted({wire.hosts for wire in slow}):
        mine = [wire for wire in compared if wire.hosts == pair]
        if len(mine) > 1 and all(wire.slow for wire in mine):
            said.append(_finding("link", mine, _between(mine, clocks), clocks))
            slow.difference_update(mine)
    for wire in sorted(slow, key=lambda wire: (wire.frm, wire.to, wire.rail)):
        said.append(_finding("link", [wire], _one(wire, clocks), clocks))
    return said


def _whole_port(mine: list[Wire], host: int, clocks: Clocks) -> Finding:
    """Name the port of a host of which all links are slow, out of it and into it."""
    name = host_name(host, clocks)
    rails = sorted({wire.rail_name or f"rail {wire.rail}" for wire in mine})
    text = (
        f"all {len(mine)} links into and out of {name} are slow: its port, {', '.join(rails)}, or "
        "its cable"
    )
    finding = _finding("port", mine, text, clocks)
    ends = {w.frm for w in mine if w.hosts[0] == host} | {w.to for w in mine if w.hosts[1] == host}
    details = {**finding.details, "host": name, "direction": "both"}
    return Finding("port", tuple(sorted(ends)), finding.text, details)


def _by(end: int, by_rail: bool) -> _End:
    return lambda wire: (wire.hosts[end], wire.rail) if by_rail else (wire.hosts[end],)


def _port(mine: list[Wire], way: str, end: int, by_rail: bool, clocks: Clocks) -> Finding:
    host = host_name(mine[0].hosts[end], clocks)
    rails = sorted({wire.rail_name or f"rail {wire.rail}" for wire in mine})
    which = f"rail {rails[0]} of {host}" if by_rail else host
    text = (
        f"all {len(mine)} links {way} {which} are slow: its port, {', '.join(rails)}, or its cable"
    )
    finding = _finding("port", mine, text, clocks)
    ranks = tuple(sorted({wire.frm if end == 0 else wire.to for wire in mine}))
    details = {**finding.details, "host": host, "direction": "out" if end == 0 else "in"}
    return Finding("port", ranks, finding.text, details)


def _between(mine: list[Wire], clocks: Clocks) -> str:
    here, there = (host_name(host, clocks) for host in mine[0].hosts)
    return f"all {len(mine)} links from {here} to {there} are slow"


def _one(wire: Wire, clocks: Clocks) -> str:
    here, there = (host_name(host, clocks) for host in wire.hosts)
    rail = f", by rail {wire.rail_name or wire.rail}"
    return f"the link from rank {wire.frm} on {here} to rank {wire.to} on {there}{rail} is slow"


def _finding(kind: str, mine: list[Wire], what: str, clocks: Clocks) -> Finding:
    got = statistics.median(wire.rate or 0.0 for wire in mine)
    like = statistics.median(wire.like or 0.0 for wire in mine)
    froms, tos = ({wire.frm for wire in mine}, {wire.to for wire in mine})
    text = (
        f"{what}\n{rate(got)} where the median of the others of {mine[0].comm.name} is "
        f"{rate(like)}; {amount(sum(wire.sent for wire in mine))} went from {named(froms)} to "
        f"{named(tos)}"
    )
    details = {
        "comm": mine[0].comm.id,
        "GBps": round(got, 4),
        "others_GBps": round(like, 4),
        "hosts": [host_name(host, clocks) for host in mine[0].hosts] if kind == "link" else [],
        "links": [{"from": w.frm, "to": w.to, "rail": w.rail} for w in mine],
    }
    return Finding(kind, tuple(sorted(froms | tos)), text, details)


def host_name(host: int, clocks: Clocks) -> str:
    """Return a host's name; of one without records, whose it is."""
    return next(
        (
            clocks.names[rank]
            for rank, number in clocks.host.items()
            if number == host and rank in clocks.names
        ),
        f"the host of rank {host}",
    )
