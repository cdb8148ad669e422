"""Providers of libfabric: by which one this rank reaches ranks of other hosts, if by any."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.errors import TransportError, UnavailableError
from pycoll.runtime.native import libfabric
from pycoll.runtime.native.libfabric import Provider
from pycoll.runtime.net import rails
from pycoll.sysfs import HOST


class Place(NamedTuple):
    """What decides on a rank's endpoint, beside the provider."""

    node: str  #: this host's IP address for jobs
    nic: int  #: of those of the host, modulo how many there are


def find(provider: str, place: Place) -> Provider:
    """Return the provider that `comm_fabric` would use.

    Raises:
        UnavailableError: There is none; says what mends it.
    """
    try:
        return libfabric.fabric_find(provider, *place)
    except TransportError as error:
        raise UnavailableError(str(error)) from None


def shown(provider: str) -> str:
    """Say which provider for RDMA hardware there is, or "missing: ", why none and what mends it."""
    if lack := libfabric.fabric_missing():
        return f"missing: {lack}"
    try:
        found = find(provider, Place("", 0))
    except UnavailableError as error:
        return f"missing: {error}"
    text = f"{found.name} {found.version} of libfabric {found.library_version} ({found.library})"
    if found.rdma:
        return text
    return f"missing: the best provider is {text}, which is for no RDMA hardware: fi_info -l"


def possible() -> bool:
    """Tell whether this machine has hardware for which libfabric may have a provider.

    To load libfabric takes longer than all else of `init`.
    """
    return rails.seen() or bool(HOST.names("sys/class/cxi"))


def fast(provider: str, place: Place) -> str:
    """Return the name of one for RDMA hardware of this machine; "" if there is none.

    Args:
        provider: The only one to look for; "": any.
        place: Where.
    """
    try:
        found = find(provider, place)
    except UnavailableError:
        return ""
    return found.name if found.rdma else ""
