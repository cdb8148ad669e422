"""Plans on the slow path: what they are called, and what keeps one from being made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import ScheduleBuilder
from pycoll.algorithms import get


@pycoll.algorithm("allreduce")
def wide(b: ScheduleBuilder) -> None:
    b.chunks(20_000)
    b.send(b.output[:], to=1 - b.rank)
    b.recv_reduce(b.output[:], frm=range(b.size))


@pycoll.algorithm("allreduce")
def exchange(b: ScheduleBuilder) -> None:
    b.chunks(1)
    b.send(b.output[0], to=1 - b.rank)
    b.recv_reduce(b.output[0], frm=range(b.size))


def test_an_algorithm_that_sends_more_chunks_than_a_slot_holds() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            with pytest.raises(pycoll.UsageError, match="'wide' sends 20000 chunks at once"):
                comm.allreduce(np.ones(10), algorithm=wide)
            comm.barrier()

    pycoll.spawn(rank, 2, timeout=60)


def test_a_proof_is_made_once_for_all_ranks() -> None:
    def rank() -> int:
        from pycoll import verify

        honest, calls = verify.gate, []
        verify.gate = lambda algorithm, *a, **k: (
            calls.append(algorithm) or honest(algorithm, *a, **k)
        )
        with pycoll.init() as comm:
            for count in (1, 2, 1000):
                comm.allreduce(np.ones(count), algorithm=exchange)
        return calls.count(exchange)

    assert sum(pycoll.spawn(rank, 2, timeout=60)) == 1


def test_a_proof_that_fails_is_made_once_and_stops_all_ranks() -> None:
    def rank() -> int:
        from pycoll import verify

        made = []

        def strict(algorithm: object, *arguments: object, **options: object) -> object:
            made.append(algorithm)
            raise pycoll.RaceError("seen by one rank")

        verify.gate = strict
        with pycoll.init() as comm:
            with pytest.raises(pycoll.RaceError, match=r"^seen by one rank$"):
                comm.allreduce(np.ones(9), algorithm=exchange)
            comm.barrier()
        return len(made)

    assert sum(pycoll.spawn(rank, 2, timeout=60)) == 1


@pycoll.algorithm("allreduce")
def changes(b: ScheduleBuilder) -> None:
    """Fold the other's value, in an order that depends on more than the arguments."""
    b.chunks(1)
    b.send(b.output[0], to=1 - b.rank)
    b.recv_reduce(b.output[0], frm=range(b.size) if orders[0] else (1, 0))


orders = [True]


def test_a_rank_whose_program_is_not_the_one_that_was_proved_runs_nothing() -> None:
    def rank() -> str | None:
        from pycoll import verify

        honest = verify.gate

        def other(*arguments: object, **options: object) -> object:
            try:  # what is proved is right, but it is not what either rank will trace
                orders[0] = False
                return honest(*arguments, **options)
            finally:
                orders[0] = True

        verify.gate = other
        with pycoll.init() as comm:
            x = np.full(9, comm.rank + 1.0)
            try:
                comm.allreduce(x, algorithm=changes)
            except pycoll.PycollError as error:
                assert (x == comm.rank + 1).all()
                return str(error)

    # The one that made the proof has traced what it proved, and hears what the other was refused.
    found = pycoll.spawn(rank, 2, timeout=60)
    assert all("would run another program than the one that was proved" in text for text in found)


def test_the_built_ins_source_under_a_users_decorator_runs_like_it() -> None:
    mine = pycoll.algorithm(pycoll.allreduce)(get("ring").function)

    def rank() -> None:
        with pycoll.init() as comm:
            x, y = np.arange(1000.0), np.arange(1000.0)
            comm.allreduce(x, algorithm=mine)
            comm.allreduce(y, algorithm="ring")
            assert np.array_equal(x, y)

    pycoll.spawn(rank, 3, timeout=60)


@pytest.mark.usefixtures("patient")
def test_what_takes_too_long_to_prove_runs_only_where_all_ranks_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))  # where nothing is kept yet

    def rank(mine: str) -> tuple[str, int]:
        from pycoll import verify

        honest = verify.gate
        verify.gate = lambda *a, **k: honest(*a, **k, limit=1)
        with pycoll.init(unproved=mine == "all" or None) as comm:
            said = str(comm.explain("allreduce", 8)).count("runs unproved")
            try:
                comm.allreduce(np.ones(9 + comm.rank), algorithm=exchange)
            except pycoll.PycollError as error:
                return str(error), said
        raise AssertionError

    for text, said in pycoll.spawn(rank, 2, "none", timeout=60):
        assert "pycoll.init(unproved=True), or PYCOLL_UNPROVED=yes, runs it as it is" in text
        assert said == 0
    for text, said in pycoll.spawn(rank, 2, "all", timeout=60):
        assert text.startswith("ranks called different things")
        assert text.count("(unproved)") == 2
        assert said == 1


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_plans_its_call_after_others_have_done_their_part_and_left(late: int) -> None:
    def rank() -> object:
        with pycoll.init() as comm:
            if comm.rank == late:
                time.sleep(1)  # all others have left by then
            return comm.gather(np.full(3, comm.rank + 1.0), root=late)

    found = pycoll.spawn(rank, 3, timeout=60)[late]
    assert found is not None
    assert np.array_equal(found, np.repeat([1.0, 2.0, 3.0], 3))


def anonymous_kib() -> int:
    """Return what this process holds of its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pycoll.algorithm("allreduce")
def in_many_chunks(b: ScheduleBuilder) -> None:
    b.chunks(4096)
    b.send(b.input[:], to=1 - b.rank)
    b.recv_reduce(b.output[:], frm=range(2))


def test_plans_of_the_same_blocks_share_what_says_where_they_lie() -> None:
    """A plan among a thousand ranks has 24 KB of it; these have 64 KiB each, 36 of them."""

    def job() -> int:
        with pycoll.init(timeout=60) as comm:
            x = np.ones(1 << 18, np.uint8)

            def call(kind: str, op: Any) -> None:
                comm.allreduce(x.view(kind), op=op, algorithm=in_many_chunks)

            call("u1", "sum")
            before = anonymous_kib()
            for kind in ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
                for op in ("sum", "prod", "min", "max"):
                    call(kind, op)
            return anonymous_kib() - before

    assert max(pycoll.spawn(job, 2)) < 1 << 10


def test_plans_share_their_scratch() -> None:
    """One call runs at a time; each plan had its own, of a thousand ranks a gigabyte a plan."""
    many, block = 24, 16384

    def job() -> int:
        with pycoll.init(timeout=60) as comm:
            x = np.arange(comm.size * (block + 16 * many), dtype=np.float32)
            out = np.zeros_like(x)
            comm.alltoall(x, out, algorithm="bruck")
            before = anonymous_kib()
            for k in range(many):
                n = comm.size * (block + 16 * k)
                comm.alltoall(x[:n], out[:n], algorithm="bruck")
                each = x[:n].reshape(comm.size, -1)[comm.rank]
                assert (out[:n].reshape(comm.size, -1) == each).all()
            return anonymous_kib() - before

    assert max(pycoll.spawn(job, 8)) < 12 << 10  # KiB


def test_what_was_chosen_and_takes_too_long_to_prove_gives_way_to_another() -> None:
    def rank() -> tuple[str, list[str]]:
        from pycoll import verify
        from pycoll.runtime.plan.proof import Proofs
        from pycoll.verify.gate import TooLargeError

        honest, too_large = verify.gate, list[str]()

        def strict(algorithm: Any, *arguments: Any, **options: Any) -> object:
            if algorithm.name in too_large:
                raise TooLargeError(f"{algorithm.name} takes too long")
            return honest(algorithm, *arguments, **options)

        with pycoll.init() as comm:
            comm.barrier()
            too_large += [comm.explain("allgather", 144).choice.algorithm]
            verify.gate = strict
            Proofs._certified = lambda *_: None  # type: ignore[method-assign]
            x = np.full(9, comm.rank + 1.0)
            both = np.repeat([1.0, 2.0], 9)
            assert (comm.allgather(x) == both).all()
            for _ in range(2):  # who asks for it is told
                with pytest.raises(TooLargeError, match=f"^{too_large[0]} takes too long$"):
                    comm.allgather(x, algorithm=too_large[0])
            assert (comm.allgather(x) == both).all()
            runs = comm.plan("allgather", x, out=np.empty(18)).algorithm
            return runs, too_large

    for runs, too_large in pycoll.spawn(rank, 2, timeout=60):
        assert runs not in too_large


def test_where_all_that_could_be_chosen_take_too_long_to_prove_the_call_says_so() -> None:
    def rank() -> None:
        from pycoll import verify
        from pycoll.runtime.plan.proof import Proofs
        from pycoll.verify.gate import TooLargeError

        def strict(algorithm: Any, *_: Any, **__: Any) -> object:
            raise TooLargeError(f"{algorithm.name} takes too long")

        with pycoll.init() as comm:
            comm.barrier()
            verify.gate = strict
            Proofs._certified = lambda *_: None  # type: ignore[method-assign]
            with pytest.raises(pycoll.PycollError, match="no algorithm serves 2 ranks"):
                comm.allgather(np.ones(9))
            comm.barrier()

    pycoll.spawn(rank, 2, timeout=60)


def test_a_rank_that_is_not_like_its_representative_does_not_choose_anew() -> None:
    """The others run what was proved for them: it would wait for ever."""

    def rank() -> None:
        from pycoll import verify
        from pycoll.runtime.plan.proof import Proofs
        from pycoll.verify.gate import TooLargeError
        from pycoll.verify.symmetry.group import Rotation

        honest = verify.gate

        def other(*arguments: Any, whole: bool = False, **options: Any) -> object:
            if whole:
                raise TooLargeError("one by one they take too long to prove")
            known = honest(*arguments, **options)
            return replace(known, digests=bytes(16), group=Rotation(2, 1, 1))

        with pycoll.init() as comm:
            comm.barrier()
            verify.gate = other
            Proofs._certified = lambda *_: None  # type: ignore[method-assign]
            with pytest.raises(pycoll.ScheduleError) as caught:
                comm.allgather(np.ones(9))
            assert type(caught.value) is pycoll.ScheduleError
            text = (
                f"rank {comm.rank} does not do what the rank that was proved for it does, and one"
            )
            assert str(caught.value).startswith(text)

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize(
    ("how", "size", "times"),
    [("two to a core", 2, 2), ("three to a core", 3, 1), ("a selector", 2, 1)],
)
def test_who_chooses(how: str, size: int, times: int) -> None:
    def rank() -> tuple[int, str]:
        from pycoll.cost import Choice
        from pycoll.runtime.plan import selection

        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        honest, made = selection.choose, list[Choice]()

        def counted(*asked: Any, **more: Any) -> Choice:
            made.append(honest(*asked, **more))
            return made[-1]

        selection.choose = counted
        with pycoll.init(selector=(lambda q: None) if how == "a selector" else None) as comm:
            comm.allgather(np.ones(9))
            out = np.empty(9 * comm.size)
            return len(made), comm.plan("allgather", np.ones(9), out=out).algorithm

    made, ran = zip(*pycoll.spawn(rank, size, timeout=60), strict=True)
    assert len(set(ran)) == 1
    assert sum(made) == times


@pytest.mark.parametrize(("size", "asked"), [(64, 0), (65, 1)])
def test_beyond_64_ranks_one_chooses_for_all_also_where_all_memory_is_mapped(
    size: int, asked: int
) -> None:
    """As the ranks of GPUs have it, or of hosts where each rank maps all others as it joins."""
    from pycoll.runtime.plan.agreement import Agreement
    from pycoll.runtime.plan.call import BARRIER
    from pycoll.runtime.plan.selection import Selection
    from pycoll.schedule import FLAT

    keys = []

    def once(key: str, make: Callable[[], bytes], timeout: float | None = None) -> bytes:
        keys.append(key)
        return make()

    world = SimpleNamespace(
        rank=1,
        size=size,
        cores=size,
        hosts=(0,) * size,
        placement=FLAT,
        lazy=False,
        remote=False,
        direct=True,
        algorithm=None,
        transport="shm",
        wire=0.0,
        rdma=False,
        software=False,
        slots=4,
        slot_bytes=1 << 18,
        budget=32 << 20,
        small_bytes=0,
    )
    selection = Selection(world, Agreement(), once)  # type: ignore[arg-type]
    choice, algorithm, final = selection.choose(BARRIER, None)
    assert final
    assert choice.algorithm == algorithm.name
    assert len(keys) == asked
