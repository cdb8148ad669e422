"""What a rank runs is proved once, by what is known of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pycoll import verify
from pycoll.algorithms import get
from pycoll.errors import InternalError
from pycoll.program.lower import compile_program
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.runtime.host.side import slice_seconds
from pycoll.runtime.plan import proof, turns
from pycoll.runtime.plan.proof import Form, Proofs
from pycoll.schedule import Level, Placement


def proofs_of(rank: int, size: int) -> Proofs:
    """Return those of a rank that finds out for all what it is asked."""

    def once(key: str, make: Callable[[], bytes], timeout: float | None = None) -> bytes:
        return make()

    world = SimpleNamespace(rank=rank, size=size, slots=SLOTS, lazy=False)
    engine: Any = SimpleNamespace(world=world, once=once, cache=None, unproved=False)
    return Proofs(engine)


def test_many_ranks_of_a_host_look_more_rarely() -> None:
    assert slice_seconds(2, 300) == slice_seconds(128, 300) == 0.1
    assert slice_seconds(1024, 300) == pytest.approx(0.8)
    assert slice_seconds(1024, 2) == pytest.approx(0.25)
    assert slice_seconds(1024, 0.1) == 0.1


def test_who_lowers_for_others_takes_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    lowered: list[bool] = []

    @contextlib.contextmanager
    def take(turns: object) -> Iterator[bool]:
        held.append(True)
        yield True
        held.pop()

    def compile_own(*args: Any, **options: Any) -> Program:
        lowered.append(bool(held))
        return real(*args, **options)

    real = proof.compile_own
    monkeypatch.setattr(proof, "compile_own", compile_own)
    monkeypatch.setattr(turns.Turns, "take", take)
    monkeypatch.setattr(turns, "LONG", 1)
    mine: Any = proofs_of(5, 72)
    mine._engine.world.lazy, mine._engine.world.cores = True, 2
    mine._engine.bootstrap = SimpleNamespace(control=SimpleNamespace(secret=b"secret"))
    mine.program(Form(get("ring"), False, False, Placement()), 0, None)
    assert lowered == [True]


@pytest.mark.parametrize("name", ["ring", "binomial"])
def test_a_program_too_long_to_be_handed_out_is_lowered_by_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, size, root = get(name, "broadcast" if name == "binomial" else "allreduce"), 72, 3
    form = Form(made, False, False, Placement())
    handed = [proofs_of(rank, size).program(form, root, None) for rank in (0, 4)]
    monkeypatch.setattr(proof, "MAX_BLOB", 2)
    assert [proofs_of(rank, size).program(form, root, None) for rank in (0, 4)] == handed
    assert handed[0].blob == compile_program(made, size, size - root).to_bytes()


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ring", "allreduce"), ("bruck", "alltoall"), ("double_binary_tree", "allreduce")],
)
def test_certificates_serve_several_hosts(
    name: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank's Program was once none of those that were proved, and all were proved anew."""

    def gate(*args: object, **options: object) -> None:
        raise InternalError("a certificate serves it")

    monkeypatch.setattr(verify, "gate", gate)
    made, size = get(name, collective), 72
    hosts = Placement.of(Level("node", tuple(rank // 36 for rank in range(size))))
    for rank in (0, 1, 37, size - 1):
        own = proofs_of(rank, size).program(Form(made, False, False, hosts), 0, None)
        assert own.record.verdict.origin == "certificate"
        assert own.blob == compile_program(made, size, rank).to_bytes()
