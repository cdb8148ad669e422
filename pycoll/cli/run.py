"""``pycoll run``: a program as the ranks of a job on this host."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pycoll.bootstrap import supervisor
from pycoll.bootstrap.ranks import Ranks
from pycoll.cli.types import positive
from pycoll.errors import UsageError

GRACE = 5.0  #: seconds


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "run",
        help="run a program as ranks on this host",
        usage="pycoll run -n N [--grace S] [-m] PROGRAM [ARGUMENTS ...]",
        description="Start N processes of a Python program with the environment that torchrun "
        "gives, so that pycoll.init() and torch.distributed find their rank. Each line of output "
        "begins with the rank that wrote it. The first rank that fails ends all, is named at the "
        "end and gives the exit code: its own, or 128 and the signal's number. Ctrl-C ends all. "
        "No process is left, however the job ends. The ranks' standard input is empty. In a "
        "notebook: !pycoll run ..., or pycoll.spawn(function, N).",
    )
    option = parser.add_argument
    option("-n", type=positive, required=True, metavar="N", dest="ranks", help="ranks")
    option(
        "--grace",
        type=float,
        default=GRACE,
        metavar="S",
        help=f"seconds from SIGTERM to SIGKILL (default {GRACE:g})",
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
    if not 0 <= options.grace <= 86400:
        raise UsageError(f"--grace is {options.grace:g}, want seconds, 0 to 86400")
    if not options.module and not Path(options.program).exists():
        raise UsageError(f"{options.program} is not there, want a Python file (-m for a module)")
    command = [sys.executable, *(["-m"] if options.module else []), options.program]
    for fd in (0, 1, 2):  # one that is closed would be the first of the ranks' pipes
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ranks = Ranks([*command, *options.arguments], options.ranks, options.grace)
    return supervisor.supervise(ranks.run)
