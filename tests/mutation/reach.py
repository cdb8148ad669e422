"""Finds which tests reach which mutant, how long they take and how they end with no mutant on.

Each file of tests is run by itself, and what it told is kept: it can be interrupted and gone on
with. A file whose tests compiled much is run again, to measure what they take from then on.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import supervise
from mutant import STATE

LIMIT = 1800.0  #: seconds for a file of tests
COMPILED = 5.0  #: seconds of compiling, which later runs are spared, that spoil what was measured


@dataclass
class Test:
    """How a test went."""

    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0
    outcome: str = "passed"


@dataclass
class Reached:
    """What is known of all tests."""

    tests: dict[str, Test] = field(default_factory=dict)
    by_mutant: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))


def pytest_command(tree: Path, folder: Path, files: Iterable[str], *more: str) -> list[str | Path]:
    """Return the command that runs tests of a tree, observed, in a folder of their own."""
    options = tree / STATE / "options"
    return [
        *(tree / ".venv/bin/python", "-m", "pytest", "-q", "--tb=short"),
        *("-p", "pc_mutation_observer", "-p", "no:cacheprovider", "--basetemp", folder / "t"),
        *(options.read_text().split() if options.exists() else ()),
        *more,
        *files,
    ]


def events(folder: Path) -> list[dict[str, Any]]:
    """Read what the observer wrote, but for a line that was cut off."""
    path = folder / "events"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def measure(tree: Path, only: Sequence[str], skip: Sequence[str], options: str) -> None:
    """Run all files of tests that have not been run yet, or those that are named.

    Args:
        tree: The planted one; it keeps the results.
        only: Files or folders; empty for all.
        skip: Those that are not run.
        options: For pytest, with blanks between them; `run` has them too.
    """
    (tree / STATE / "options").write_text(options)
    results = tree / STATE / "reach"
    results.mkdir(exist_ok=True)
    paths = sorted((tree / "tests").rglob("test_*.py"))
    files = [path.relative_to(tree).as_posix() for path in paths]
    if only:
        files = [name for name in files if any(name.startswith(start) for start in only)]
    for name in files:
        if name.startswith(tuple(skip)):
            continue
        result = results / (name.replace("/", "--") + ".json")
        if not result.exists():
            before = _compiled(tree)
            told = _file(tree, name)
            if _compiled(tree) - before > COMPILED:
                told = _file(tree, name)
            part = result.with_suffix(".part")
            part.write_text(json.dumps(told) + "\n")
            part.replace(result)
            bad = [test for test, how in told["tests"].items() if how["outcome"] == "failed"]
            print(
                f"{name}: {len(told['tests'])} tests, {told['seconds']:.0f} s, "
                f"{len(told['reached'])} mutants reached{', failed: ' if bad else ''}"
                f"{', '.join(bad)}{'' if told['ended'] else ', was ended'}",
                flush=True,
            )


def _compiled(tree: Path) -> float:
    """Return how many seconds the compiler of a tree has worked; see compiler.py."""
    path = tree / STATE / "compiled"
    return sum(map(float, path.read_text().split())) if path.exists() else 0.0


def _file(tree: Path, name: str) -> dict[str, Any]:
    # A folder of its own: what an interrupted run may have left must not speak for this one.
    shutil.rmtree(tree / STATE / "notes", ignore_errors=True)
    notes = tree / STATE / "notes" / str(os.getpid()) / str(time.monotonic_ns())
    notes.mkdir(parents=True)
    (notes / "epoch").write_bytes((1).to_bytes(4, "little"))  # 1: before the first test
    notes.chmod(0o777)  # some tests give up root
    begun = time.monotonic()
    with supervise.surroundings(tree / STATE) as (folder, env):
        env |= {"OBSERVE": str(notes), "REACH": str(notes)}
        command = pytest_command(tree, folder, [name])
        code = supervise.run(
            command, tree, env, notes / "output", lambda: time.monotonic() - begun > LIMIT
        )
    tests: dict[str, dict[str, Any]] = {}
    over = {event["test"] for event in events(notes) if event.get("phase") == "teardown"}
    names: dict[int, str] = {}
    for event in events(notes):
        if event["event"] == "start":
            names[event["epoch"]] = event["test"]
        elif event["event"] == "phase":
            outcome = "passed" if event["test"] in over else "failed"
            test = tests.setdefault(event["test"], vars(Test(outcome=outcome)))
            test[event["phase"]] = event["seconds"]
            if event["outcome"] != "passed" and test["outcome"] != "failed":
                test["outcome"] = event["outcome"]
    reached: defaultdict[str, set[str]] = defaultdict(set)
    hits = notes / "hits"
    for line in hits.read_text().split("\n")[:-1] if hits.exists() else []:
        epoch, number = line.split()
        reached[number].add(names.get(int(epoch), ""))  # empty: before the first test
    return {
        "file": name,
        "seconds": time.monotonic() - begun,
        "ended": code is not None,
        "tests": tests,
        "reached": {number: sorted(found) for number, found in sorted(reached.items())},
    }


def load(tree: Path) -> Reached:
    """Read what has been found so far.

    What was reached before the first test of a file, all tests of the file reach.
    """
    known = Reached()
    for path in sorted((tree / STATE / "reach").glob("*.json")):
        told = json.loads(path.read_text())
        known.tests |= {name: Test(**how) for name, how in told["tests"].items()}
        for number, names in told["reached"].items():
            known.by_mutant[int(number)] |= set(told["tests"] if "" in names else names)
    return known
