"""Stars of sockets between threads of one process, and what they left open."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from pycoll.bootstrap import rendezvous
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.rendezvous import Star

SECRET = b"correct horse battery staple"
SECONDS = 30.0  #: generous: reached only by a hang


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fail if the test leaves a file descriptor or a thread behind."""

    def held() -> tuple[list[str], int]:
        gc.collect()
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}").partition("[")[0])
            except FileNotFoundError:  # the listing's own
                continue
        return sorted(names), threading.active_count()

    before = held()
    yield
    assert held() == before


def meet(size: int, secret: bytes = SECRET, seconds: float = SECONDS) -> list[Star]:
    """Let `size` threads meet as the ranks of a job."""
    with (
        rendezvous.listen("127.0.0.1", 0, backlog=size) as listener,
        ThreadPoolExecutor(max_workers=size) as pool,
    ):
        deadline = time.monotonic() + seconds
        port = listener.getsockname()[1]
        stars = [pool.submit(rendezvous.gather, listener, size, secret, deadline)]
        for rank in range(1, size):
            where = [("127.0.0.1", port)]
            stars.append(pool.submit(rendezvous.join, where, rank, size, secret, deadline))
        return [star.result() for star in stars]


@pytest.fixture
def controls(no_leak: None) -> Iterator[Callable[[int], list[Control]]]:
    """Make the control planes of `size` ranks, all in this process; they are closed afterwards."""
    with ExitStack() as stack:

        def make(size: int) -> list[Control]:
            made = [Control(ControlPlane(star)) for star in meet(size)]
            stack.callback(leave_all, made)
            return made

        yield make


def leave_all(controls: Iterable[Control]) -> None:
    """Close what ranks of this process hold, and wait as each process would at its end."""
    controls = list(controls)
    for control in controls:
        control.close()
    for control in controls:  # who serves the others ends when the last of them has left
        control._plane.join()


@pytest.fixture
def leave() -> Callable[[Iterable[Control]], None]:
    """Take the leave of all ranks of this process."""
    return leave_all


@pytest.fixture
def stars() -> Callable[..., list[Star]]:
    """Meet as `size` threads."""
    return meet


@pytest.fixture
def secret() -> bytes:
    """The secret of every job here."""
    return SECRET


@pytest.fixture
def together() -> Callable[..., list[object]]:
    """Call functions at once, each on a thread, and return results or exceptions in order."""

    def run(*calls: Callable[[], object]) -> list[object]:
        with ThreadPoolExecutor(max_workers=len(calls)) as pool:
            futures = [pool.submit(call) for call in calls]
            return [future.exception(SECONDS) or future.result() for future in futures]

    return run
