"""What ranks choose algorithms by is agreed when they meet."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.bootstrap import job
from pycoll.cost import Choice, Question, choose
from pycoll.cost.selectors import GROUP
from pycoll.runtime.host.heap import _heaps


def ring_for_all(question: Question) -> Choice | None:
    if question.collective != "allreduce":
        return None
    return choose(question._replace(wanted="ring"))


def test_a_function_given_alike_to_all_ranks_chooses() -> None:
    def rank() -> None:
        with pycoll.init(selector=ring_for_all) as comm:
            x = np.ones(9)
            assert comm.plan("allreduce", x).algorithm == "ring"
            assert comm.plan("allreduce", x, algorithm="one_shot").algorithm == "one_shot"
            assert comm.plan("allgather", x).algorithm != ""
            with comm.dup() as twin:
                assert twin.plan("allreduce", x).algorithm == "ring"
            assert "selector" in str(comm.explain("allreduce", 72))
            assert (comm.allreduce(x) == 2).all()

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((ring_for_all, None), "selector is not given on rank 1 and a function on rank 0; give"),
        ((None, ring_for_all), "selector is a function on rank 1 and not given on rank 0"),
        (("a function",) * 2, "selector is 'a function', want one of"),
        (("", ""), "selector is '', want a function"),
        (("mine", "yours"), "selector is yours on rank 1 and mine on rank 0; give all ranks the s"),
    ],
)
def test_ranks_that_were_given_different_selectors(given: Any, message: str) -> None:
    def rank() -> None:
        current = job.current()
        assert current is not None
        with pytest.raises(pycoll.UsageError, match=message) as caught:
            pycoll.init(selector=given[current.rank])
        assert caught.tb  # whose frames hold what was made
        assert not any(heap._open for heap in _heaps), "who forks now would free it once more"

    pycoll.spawn(rank, 2, timeout=60)


def test_a_name_is_looked_up_on_every_rank() -> None:
    def rank() -> None:
        with pytest.raises(pycoll.UsageError, match='selector is "nobody\'s", want one of'):
            pycoll.init(selector="nobody's")

    pycoll.spawn(rank, 2, timeout=60)


def test_what_rank_0_has_measured_is_known_to_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from pycoll.cost import Tuning, store

    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))

    def measure() -> None:
        """Write down that the ring was fast, under the key of this job's machine."""
        from pycoll.cost.machine import hosts_of
        from pycoll.runtime.native import load
        from pycoll.runtime.plan.selection import question

        with pycoll.init() as comm:
            if comm.rank == 0:
                asked = question(comm._engine.world, "allreduce", 0)
                table = {("allreduce", "ring"): ((8, 1e-9), (1 << 20, 2e-9))}
                tuning = Tuning(2, hosts=hosts_of(asked), rows=table)
                store.store(tmp_path, load.version(), asked, tuning, {})

    def rank() -> str:
        with pycoll.init() as comm:
            return comm.plan("allreduce", np.ones(100)).algorithm

    pycoll.spawn(measure, 2, timeout=60)
    assert pycoll.spawn(rank, 2, timeout=60) == ["ring", "ring"]


def test_a_name_that_only_some_ranks_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that lack it say so, and the others hear that they are gone; nobody waits."""

    def rank() -> str:
        current = job.current()
        assert current is not None
        if current.rank != 1:
            known = EntryPoints([EntryPoint("mine", f"{__name__}:ring_for_all", GROUP)])
            monkeypatch.setattr("importlib.metadata.entry_points", known.select)
            monkeypatch.setattr(EntryPoint, "load", lambda self: ring_for_all)
        try:
            comm = pycoll.init(selector="mine", timeout=60)
            comm.allreduce(np.ones(3))
        except pycoll.PycollError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    said = pycoll.spawn(rank, 3, timeout=120)
    assert said[1].startswith("UsageError: selector is 'mine', want one of none")
    assert all(text.startswith(("PeerLostError: ", "BootstrapError: ")) for text in said[::2]), said
    assert all("rank 1" in text for text in said[::2]), said
