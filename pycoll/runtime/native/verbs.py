"""One function per function of ``native/pycoll.h`` that is about RDMA: ports, rails and state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pycoll.errors import InternalError
from pycoll.fabric import Fabric, Rail
from pycoll.runtime.native.codes import EXCEPTIONS, check, code_name
from pycoll.runtime.native.load import ffi, lib, text_of

#: Rails of a rank at most.
MAX_RAILS: int = lib.PC_MAX_RAILS


class Port(NamedTuple):
    """What a port of an RDMA device says of itself."""

    device: str
    port: int  #: from 1
    state: int  #: an ibv_port_state; 4: active
    link_layer: int  #: 1 InfiniBand, 2 Ethernet
    mtu: int  #: bytes, with the next
    max_mtu: int
    lid: int
    speed: int  #: bits per second each way; 0: unknown
    max_inline: int  #: bytes; 0: not tried
    max_queue_pairs: int
    gid_index: int  #: of the address that would stand for it, or -1
    gid_type: int  #: of that: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2
    gid: bytes
    other_family: bool  #: it has an address of the other family (IPv4, IPv6), too
    numa_node: int  #: or -1
    driver: str


class NetState(NamedTuple):
    """What carries a communicator's messages to remote peers."""

    connections: int  #: queue pairs that there should be
    live: int  #: of those, how many carry messages
    sharing: int  #: connections that take their receives from a shared queue
    queue_pairs: int  #: that exist at this moment
    regions: int  #: memory regions that do
    failures: int  #: of connections
    revivals: int  #: of connections that had failed
    replayed: int  #: messages that were sent again
    recovery_ns: int  #: the longest time from a failure's notice to the replay
    requests: int  #: work requests that were posted to send
    credits: int  #: of those, credit that found no message to go with
    landed: int  #: messages received where a call needs them, and in no slot
    #: where remote edges' data lies: bit 1 by dma-buf, 2 by nvidia_peermem, 4 by FI_HMEM on a GPU;
    #: 0: all in the host's memory
    gpu_memory: int
    gpu_flush: int  #: of what came into it: 1 by the driver, 2 by an RDMA read, 0 none
    gpu_bytes: int  #: sent out of memory of a GPU
    gpu_flushes: int
    gpu_flushed: int  #: messages, or fragments of striped ones, that waited for a flush
    bytes: tuple[int, ...]  #: sent by each rail
    unshared: str  #: why receives are not shared that should be; "" if they are


def verbs_missing() -> str:
    """Return what keeps this machine or build from RDMA, and what mends it; "" if nothing does."""
    return text_of(lib.pc_verbs_missing())


def verbs_ports() -> list[Port]:
    """Return every port of every RDMA device."""
    count = capacity = 0
    found = ffi.NULL
    while (count := check(lib.pc_verbs_ports(found, capacity), None, "RDMA ports")) > capacity:
        found, capacity = ffi.new("struct pc_port[]", count), count  # a device may come meanwhile
    return [_port(found[i]) for i in range(count)]


def _port(p: Any) -> Port:
    fields = {name: getattr(p, name) for name in Port._fields}
    texts = {"device": text_of(p.device), "driver": text_of(p.driver), "gid": bytes(p.gid)}
    return Port(**(fields | texts | {"other_family": bool(p.other_family)}))


def verbs_loopback(rail: Rail, fabric: Fabric, seconds: float) -> float:
    """Return the bytes per second of RDMA writes from a port to itself, of about so many seconds.

    Raises:
        TransportError: The port cannot be opened, or fails; says what mends it.
    """
    bandwidth, e = ffi.new("double *"), ffi.new("struct pc_error *")
    code = lib.pc_verbs_loopback(_specs([rail]), _options(fabric), seconds, e, bandwidth)
    if code < 0:
        kind = EXCEPTIONS.get(code, InternalError)
        raise kind(text_of(e.text) or code_name(code))
    return float(bandwidth[0])


def _options(fabric: Fabric) -> Any:
    tc, sl, timeout, retry, qps, srq, mtu, pkey = fabric
    options = ffi.new("struct pc_verbs_options *")
    options.traffic_class, options.service_level = tc, sl
    options.timeout, options.retry_count = timeout, retry
    options.queue_pairs, options.srq_from, options.mtu, options.pkey = qps, srq, mtu, pkey
    return options


def _specs(rails: Sequence[Rail]) -> Any:
    specs = ffi.new("struct pc_rail_spec[]", len(rails))
    for spec, rail in zip(specs, rails, strict=True):
        spec.device, spec.port, spec.gid_index = rail.device.encode(), rail.port, rail.gid
    return specs


def comm_rails(
    comm: Any,
    fabric: Fabric,
    rails: Sequence[Rail],
    patience: float = 0.0,
    far: Sequence[bool] = (),
) -> None:
    """Say that remote peers are reached by RDMA over these ports; with none, by sockets again.

    Args:
        comm: One without remote peers as yet.
        fabric: How packets are sent.
        rails: At most MAX_RAILS, each with its port.
        patience: Seconds for a first RDMA connection to each peer, rounded up, from when the two
            have a socket; 0: for ever.
        far: For each port, if any: it is far from the data, so that only parts of long messages
            go by it while others are up.
    """
    options, specs = _options(fabric), _specs(rails)
    options.patience = math.ceil(patience)
    for spec, is_far in zip(specs, far, strict=False):
        spec.far = is_far
    code = lib.pc_comm_rails(comm, options, specs, len(rails))
    check(code, comm, "opening RDMA ports")


def comm_net_state(comm: Any) -> NetState:
    """Return what state the way to remote peers is in."""
    s = ffi.new("struct pc_net_state *")
    check(lib.pc_comm_net_state(comm, s), comm, "state of the way to remote ranks")
    fields = {name: getattr(s, name) for name in NetState._fields}
    return NetState(**(fields | {"bytes": tuple(s.bytes), "unshared": text_of(s.unshared)}))
