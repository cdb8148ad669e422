"""Shrink: those who live go on in a communicator of their own; who is late or silent is out."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_deaths import tell
from waiting import wait_until

import pycoll
from pycoll import BrokenError, Communicator, LostError, PeerLostError, RevokedError, UsageError
from pycoll.errors import BootstrapError
from pycoll.runtime import join
from pycoll.runtime.engine import Engine
from pycoll.runtime.plan.earlier import SETTLED

SECONDS = 60.0  #: until a wait fails; reached only by a hang


def spawn(job: Any, size: int, *arguments: Any) -> list[Any]:
    return pycoll.spawn(job, size, *arguments, timeout=3 * SECONDS, check=False)


def total(comm: Communicator, elements: int = 3) -> float:
    """Return the sum of one of each rank, which all must find."""
    return float(comm.allreduce(np.ones(elements))[-1])


def until_lost(comm: Communicator) -> pycoll.PycollError:
    """Make calls until one fails; return its error."""
    while True:
        try:
            comm.allreduce(np.ones(3))
        except (PeerLostError, BrokenError) as error:
            return error


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5, 6, 7])
def test_whoever_dies_the_others_go_on(seed: int) -> None:
    tell(seed)


@pytest.mark.parametrize("seed", range(100, 150))
def test_random_deaths(seed: int) -> None:
    tell(seed)


def nobody_died() -> tuple[int, int, float]:
    comm = pycoll.init(timeout=SECONDS)
    made = comm.shrink()
    return made.rank, made.size, total(made)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_where_nobody_died_all_are_in_it(size: int) -> None:
    assert spawn(nobody_died, size) == [(rank, size, float(size)) for rank in range(size)]


def revoked() -> tuple[type[Exception], str, type[Exception], float]:
    comm = pycoll.init(timeout=SECONDS)
    part = comm.split(0)
    assert part is not None
    comm.barrier()
    if comm.rank == 1:
        part.revoke()
    first = until_lost(part)
    try:
        part.barrier()
    except BrokenError as error:
        later = error
    return type(first), str(first), type(later), total(comm)


def revoked_by_a_thread() -> str:
    comm = pycoll.init(timeout=20)
    comm.barrier()
    failure = comm._engine.failure
    if comm.rank == 1:
        wait_until(lambda: failure.error is not None)
        return str(failure.error)
    say = failure._control.abort

    def slowly(kind: str, text: str) -> None:
        time.sleep(0.3)
        say(kind, text)

    failure._control.abort = slowly  # type: ignore[method-assign]
    threading.Timer(0.1, comm.revoke).start()
    with comm, pytest.raises(RevokedError):
        comm.allreduce(np.ones(3))
    return ""


def test_whose_call_a_thread_revokes_may_close_at_once() -> None:
    assert "called revoke() at " in spawn(revoked_by_a_thread, 2)[1]


def test_revoke_wakes_all_and_other_communicators_go_on() -> None:
    for rank, (first, text, later, found) in enumerate(spawn(revoked, 3)):
        assert issubclass(first, RevokedError if rank != 1 else BrokenError)
        assert "called revoke() at " in text
        assert issubclass(later, BrokenError)
        assert found == 3


def one_does_not_come(seconds: float, told: Path) -> tuple[int, float] | str:
    comm = pycoll.init(timeout=SECONDS)
    if comm.rank != comm.size - 1:
        made = comm.shrink(timeout=seconds)
        wait_until(told.exists)  # if they ended, it could go on alone
        return made.size, total(made)
    assert isinstance(until_lost(comm), RevokedError)
    time.sleep(2 * seconds)
    try:
        comm.shrink()
    except LostError as error:
        return str(error)
    finally:
        told.touch()
    return "it came in"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_who_comes_too_late_is_out(size: int, tmp_path: Path) -> None:
    """Of two ranks the first is half of them, with the lowest."""
    *others, late = spawn(one_does_not_come, size, 2.0, tmp_path / "told")
    assert others == [(size - 1, float(size - 1))] * (size - 1)
    assert late == f"shrink: rank {size - 1} is out: it came too late"


def stopped(victim: int, told: Path) -> tuple[int, float] | str:
    comm = pycoll.init(timeout=SECONDS)
    pids = [int(pid) for pid in comm.allgather(np.array([float(os.getpid())]))]
    (told.parent / str(comm.rank)).touch()
    wait_until(lambda: len(list(told.parent.iterdir())) == comm.size)  # not by the router
    awake = [rank for rank in range(comm.size) if rank != victim]
    if comm.rank == awake[0]:
        os.kill(pids[victim], signal.SIGSTOP)
    try:
        if comm.rank == victim:
            until_lost(comm)
        made = comm.shrink(timeout=1.0)
    except LostError as error:
        return str(error)
    finally:
        if comm.rank == victim:
            told.touch()
        elif comm.rank == awake[0]:
            os.kill(pids[victim], signal.SIGCONT)
    wait_until(told.exists)
    return made.size, total(made)


@pytest.mark.parametrize("victim", [0, 2])
def test_who_is_stopped_is_out_also_where_the_router_is(victim: int, tmp_path: Path) -> None:
    outcomes = spawn(stopped, 4, victim, tmp_path / "told")
    out = outcomes.pop(victim)
    assert outcomes == [(3, 3.0)] * 3
    assert isinstance(out, str), out
    assert out.startswith(f"shrink: rank {victim} is out: "), out


def cannot_join() -> tuple[int, float] | str:
    """Rank 0 cannot reach a rank."""
    comm = pycoll.init(timeout=SECONDS)
    remade = Engine.remade

    def fails(engine: Engine, *arguments: Any) -> Engine:
        if comm.rank == 0:
            raise BootstrapError("rank 0 cannot reach rank 1")
        return remade(engine, *arguments)

    Engine.remade = fails  # type: ignore[method-assign]
    try:
        made = comm.shrink()
    except BootstrapError as error:
        return str(error)
    return made.size, total(made)


def test_who_cannot_join_says_why_and_the_others_go_on() -> None:
    first, *others = spawn(cannot_join, 4)
    assert first == "rank 0 cannot reach rank 1"
    assert others == [(3, 3.0)] * 3


def again() -> tuple[str, float]:
    comm = pycoll.init(timeout=SECONDS)
    made = comm.shrink()
    try:
        comm.shrink()
    except UsageError as error:
        text = str(error)
    return text, total(made)


def test_a_communicator_is_shrunk_once() -> None:
    text = (
        "shrink: it was called on this communicator before: shrink the one it returned; "
        "if it raised, this rank is out"
    )
    assert spawn(again, 2) == [(text, 2.0)] * 2


def closes_meanwhile(told: Path) -> tuple[int, float] | str:
    comm = pycoll.init(timeout=SECONDS)
    if comm.rank != 1:
        wait_until(told.exists)  # it waits for these
        made = comm.shrink()
        return made.size, total(made)
    survivor = threading.Thread(target=lambda: said.append(raised(comm)))
    said: list[str] = []
    survivor.start()
    wait_until(lambda: comm._engine.bootstrap.control._survivor is not None)
    comm.close()
    survivor.join()
    told.touch()
    return said[0]


def raised(comm: Communicator) -> str:
    try:
        comm.shrink()
    except pycoll.PycollError as error:
        return type(error).__name__
    return "nothing"


def test_who_closes_it_meanwhile_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    first, closed, last = spawn(closes_meanwhile, 3, tmp_path / "told")
    assert (first, closed, last) == ((2, 2.0), "ClosedError", (2, 2.0))


def interrupted(told: Path) -> tuple[int, float] | str:
    comm = pycoll.init(timeout=SECONDS)
    if comm.rank != 1:
        wait_until(told.exists)
        made = comm.shrink()
        return made.size, total(made)

    def interrupt() -> None:
        wait_until(lambda: comm._engine.bootstrap.control._survivor is not None)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        comm.shrink()
    except KeyboardInterrupt:
        told.touch()
        comm.close()
        return "interrupted"
    return "nothing"


def test_who_is_interrupted_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    assert spawn(interrupted, 3, tmp_path / "told") == [(2, 2.0), "interrupted", (2, 2.0)]


def behind_its_back(folder: Path) -> tuple[list[str], float]:
    """What was made of the broken communicator raises, and does not disturb the new one."""
    comm = pycoll.init(timeout=SECONDS)
    x = comm.empty(1000)
    x[:] = 1
    bound = comm.plan("allreduce", x)
    bound()
    waits = None
    if comm.rank:
        waits = comm.allreduce(np.ones(100_000), async_op=True)  # rank 0 never comes to it
    (folder / str(comm.rank)).touch()
    wait_until(lambda: len(list(folder.iterdir())) == 3)  # shrink ends what others are still in
    made = comm.shrink()
    said = []
    for call in ([waits.wait] if waits else []) + [bound]:
        try:
            call()
        except BrokenError as error:
            said.append(type(error).__name__)
    del comm, bound, waits
    gc.collect()
    return said, total(made)


def test_works_and_plans_of_the_broken_one_raise(tmp_path: Path) -> None:
    for rank, (said, found) in enumerate(spawn(behind_its_back, 3, tmp_path)):
        assert len(said) == (2 if rank else 1)
        assert set(said) <= {"RevokedError", "BrokenError"}
        assert found == 3


def again_and_again() -> tuple[list[tuple[int, int, int, int]], float]:
    """Shrink and close the old one, 40 times; return what this process held then and before."""
    comm = pycoll.init(timeout=SECONDS)
    held = []
    for turn in range(41):
        made = comm.shrink()
        comm.close()
        comm = made
        if turn in (5, 40):
            with contextlib.suppress(RevokedError):  # another is in the next shrink already
                comm.barrier()
            gc.collect()
            plane = comm._engine.bootstrap.control._plane
            router = plane._loop._router
            wait_until(lambda: router is None or len(router._groups) <= 3)  # noqa: B023
            sizes = len(os.listdir("/proc/self/fd")), threading.active_count()
            held.append((*sizes, len(plane._controls)))
    return held, total(comm)


def test_shrinking_again_and_again_leaves_nothing() -> None:
    for (before, after), found in spawn(again_and_again, 2):
        assert before == after
        assert found == 2


def memory() -> bool:
    comm = pycoll.init(timeout=SECONDS)
    kept = comm.empty(1000)
    kept[:] = comm.rank
    comm.barrier()
    if comm.rank == 1:
        end()
    until_lost(comm)
    with comm.shrink() as made:
        comm.close()
        mine = bool((kept == (0 if made.rank == 0 else 2)).all())
        made.allreduce(kept)
        return mine and bool((kept == 2).all())


def test_memory_of_the_broken_one_stays() -> None:
    first, dead, last = spawn(memory, 3)
    assert (first, last) == (True, True)
    assert isinstance(dead, PeerLostError)


#: How many choices less than the others one rank knows.
KNOWS = {"all know the same": 0, "one knows less": 1, "one knows much less": 4}


def settles(knows: str) -> list[str]:
    """Call across the change to what is best for fewer ranks: at once, queued and bound."""
    comm = pycoll.init(timeout=SECONDS)
    lengths = (8, 5000, 300_000)
    for elements in lengths:
        comm.allreduce(np.ones(elements))
    comm.barrier()
    if comm.rank == comm.size - 1:
        end()
    until_lost(comm)
    found = comm._engine.selection.choices._found
    if comm.rank == 0:
        for _ in range(KNOWS[knows]):  # they were still on their way to it
            found.popitem()
    made = comm.shrink()
    assert made._engine.selection.choices.alike == (knows != "one knows much less")
    x = np.ones(5000)
    bound = made.plan("allreduce", x) if made.rank % 2 else None  # some bind it, others do not
    for call in range(SETTLED + 8):
        for elements in lengths:
            data = np.random.default_rng([call, elements]).integers(0, 100, elements).astype(float)
            works = [made.allreduce(data.copy(), async_op=True) for _ in range(call % 3)]
            found = made.allreduce(data.copy())
            assert np.array_equal(found, data * made.size), f"call {call} of {elements}"
            assert all(np.array_equal(w.wait(), data * made.size) for w in works)
        x[:] = call
        bound() if bound else made.allreduce(x)
        assert (x == call * made.size).all()
    return [str(made.explain("allreduce", 8 * elements).choice.algorithm) for elements in lengths]


@pytest.mark.parametrize("knows", KNOWS)
@pytest.mark.parametrize("size", [3, 5])
def test_calls_change_over_to_better_plans_together(size: int, knows: str) -> None:
    *outcomes, dead = spawn(settles, size, knows)
    assert isinstance(dead, PeerLostError)
    assert outcomes == [outcomes[0]] * (size - 1), outcomes


def asks_nobody() -> float:
    """Lose a rank twice; the first calls of those who live need no word from any of them."""
    comm = pycoll.init(timeout=SECONDS)
    total(comm)
    for _ in range(2):
        comm.barrier()
        if comm.rank == comm.size - 1:
            end()
        until_lost(comm)
        comm = comm.shrink()
        comm._engine.once = asked  # type: ignore[method-assign]
        total(comm)
    return total(comm)


def asked(key: str, *_: Any) -> bytes:
    raise AssertionError(f"{key} was asked for")


def test_survivors_that_know_the_same_choose_alone() -> None:
    assert spawn(asks_nobody, 5)[:3] == [3.0] * 3


def one_after_another(rounds: int) -> int:
    """Lose a rank again and again; then use all of what is left."""
    comm = pycoll.init(timeout=SECONDS)
    for victim in (comm.size - 1, 0)[:rounds]:
        if comm.rank == victim:
            end()
        until_lost(comm)
        comm = comm.shrink()
        assert total(comm) == comm.size
    far = (comm.rank + comm.size // 2) % comm.size
    back = (comm.rank - comm.size // 2) % comm.size
    got = np.empty(5)
    comm.exchange([(np.full(5, float(comm.rank)), far)], [(got, back)])
    assert (got == back).all()
    x = comm.empty(300_000)
    for root in range(0, comm.size, 7):
        x[:] = comm.rank
        comm.reduce(x, root=root)
        if comm.rank == root:
            assert (x == comm.size * (comm.size - 1) / 2).all()
        comm.broadcast(x, root=root)
        assert (x == comm.size * (comm.size - 1) / 2).all()
    sent = np.arange(comm.size) + 1000 * comm.rank
    assert (comm.alltoall(sent) == 1000 * np.arange(comm.size) + comm.rank).all()
    return comm.size


@pytest.mark.parametrize(("size", "rounds"), [(18, 2), (66, 2)])
def test_many_survivors_have_all_that_a_communicator_has(size: int, rounds: int) -> None:
    """66 map each other only when they need it; 64 do as they join."""
    outcomes = spawn(one_after_another, size, rounds)
    lived = [one for one in outcomes if not isinstance(one, PeerLostError)]
    assert lived == [size - rounds] * (size - rounds)


def dies_as_they_map(delay: float) -> int:
    """A second rank dies when the others know where its memory is, and have not mapped it."""
    comm = pycoll.init(timeout=SECONDS)
    comm.barrier()
    if comm.rank == comm.size - 1:
        end()
    until_lost(comm)
    map_again, first = join._map_again, [True]

    def late(*arguments: Any) -> Any:
        if first and first.pop():
            if comm.rank == comm.size - 2:
                end()
            time.sleep(delay if comm.rank % 2 == 0 else 0)
        return map_again(*arguments)

    join._map_again = late
    made = comm.shrink()
    return int(total(made))


@pytest.mark.parametrize("delay", [0, 0.3])
@pytest.mark.parametrize("size", [5, 20])
def test_who_dies_as_the_others_map_it_takes_nobody_along(size: int, delay: float) -> None:
    *lived, second, first = spawn(dies_as_they_map, size, delay)
    assert lived == [size - 2] * (size - 2)
    assert isinstance(first, PeerLostError)
    assert isinstance(second, PeerLostError)


def reaches_nobody() -> str | int:
    """One cannot reach the others, which live and go on without it."""
    comm = pycoll.init(timeout=SECONDS)
    if comm.rank == 1:
        join.REASON_SECONDS = 0.5
        join._connect = lambda comm, bootstrap, *_: ({bootstrap.rank}, "")
    try:
        return comm.shrink().size
    except BootstrapError as error:
        return str(error)


def test_who_reaches_nobody_any_more_says_so_and_the_others_go_on() -> None:
    said = "rank 1 no longer shares memory with ranks 0, 2, 3"
    assert spawn(reaches_nobody, 4) == [3, said, 3, 3]


def of_a_part() -> tuple[int, float, float]:
    comm = pycoll.init(timeout=SECONDS)
    part = comm.split(comm.rank % 2)
    assert part is not None
    comm.barrier()
    if comm.rank == 2:
        end()
    until_lost(comm)
    if comm.rank % 2 == 0:
        until_lost(part)
        part = part.shrink()
    whole = comm.shrink()
    halves = whole.split(whole.rank % 2)
    assert halves is not None
    return part.size, total(part), total(halves)


def test_parts_shrink_by_themselves_and_the_whole_can_be_split_again() -> None:
    outcomes = spawn(of_a_part, 6)
    assert isinstance(outcomes.pop(2), PeerLostError)
    # 0, 1, 3, 4, 5 are left, and 0 and 4 of the even ones.
    assert [found[:2] for found in outcomes] == [(2, 2.0), (3, 3.0), (3, 3.0), (2, 2.0), (3, 3.0)]
    assert [found[2] for found in outcomes] == [3.0, 2.0, 3.0, 2.0, 3.0]


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "elastic.md").read_text()
    shrinks = page.partition("\n## Shrink\n")[2]
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", shrinks, re.DOTALL)[0])
    options = ["--elastic", "2:4", "--max-restarts", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "pycoll", "run", *options, program],
        env={**os.environ, "PYCOLL_LOG": "info"},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    assert sorted(said) == [f"rank {rank} of 3: 10" for rank in range(3)]
    assert "pycoll.shrink: 3 of 4 ranks go on, without rank 1 (died)\n" in done.stderr


def wrong_uses() -> list[str]:
    comm = pycoll.init(timeout=SECONDS)
    said = []
    for timeout in ("soon", -1.0):
        try:
            comm.shrink(timeout=timeout)  # type: ignore[arg-type]
        except UsageError as error:
            said.append(str(error))
    said.append(str(total(comm)))  # nothing is broken
    comm.close()
    for call in (comm.shrink, comm.revoke):
        try:
            call()
        except pycoll.ClosedError:
            said.append("closed")
    return said


def test_wrong_uses_break_nothing() -> None:
    for said in spawn(wrong_uses, 2):
        assert "timeout" in said[0]
        assert "timeout" in said[1]
        assert said[2:] == ["2.0", "closed", "closed"]
