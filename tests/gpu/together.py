"""Ranks as threads of one process: how several of them share one GPU.

Two processes on a GPU take turns of a millisecond; two streams of one process run side by side.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pycoll
from pycoll.bootstrap import Bootstrap, rendezvous
from pycoll.runtime import join


def spawn(
    fn: Callable[..., Any], size: int, *args: Any, timeout: float = 60.0, **more: Any
) -> list[Any]:
    """Call ``fn(comm, *args, **more)`` on ``size`` threads, each a rank; returns what they return.

    ``timeout`` is that of the communicators. The first failure is raised when all have ended: a
    rank that fails ends the others' waits, as it does between processes.
    """
    import device

    failures: list[BaseException] = []
    secret = secrets.token_bytes(32)
    with (
        rendezvous.listen("127.0.0.1", 0, backlog=size) as listener,
        ThreadPoolExecutor(size, "rank") as pool,
    ):
        shared = size, listener, secret, timeout, failures
        ranks = [pool.submit(_rank, fn, args, more, rank, *shared) for rank in range(size)]
    device.close_all()
    if failures:
        raise failures[0]
    return [rank.result() for rank in ranks]


def _rank(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    more: dict[str, Any],
    rank: int,
    size: int,
    listener: socket.socket,
    secret: bytes,
    timeout: float,
    failures: list[BaseException],
) -> Any:
    deadline = time.monotonic() + timeout
    if rank == 0:
        star = rendezvous.gather(listener, size, secret, deadline)
    else:
        where = [("127.0.0.1", listener.getsockname()[1])]
        star = rendezvous.join(where, rank, size, secret, deadline)
    with pycoll.init(bootstrap=Bootstrap("threads", star, timeout), timeout=timeout) as comm:
        try:
            return fn(comm, *args, **more)
        except BaseException as error:
            failures.append(error)  # before the others hear of it
            raise


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Let ranks think that each is on a host of its own: all that they say goes through sockets."""

    def nobody(comm: Any, bootstrap: Bootstrap, *_: Any) -> tuple[list[int], None]:
        return [1 << rank for rank in range(bootstrap.size)], None

    def own(places: list[Any]) -> tuple[int, ...]:
        return tuple(range(len(places)))

    with mock.patch.object(join, "_map", nobody), mock.patch.object(join.locality, "hosts", own):
        yield


class Meeting:
    """Where the threads themselves meet; broken for all when one fails to come in time."""

    def __init__(self, size: int, seconds: float = 30.0) -> None:
        self._barrier = threading.Barrier(size, timeout=seconds)
        self._places = [0.0] * size

    def of(self, rank: int) -> Seat:
        """Return a rank's way to meet the others."""
        return Seat(self, rank)

    def gather(self, rank: int, value: float) -> list[float]:
        """Give every rank what each passed; all leave together."""
        self._places[rank] = value
        self._barrier.wait()
        found = list(self._places)
        self._barrier.wait()  # before anybody writes again
        return found


class Seat:
    """One rank's part in a `Meeting`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def gather(self, value: float) -> list[float]:
        """Give every rank what each passed; all leave together."""
        return self._meeting.gather(self._rank, value)
