"""Runs, for each mutant, the tests that reach it, until one finds it or the time is over."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mutant
import reach
import supervise
from compare import FOUND
from mutant import STATE, Mutant
from reach import Reached, Test

SECONDS = 60.0  #: for the tests of one mutant
FILLED = 0.7  #: of these, the share that the chosen tests take if all goes as before
START = 3.0  #: seconds until the first test runs
#: A test that takes so much longer than it did without a mutant, hangs: times, and seconds. It may
#: have to compile what an earlier test of its file had compiled then.
FAR, LEAST = 5.0, 30.0


def run(tree: Path, jobs: int, only: set[int], seconds: float, again: bool) -> Path:
    """Run all mutants that have no result yet.

    Args:
        tree: The planted one; it keeps the results.
        jobs: Mutants at a time.
        only: Numbers; empty for all.
        seconds: For the tests of each.
        again: Also those that have one and were not found.

    Returns:
        Where the results are.
    """
    known = reach.load(tree)
    results = tree / STATE / "results"
    results.mkdir(exist_ok=True)
    planted = json.loads((tree / STATE / "planted.json").read_text())
    mutants = mutant.load(tree / STATE / "mutants.json")

    def lacking(each: Mutant) -> bool:
        path = results / f"{each.number}.json"
        if not path.exists():
            return True
        return again and json.loads(path.read_text())["outcome"] not in FOUND

    wanted = [each for each in mutants if (not only or each.number in only) and lacking(each)]
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        running = []
        for each in wanted:
            if each.number in planted["lost"]:
                _keep(results, each, {"outcome": "lost"})
            else:
                tests = order(known, each.number, seconds)
                every = len(_useful(known, each.number))
                running.append(pool.submit(_mutant, tree, each, tests, every, seconds))
        for done in as_completed(running):
            each, told = done.result()
            _keep(results, each, told)
            by = f" by {told['test']}" if told.get("test") else ""
            print(
                f"{each.number:4} {told['outcome']:24} {told['seconds']:5.1f} s  "
                f"{each.file}:{each.line} {each.operator}{by}",
                flush=True,
            )
    return _gather(tree, mutants)


def _useful(known: Reached, number: int) -> list[str]:
    """Return the tests that reach a mutant and pass without it."""
    return [
        name
        for name in sorted(known.by_mutant.get(number, ()))
        if known.tests[name].outcome == "passed"
    ]


def order(known: Reached, number: int, seconds: float) -> list[str]:
    """Return which tests to run, in order: cheap ones first, of each file in turns.

    Tests of one file stay together, for what they share is set up once; it was the first of them
    that was seen to pay for it.
    """
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for name in _useful(known, number):
        by_file[name.split("::")[0]].append(name)

    def own(name: str) -> float:
        return known.tests[name].call + known.tests[name].teardown

    shared = {
        file: max(test.setup for name, test in known.tests.items() if name.split("::")[0] == file)
        for file in by_file
    }
    for names in by_file.values():
        names.sort(key=lambda name: (own(name), name))
    left = FILLED * seconds - START
    chosen: defaultdict[str, list[str]] = defaultdict(list)
    turns = [
        (turn, own(name) + (0 if turn else shared[file]), file, name)
        for file, names in by_file.items()
        for turn, name in enumerate(names)
    ]
    for turn, cost, file, name in sorted(turns):
        # The cheapest of all is run however long it takes.
        if (cost <= left and (turn == 0 or file in chosen)) or not chosen:
            chosen[file].append(name)
            left -= cost
    files = sorted(chosen, key=lambda file: shared[file] + sum(map(own, chosen[file])))
    return [name for file in files for name in chosen[file]]


def _mutant(
    tree: Path, each: Mutant, tests: list[str], every: int, seconds: float
) -> tuple[Mutant, dict[str, Any]]:
    """Run tests with a mutant on; how that ended.

    A test that fails or hangs is run once more, by itself and without the mutant: if it does so
    then too, it says nothing, and the others are run without it.
    """
    told: dict[str, Any] = {"reached_by": every, "chosen": len(tests), "seconds": 0.0}
    known = reach.load(tree).tests
    unsure: list[str] = []
    while tests:
        begun = time.monotonic()
        told |= _tests(tree, str(each.number), tests, known, seconds)
        told["seconds"] = round(time.monotonic() - begun, 1)
        failed = told.get("test", "")
        if told["outcome"] not in FOUND or failed not in known:
            break
        alone = _tests(tree, f"{each.number}-off", [failed], known, seconds)
        if alone["outcome"] == "survived":
            break
        unsure.append(failed)
        tests = [name for name in tests if name != failed]
        told["outcome"], told["test"] = "survived", ""
    if unsure:
        told["unsure"] = unsure
    return each, {"outcome": "not reached", **told}


def _tests(
    tree: Path, name: str, tests: list[str], known: dict[str, Test], seconds: float
) -> dict[str, Any]:
    """Run tests, with the mutant on whose number `name` is; with none if it is no number."""
    notes = tree / STATE / "runs" / name
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir(parents=True)
    (notes / "only").write_text("\n".join(tests) + "\n")
    begun = time.monotonic()
    hung = ""

    def watch() -> bool:
        nonlocal hung
        now = time.monotonic()
        happened = reach.events(notes)
        if happened and (last := happened[-1])["event"] in ("start", "phase"):
            usual = known.get(last["test"], Test())
            whole = usual.setup + usual.call + usual.teardown
            begin = max(event["time"] for event in happened if event["event"] == "start")
            if last.get("phase") != "teardown" and now - begin > LEAST + FAR * whole:
                hung = last["test"]
        return bool(hung) or now - begun > seconds

    with supervise.surroundings(tree / STATE) as (folder, env):
        env |= {"OBSERVE": str(notes), "MUTANT": name if name.isdigit() else "0"}
        files = list(dict.fromkeys(name.split("::")[0] for name in tests))
        command = reach.pytest_command(tree, folder, files, "-x")
        code = supervise.run(command, tree, env, notes / "output", watch)
    return _outcome(reach.events(notes), code, hung)


def _outcome(happened: list[dict[str, Any]], code: int | None, hung: str) -> dict[str, Any]:
    """Say how a mutant's tests ended."""
    started = [event["test"] for event in happened if event["event"] == "start"]
    failed = [event["test"] for event in happened if event.get("outcome") == "failed"]
    ran = {"ran": len(started), "status": code}
    if failed:
        return {**ran, "outcome": "killed", "test": failed[0]}
    if code is None:
        return {**ran, "outcome": "timed out" if hung else "survived at the limit", "test": hung}
    if code == 0:
        return {**ran, "outcome": "survived"}
    if code in (4, 5):  # pytest: wrong words, no tests
        return {**ran, "outcome": "error"}
    # Its process died, or it could not even collect the tests.
    return {**ran, "outcome": "killed", "test": started[-1] if started else "(collection)"}


def _keep(results: Path, each: Mutant, told: dict[str, Any]) -> None:
    entry = {**asdict(each), "seconds": 0.0, **told}
    (results / f"{each.number}.json").write_text(json.dumps(entry, indent=1) + "\n")


def _gather(tree: Path, mutants: list[Mutant]) -> Path:
    """Write all results into one file, with what they come to in each area."""
    results = tree / STATE / "results"
    found = []
    totals: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in mutants:
        path = results / f"{each.number}.json"
        if path.exists():
            found.append(json.loads(path.read_text()))
            totals[each.area]["mutants"] += 1
            totals[each.area][found[-1]["outcome"]] += 1
    path = tree / STATE / "results.json"
    path.write_text(json.dumps({"totals": totals, "mutants": found}, indent=1) + "\n")
    return path
