"""``pycoll bench``: time a collective against other libraries, every result checked."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pycoll
from pycoll.benchmark import backends, plot
from pycoll.benchmark.datatypes import itemsize, names
from pycoll.benchmark.problem import OPERATIONS, Operation
from pycoll.bootstrap import launcher, torchrun
from pycoll.cli import target
from pycoll.cli.benchmark import work
from pycoll.config import Config
from pycoll.dtypes import OPS
from pycoll.errors import UsageError

_SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30}
_DAY = 86400.0  #: a benchmark may take long; a rank that waits for another has its own deadline
_WINDOW = 64  #: messages, as in OSU's benchmarks


def nbytes(text: str) -> int:
    """Parse a message size such as 8, 4K or 256M; K, M and G are powers of 1024."""
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, want such as 8, 4K or 256M")
    return int(match[1]) << _SUFFIXES[match[2].upper()]


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}, want an integer of at least {least}")
        return int(text)

    return number


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def _against(text: str) -> tuple[str, ...]:
    for name in _list(text):
        if name not in backends.NAMES:
            want = ", ".join(backends.NAMES)
            raise argparse.ArgumentTypeError(f"{name!r} is not served, want some of {want}")
    return _list(text)


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
    option = parser.add_argument
    option("-b", "--min", type=nbytes, metavar="SIZE", help="smallest message (default 8)")
    option(
        "-e", "--max", type=nbytes, metavar="SIZE", help="largest (default 256M; bw and bibw: 4M)"
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "-f", "--factor", type=_at_least(2), metavar="N", help="between sizes (default 4)"
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
        type=_at_least(0),
        metavar="N",
        help="the rank that has, or gets, what only one does (default 0)",
    )
    option("--against", type=_against, default=(), metavar="NAMES", help="mpi4py,gloo")
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
        type=_at_least(1),
        metavar="N",
        help=f"messages on their way at once (bw, bibw; default {_WINDOW})",
    )
    option(
        "--algorithm",
        type=_list,
        default=(),
        metavar="NAMES",
        help="built-ins, or file.py:function; several take turns (default: pycoll chooses)",
    )
    option(
        "-n",
        "--iters",
        type=_at_least(1),
        metavar="N",
        help="calls of a timed block (default: as many as take 2 ms)",
    )
    option(
        "-w",
        "--warmup",
        type=_at_least(0),
        metavar="N",
        help="calls before each block (default: an eighth of it, 1 to 64)",
    )
    option(
        "-r",
        "--repeats",
        type=_at_least(1),
        default=7,
        metavar="N",
        help="turns of each library, with a block each (default 7)",
    )
    option("--ranks", type=_at_least(1), metavar="N", help="start N ranks here, without a launcher")
    option("--json", type=Path, metavar="FILE", help="write the rows and how they were measured")
    option("--plot", type=Path, metavar="FILE", help="draw time and busbw (needs matplotlib)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check what can be checked before any rank waits for another, then measure."""
    operation = OPERATIONS[options.collective]
    _refuse_the_meaningless(options, operation)
    options = _resolved(options, operation)
    if operation.sized:
        longest = max(options.dtypes, key=itemsize)
        if not itemsize(longest) <= options.min <= options.max:
            raise UsageError(
                f"--min is {options.min} and --max {options.max}, want {itemsize(longest)} (one "
                f"{longest}) <= min <= max"
            )
    if options.plot is not None:
        plot.require_for(options.plot)
    for path in (options.json, options.plot):
        if path is not None:
            _require_writable(path)
    for name in options.algorithm:
        target.load(name, operation.collective)
    if options.ranks is None:
        return work(options)
    started_by = launcher(Config.load())
    if started_by == "torchrun":
        started_by = torchrun.program()
    if started_by != "single":
        raise UsageError(f"--ranks starts ranks, but {started_by} has done so; leave --ranks out")
    codes: list[int] = pycoll.spawn(work, options.ranks, options, timeout=_DAY)
    return max(codes)


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


def _resolved(options: argparse.Namespace, operation: Operation) -> argparse.Namespace:
    """Return the options with every default in its place, and without what cannot be pickled."""
    given = {k: v for k, v in vars(options).items() if k != "run" and v is not None}
    optional = ("step", "iters", "warmup", "ranks", "json", "plot")
    defaults = dict.fromkeys(optional) | {
        "operation": operation,
        "min": 16 if options.dtype == "all" else 8,
        "max": (4 if operation.windowed else 256) << 20,
        "factor": 4,
        "dtype": "float32",
        "op": "sum",
        "root": 0,
        "arrays": "numpy",
        "call": "call",
        "window": _WINDOW if operation.windowed else 1,
    }
    found = argparse.Namespace(**{**defaults, **given})
    found.every_dtype, found.every_op = found.dtype == "all", found.op == "all"
    found.dtypes = names(operation.reduces) if found.every_dtype else (found.dtype,)
    found.ops = tuple(OPS) if found.every_op else (found.op,)
    return found
