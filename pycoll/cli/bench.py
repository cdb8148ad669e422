"""``pycoll bench``: time a collective against other libraries, every result checked."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import pycoll
from pycoll.benchmark import backends, plot, report
from pycoll.benchmark.datatypes import itemsize, names
from pycoll.benchmark.operation import OPERATIONS, Operation
from pycoll.benchmark.session import Session
from pycoll.benchmark.sweep import Sweep
from pycoll.cli import spawn
from pycoll.cli.algorithm import load_algorithm
from pycoll.cli.progress import status
from pycoll.cli.types import at_least, listed, nbytes, positive, some_of
from pycoll.dtypes import OPS
from pycoll.errors import UnavailableError, UsageError

_WINDOW = 64  #: messages, as in OSU's benchmarks


def add(commands: Any) -> None:
    """Declare the command's arguments; those that not every collective has are None by default."""
    parser = commands.add_parser(
        "bench",
        help="time a collective against other libraries",
        description="Start it with `mpirun -n 2 pycoll bench ...`, with "
        "`torchrun --nproc-per-node 2 -m -- pycoll bench ...`, with "
        "`pycoll run -n 2 -m pycoll bench ...` or with --ranks 2. docs/bench.md sets the options "
        "beside those of nccl-tests and OSU's benchmarks.",
        epilog="A size is that of the whole message: for all-gather, reduce-scatter, all-to-all, "
        "gather and scatter all ranks' blocks together. time is the median over the repeats of a "
        "block of calls, p50, p99 and max are over single calls. algbw is size / time; busbw, as "
        "nccl-tests has it, is algbw times 2(n-1)/n for all-reduce, (n-1)/n where a message is "
        "blocks, 1 for broadcast, reduce and sendrecv, 2 for pingpong, whose time is that of both "
        "ways. For bw and bibw the time is that of a window of messages, and busbw is the sum "
        "over all pairs of ranks and both ways.",
    )
    parser.add_argument(
        "collective", choices=list(OPERATIONS), metavar="COLLECTIVE", help=", ".join(OPERATIONS)
    )
    _add_messages(parser)
    _add_forms(parser)
    _add_timing(parser)
    parser.set_defaults(run=run)


def _add_messages(parser: argparse.ArgumentParser) -> None:
    """Declare what is sent."""
    option = parser.add_argument
    option("-b", "--min", type=nbytes, metavar="SIZE", help="smallest message (default 8)")
    option(
        "-e", "--max", type=nbytes, metavar="SIZE", help="largest (default 256M; bw and bibw: 4M)"
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "-f", "--factor", type=at_least(2), metavar="N", help="between sizes (default 4)"
    )
    steps.add_argument("-i", "--step", type=nbytes, metavar="SIZE", help="between sizes, added")
    option(
        "-d",
        "--dtype",
        choices=[*names(reduces=False), "all"],
        metavar="DTYPE",
        help=f"{', '.join(names(reduces=False))} or all (default float32)",
    )
    option("-o", "--op", choices=[*OPS, "all"], help="(default sum)")
    option(
        "--root",
        type=at_least(0),
        metavar="N",
        help="the rank that has, or gets, what only one does (default 0)",
    )


def _add_forms(parser: argparse.ArgumentParser) -> None:
    """Declare whose calls are timed, and in which forms."""
    option, known = parser.add_argument, some_of(backends.NAMES, "not served")
    option("--against", type=known, default=(), metavar="NAMES", help="mpi4py,gloo")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", dest="in_place")
    place.add_argument("--out-of-place", action="store_false", dest="in_place", help="(default)")
    parser.set_defaults(in_place=False)
    option("--arrays", choices=("numpy", "empty", "both"), help="numpy (default), or comm.empty")
    option("--call", choices=("call", "plan", "both"), help="how pycoll is called (default call)")
    option(
        "--overlap",
        action="store_true",
        help="non-blocking calls, alone and with computation beside them",
    )
    option(
        "--window",
        type=positive,
        metavar="N",
        help=f"messages on their way at once (bw, bibw; default {_WINDOW})",
    )
    option(
        "--algorithm",
        type=listed,
        default=(),
        metavar="NAMES",
        help="built-ins, or file.py:function; several take turns (default: pycoll chooses)",
    )


def _add_timing(parser: argparse.ArgumentParser) -> None:
    """Declare how often calls are timed, by how many ranks, and where the results go."""
    option = parser.add_argument
    option(
        "-n",
        "--iters",
        type=positive,
        metavar="N",
        help="calls of a timed block (default: as many as take 2 ms)",
    )
    option(
        "-w",
        "--warmup",
        type=at_least(0),
        metavar="N",
        help="calls before each block (default: an eighth of it, 1 to 64)",
    )
    option(
        "-r",
        "--repeats",
        type=positive,
        default=7,
        metavar="N",
        help="turns of each library, with a block each (default 7)",
    )
    option("--ranks", type=positive, metavar="N", help="start N ranks here, without a launcher")
    option("--json", type=Path, metavar="FILE", help="write the rows and how they were measured")
    option("--plot", type=Path, metavar="FILE", help="draw time and busbw (needs matplotlib)")


def run(options: argparse.Namespace) -> int:
    """Check what can be checked before any rank waits for another, then measure."""
    operation = OPERATIONS[options.collective]
    _refuse_the_meaningless(options, operation)
    sweep = _sweep(options, operation)
    if operation.sized:
        longest = max(sweep.dtypes, key=itemsize)
        if not itemsize(longest) <= sweep.min <= sweep.max:
            raise UsageError(
                f"--min is {sweep.min} and --max {sweep.max}, want {itemsize(longest)} (one "
                f"{longest}) <= min <= max"
            )
    if options.plot is not None:
        plot.require_for(options.plot)
    for path in (options.json, options.plot):
        if path is not None:
            _require_writable(path)
    return spawn.run(options.ranks, work, sweep, options)


def work(sweep: Sweep, options: argparse.Namespace) -> int:
    """Be one rank of the benchmark; returns 1 if any element was wrong."""
    try:
        with contextlib.ExitStack() as stack:
            comm = stack.enter_context(pycoll.init())
            others = backends.open_all(options.against, comm, stack)
            shown = status if comm.rank == 0 else lambda text: None  # one rank speaks for all
            session = Session(comm, sweep, others, {"pycoll": pycoll.__version__}, shown)
            rows = _measured(session, sweep, comm.rank == 0)
            if comm.rank == 0:
                _finish(session, rows, options)
    except MemoryError as error:
        raise UnavailableError(
            f"{report.nbytes(sweep.max)} is more than this machine gives memory for "
            f"({error}); lower --max, or --min"
        ) from error
    return int(any(row["wrong"] for row in rows))


def _measured(session: Session, sweep: Sweep, shown: bool) -> list[report.Row]:
    """Return all rows; print each as soon as it is known."""
    if shown:
        extra = "rate" if sweep.operation.windowed else "overlap" * sweep.overlap
        head = report.head(session.meta, sweep.operation.name, sweep.in_place, extra)
        print(head, flush=True)
    rows = []
    for row in session.rows():
        rows.append(row)
        if shown:
            print(report.line(row), flush=True)
    return rows


def _finish(session: Session, rows: list[report.Row], options: argparse.Namespace) -> None:
    """Say below the table what it leaves out, and write the files that were asked for."""
    for why in session.left_out:
        print(f"# left out: {why}")
    if wrong := sum(row["wrong"] for row in rows):
        print(f"# {wrong} wrong elements", flush=True)
    if session.meta["ranks"] == 1:
        print("# one rank: nothing was sent; start with mpirun -n 2, or add --ranks 2")
    if options.json is not None:
        options.json.write_text(json.dumps({"meta": session.meta, "rows": rows}, indent=1) + "\n")
    if options.plot is not None:
        plot.plot(rows, options.plot, session.meta)


def _require_writable(path: Path) -> None:
    """Refuse a file that could not be written once all is measured.

    Raises:
        UsageError: Its folder is not there, or the system does not let us write it.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: {path.parent} is not a directory")
    new = not path.exists()
    try:
        path.open("ab").close()
        if new:
            path.unlink(missing_ok=True)  # every rank tries
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _refuse_the_meaningless(options: argparse.Namespace, operation: Operation) -> None:
    """Refuse what would change nothing: who asks for it expects something else.

    Raises:
        UsageError: An option that the collective does not have.
    """
    # A root of 0 is given, though 0 == False.
    given = {k for k, v in vars(options).items() if v is not None and v is not False and v != ()}
    sized = "min", "max", "factor", "step", "dtype", "arrays", "plot"
    no_plan = given & {"call"} and options.call != "call" and not operation.collective
    for meant, because, flags in (
        (operation.reduces, "reduces nothing", ("op",)),
        (operation.rooted, "has no root", ("root",)),
        (operation.sized, "moves no data", sized),
        (operation.in_place, "has no form in place", ("in_place",)),
        (operation.collective, "is not run by an algorithm that can be chosen", ("algorithm",)),
        (not no_plan, "has no plan()", ("call",)),
        (operation.windowed, "has no window of messages", ("window",)),
        (not operation.between_two, "is timed by calls that block", ("overlap",)),
    ):
        for flag in flags:
            if not meant and flag in given:
                name = flag.replace("_", "-")
                raise UsageError(f"{operation.name} {because}; leave --{name} out")
    if options.overlap and "call" in given:
        raise UsageError("--overlap times non-blocking calls; leave --call out")
    if operation.reduces and options.dtype not in (None, "all", *names(reduces=True)):
        want = ", ".join(names(reduces=True))
        raise UsageError(f"{operation.name} does not reduce {options.dtype}, want one of {want}")


def _sweep(options: argparse.Namespace, operation: Operation) -> Sweep:
    """Return what the options ask for, with every default in its place."""
    defaults = {
        "min": 16 if options.dtype == "all" else 8,
        "max": (4 if operation.windowed else 256) << 20,
        "window": _WINDOW if operation.windowed else 1,
    }
    given = {
        name: value
        for name, value in vars(options).items()
        if name in Sweep.__dataclass_fields__ and value is not None
    }
    given["operation"] = operation
    if options.dtype is not None:
        every = options.dtype == "all"
        given["dtypes"] = names(operation.reduces) if every else (options.dtype,)
    if options.op is not None:
        given["ops"] = tuple(OPS) if options.op == "all" else (options.op,)
    if options.algorithm:
        found = [load_algorithm(name, operation.collective) for name in options.algorithm]
        # A built-in goes by its name, as users call it.
        given["algorithms"] = tuple(
            one if ":" in name else name for name, one in zip(options.algorithm, found, strict=True)
        )
    return Sweep(**(defaults | given))
