"""Ranks joined at the level of the bindings, without a communicator around them."""

from __future__ import annotations

import contextlib
import gc
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycoll.bootstrap import Bootstrap
from pycoll.runtime import bindings

SLOTS = 2
SLOT_BYTES = 4096
HEAP_BYTES = 1 << 20
SECONDS = 60.0  #: deadline of every wait that is expected to end


def open_rank(rank: int, size: int, **options: int) -> Any:
    settings = {"slots": SLOTS, "slot_bytes": SLOT_BYTES, "heap_bytes": HEAP_BYTES, "spin": 0}
    return bindings.comm_open(rank, size, **(settings | options))


def connect_all(comms: Sequence[Any]) -> None:
    """Connect ranks that all live in this process."""
    blobs = [bindings.comm_address(comm) for comm in comms]
    left = {(i, j) for i in range(len(comms)) for j in range(len(comms)) if i != j}
    while left:
        for comm in comms:
            bindings.comm_poll(comm)
        for i, j in sorted(left):
            code = bindings.comm_connect(comms[i], j, blobs[j])
            assert code in (0, bindings.AGAIN), bindings.comm_error(comms[i]).text
            if code == 0:
                left.discard((i, j))
    for comm in comms:
        bindings.comm_sealed(comm)


def join(met: Bootstrap, **options: int) -> Any:
    """Open this process's rank and connect it to those of the other processes."""
    comm = open_rank(met.rank, met.size, **options)
    blobs = met.allgather(bindings.comm_address(comm), SECONDS)
    waiting, unserved = set(range(met.size)) - {met.rank}, met.size - 1
    ready = select.poll()
    ready.register(bindings.comm_wakeup(comm), select.POLLIN)
    while waiting or unserved:
        unserved -= bindings.comm_poll(comm)
        for peer in sorted(waiting):
            code = bindings.comm_connect(comm, peer, blobs[peer])
            assert code in (0, bindings.AGAIN), bindings.comm_error(comm).text
            if code == 0:
                waiting.discard(peer)
        if waiting or unserved:
            ready.poll(100)
    met.barrier(SECONDS)
    bindings.comm_sealed(comm)
    return comm


def finish(comm: Any, code: int) -> int:
    """Carry a call that `bindings.run` began to its end."""
    while code == bindings.AGAIN:
        code = bindings.resume(comm, 0.1)
    return code


def complete(comms: Sequence[Any], plans: Sequence[Any], xs: Sequence[int], outs: Sequence[int],
             seconds: float = SECONDS) -> None:  # fmt: skip
    """Run one call on ranks that all live in this thread: each goes on where it stopped."""
    codes = [bindings.run(*call, seconds) for call in zip(comms, plans, xs, outs, strict=True)]
    while any(codes):
        for i, code in enumerate(codes):
            if code == bindings.AGAIN:
                codes[i] = bindings.resume(comms[i], 0.0)
            else:
                assert code == 0, (i, bindings.comm_error(comms[i]))


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
