"""What a rank runs is proved once, by what is known of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pycoll import verify
from pycoll.algorithms import get
from pycoll.errors import InternalError
from pycoll.program.lower import compile_program
from pycoll.program.slots import SLOTS
from pycoll.runtime.plan.proof import Form, Proofs
from pycoll.schedule import Level, Placement


def proofs_of(rank: int, size: int) -> Proofs:
    """Return those of a rank that finds out for all what it is asked."""

    def once(key: str, make: Callable[[], bytes], timeout: float | None = None) -> bytes:
        return make()

    world = SimpleNamespace(rank=rank, size=size, slots=SLOTS, lazy=False)
    engine: Any = SimpleNamespace(world=world, once=once, cache=None, unproved=False)
    return Proofs(engine)


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
