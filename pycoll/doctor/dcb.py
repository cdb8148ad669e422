"""What the kernel's DCB interface tells: the priorities that PFC keeps lossless.

No file has it. The question is one netlink message, which any user may send; layouts are those of
``linux/dcbnl.h`` and ``linux/rtnetlink.h``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_GETDCB, _REQUEST, _ERROR = 78, 1, 2
_IEEE_GET = 21
_IFNAME, _IEEE = 1, 13
_IEEE_PFC = 2
_HEADER, _DCB, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBH"), struct.Struct("=HH")
_NESTED = 0x8000
_SECONDS = 2.0


def lossless(interface: str) -> int | None:
    """Return the priorities of an interface that PFC keeps lossless, a bit for each.

    None: the interface is not there, or its driver does not say.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_SECONDS)
            kernel.bind((0, 0))
            kernel.send(question(interface))
            return answer(kernel.recv(1 << 16))
    except OSError:  # a sandbox may forbid it
        return None


def question(interface: str) -> bytes:
    """Return the message that asks for an interface's IEEE settings."""
    name = interface.encode() + b"\0"
    body = _DCB.pack(socket.AF_UNSPEC, _IEEE_GET, 0)
    body += _padded(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(name), _IFNAME) + name)
    return _HEADER.pack(_HEADER.size + len(body), _GETDCB, _REQUEST, 1, 0) + body


def answer(message: bytes) -> int | None:
    """Return what a reply says of PFC; None if it is an error or says nothing."""
    if len(message) < _HEADER.size + _DCB.size:
        return None
    length, kind, *_ = _HEADER.unpack_from(message)
    if kind == _ERROR:
        return None
    whole = dict(_attributes(message[_HEADER.size + _DCB.size : length]))
    found = dict(_attributes(whole.get(_IEEE, b""))).get(_IEEE_PFC, b"")
    return found[1] if len(found) > 1 else None  # struct ieee_pfc: pfc_cap, pfc_en, ...


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~_NESTED, data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
