"""RDMA devices as pyverbs sees them; the only importer of pyverbs, which pycoll runs without.

The engine reaches libibverbs itself. pyverbs tells more of a device than the engine asks for, in
``pycoll info --verbose`` and ``pycoll doctor``, and is the independent peer of pycoll's tests.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pycoll.errors import UnavailableError
from pycoll.sysfs import HOST, RDMA

_DEBIAN = Path("/usr/lib/python3/dist-packages/pyverbs")
_INSTALL = "apt-get install python3-pyverbs (dnf install python3-pyverbs)"

_STATES = {1: "down", 2: "initialised", 3: "armed", 4: "active", 5: "active, deferred"}
_LAYERS = {1: "InfiniBand", 2: "Ethernet"}
_GIDS = {0: "InfiniBand", 1: "RoCE v1", 2: "RoCE v2"}
_ATOMICS = {0: "none", 1: "within the device", 2: "with the host's cores"}
_ON_DEMAND = 1  #: of the general on-demand paging capabilities
#: GIDs that are asked for; 2048 would be too many for the call.
_TABLE = 1024


class Gid(NamedTuple):
    """One of a port's addresses."""

    number: int  #: its place in the table
    address: str  #: IPv4 where it stands for one, else IPv6
    kind: str  #: "InfiniBand", "RoCE v1" or "RoCE v2"


class Port(NamedTuple):
    """What a port says of itself."""

    number: int  #: from 1
    state: str
    layer: str  #: "InfiniBand" or "Ethernet"
    mtu: int  #: bytes, with the next
    max_mtu: int
    max_message: int  #: bytes
    gids: tuple[Gid, ...]


class Device(NamedTuple):
    """What an RDMA device says of itself."""

    name: str
    firmware: str
    vendor: int
    part: int
    max_queue_pairs: int
    max_requests: int  #: of a queue pair
    max_regions: int
    max_region: int  #: bytes
    max_reads: int  #: that a queue pair may have on their way
    max_completions: int  #: of a completion queue
    vectors: int  #: of completion
    atomics: str
    on_demand: bool  #: registers memory without pinning it
    ports: tuple[Port, ...]


def missing() -> str:
    """Return why pyverbs cannot be used and what mends it; "" if it can."""
    try:
        _import()
    except UnavailableError as error:
        return str(error)
    return ""


def devices() -> tuple[Device, ...]:
    """Return every RDMA device with its ports.

    Raises:
        UnavailableError: pyverbs is not there, or cannot open a device.
    """
    library, errors = _import()
    if not HOST.names(RDMA):
        return ()  # pyverbs would call this an error
    try:
        return tuple(_device(library, found.name.decode()) for found in library.get_device_list())
    except errors.PyverbsError as error:
        raise UnavailableError(f"pyverbs: {error}; pycoll doctor says what mends it") from error


def _import() -> tuple[Any, Any]:
    try:
        import pyverbs.device
        import pyverbs.pyverbs_error
    except ImportError as error:
        raise UnavailableError(
            f"pyverbs cannot be imported ({error}); {_cure(_DEBIAN, sys.version_info[:2])}"
        ) from error
    return pyverbs.device, pyverbs.pyverbs_error


def _cure(folder: Path, version: tuple[int, int]) -> str:
    """Return how this Python comes to a pyverbs: what pip builds works beside few rdma-cores."""
    tag = f"cpython-{version[0]}{version[1]}-"
    if any(tag in path.name for path in folder.glob("device.*.so")):
        # A path to all of the system's packages would bring the wrong numpy along.
        return (
            f"the system's is for this Python too: mkdir -p ~/pyverbs && ln -s {folder} "
            "~/pyverbs/ && export PYTHONPATH=~/pyverbs"
        )
    return f"{_INSTALL} installs it for the system's Python; pip install pyverbs builds it anew"


def _device(library: Any, name: str) -> Device:
    context = library.Context(name=name)
    try:
        told = context.query_device()
        return Device(
            name,
            _text(told.fw_version),
            told.vendor_id,
            told.vendor_part_id,
            told.max_qp,
            told.max_qp_wr,
            told.max_mr,
            told.max_mr_size,
            told.max_qp_rd_atom,
            told.max_cqe,
            context.num_comp_vectors,
            _ATOMICS.get(told.atomic_caps, "unknown"),
            bool(context.query_device_ex().odp_caps.general_caps & _ON_DEMAND),
            tuple(_ports(context, told.phys_port_cnt)),
        )
    finally:
        context.close()


def _ports(context: Any, count: int) -> Iterator[Port]:
    entries = context.query_gid_table(_TABLE)
    for number in range(1, count + 1):
        told = context.query_port(number)
        yield Port(
            number,
            _STATES.get(told.state, "unknown"),
            _LAYERS.get(told.link_layer, "InfiniBand"),  # 0: older drivers know no other
            128 << told.active_mtu,
            128 << told.max_mtu,
            told.max_msg_sz,
            tuple(_gid(entry) for entry in entries if entry.port_num == number),
        )


def _gid(entry: Any) -> Gid:
    address = ipaddress.IPv6Address(entry.gid_str())
    shown = str(address.ipv4_mapped or address)
    return Gid(entry.gid_index, shown, _GIDS.get(entry.gid_type, "unknown"))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
