"""New processes come into a running job, whoever dies meanwhile, and nothing is left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ports
import pytest
from test_leaks import held, require

import pycoll
from pycoll import (
    BootstrapError,
    BrokenError,
    CollectiveTimeout,
    Communicator,
    MismatchError,
    PeerLostError,
    PycollError,
    UsageError,
)
from pycoll.bootstrap import lobby, rendezvous
from pycoll.bootstrap import newcomer as newcomer_side
from pycoll.runtime import join
from pycoll.runtime.native import load

SECONDS = 60.0  #: generous: reached only by a hang
FORK = multiprocessing.get_context("fork")


class Newcomer:
    """A process that is no rank yet, and what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reader, writer = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._run, args=(work, writer), daemon=True)
        self.process.start()
        writer.close()

    @staticmethod
    def _run(work: Callable[[], Any], writer: Any) -> None:
        try:
            writer.send(work())
        except BaseException as error:
            writer.send(error)

    def outcome(self) -> Any:
        """Return that, once it is there; None if it died."""
        assert self._reader.poll(2 * SECONDS)
        with contextlib.suppress(EOFError):
            return self._reader.recv()
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._reader.close()


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{ports.free()}"


@pytest.fixture
def newcomer() -> Iterator[Callable[[Callable[[], Any]], Newcomer]]:
    came: list[Newcomer] = []

    def start(work: Callable[[], Any]) -> Newcomer:
        came.append(Newcomer(work))
        return came[-1]

    yield start
    for one in came:
        one.end()


def part(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(100_003)


def total(comm: Communicator) -> tuple[int, int, bytes]:
    """Return who this is, and what all-reduces of several kinds give."""
    x = comm.allreduce(part(comm.rank))
    assert comm.allgather_object(comm.rank) == list(range(comm.size))
    y = comm.allreduce(comm.rank + np.arange(7))
    assert (y == comm.size * np.arange(7) + sum(range(comm.size))).all()
    return comm.rank, comm.size, x.tobytes()


def whole(size: int) -> list[tuple[int, int, bytes]]:
    """Return what `total` is in a job that has started with so many ranks."""

    def rank() -> tuple[int, int, bytes]:
        with pycoll.init(timeout=SECONDS) as comm:
            return total(comm)

    return pycoll.spawn(rank, size, timeout=SECONDS)


def for_ever(comm: Communicator) -> None:
    while True:
        comm.barrier()


def come(address: str) -> tuple[int, int, bytes]:
    with pycoll.join(address, timeout=SECONDS) as comm:
        return total(comm)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_newcomers_are_ranks_like_the_rest(address, newcomer, size, count, late) -> None:
    growing = FORK.Event()

    def appear() -> tuple[int, int, bytes]:
        assert not late or growing.wait(SECONDS)
        return come(address)

    def rank() -> tuple[tuple[int, int, bytes], int]:
        with pycoll.init(timeout=SECONDS) as comm:
            first = total(comm)
            growing.set()
            with comm.grow(count, address) as larger:
                assert larger.rank == comm.rank
                found = total(larger)
                assert total(comm) == first  # it is as it was
                return found

    newcomers = [newcomer(appear) for _ in range(count)]
    found = pycoll.spawn(rank, size, timeout=2 * SECONDS)
    found += sorted(one.outcome() for one in newcomers)
    assert found == whole(size + count)


def test_two_grows_in_a_row(address, newcomer) -> None:
    def rank() -> tuple[int, int, bytes]:
        with pycoll.init(timeout=SECONDS) as comm:
            for _ in range(2):
                comm = comm.grow(1, address)
            return total(comm)

    def appear() -> tuple[int, int, bytes]:
        with pycoll.join(address, timeout=SECONDS) as comm:
            if comm.size == 3:
                comm = comm.grow(1, address)
            return total(comm)

    newcomers = [newcomer(appear) for _ in range(2)]
    found = pycoll.spawn(rank, 2, timeout=2 * SECONDS)
    assert found + sorted(one.outcome() for one in newcomers) == whole(4)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_spare_takes_the_place_of_a_dead_rank(address, newcomer, victim) -> None:
    def rank() -> tuple[int, int, bytes]:
        comm = pycoll.init(timeout=SECONDS)
        comm.barrier()
        if comm.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises((PeerLostError, BrokenError)):
            for_ever(comm)
        with comm.shrink().grow(1, address) as again:
            return total(again)

    spare = newcomer(lambda: come(address))
    found = pycoll.spawn(rank, 3, timeout=2 * SECONDS, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    assert [*found, spare.outcome()] == whole(3)


def test_too_few_change_nothing(address, newcomer) -> None:
    def rank() -> tuple[int, int, bytes]:
        with pycoll.init(timeout=SECONDS) as comm:
            text = "for 2 newcomers, and [01] came.*; the communicator is as it was"
            with pytest.raises(CollectiveTimeout, match=text):
                comm.grow(2, address, timeout=0.5)
            assert total(comm)[1] == 2
            return total(comm.grow(1, address))  # who came has waited on

    spare = newcomer(lambda: come(address))
    assert [*pycoll.spawn(rank, 2, timeout=2 * SECONDS), spare.outcome()] == whole(3)


def test_nobody_grows(address) -> None:
    with pytest.raises(BootstrapError, match=r"join: no job took this process in at 127.*0.2 s"):
        pycoll.join(address, wait=0.2)


def test_who_is_not_needed_waits_on(address, newcomer) -> None:
    def rank() -> list[int]:
        comm = pycoll.init(timeout=SECONDS)
        larger = [comm.grow(1, address) for _ in range(3)]
        return [total(one)[1] for one in larger]

    spares = [newcomer(lambda: come(address)) for _ in range(3)]
    assert pycoll.spawn(rank, 2, timeout=2 * SECONDS) == [[3, 3, 3]] * 2
    assert [spare.outcome()[:2] for spare in spares] == [(2, 3)] * 3


def until_turned_away(comm: Communicator, address: str) -> str:
    """Grow until somebody has come who is turned away; return what is said then."""
    while True:
        with pytest.raises(CollectiveTimeout) as late:
            comm.grow(1, address, timeout=0.5)
        if "turned away" in str(late.value):
            return str(late.value)


@pytest.mark.parametrize("secret", ["ab" * 32, None])
def test_who_lacks_the_key_is_turned_away(address, newcomer, monkeypatch, secret) -> None:
    def stranger() -> None:
        if secret:
            monkeypatch.setenv("PYCOLL_SECRET", "cd" * 32)
        else:  # as another user's process
            monkeypatch.setattr(lobby.user_key, "secret", lambda *_: bytes(32))
        come(address)

    def rank() -> str:
        with pycoll.init(timeout=SECONDS) as comm:
            text = until_turned_away(comm, address)
            total(comm)
            return text

    if secret:
        monkeypatch.setenv("PYCOLL_SECRET", secret)
    spare = newcomer(stranger)
    for text in pycoll.spawn(rank, 2, timeout=2 * SECONDS):
        assert "(1 connections turned away, the last: 127.0.0.1:" in text
        assert "does not know the secret" in text
    refused = spare.outcome()
    assert isinstance(refused, BootstrapError)
    assert "is PYCOLL_SECRET the same there?" in str(refused)


def test_another_version_is_refused_on_both_sides(address, newcomer, monkeypatch) -> None:
    def other() -> None:
        load.version = lambda: "0.0.9"
        come(address)

    def rank() -> tuple[int, int, bytes]:
        with pycoll.init(timeout=SECONDS) as comm:
            assert "runs pycoll 0.0.9, the job runs" in until_turned_away(comm, address)
            return total(comm)

    spare = newcomer(other)
    assert pycoll.spawn(rank, 2, timeout=2 * SECONDS) == whole(2)
    refused = spare.outcome()
    assert isinstance(refused, BootstrapError)
    assert "install the same version" in str(refused)


def other_selector(question: object) -> None:
    return None


def test_another_selector_is_an_error_on_all(address, newcomer) -> None:
    def rank() -> int:
        with pycoll.init(timeout=SECONDS, selector=other_selector) as comm:
            with pytest.raises(UsageError, match="selector is not given on rank 2"):
                comm.grow(1, address)
            larger = comm.grow(1, address)
            return total(larger)[1] + total(comm)[1]

    def appear() -> int:
        with pytest.raises(UsageError, match="selector is not given on rank 2"):
            pycoll.join(address, timeout=SECONDS)
        with pycoll.join(address, timeout=SECONDS, selector=other_selector) as comm:
            return total(comm)[1]

    spare = newcomer(appear)
    assert pycoll.spawn(rank, 2, timeout=2 * SECONDS) == [5, 5]
    assert spare.outcome() == 3


def test_ranks_that_disagree(address) -> None:
    def rank() -> None:
        with pycoll.init(timeout=SECONDS) as comm:
            with pytest.raises(MismatchError, match="n is 2 on rank 1 and 1 on rank 0"):
                comm.grow(1 + comm.rank, address)
            with pytest.raises(MismatchError, match=r"the address .* on rank 1 and .* on rank 0"):
                comm.grow(1, f"127.0.0.1:{4711 + comm.rank}")
            with pytest.raises(UsageError, match=r"grow: no address, want .*PYCOLL_JOIN_ADDRESS"):
                comm.grow(1)
            with pytest.raises(UsageError, match="PYCOLL_SECRET is not set, and node7:1 can be"):
                comm.grow(1, "node7:1")
            with pytest.raises(UsageError, match="grow: n is 0, want at least 1"):
                comm.grow(0, address)
            total(comm)

    pycoll.spawn(rank, 2, timeout=SECONDS)


def test_a_part_of_the_ranks_grows(address, newcomer) -> None:
    def rank() -> tuple[int, int, bytes] | None:
        with pycoll.init(timeout=SECONDS) as comm:
            half = comm.split(comm.rank % 2, key=-comm.rank)
            found = total(half.grow(1, address)) if comm.rank % 2 else None
            assert total(half)[1] == 2
            comm.barrier()
            return found

    spare = newcomer(lambda: come(address))
    _, second, _, first = pycoll.spawn(rank, 4, timeout=2 * SECONDS)
    assert [first, second, spare.outcome()] == whole(3)


def test_init_of_a_newcomer_joins(address, newcomer, monkeypatch) -> None:
    def rank() -> tuple[int, int, bytes]:
        with pycoll.init(timeout=SECONDS) as comm:
            assert not pycoll.joining()  # what spawn started is nearer than the variable
            return total(comm.grow(1))

    def appear() -> tuple[int, int, bytes]:
        assert pycoll.joining()
        with pycoll.init(timeout=SECONDS) as comm:
            assert comm.launcher == "join"
            return total(comm)

    with pytest.raises(UsageError, match=r"join: no address, want .* pycoll.join\('host:port'\)"):
        pycoll.join()
    monkeypatch.setenv("PYCOLL_NEWCOMER", "yes")
    with pytest.raises(UsageError, match="init: no address, want that of the job to join"):
        pycoll.init()
    monkeypatch.setenv("PYCOLL_JOIN_ADDRESS", f"203.0.113.9:1,{address}")
    monkeypatch.setenv("PYCOLL_SECRET", "ab" * 32)
    monkeypatch.setattr(newcomer_side, "ATTEMPT_SECONDS", 0.1)
    spare = newcomer(appear)
    assert [*pycoll.spawn(rank, 1, timeout=2 * SECONDS), spare.outcome()] == whole(2)


def test_a_job_that_anybody_could_join_stays_one(address, newcomer) -> None:
    def objects(comm: Communicator) -> str:
        with pytest.raises(UsageError) as refused:
            comm.broadcast_object("x")
        return str(refused.value)

    def rank() -> str:
        with pycoll.init(timeout=SECONDS) as comm:
            met = comm._engine.bootstrap
            met._star = met._star._replace(public=True)
            with contextlib.ExitStack() as stack:
                if comm.rank == 0:
                    stack.enter_context(pytest.warns(RuntimeWarning, match="anybody who reaches"))
                larger = comm.grow(1, address)
            return objects(larger)

    def appear() -> str:
        with pycoll.join(address, timeout=SECONDS) as comm:
            return objects(comm)

    spare = newcomer(appear)
    for said in [*pycoll.spawn(rank, 2, timeout=2 * SECONDS), spare.outcome()]:
        assert "PYCOLL_SECRET" in said


def test_a_port_that_another_has(address, monkeypatch) -> None:
    def rank() -> None:
        with pycoll.init(timeout=SECONDS) as comm:
            with pytest.raises(BootstrapError, match=r"rank 0 cannot listen at 127.*in use"):
                comm.grow(1, address)
            total(comm)

    monkeypatch.setattr(lobby, "BUSY_SECONDS", 0.1)
    host, _, port = address.partition(":")
    with rendezvous.listen(host, int(port), 1):
        pycoll.spawn(rank, 2, timeout=SECONDS)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


STAGES = {
    "as it comes to the meeting": (rendezvous, "join"),
    "as all have met": (join, "_introduction"),
    "as it says whom it reached": (join, "_served"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_newcomer_dies_amid_it(address, newcomer, stage) -> None:
    def fall() -> None:
        setattr(*STAGES[stage], die)
        come(address)

    def rank() -> tuple[int, int, bytes]:
        comm = pycoll.init(timeout=SECONDS)
        with pytest.raises(PycollError) as error:
            comm.grow(2, address)
        assert isinstance(error.value, PeerLostError), error.value
        assert "process" in str(error.value)
        assert total(comm)[1] == 2  # it is as it was
        both.wait(SECONDS)  # shrink() takes the other rank out of a call that it is still in
        gone.set()
        with comm.shrink().grow(2, address) as larger:
            return total(larger)

    def wait() -> tuple[int, int, bytes]:
        assert gone.wait(SECONDS)
        return come(address)

    gone, both = FORK.Event(), FORK.Barrier(2)
    newcomer(fall)
    spares = [newcomer(lambda: come(address)), newcomer(wait)]  # the first one tries again
    found = pycoll.spawn(rank, 2, timeout=2 * SECONDS)
    assert found + sorted(spare.outcome() for spare in spares) == whole(4)


MEMBER_STAGES = {
    "before it is told": (0, (rendezvous, "listen")),
    "once all are told": (0, (rendezvous, "gather")),
    "as it comes to the meeting": (1, (rendezvous, "join")),
    "as all have met": (1, (join, "_introduction")),
    "as all have met, rank 0": (0, (join, "_introduction")),
    "as it says whom it reached": (0, (join, "_served")),
}


@pytest.mark.parametrize("stage", MEMBER_STAGES)
def test_a_rank_dies_amid_it(address, newcomer, stage) -> None:
    victim, where = MEMBER_STAGES[stage]

    def rank() -> tuple[int, int, bytes]:
        comm = pycoll.init(timeout=SECONDS)
        comm.barrier()
        if comm.rank == victim:
            setattr(*where, die)
        with pytest.raises(PycollError) as error:
            comm.grow(1, address)
        assert isinstance(error.value, PeerLostError | BrokenError), error.value
        with comm.shrink() as smaller, smaller.grow(1, address) as again:
            return total(again)

    spare = newcomer(lambda: come(address))
    found = pycoll.spawn(rank, 3, timeout=2 * SECONDS, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    assert [*found, spare.outcome()] == whole(3)


def test_growing_leaves_nothing(address, newcomer) -> None:
    def rank() -> None:
        with pycoll.init(timeout=SECONDS) as comm:
            total(comm)
            before = held()
            for _ in range(3):
                with comm.grow(1, address) as larger:
                    total(larger)
                    larger.barrier()
                require(before)
                comm.barrier()
            with pytest.raises(CollectiveTimeout):
                comm.grow(1, address, timeout=0.1)
            require(before)
            comm.barrier()  # who leaves takes a connection along

    def appear() -> str:
        before = held()
        for _ in range(3):
            with pycoll.join(address, timeout=SECONDS) as comm:
                total(comm)
                comm.barrier()
            require(before)
        with pytest.raises(BootstrapError):
            pycoll.join("127.0.0.1:1", wait=0.1)
        require(before)
        return "nothing"

    spare = newcomer(appear)
    pycoll.spawn(rank, 2, timeout=2 * SECONDS)
    assert spare.outcome() == "nothing"
