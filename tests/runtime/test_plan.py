"""Plans on the slow path: what they are called, and what keeps one from being made."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll
from pycoll import ScheduleBuilder, ScheduleError
from pycoll.algorithms import get


@pycoll.algorithm("allreduce")
def wide(b: ScheduleBuilder) -> None:
    b.chunks(5000)
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
            with pytest.raises(pycoll.UsageError, match="'wide' sends 5000 chunks at once"):
                comm.allreduce(np.ones(10), algorithm=wide)
            comm.barrier()

    pycoll.spawn(rank, 2, timeout=60)


def test_a_proof_is_made_once_and_only_by_rank_0() -> None:
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

    assert pycoll.spawn(rank, 2, timeout=60) == [1, 0]


def test_a_proof_that_fails_for_rank_0_alone_stops_all_ranks() -> None:
    def rank() -> None:
        from pycoll import verify

        honest = verify.gate

        def strict(algorithm: object, *arguments: object, **options: object) -> object:
            if algorithm is exchange:
                raise ScheduleError("seen by one rank")
            return honest(algorithm, *arguments, **options)

        with pycoll.init() as comm:
            if comm.rank == 0:
                verify.gate = strict
            told = (
                "exchange: rank 0 found it wrong; see its message" if comm.rank else "seen by one"
            )
            for _ in range(2):
                with pytest.raises(ScheduleError, match=told):
                    comm.allreduce(np.ones(9), algorithm=exchange)
            comm.barrier()

    pycoll.spawn(rank, 2, timeout=60)


def test_the_built_ins_source_under_a_users_decorator_runs_like_it() -> None:
    mine = pycoll.algorithm(pycoll.allreduce)(get("ring").function)

    def rank() -> None:
        with pycoll.init() as comm:
            x, y = np.arange(1000.0), np.arange(1000.0)
            comm.allreduce(x, algorithm=mine)
            comm.allreduce(y, algorithm="ring")
            assert np.array_equal(x, y)

    pycoll.spawn(rank, 3, timeout=60)
