"""Route: at which of its addresses this machine is reached by the other hosts of the job."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Sequence

from pycoll.bootstrap.member import Member
from pycoll.errors import UsageError

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Tell whether `host` only reaches this machine."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_here(address: str) -> bool:
    """Tell whether a connection's other end, at `address`, is on this machine.

    The kernel lets a socket have the addresses of this machine, and says of others that they are
    not. Where it says neither, the answer is that of which more is demanded.
    """
    address = address.removeprefix("::ffff:")
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def named(iface: str) -> str:
    """Return the address that PYCOLL_IFACE means: itself, or that of the interface it names.

    Raises:
        UsageError: This machine has neither.
    """
    present = addresses()
    if iface in present:
        return present[iface]
    try:
        family = socket.AF_INET6 if ":" in iface else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((socket.inet_ntop(family, socket.inet_pton(family, iface)), 0))
    except OSError:
        shown = ", ".join(f"{name} ({address})" for name, address in present.items())
        raise UsageError(
            f"PYCOLL_IFACE is {iface!r}, which is neither an interface nor an address of "
            f"{socket.gethostname()}; there are {shown or 'none'}"
        ) from None
    return iface


def addresses() -> dict[str, str]:
    """Return the interfaces of this machine that have an IPv4 address, each with it."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s16x8x", name.encode()[:15])
            with contextlib.suppress(OSError):  # SIOCGIFADDR; an interface may have no address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def found(members: Sequence[Member], rank: int) -> str:
    """Return the address that packets to the other hosts of the job leave from.

    Args:
        members: Of the whole job; their addresses are those that rank 0 saw.
        rank: This process, in the job.
    """
    seen = {member.address for member in members if member.address}
    if len(seen) <= 1 and len({member.host for member in members}) == 1:
        return LOOPBACK
    for member in (members[0], *members):
        if member.address and not is_loopback(member.address):
            local = _towards(member.address)
            if local and not is_loopback(local):
                return local
    return LOOPBACK


def _towards(address: str) -> str:
    """Return the address of this machine on the way to another; empty if there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing: it only chooses the route
            return str(probe.getsockname()[0])
    except OSError:
        return ""
