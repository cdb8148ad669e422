"""A key-value store that all ranks reach, such as torch's: it hands out rank 0's address.

Whoever started the ranks gives the store, this process's rank and the number of ranks. The store is
used for the meeting alone. Rank 0 draws a number and leaves it there with its address. Whoever
reaches the store can read that, so the secret is this number and a key that only the user can read
(`owner`). Hosts that do not share that key join by the number alone: then a warning says so, and
pickles are refused. PYCOLL_SECRET, given to all ranks, ends that, and never goes through the store.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Protocol

from pycoll.bootstrap import rendezvous, user_key
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.control_router import rank_list
from pycoll.bootstrap.framing import pack_blobs, unpack_blobs
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.mpi import _addresses, _names
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import Config
from pycoll.errors import BootstrapError, UsageError

_FIRST_PAUSE, _LAST_PAUSE = 0.0005, 0.1  #: seconds between two looks for a key


class Store(Protocol):
    """What is used of a store; `torch.distributed.Store` has it."""

    def set(self, key: str, value: str) -> None:
        """Give a key its value."""

    def get(self, key: str) -> bytes:
        """Return the value of a key that has one."""

    def check(self, keys: list[str]) -> bool:
        """Tell whether all of these keys have values."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins as 0, and return the sum."""


def bootstrap(store: Store, rank: int, size: int, config: Config, name: str) -> Bootstrap:
    """Meet the other ranks through a store.

    Args:
        store: The same for all of them, and used by nobody else under the keys ``pycoll ...``.
        rank: This process's.
        size: Number of ranks.
        config: Its timeout and its secret are used.
        name: Who gave the store, such as "torch"; the launcher's name in messages.

    Raises:
        BootstrapError: A rank did not come before the timeout, or ranks cannot reach rank 0.
    """
    if not 0 <= rank < size:
        raise UsageError(f"{name}: rank is {rank}, want 0 to {size - 1}, for {size} ranks")
    star = Star(0, 1, (Member.me(),)) if size == 1 else _meet(store, rank, size, config, name)
    return Bootstrap(name, star, config.timeout)


def _meet(store: Store, rank: int, size: int, config: Config, name: str) -> Star:
    deadline = time.monotonic() + config.timeout
    # A store may outlive a job's process group, and serve the next: each meeting has its own keys.
    meeting = (store.add("pycoll meetings", 1) - 1) // size
    host, offer = f"pycoll {meeting} host ", f"pycoll {meeting} offer"
    mine = Member.me().host.encode()
    store.set(host + str(rank), mine.hex())
    if rank:
        _wait(store, [offer], [0], size, deadline, name)
        number, port, names = unpack_blobs(_value(store, offer), 3)
        secret, public = _secrets(config, number)
        return rendezvous.join(_addresses(port, names), rank, size, secret, deadline, public)
    others = list(range(1, size))
    _wait(store, [host + str(other) for other in others], others, size, deadline, name)
    near = all(_value(store, host + str(other)) == mine for other in others)
    with rendezvous.listen("127.0.0.1" if near else "", 0, backlog=4 * size + 64) as listener:
        number = b"" if config.secret else os.urandom(32)
        port = struct.pack("<H", listener.getsockname()[1])
        names = b" ".join(known.encode() for known in (["127.0.0.1"] if near else _names()))
        store.set(offer, pack_blobs([number, port, names]).hex())
        secret, public = _secrets(config, number)
        return rendezvous.gather(listener, size, secret, deadline, public)


def _secrets(config: Config, number: bytes) -> tuple[bytes, bytes]:
    """Return the job's secret, and what ranks of other hosts may know in its place."""
    if config.secret:
        return config.secret, b""
    if not number:
        raise BootstrapError("PYCOLL_SECRET is set on rank 0: set it to the same on every rank")
    return user_key.secret(config.cache, b"store " + number), number


def _wait(
    store: Store, keys: list[str], owners: list[int], size: int, deadline: float, name: str
) -> None:
    """Wait until keys have values; a store's own wait cannot say whose is missing, nor be ended."""
    pause, began = _FIRST_PAUSE, time.monotonic()
    while not store.check(keys):
        if time.monotonic() > deadline:
            absent = [r for r, key in zip(owners, keys, strict=True) if not store.check([key])]
            raise BootstrapError(
                f"{name}: waited {round(deadline - began, 2):g} s for {rank_list(absent)} of "
                f"{size} to come to the store"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


def _value(store: Store, key: str) -> bytes:
    return bytes.fromhex(store.get(key).decode())  # in hex: some stores only take text
