"""``pycoll verify``: prove an algorithm, or draw the counterexample."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pycoll.cli.algorithm import equal_hosts, load_algorithm
from pycoll.cli.progress import working
from pycoll.cli.types import positive
from pycoll.errors import ScheduleError, UsageError
from pycoll.order import FIXED, FREE, ORDERS
from pycoll.program.slots import SLOTS


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "verify",
        help="prove an algorithm for a number of ranks, or draw a counterexample",
        description="Lower an algorithm and prove the programs of all ranks: right result, every "
        "contribution once, no race, no deadlock. From 33 ranks on a few are proved for all where "
        "all do the same up to their numbers. Exit code 1 if it is wrong, 2 if "
        "that takes too long to tell.",
    )
    parser.add_argument("algorithm", help="a built-in's name, or file.py:function")
    parser.add_argument("--size", type=positive, required=True, help="number of ranks")
    parser.add_argument("--nodes", type=positive, metavar="N", help="equal hosts (default 1)")
    parser.add_argument(
        "--slots",
        type=positive,
        default=SLOTS,
        help=f"slots per edge (default {SLOTS}, as the engine has)",
    )
    parser.add_argument(
        "--direct", action="store_true", help="prove the zero-copy form for comm.empty arrays"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="prove all ranks one by one, also from 33 on where a few might stand for all",
    )
    parser.add_argument(
        "--order",
        choices=ORDERS,
        default=FREE,
        help="fixed: prove as well that it folds in the order of the ranks (default free)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prove and print; 0 if the algorithm is right."""
    from pycoll.verify.algorithm import proved
    from pycoll.verify.certificates import Form
    from pycoll.verify.gate import TooLargeError

    algorithm = load_algorithm(options.algorithm)
    fixed = options.order == FIXED
    if fixed and not algorithm.collective.reduces:
        raise UsageError(f"--order is fixed, but {algorithm.collective.name} folds nothing")
    try:
        with working(f"proving {algorithm.name} at {options.size} ranks") as stage:
            verdict = proved(
                algorithm,
                options.size,
                options.slots,
                Form(options.direct, average=False),
                equal_hosts(options.size, options.nodes),
                options.whole,
                stage,
                fixed=fixed,
            )
    except TooLargeError as error:
        print(f"pycoll verify: {error}", file=sys.stderr)
        return 2
    except ScheduleError as error:
        print(f"{algorithm.name} at {options.size} ranks: {type(error).__name__}\n{error}")
        return 1
    how = "right, and folds in the fixed order" if fixed else "right"
    form = "direct form" if options.direct else f"{verdict.slots} slots per edge"
    tiles = ", ".join(map(str, verdict.tiles))
    print(
        f"{verdict.name} at {verdict.size} ranks is {how}: proved in {verdict.seconds:.3f} s "
        f"({form}; {tiles} tiles; {verdict.how()}; {verdict.instructions} instructions)"
    )
    return 0
