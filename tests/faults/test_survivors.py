"""Whoever dies, every survivor names it, whatever it was waiting for and whomever."""

from __future__ import annotations

import functools
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pycoll
from pycoll import BrokenError, Communicator, PeerLostError, UnavailableError
from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.job import current
from pycoll.runtime import join
from pycoll.runtime.engine import Engine
from pycoll.runtime.native import bindings, codes

SECONDS = 60.0  #: until a wait fails; no test reaches it but by a hang
PATIENCE = 1.5 * SECONDS  #: behind that of whom this one stays for
SIZE = 4

#: Which ranks share memory: those with the same letter.
SHARING = {"shm": "aaaa", "tcp": "abcd", "mixed": "aabb"}


def apart(hosts: str) -> None:
    """Let this rank share memory only with ranks of its own host."""
    address, connect = bindings.comm_address, bindings.comm_connect
    here = current()
    assert here is not None
    mine = hosts[here.rank].encode()

    def other(comm: Any, peer: int, blob: bytes) -> int:
        return connect(comm, peer, blob[1:]) if blob[:1] == mine else codes.UNMAPPABLE

    bindings.comm_address = lambda comm: mine + address(comm)
    bindings.comm_connect = other


def chain(comm: Communicator, victim: int) -> None:
    """Wait for a message of the rank before among the survivors: only the first misses the dead."""
    alive = [rank for rank in range(comm.size) if rank != victim]
    before = [victim, *alive][alive.index(comm.rank)]
    comm.recv(np.empty(10), before)


def chain_of_works(comm: Communicator, victim: int) -> None:
    alive = [rank for rank in range(comm.size) if rank != victim]
    before = [victim, *alive][alive.index(comm.rank)]
    comm.recv(np.empty(10), before, async_op=True).wait()


def sends(comm: Communicator, victim: int) -> None:
    """Send more than there is room for to a rank that sends, too."""
    alive = [rank for rank in range(comm.size) if rank != victim]
    after = [*alive, victim][alive.index(comm.rank) + 1]
    comm.send(np.ones(8 << 20), after)


def exchanges(comm: Communicator, victim: int) -> None:
    """Exchange with both neighbours until one does not come: they may be alive, and gone on."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    while True:
        comm.exchange([(np.ones(1 << 17), right)], [(np.empty(1 << 17), left)])


def some_do_this(comm: Communicator, victim: int) -> None:
    """One survivor is in a collective, the others receive from one another."""
    first, second, third = (rank for rank in range(comm.size) if rank != victim)
    if comm.rank == first:
        comm.allreduce(np.ones(10))
    else:
        comm.recv(np.empty(10), second if comm.rank == third else third)


WAITS: dict[str, Callable[[Communicator, int], Any]] = {
    "allreduce": lambda comm, victim: comm.allreduce(np.ones(10)),
    "work": lambda comm, victim: comm.allreduce(np.ones(10), async_op=True).wait(),
    "plan": lambda comm, victim: comm.plan("broadcast", np.ones(10), root=victim)(),
    "objects": lambda comm, victim: comm.allgather_object({"rank": comm.rank}),
    "alltoallv": lambda comm, victim: comm.alltoallv(
        np.ones(comm.size), [1] * comm.size, np.empty(comm.size), [1] * comm.size
    ),
    "split": lambda comm, victim: comm.split(0),
    "dup": lambda comm, victim: comm.dup(),
    "chain": chain,
    "chain of works": chain_of_works,
    "sends": sends,
    "exchanges": exchanges,
    "some": some_do_this,
}


class Marks:
    """What ranks of a job have come to, in memory that they share."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, SIZE)

    def set(self, rank: int) -> None:
        self._shared[rank] = 1

    def wait(self, *ranks: int) -> None:
        wait_until(lambda: all(self._shared[rank] for rank in ranks), PATIENCE)


def survive(hosts: str, wait: str, victim: int, passed: Marks) -> str:
    apart(hosts)
    comm = pycoll.init(timeout=SECONDS)
    for peer in range(SIZE):  # every connection is there
        comm.broadcast(np.ones(1), root=peer)
    comm.exchange(
        [(np.ones(1), peer) for peer in range(SIZE)], [(np.ones(1), peer) for peer in range(SIZE)]
    )
    comm.barrier()
    passed.set(comm.rank)
    if comm.rank == victim:
        # The news of a death may come before what the dead rank sent to a remote one.
        passed.wait(*range(SIZE))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError) as lost:
        WAITS[wait](comm, victim)
    with pytest.raises(BrokenError, match="an earlier failure broke the communicator"):
        chain(comm, victim)
    with pytest.raises(BrokenError, match="an earlier failure broke the communicator"):
        comm.barrier()
    comm.close()
    return str(lost.value)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("sharing", SHARING)
def test_every_survivor_names_the_dead(sharing: str, wait: str, victim: int) -> None:
    rank = functools.partial(survive, SHARING[sharing], wait, victim, Marks())
    found = pycoll.spawn(rank, SIZE, timeout=2 * SECONDS, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    for message in found:
        assert isinstance(message, str), message
        assert message.startswith(f"rank {victim} (process "), message


STAGES = {
    "before it joins": (Bootstrap, "group"),
    "before it says what it is": (join, "_introduction"),
    "before it answers": (join, "_connect"),
    "before it says whom it reached": (join, "_served"),
}


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def form(hosts: str, stage: str, how: str, victim: int) -> tuple[str, list[str]]:
    apart(hosts)
    comm = pycoll.init(timeout=SECONDS)
    comm.barrier()
    if comm.rank == victim:
        where, name = STAGES[stage]
        setattr(where, name, die)
    with pytest.raises(PeerLostError) as lost:
        # Every rank has another number in the group.
        comm.split(0, key=-comm.rank) if how == "split" else comm.dup()
    later = []
    for _ in range(2):
        with pytest.raises(BrokenError) as broken:
            comm.barrier()
        later.append(str(broken.value))
    comm.close()
    return str(lost.value), later


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["split", "dup"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("sharing", ["shm", "mixed"])
def test_a_death_while_a_group_forms(sharing: str, stage: str, how: str, victim: int) -> None:
    rank = functools.partial(form, SHARING[sharing], stage, how, victim)
    found = pycoll.spawn(rank, SIZE, timeout=2 * SECONDS, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    for outcome in found:
        assert isinstance(outcome, tuple), outcome
        message, later = outcome
        assert message.startswith(f"rank {victim} (process "), message
        assert all(f"communicator: rank {victim} (process " in text for text in later), later


def fail_before_the_group(hosts: str, how: str, known: bool, came: Marks, raised: Marks) -> str:
    """Rank 3 is to form a group with rank 1, which does not come: split() failed there.

    Args:
        hosts: Which ranks share memory.
        how: "dies": rank 0 does, and rank 1 hears of it in split(). "stops": rank 1 is interrupted.
        known: Rank 3 hears of it before it comes to the group.
        came: Whose part in split() is done.
        raised: Whom split() has raised something for; until then rank 1 stays.
    """
    apart(hosts)
    comm = pycoll.init(timeout=SECONDS)
    comm.barrier()
    form = Engine.group

    def group(engine: Engine, ranks: list[int], key: str) -> Engine:
        came.set(comm.rank)
        came.wait(*range(SIZE))
        if comm.rank == 0 and how == "dies":
            die()
        if comm.rank == 1:
            if how == "stops":
                engine.failure.give_up(KeyboardInterrupt(), "split()")
            comm.barrier()  # which raises
        if known:
            wait_until(
                lambda: engine.failure.departed() or engine.failure.error is not None, PATIENCE
            )
        return form(engine, ranks, key)

    Engine.group = group  # type: ignore[method-assign]
    with pytest.raises(PeerLostError if how == "dies" else BrokenError) as failed:
        comm.split(comm.rank % 2 if how == "dies" else 0)
    raised.set(comm.rank)
    if comm.rank == 1:
        raised.wait(2, 3)
    with pytest.raises(BrokenError, match="an earlier failure broke the communicator"):
        comm.barrier()
    comm.close()
    return str(failed.value)


@pytest.mark.parametrize("known", [False, True], ids=["amid", "before"])
@pytest.mark.parametrize("how", ["dies", "stops"])
@pytest.mark.parametrize("sharing", ["shm", "tcp"])
def test_who_failed_in_the_call_is_not_waited_for_in_the_group(
    sharing: str, how: str, known: bool
) -> None:
    job = functools.partial(fail_before_the_group, SHARING[sharing], how, known, Marks(), Marks())
    found = pycoll.spawn(job, SIZE, timeout=2 * SECONDS, check=False)
    if how == "dies":
        assert isinstance(found.pop(0), PeerLostError)
    for message in found:
        assert isinstance(message, str), message
    if how == "dies":
        assert all(message.startswith("rank 0 (process ") for message in found), found
    else:
        assert all("KeyboardInterrupt inside split()" in message for message in found), found


def fail_in_the_group(formed: Marks) -> str:
    """Ranks 1 and 2 form a group; that fails on rank 1 when rank 2 has it already."""
    comm = pycoll.init(timeout=SECONDS)
    comm.barrier()
    served = join._served

    def serve(engine: Any, bootstrap: Any, blob: bytes, timeout: float) -> list[bytes]:
        served(engine, bootstrap, blob, timeout)
        while True:  # the news comes to the communicator first
            bootstrap.check()
            time.sleep(0.001)

    color = int(comm.rank > 0)
    if comm.rank == 1:
        join._served = serve
        with pytest.raises(PeerLostError) as failed:
            comm.split(color)
    else:
        with comm.split(color) as group:
            formed.set(comm.rank)
            if comm.rank == 0:
                formed.wait(2)
                die()
            with pytest.raises(PeerLostError) as failed:
                group.barrier()
    comm.close()
    return str(failed.value)


def test_who_has_the_group_already_hears_why_another_has_not() -> None:
    found = pycoll.spawn(
        functools.partial(fail_in_the_group, Marks()), 3, timeout=2 * SECONDS, check=False
    )
    assert isinstance(found[0], PeerLostError)
    assert found[1].startswith("rank 0 (process "), found
    assert found[2].startswith("the communicator that this one comes from broke: rank 0 ("), found


def fail_by_itself(how: str, victim: int) -> str:
    """A rank cannot form a communicator that the others have formed."""
    here = current()
    assert here is not None
    comm = None if how == "init" else pycoll.init(timeout=SECONDS)
    served = join._served

    def serve(*of: Any) -> list[bytes]:
        served(*of)
        raise UnavailableError("no memory on this rank")

    def form() -> None:
        formed = pycoll.init(timeout=SECONDS) if comm is None else comm.split(0)
        assert formed is not None
        formed.barrier()

    if here.rank == victim:
        join._served = serve
    with pytest.raises(UnavailableError if here.rank == victim else PeerLostError) as failed:
        form()
    if comm:
        comm.close()
    return str(failed.value)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["init", "split"])
def test_who_cannot_form_a_communicator_tells_the_others_why(how: str, victim: int) -> None:
    job = functools.partial(fail_by_itself, how, victim)
    found = pycoll.spawn(job, 3, timeout=2 * SECONDS, check=False)
    assert found.pop(victim) == "no memory on this rank"
    for message in found:
        assert isinstance(message, str), message
        assert message.startswith(f"rank {victim} (process "), message
        assert "failed with UnavailableError: no memory on this rank" in message


def begin(hosts: str, stage: str, victim: int) -> str:
    apart(hosts)
    here = current()
    assert here is not None
    if here.rank == victim:
        where, name = STAGES[stage]
        setattr(where, name, die)
    with pytest.raises(PeerLostError) as lost:
        pycoll.init(timeout=SECONDS)
    return str(lost.value)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("stage", list(STAGES)[1:])
@pytest.mark.parametrize("sharing", ["shm", "mixed"])
def test_a_death_while_the_communicator_forms(sharing: str, stage: str, victim: int) -> None:
    rank = functools.partial(begin, SHARING[sharing], stage, victim)
    found = pycoll.spawn(rank, SIZE, timeout=2 * SECONDS, check=False)
    assert isinstance(found.pop(victim), PeerLostError)
    for message in found:
        assert isinstance(message, str), message
        assert message.startswith(f"rank {victim} (process "), message


def after_rank_0(hosts: str, how: str, whose: str, passed: Marks) -> str:
    """Rank 0 goes first; a death after that is heard by those who wait for one another."""
    apart(hosts)
    comm = pycoll.init(timeout=SECONDS)
    group = comm if whose == "all" else comm.split(None if comm.rank == 0 else 0)
    comm.exchange(  # every connection is there
        [(np.ones(1), peer) for peer in range(comm.size)],
        [(np.ones(1), peer) for peer in range(comm.size)],
    )
    if group is not None and group is not comm:
        group.exchange(
            [(np.ones(1), peer) for peer in range(group.size)],
            [(np.ones(1), peer) for peer in range(group.size)],
        )
    comm.barrier()
    passed.set(comm.rank)
    if comm.rank == 0:
        if how == "killed":
            passed.wait(*range(SIZE))
            os.kill(os.getpid(), signal.SIGKILL)
        return ""  # it leaves by the exit handlers
    assert group is not None
    while 0 not in comm._engine.bootstrap.control.lost():
        time.sleep(0.01)
    victim = group.size - 3
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError) as lost:
        # Nobody of them misses rank 0, and only the first of them the one that is killed.
        group.recv(np.empty(10), group.rank - 1)
    with pytest.raises(BrokenError):
        group.barrier()
    return str(lost.value)


@pytest.mark.parametrize(
    ("how", "whose"), [("left", "all"), ("left", "some"), ("killed", "some")], ids=str
)
@pytest.mark.parametrize("sharing", SHARING)
def test_a_death_after_rank_0_is_gone(sharing: str, how: str, whose: str) -> None:
    rank = functools.partial(after_rank_0, SHARING[sharing], how, whose, Marks())
    found = pycoll.spawn(rank, SIZE, timeout=2 * SECONDS, check=False)
    assert isinstance(found[1], PeerLostError)  # the process that was killed
    number = "1 (process" if whose == "all" else "0 (rank 1 of the job, process"
    for message in found[2:]:
        assert isinstance(message, str), message
        assert message.startswith(f"rank {number} "), message
