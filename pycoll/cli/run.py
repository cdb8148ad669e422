"""``pycoll run``: a program as the ranks of a job on this host."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycoll.bootstrap import descriptors, forks, supervisor
from pycoll.bootstrap.elastic import ElasticRanks, Replaceable
from pycoll.bootstrap.processes import Interpreters
from pycoll.bootstrap.ranks import Ranks
from pycoll.cli.types import positive
from pycoll.config import hand_on
from pycoll.errors import UsageError
from pycoll.order import ORDERS

GRACE = 5.0  #: seconds
RESTARTS = 3  #: replacements for each rank, unless told otherwise
FORKED = 65  #: ranks from which on they are forks, unless told otherwise


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "run",
        help="run a program as ranks on this host",
        usage="pycoll run (-n N | --elastic MIN:MAX [--max-restarts N]) [--start fork|spawn] "
        "[--grace S] [--order fixed] [-m] PROGRAM [ARGUMENTS ...]",
        description="Start N processes of a Python program with the environment that torchrun "
        "gives, so that pycoll.init() and torch.distributed find their rank. Each line of output "
        "begins with the rank that wrote it. The first rank that fails ends all, is named at the "
        "end and gives the exit code: its own, or 128 and the signal's number. Ctrl-C ends all. "
        "No process is left, however the job ends. The ranks' standard input is empty. In a "
        "notebook: !pycoll run ..., or pycoll.spawn(function, N).",
    )
    option = parser.add_argument
    option("-n", type=positive, metavar="N", dest="ranks", help="ranks")
    option(
        "--elastic",
        metavar="MIN:MAX",
        help="start MAX ranks; one that fails is replaced, and ends the job only if fewer than MIN "
        "are left. The program does the rest: shrink() and grow(); pycoll.init() of a replacement "
        "waits for grow(). The job has succeeded if at least MIN ranks have",
    )
    option(
        "--max-restarts",
        type=int,
        metavar="N",
        dest="restarts",
        help="replacements in all, at most (default: 3 for each rank)",
    )
    option(
        "--grace",
        type=float,
        default=GRACE,
        metavar="S",
        help=f"seconds from SIGTERM to SIGKILL (default {GRACE:g})",
    )
    option(
        "--start",
        choices=("fork", "spawn"),
        help="spawn: each rank is a fresh interpreter, as by torchrun. fork: one interpreter "
        "imports numpy and pycoll, and the ranks are copies of it, which start ten times as fast "
        f"and share its memory (default: fork from {FORKED} ranks on)",
    )
    option(
        "--order",
        choices=ORDERS,
        help="fixed: reductions fold in the order of the ranks, as PYCOLL_ORDER=fixed says",
    )
    option("-m", action="store_true", dest="module", help="PROGRAM is a module, as python -m")
    option("program", metavar="PROGRAM", help="a Python file")
    # Not required, but argparse would name it among what is missing.
    option(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENTS",
        default=[],
        help="given to PROGRAM",
    ).required = False
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start the ranks, and return the exit code of the first that failed."""
    least = _elastic(options)
    if not 0 <= options.grace <= 86400:
        raise UsageError(f"--grace is {options.grace:g}, want seconds, 0 to 86400")
    if not options.module and not Path(options.program).exists():
        raise UsageError(f"{options.program} is not there, want a Python file (-m for a module)")
    if options.order is not None:
        hand_on(order=options.order)
    for fd in (0, 1, 2):  # one that is closed would be the first of the ranks' pipes
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    program = [*(["-m"] if options.module else []), options.program, *options.arguments]
    start = options.start or ("fork" if options.ranks >= FORKED else "spawn")
    pipes = 2 * options.ranks
    with descriptors.room(pipes) as soft, descriptors.enough("run", options.ranks):
        descriptors.require(pipes)
        return supervisor.supervise(_work(start, program, options, soft, least))


def _elastic(options: argparse.Namespace) -> int:
    """Read --elastic; return how many ranks there must be at the least, or 0."""
    if options.elastic is None:
        if options.ranks is None:
            raise UsageError("run: no number of ranks, want -n N or --elastic MIN:MAX")
        if options.restarts is not None:
            raise UsageError("--max-restarts is given without --elastic MIN:MAX")
        return 0
    found = re.fullmatch("([1-9][0-9]{0,6}):([1-9][0-9]{0,6})", options.elastic)
    least, most = map(int, found.groups()) if found else (1, 0)
    if least > most:
        raise UsageError(
            f"--elastic is {options.elastic!r}, want MIN:MAX, ranks, 1 <= MIN <= MAX, such as 2:4"
        )
    if options.ranks is not None:
        raise UsageError("-n is given besides --elastic MIN:MAX, which says how many ranks")
    if options.start == "fork":
        raise UsageError("--start fork is given besides --elastic, which starts interpreters")
    options.ranks, options.start = most, "spawn"
    if options.restarts is None:
        options.restarts = RESTARTS * most
    if options.restarts < 0:
        raise UsageError(f"--max-restarts is {options.restarts}, want at least 0")
    return least


def _work(
    start: str, program: list[str], options: argparse.Namespace, soft: int, least: int
) -> Callable[[], int]:
    """Return what the worker does."""
    if start == "fork":
        return functools.partial(forks.work, program, options.ranks, options.grace, soft)

    def elastic() -> int:
        made = Replaceable([sys.executable, *program], options.ranks, soft)
        return ElasticRanks(made, options.grace, least, options.restarts).run(
            supervisor.signal_pipe()
        )

    def work() -> int:
        starter = Interpreters([sys.executable, *program], options.ranks, soft)
        return Ranks(starter, options.grace).run(supervisor.signal_pipe())

    return elastic if least else work
