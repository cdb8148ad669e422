"""A process that has no file descriptor left is told what limits them, whatever it was doing."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import time

import pytest

import pycoll
from pycoll.bootstrap import detect, job, rendezvous
from pycoll.bootstrap.descriptors import enough

SAID = r"^{}: this process has \d+ of {} file descriptors open \(RLIMIT_NOFILE\), want \d+ more for"


@pytest.mark.native
def test_a_rank_that_has_too_few() -> None:
    """With ever more of them it gets ever further, and never fails in another way."""

    def rank(limit: int) -> str:
        with pycoll.init():  # what is loaded at the first call needs descriptors of its own
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            with pycoll.init() as comm, comm.dup() as other:
                other.barrier()
        except pycoll.UnavailableError as error:
            return str(error)
        return "done"

    seen = set()
    already = len(os.listdir("/proc/self/fd"))  # which ranks inherit
    for limit in range(3, already + 64):
        (said,) = pycoll.spawn(rank, 1, limit, timeout=60)
        assert "\n" not in said
        seen.add(said.partition(":")[0])
        if said == "done":
            break
        assert re.match(SAID.format(said.partition(":")[0], limit), said), said
        assert f"ulimit -n 1024 (as root: the hard limit is {limit})" in said
    assert seen == {"init", "dup", "done"}


@pytest.mark.native
def test_ranks_of_which_the_first_can_let_nobody_in() -> None:
    def rank() -> str:
        here = job.current()
        if here is not None and here.rank == 0:
            limit = max(fd for fd in range(64) if is_open(fd)) + 4
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            with pycoll.init(timeout=30):
                return "done"
        except Exception as error:  # what those that wait for it are told is not asked here
            return f"{type(error).__name__}: {error}"

    said = pycoll.spawn(rank, 3, timeout=60)
    assert said[0].startswith("UnavailableError: init: this process has ")


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_machine_may_have_none_left_either() -> None:
    def full() -> None:
        with enough("init", 4):
            raise OSError(errno.ENFILE, "Too many open files in system")

    with pytest.raises(
        pycoll.UnavailableError, match=r"init: the machine has no .* want 48 .*sysctl fs.file-max"
    ):
        full()


def test_other_errors_pass() -> None:
    with pytest.raises(FileNotFoundError), enough("init"):
        os.open("/nonexistent", os.O_RDONLY)


@pytest.mark.native
def test_spawn_says_so_too() -> None:
    def rank() -> str:
        limit = max(fd for fd in range(4096) if is_open(fd)) + 3
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        taken = [os.dup(0) for _ in range(limit) if sum(map(is_open, range(limit))) < limit]
        os.close(taken[-1])  # what is free is one, wherever this process had gaps
        with pytest.raises(pycoll.UnavailableError, match=r"^spawn: this process has") as error:
            pycoll.spawn(len, 4, ())
        return str(error.value)

    assert "RLIMIT_NOFILE" in pycoll.spawn(rank, 1, timeout=60)[0]


def limits_of_a_job(size: int) -> list[tuple[int, int]]:
    """Return the soft limit of each rank before and after the ranks have met."""

    def rank() -> tuple[int, int]:
        before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        detect().close()
        return before, resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    return pycoll.spawn(rank, size, timeout=60)


def test_a_low_soft_limit_is_raised_for_the_ranks_and_put_back_here() -> None:
    def launcher() -> tuple[list[tuple[int, int]], int]:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        low = sum(map(is_open, range(4096))) + 30
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        found = limits_of_a_job(40)  # 40 pipes and processes of ranks are more than 30
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)
        return found, low

    ((found, low),) = pycoll.spawn(launcher, 1, timeout=60)
    assert all(before == low < after for before, after in found)


def test_a_limit_that_suffices_is_left_alone() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits_of_a_job(2) == [(soft, soft)] * 2


def test_rank_0_does_not_begin_what_the_hard_limit_cannot_end() -> None:
    def rank() -> None:
        limit = sum(map(is_open, range(4096))) + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with socket.create_server(("127.0.0.1", 0)) as listener, enough("init", 100):
            rendezvous.gather(listener, 100, b"secret", time.monotonic() + 3600)

    with pytest.raises(pycoll.UnavailableError, match=r"^init: this process .* for 100 ranks: "):
        pycoll.spawn(rank, 1, timeout=60)
