"""What the tests of the command line share: a way to run it, and an algorithm that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pycoll.cli import main

FILE = '''
from pycoll.algorithms import algorithm, get
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def star(b: ScheduleBuilder) -> None:
    """Rank 0 folds, then sends to all."""
    b.chunks(1)
    x = b.output[:]
    if b.rank == 0:
        b.recv_reduce(x, frm=range(b.size))
        for peer in range(1, b.size):
            b.send(x, to=peer)
    else:
        b.send(x, to=0)
        b.recv(x, frm=0)


@algorithm(allreduce)
def forgetful(b: ScheduleBuilder) -> None:
    """Rank 0 receives the last rank's input and leaves it out."""
    b.chunks(1)
    x = b.output[:]
    if b.rank == 0:
        b.recv_reduce(x, frm=range(b.size - 1))
        b.recv(b.scratch[0], frm=b.size - 1)
        for peer in range(1, b.size):
            b.send(x, to=peer)
    else:
        b.send(x, to=0)
        b.recv(x, frm=0)


@algorithm(allreduce)
def own_first(b: ScheduleBuilder) -> None:
    """All do the same, and fold their own contribution first: the bits differ."""
    b.chunks(1)
    for k in range(1, b.size):
        b.send(b.input[0], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[0], frm=[(b.rank + k) % b.size for k in range(b.size)])


@algorithm(allreduce)
def spare(b: ScheduleBuilder) -> None:
    """Two ranks tell each other what they have, and keep what they hear in scratch."""
    b.chunks(1)
    b.send(b.input[0], to=1 - b.rank)
    b.recv(b.scratch[0], frm=1 - b.rank)
    b.copy(b.input[0], b.output[0])
    b.reduce(b.scratch[0], b.output[0])


@algorithm(allreduce)
def ring_but_one(b: ScheduleBuilder) -> None:
    """A ring, whose rank 30 first does what changes nothing."""
    b.chunks(b.size)
    if b.rank == 30:
        b.copy(b.output[5], b.scratch[0])
        b.copy(b.scratch[0], b.output[5])
    get("ring")(b)


def plain(b: ScheduleBuilder) -> None:
    """Lacks the decorator."""
'''


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run the command line in this process."""

    def run(*arguments: str) -> Done:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file with a right algorithm, a wrong one and a function that is none."""
    path = tmp_path / "own.py"
    path.write_text(FILE)
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records and measurements of the test's own."""
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))
    return tmp_path
