"""Fabric: how packets of RDMA are sent, and by which ports, as the settings say it.

`Fabric` is one line such as ``tc=106,sl=3,timeout=16,retry=6,qps=2,mtu=4096``. What each key is
for, and why its default is what it is:

- ``tc``, traffic class: its upper six bits are the DSCP, by which switches tell RDMA from the
  rest, and the lower two say that congestion may be marked (ECN), without which DCQCN never slows
  down. 106 is DSCP 26 with ECN, which the vendors' recipes for RoCE give to a queue of its own,
  and what UCX sends; switches that were told nothing about it treat it as any other.
- ``sl``, service level: on InfiniBand it selects a virtual lane, on tagged Ethernet the priority
  that PFC may keep lossless. 0, as that is the one that every fabric has.
- ``timeout`` and ``retry``: a packet that nobody acknowledges is sent again after 4.096 us <<
  timeout, so often, and then its path has failed. 16 and 6 are about two seconds. Other
  libraries wait ten times as long, since to them a failed path is the end; here it costs little:
  its messages move to another path, and it is revived. With 14 Soft-RoCE, whose timer runs on
  behind the last acknowledgement, sent 5 to 20 % of long messages again that had arrived.
- ``qps``, queue pairs to each peer over each pair of rails: a fabric that spreads flows by hash
  (ECMP) needs several for its whole bandwidth. 1, as each takes a place in the NIC's cache, and
  most fabrics spread packets or are one switch.
- ``srq``, connections of a port with receives of their own; those after them share one queue
  (SRQ). Their own never run empty, but among hundreds of peers they are memory, and places in the
  NIC's cache, for what never comes at once. 16 is more than the rings, trees and hypercubes of a
  job connect.
- ``mtu``, bytes of a packet at most: by default what the port has. Less is for a path with a
  narrower part that no end can see.
- ``pkey``, partition key: packets belong to this partition of an InfiniBand fabric, which its
  subnet manager has made the ports members of; by default to the first that a port is in. It is
  the key itself, such as 0x8001, not its number in a port's table, which differs between ports. Its
  upper bit, full membership or limited, may be left out: a port's own table says which it has.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Rails that a rank can use.
MAX_RAILS = 8
#: A device's name is shorter.
_NAME = 64

_MTUS = (256, 512, 1024, 2048, 4096)
_RANGES = {
    "tc": (0, 255),
    "sl": (0, 15),
    "timeout": (1, 31),
    "retry": (0, 7),
    "qps": (1, 8),
    "srq": (0, 1 << 20),
}


class Fabric(NamedTuple):
    """How queue pairs are set up; the module says what for."""

    tc: int = 106
    sl: int = 0
    timeout: int = 16
    retry: int = 6
    qps: int = 1
    srq: int = 16
    mtu: int = 0  #: bytes; 0: the port's
    pkey: int = 0  #: 0: the first of the port's

    @classmethod
    def parse(cls, text: str) -> Fabric:
        """Read ``key=value,...``; keys that are left out have their defaults.

        Raises:
            ValueError: It is none; the text says what is wanted.
        """
        values: dict[str, int] = {}
        for part in text.replace(" ", "").split(","):
            key, _, value = part.partition("=")
            if key not in cls._fields:
                raise ValueError(_unknown(key, cls._fields))
            if key in values:
                raise ValueError(f"{key} once")
            values[key] = _number(key, value)
        return cls(**values)

    def __str__(self) -> str:
        """Return what `parse` reads."""
        pairs = zip(self._fields, self, strict=True)
        return ",".join(
            f"{key}={value:#x}" if key == "pkey" else f"{key}={value}"
            for key, value in pairs
            if value or key not in ("mtu", "pkey")
        )


def _unknown(key: str, known: tuple[str, ...]) -> str:
    import difflib  # only now: it is slow to load

    near = difflib.get_close_matches(key, known, n=1, cutoff=0)[0]
    return f"key=value,... with keys of {', '.join(known)}; {key!r} is none, did you mean {near}?"


def _number(key: str, value: str) -> int:
    if key == "pkey":
        return _pkey(value)
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 9 else -1
    if key == "mtu":
        if number not in _MTUS:
            raise ValueError(f"mtu as one of {', '.join(map(str, _MTUS))}")
        return number
    lowest, highest = _RANGES[key]
    if not lowest <= number <= highest:
        raise ValueError(f"{key} as an integer from {lowest} to {highest}")
    return number


def _pkey(value: str) -> int:
    digits = value.lower().removeprefix("0x")
    number = int(digits, 16) if re.fullmatch("[0-9a-f]{1,4}", digits) else 0
    if not (value[:2].lower() == "0x" and number & 0x7FFF):
        raise ValueError("pkey as a partition key, from 0x1 to 0xffff, such as 0x8001")
    return number


class Rail(NamedTuple):
    """A port of an RDMA device, as it is named: ``mlx5_0``, ``mlx5_0:1`` or ``mlx5_0:1:3``."""

    device: str
    port: int = 0  #: from 1; 0: all that can be used
    gid: int = -1  #: index of the address that stands for it; -1: the best there is

    @classmethod
    def parse(cls, text: str) -> Rail:
        """Read ``device[:port[:gid]]``; ValueError for anything else."""
        device, *numbers = text.split(":")
        plain = all(n.isascii() and n.isdigit() and len(n) < 4 for n in numbers)
        if 0 < len(device) < _NAME and len(numbers) <= 2 and plain:
            port, gid = [*map(int, numbers), *(0, -1)[len(numbers) :]]
            if 0 < port < 256 or not numbers:
                return cls(device, port, gid)
        raise ValueError("device[:port[:gid]],... with ports from 1, such as mlx5_0,mlx5_1:1")

    def overlaps(self, other: Rail) -> bool:
        """Tell whether a port may be meant by both."""
        ports = self.port, other.port
        return self.device == other.device and (0 in ports or ports[0] == ports[1])

    def __str__(self) -> str:
        """Return what `parse` reads."""
        numbers = [self.port] * (self.port > 0) + [self.gid] * (self.gid >= 0)
        return ":".join(map(str, (self.device, *numbers)))


class Rails(tuple[Rail, ...]):
    """The ports that a setting names."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Rails:
        """Read a list of rails; ValueError if it is none."""
        named = [Rail.parse(part) for part in text.replace(" ", "").split(",")]
        for i, rail in enumerate(named):
            if any(rail.overlaps(other) for other in named[:i]):
                raise ValueError(f"each port once, but {rail} comes twice")
        if len(named) > MAX_RAILS:
            raise ValueError(f"at most {MAX_RAILS} of them")
        return cls(named)

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return ",".join(map(str, self))
