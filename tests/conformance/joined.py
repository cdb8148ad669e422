"""Ranks joined at the level of the bindings, without a communicator around them."""

from __future__ import annotations

import contextlib
import ctypes.util
import gc
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fabric
import pytest

from pycoll.bootstrap import Bootstrap
from pycoll.fabric import Fabric, Rail
from pycoll.runtime.native import bindings, codes, libfabric, verbs

SLOTS = 2
SLOT_BYTES = 4096
SMALL_BYTES = 1024
HEAP_BYTES = 1 << 20
SECONDS = 60.0  #: deadline of every wait that is expected to end
#: The fixture `opened`.
Opened = Callable[..., list[Any]]
#: A path has failed some milliseconds after its first packet was lost.
HASTY = Fabric(timeout=8, retry=2)


def marks(way: str) -> list[Any]:
    """Return the marks of a test that goes this way."""
    if "verbs" in way:
        return [pytest.mark.stand_in]
    if way.startswith("libfabric"):
        # libfabric loads the machine's libibverbs
        found = ctypes.util.find_library("fabric")
        lack = pytest.mark.skipif(not found, reason="no libfabric: apt-get install libfabric1")
        return [pytest.mark.own_process, lack]
    return []


def open_rank(rank: int, size: int, **options: int) -> Any:
    settings = {"slots": SLOTS, "slot_bytes": SLOT_BYTES, "small_bytes": SMALL_BYTES}
    settings |= {"heap_bytes": HEAP_BYTES, "spin": 0}
    return bindings.comm_open(rank, size, **(settings | options))


def connect_all(comms: Sequence[Any]) -> None:
    """Connect ranks that all live in this process."""
    blobs = [bindings.comm_address(comm) for comm in comms]
    left = {(i, j) for i in range(len(comms)) for j in range(len(comms)) if i != j}
    while left:
        for comm in comms:
            bindings.comm_accept(comm)
        for i, j in sorted(left):
            code = bindings.comm_connect(comms[i], j, blobs[j])
            assert code in (0, codes.AGAIN), codes.comm_error(comms[i]).text
            if code == 0:
                left.discard((i, j))
    for comm in comms:
        bindings.comm_sealed(comm)


def sockets() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a TCP connection within this host."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def adopt(comms: Sequence[Any], i: int, j: int) -> None:
    """Give two ranks of this process one more socket between them."""
    one, other = sockets()
    bindings.comm_adopt(comms[i], j, one.detach())
    bindings.comm_adopt(comms[j], i, other.detach())


def link_all(comms: Sequence[Any], links: int = 1) -> None:
    """Connect ranks that all live in this process by sockets alone."""
    pairs = list(itertools.combinations(range(len(comms)), 2))
    for i, j in pairs:
        bindings.comm_remote(comms[i], j)
        bindings.comm_remote(comms[j], i)
    for comm in comms:
        bindings.comm_sealed(comm)
    for i, j in pairs * links:
        adopt(comms, i, j)


def devices(rank: int, size: int, rails: int) -> list[str]:
    """Return the devices of a rank where all ranks have the stand-in's, as on one host."""
    each = fabric.DEVICES // size
    assert rails <= each
    return [f"fake{rank * each + rail}" for rail in range(rails)]


def rail_all(
    comms: Sequence[Any],
    rails: Sequence[int] | int = 1,
    by: Fabric | list[Fabric] = HASTY,
    settled: bool = True,
    *,
    patience: float = 0.0,
    gids: Sequence[int] = (),
    far: Sequence[bool] = (),
) -> None:
    """Connect ranks that all live in this process, which has the stand-in's devices, by RDMA.

    With `far`, these rails of every rank are far from its data.
    """
    for rank, comm in enumerate(comms):
        count = rails if isinstance(rails, int) else rails[rank]
        names = devices(rank, len(comms), count)
        gid = gids[rank] if gids else -1
        own = by[rank] if isinstance(by, list) else by
        verbs.comm_rails(comm, own, [Rail(name, 1, gid) for name in names], patience, far)
    link_all(comms)
    if settled:
        settle(comms)


def fabric_all(comms: Sequence[Any], provider: str) -> None:
    """Connect ranks that all live in this process by a provider of libfabric."""
    for comm in comms:
        libfabric.comm_fabric(comm, provider, "127.0.0.1")
    link_all(comms)
    settle(comms)


def attend_until(
    comms: Sequence[Any], what: Callable[[list[verbs.NetState]], bool]
) -> list[verbs.NetState]:
    """See to the paths of ranks that make no call, until their state is so."""
    deadline = time.monotonic() + SECONDS
    while True:
        for comm in comms:
            bindings.comm_handle_events(comm)
        states = [verbs.comm_net_state(comm) for comm in comms]
        if what(states):
            return states
        assert time.monotonic() < deadline, states


def settle(comms: Sequence[Any]) -> list[verbs.NetState]:
    """Wait until every path between ranks of this process carries messages."""
    return attend_until(comms, lambda states: all(s.live == s.connections for s in states))


def connect_some(comms: Sequence[Any]) -> None:
    """Map the memory of neighbours 0 and 1, 2 and 3, and so on; the rest goes over sockets."""
    blobs = [bindings.comm_address(comm) for comm in comms]
    remote = [(i, j) for i, j in itertools.combinations(range(len(comms)), 2) if i // 2 != j // 2]
    for i, comm in enumerate(comms):
        j = i ^ 1
        while j < len(comms) and bindings.comm_connect(comm, j, blobs[j]) == codes.AGAIN:
            bindings.comm_accept(comms[j])
    for i, j in remote:
        bindings.comm_remote(comms[i], j)
        bindings.comm_remote(comms[j], i)
    for comm in comms:
        bindings.comm_sealed(comm)
    for i, j in remote:
        adopt(comms, i, j)


def join(met: Bootstrap, way: str = "shm", rails: int = 1, **options: int) -> Any:
    """Open this process's rank and connect it to those of the other processes.

    Args:
        met: By which they have met.
        way: "shm", "tcp", "verbs", or a provider of libfabric after "libfabric, ".
        rails: For verbs, of each rank.
        options: Of the rank.
    """
    comm = open_rank(met.rank, met.size, **options)
    if way == "verbs":
        names = devices(met.rank, met.size, rails)
        verbs.comm_rails(comm, HASTY, [Rail(name, 1) for name in names])
    if way.startswith("libfabric"):
        libfabric.comm_fabric(comm, way.partition(", ")[2], "127.0.0.1")
    if way != "shm":
        return _link(met, comm)
    blobs = met.allgather(bindings.comm_address(comm), SECONDS)
    waiting = set(range(met.size)) - {met.rank}
    while waiting:
        bindings.comm_accept(comm)
        for peer in sorted(waiting):
            code = bindings.comm_connect(comm, peer, blobs[peer])
            assert code in (0, codes.AGAIN), codes.comm_error(comm).text
            if code == 0:
                waiting.discard(peer)
    # Others may still want to be served.
    gathering, ready = met.begin(b"", SECONDS, lambda: None), select.poll()
    ready.register(bindings.comm_connect_fd(comm), select.POLLIN)
    while not gathering.done():
        bindings.comm_accept(comm)
        ready.poll(10)
    gathering.finish()
    bindings.comm_sealed(comm)
    return comm


def _link(met: Bootstrap, comm: Any) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = met.allgather(str(listener.getsockname()[1]).encode(), SECONDS)
        for peer in range(met.rank):
            bindings.comm_remote(comm, peer)
            one = socket.create_connection(("127.0.0.1", int(ports[peer])), SECONDS)
            one.sendall(bytes([met.rank]))
            bindings.comm_adopt(comm, peer, one.detach())
        for peer in range(met.rank + 1, met.size):
            bindings.comm_remote(comm, peer)
        for _ in range(met.rank + 1, met.size):
            other = listener.accept()[0]
            bindings.comm_adopt(comm, other.recv(1)[0], other.detach())
    bindings.comm_sealed(comm)
    met.barrier(SECONDS)
    return comm


def finish(comm: Any, code: int) -> int:
    """Carry a call that `bindings.run` began to its end."""
    while code == codes.AGAIN:
        code = bindings.resume(comm, 0.1)
    return code


def complete(comms: Sequence[Any], plans: Sequence[Any], xs: Sequence[int], outs: Sequence[int],
             seconds: float = SECONDS) -> None:  # fmt: skip
    """Run one call on ranks that all live in this thread: each goes on where it stopped."""
    ended = [bindings.run(*call, seconds) for call in zip(comms, plans, xs, outs, strict=True)]
    while any(ended):
        for i, code in enumerate(ended):
            if code == codes.AGAIN:
                ended[i] = bindings.resume(comms[i], 0.0)
            else:
                assert code == 0, (i, codes.comm_error(comms[i]))


def close(comm: Any, others: Sequence[Any] = ()) -> None:
    """Close a rank; the others attend to what it asks, as a thread of theirs would in a job."""
    closing = threading.Thread(target=bindings.comm_close, args=(comm,))
    closing.start()
    while closing.is_alive():
        for other in others:
            bindings.comm_handle_events(other)
        closing.join(0.001)


def held() -> set[str]:
    """Descriptors, mapped memfds, and names in /dev/shm that are ours, each told from the others.

    Take the difference: what others gave back meanwhile is no matter.
    """
    gc.collect()
    found = {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line}
    found |= {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "pycoll" in name}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed
            found.add(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    return found
