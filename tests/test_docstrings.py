"""The public face: each docstring says all there is to say, and its example runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import algorithms, cost, topology

CLASSES: tuple[type, ...] = (
    *(pycoll.Communicator, pycoll.Work, pycoll.Plan),
    *(pycoll.ScheduleBuilder, pycoll.Algorithm, topology.Topology),
)
FUNCTIONS = (
    *(pycoll.init, pycoll.from_mpi, pycoll.spawn, pycoll.verify.verify, pycoll.algorithm),
    pycoll.register_profiler,
    *(algorithms.get, algorithms.names, algorithms.hierarchical),
    *(topology.cluster, topology.fabric, topology.load, topology.save, topology.tree),
    *(topology.probe, cost.choose, cost.explain, cost.predict, cost.selector),
)


def public() -> Iterator[tuple[str, Any]]:
    """Yield the functions and the methods of the public face, by their names."""
    for function in FUNCTIONS:
        yield function.__qualname__, function
    for kind in CLASSES:
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and (not name.startswith("_") or name == "__call__"):
                yield value.__qualname__, value


PUBLIC = dict(public())
#: Read by the engine and by passes, and called by no user.
INNER = {"Work.start", "Work.begin", "Plan.revoke"}
DOCUMENTED = sorted(PUBLIC.keys() - INNER)


def sections(text: str) -> dict[str, str]:
    """Return the parts of a docstring, by their titles; the first has none."""
    parts = re.split(r"^(Args|Attributes|Returns|Raises|Example):\n", text, flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.pure
@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_says_all_there_is_to_say(name: str) -> None:
    function = PUBLIC[name]
    found = sections(inspect.getdoc(function) or "")
    assert re.match(r"[A-Z].*[.]\n", found[""]), "one sentence first"
    said = re.findall(r"^    [*]*(\w+): ", found.get("Args", ""), flags=re.M)
    wanted = [p for p in inspect.signature(function).parameters if p != "self"]
    assert said == wanted
    returns = function.__annotations__.get("return")
    assert ("Returns" in found) == (returns != "None")
    raised = re.findall(r"^    (\w+): ", found.get("Raises", ""), flags=re.M)
    assert raised or name in {"Algorithm.digest", "Topology.placement"}
    assert set(raised) <= set(pycoll.__all__)
    assert ">>> " in found["Example"]


@pytest.mark.pure
@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_says_what_it_is(kind: type) -> None:
    found = sections(inspect.getdoc(kind) or "")
    assert re.match(r"[A-Z].*[.](\n|\Z)", found[""])
    assert ">>> " in found.get("Example", "") or kind in {pycoll.Communicator, topology.Topology}


class Silent(doctest.OutputChecker):
    """What ranks other than the first show is not in the examples."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return True


@pytest.mark.native
def test_every_example_is_true(tmp_path: Any) -> None:
    subjects = {**{kind.__qualname__: kind for kind in CLASSES}, **PUBLIC}

    def rank() -> str:
        told: list[str] = []
        with pycoll.init(timeout=60) as comm:
            folder = tmp_path / str(comm.rank)  # its own: ranks write files of one name
            folder.mkdir()
            given = {"comm": comm, "np": np, "pycoll": pycoll, "folder": str(folder)}
            given |= {"topology": topology, "cost": cost}
            finder = doctest.DocTestFinder(recurse=False)
            runner = doctest.DocTestRunner(None if comm.rank == 0 else Silent(), verbose=False)
            for name in sorted(subjects):
                if comm.rank == 0 or name not in {"init", "spawn"}:  # of jobs of their own
                    for case in finder.find(subjects[name], name, globs=given):
                        runner.run(case, out=told.append)
                comm.barrier()
            assert runner.tries > 60 or comm.rank
        return "".join(told)

    assert pycoll.spawn(rank, 2, timeout=120) == ["", ""]
