"""One function per function of ``native/pycoll.h`` that is about libfabric."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pycoll.errors import InternalError
from pycoll.runtime.native.codes import EXCEPTIONS, check, code_name
from pycoll.runtime.native.load import ffi, lib, text_of


class Provider(NamedTuple):
    """What libfabric would use."""

    name: str  #: such as "efa" or "tcp;ofi_rxm"
    domain: str  #: mostly the NIC
    library: str  #: its path
    library_version: str
    version: str
    rdma: bool  #: of RDMA hardware
    speed: int  #: bits per second each way; 0: unknown


def fabric_missing() -> str:
    """Return what libfabric lacks on this machine or in this build; "" if nothing."""
    return text_of(lib.pc_fabric_missing())


def fabric_find(provider: str = "", node: str = "", nic: int = 0) -> Provider:
    """Return the provider that `comm_fabric` would use with these options.

    Raises:
        TransportError: There is none; says what mends it.
    """
    found, e = ffi.new("struct pc_fabric_provider *"), ffi.new("struct pc_error *")
    code = lib.pc_fabric_find(_options(provider, node, nic), found, e)
    if code < 0:
        kind = EXCEPTIONS.get(code, InternalError)
        raise kind(text_of(e.text) or code_name(code))
    return Provider(
        *(text_of(found.name), text_of(found.domain), text_of(found.library)),
        *(_version(found.library_version), _version(found.version)),
        *(bool(found.rdma), found.speed),
    )


def _version(number: int) -> str:
    return f"{number >> 16}.{number & 0xFFFF}"


def _options(provider: str, node: str, nic: int) -> Any:
    options = ffi.new("struct pc_fabric_options *")
    options.provider, options.node = provider.encode(), node.encode()
    options.nic = nic
    return options


def comm_fabric(
    comm: Any, provider: str = "", node: str = "", nic: int = 0, patience: float = 0.0
) -> None:
    """Say that remote peers are reached by libfabric.

    Args:
        comm: One without remote peers as yet.
        provider: Its name, such as "efa"; "": the best that there is.
        node: The IP address of this host that it uses, where it uses one; "": any.
        nic: Which of the provider's NICs, modulo how many it has.
        patience: Seconds for a first packet from each peer, rounded up, from when the two have a
            socket; 0: for ever.
    """
    options = _options(provider, node, nic)
    options.patience = math.ceil(patience)
    size = ffi.sizeof("struct pc_fabric_options")
    code = lib.pc_comm_net(comm, b"libfabric", options, size)
    check(code, comm, "opening libfabric")
