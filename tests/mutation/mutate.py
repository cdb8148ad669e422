"""Plants faults into a copy of the tree and finds which of them the tests find; see README.md."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import choose
import compare
import mutant
import plant
import reach
import run

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run one step, as the command line says."""
    parser = argparse.ArgumentParser(prog="mutate.py", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("choose", help="choose mutants of this tree")
    step.add_argument("mutants", type=Path, help="the file to write")
    step.add_argument("--c", type=int, default=80, help="how many in C (80)")
    step.add_argument("--python", type=int, default=80, help="how many in Python (80)")
    step.add_argument("--seed", type=int, default=1)
    step = steps.add_parser("plant", help="copy this tree with the mutants in it, and build it")
    step.add_argument("mutants", type=Path)
    step.add_argument("target", type=Path, help="a folder that does not exist")
    step.add_argument("--map", type=Path, help="what files and names are called now (JSON)")
    step.add_argument("--no-build", action="store_true", help="only write the sources")
    step = steps.add_parser("equip", help="give a planted tree that was built its switch again")
    step.add_argument("target", type=Path)
    step = steps.add_parser("reach", help="find which tests reach which mutant; goes on")
    step.add_argument("target", type=Path, help="the planted tree")
    step.add_argument("tests", nargs="*", help="files or folders of tests: all")
    step.add_argument("--skip", nargs="*", default=[], help="files or folders that are not run")
    step.add_argument("--pytest", default="", help="options for pytest, here and in run")
    step = steps.add_parser("run", help="run each mutant's tests; goes on")
    step.add_argument("target", type=Path)
    step.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="mutants at a time")
    step.add_argument("--only", type=int, nargs="*", default=[], help="numbers of mutants")
    step.add_argument("--seconds", type=float, default=run.SECONDS, help="for each mutant (60)")
    step.add_argument("--again", action="store_true", help="also those that were not found")
    step = steps.add_parser("show", help="print what a run found")
    step.add_argument("results", type=Path)
    step = steps.add_parser("compare", help="print what a run found and another did not")
    step.add_argument("before", type=Path)
    step.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.step == "choose":
        chosen = choose.choose(ROOT, given.c, given.python, given.seed)
        mutant.save(given.mutants, chosen)
        for area, count in sorted(Counter(each.area for each in chosen).items()):
            print(f"{area:28}{count:4}")
    elif given.step == "plant":
        lost = plant.plant(ROOT, given.target, mutant.load(given.mutants), given.map)
        for each in lost:
            print(f"lost: {each.number} {each.file} {each.function}: {each.original}")
        if not given.no_build:
            plant.set_up(given.target.resolve())
    elif given.step == "equip":
        plant.equip(given.target.resolve())
    elif given.step == "reach":
        reach.measure(given.target.resolve(), given.tests, given.skip, given.pytest)
    elif given.step == "run":
        only = set(given.only)
        results = run.run(given.target.resolve(), given.jobs, only, given.seconds, given.again)
        print(f"results: {results}")
    elif given.step == "show":
        compare.show(given.results)
    elif given.step == "compare":
        return 0 if compare.compare(given.before, given.after) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
