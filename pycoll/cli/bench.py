"""``pycoll bench``: time a collective against other libraries, every result checked."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pycoll
from pycoll.bootstrap import launcher
from pycoll.cli import peers, plot, report, target
from pycoll.cli.data import OPERATIONS, Array, Problem
from pycoll.cli.measure import BLOCK_SECONDS, Case, Gather, measure
from pycoll.cli.own import Own
from pycoll.config import Config
from pycoll.dtypes import BY_NAME, OPS, reduce_op
from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES

_SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30}
_DAY = 86400.0  #: a benchmark may take long; a rank that waits for another has its own deadline
_SHARED_TEXT = 64  #: bytes of the longest text that ranks share (a port)


def nbytes(text: str) -> int:
    """Parse a message size such as 8, 4K or 256M; K, M and G are powers of 1024."""
    match = re.fullmatch(r"([1-9][0-9]*)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, want such as 8, 4K or 256M")
    return int(match[1]) << _SUFFIXES[match[2].upper()]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, want an integer of at least 1")
    return int(text)


def _factor(text: str) -> int:
    if _positive(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}, want an integer of at least 2")
    return int(text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.split(",") if name))


def _names(text: str) -> tuple[str, ...]:
    for name in _list(text):
        if name not in peers.NAMES:
            want = ", ".join(peers.NAMES)
            raise argparse.ArgumentTypeError(f"{name!r} is not served, want some of {want}")
    return _list(text)


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "bench",
        help="time a collective against other libraries",
        description="Start it with `mpirun -n 2 pycoll bench ...`, with "
        "`torchrun --nproc-per-node 2 -m -- pycoll bench ...` or with --ranks 2.",
        epilog="A size is that of the whole message: for all-gather, reduce-scatter, all-to-all, "
        "gather and scatter all ranks' blocks together. algbw is size / time; busbw, as nccl-tests "
        "has it, is algbw times 2(n-1)/n for all-reduce, (n-1)/n where a message is blocks, 1 for "
        "broadcast, reduce and sendrecv, 2 for pingpong, whose time is that of both ways.",
    )
    parser.add_argument(
        "collective", choices=list(OPERATIONS), metavar="COLLECTIVE", help=", ".join(OPERATIONS)
    )
    option = parser.add_argument
    option("--min", type=nbytes, default=8, metavar="SIZE", help="smallest message (default 8)")
    option("--max", type=nbytes, default=256 << 20, metavar="SIZE", help="largest (default 256M)")
    option("--factor", type=_factor, default=4, metavar="N", help="between sizes (default 4)")
    option("--dtype", default="float32", choices=[n for n in BY_NAME if n != "bfloat16"])
    option("--op", default="sum", choices=list(OPS))
    option("--against", type=_names, default=(), metavar="NAMES", help="mpi4py,gloo")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", dest="in_place")
    place.add_argument("--out-of-place", action="store_false", dest="in_place", help="(default)")
    option(
        "--arrays", default="numpy", choices=("numpy", "empty", "both"), help="numpy, or comm.empty"
    )
    option("--call", default="call", choices=("call", "plan", "both"), help="how pycoll is called")
    option(
        "--algorithm",
        type=_list,
        default=(),
        metavar="NAMES",
        help="built-ins, or file.py:function; several take turns (default: pycoll chooses)",
    )
    option("--repeats", type=_positive, default=7, metavar="N", help="turns of each (default 7)")
    option("--ranks", type=_positive, metavar="N", help="start N ranks here, without a launcher")
    option("--json", type=Path, metavar="FILE", help="write the rows and how they were measured")
    option("--plot", type=Path, metavar="FILE", help="draw time against size (needs matplotlib)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check what can be checked before any rank waits for another, then measure."""
    itemsize = BY_NAME[options.dtype].itemsize
    if not itemsize <= options.min <= options.max:
        raise UsageError(
            f"--min is {options.min} and --max {options.max}, want {itemsize} (one "
            f"{options.dtype}) <= min <= max"
        )
    operation = OPERATIONS[options.collective]
    if options.in_place and not operation.in_place:
        raise UsageError(f"{operation.name} has no form in place; leave --in-place out")
    if options.algorithm and operation.name not in COLLECTIVES:
        raise UsageError(f"{operation.name} is not run by an algorithm; leave --algorithm out")
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: {path.parent} is not a directory")
    if options.plot is not None:
        plot.require()
    for name in options.algorithm:
        target.load(name, options.collective)
    options = argparse.Namespace(**{k: v for k, v in vars(options).items() if k != "run"})
    if options.ranks is None:
        return work(options)
    started_by = launcher(Config.load())
    if started_by != "single":
        raise UsageError(f"--ranks starts ranks, but {started_by} has done so; leave --ranks out")
    codes: list[int] = pycoll.spawn(work, options.ranks, options, timeout=_DAY)
    return max(codes)


def sizes(smallest: int, largest: int, factor: int, unit: int) -> Iterator[int]:
    """Yield the message sizes, each a whole number of units and at least one."""
    size, last = smallest, 0
    while size <= largest:
        whole = max(unit, size - size % unit)
        if whole != last:
            yield whole
        size, last = size * factor, whole


def work(options: argparse.Namespace) -> int:
    """Be one rank of the benchmark; returns 1 if any element was wrong."""
    rows: list[report.Row] = []
    operation, op = OPERATIONS[options.collective], reduce_op(options.op)
    itemsize = BY_NAME[options.dtype].itemsize
    with contextlib.ExitStack() as stack:
        comm = stack.enter_context(pycoll.init())
        first = comm.rank == 0
        others = []
        address = comm._engine.bootstrap.address(Config.load().iface)
        for name in options.against:
            others.append(peers.open_peer(name, comm.rank, comm.size, share(comm), address))
            stack.callback(others[-1].close)
        versions = {"pycoll": pycoll.__version__}
        for other in others:
            versions |= other.versions
        meta = report.meta(comm.launcher, comm.size, versions, comm.transport)
        if first:
            print(report.head(meta, operation.name, options.in_place), flush=True)
        unit = itemsize * (comm.size if operation.blocks else 1)
        asked = list(sizes(options.min, options.max, options.factor, unit))
        own = Own(comm, options, asked[-1] // itemsize)
        # Ranks that share a core enter a block one after the other: it must be long against that.
        block = BLOCK_SECONDS * max(1, comm.size // (meta["machine"]["cores"] or 1))
        for size in asked:
            problem = Problem(operation, size // itemsize, options.dtype, op, comm.rank, comm.size)
            cases = [*own.cases(problem), *_others(others, problem, own.memory, options.in_place)]
            progress = _progress(first, report.nbytes(size))
            timings = measure(cases, problem, gather(comm), options.repeats, block, progress)
            progress("")
            for case, timing in zip(cases, timings, strict=True):
                rows.append(report.row(case, timing, problem))
                if first:
                    print(report.line(rows[-1]), flush=True)
    if first:
        _finish(meta, rows, options)
    return int(any(row["wrong"] for row in rows))


def _others(
    others: Sequence[peers.Peer], problem: Problem, pool: tuple[Array, Array], in_place: bool
) -> Iterator[Case]:
    for other in others:
        x, out = problem.arrays(*pool)
        call = other.bind(problem, x, out, in_place)
        name = other.name
        yield Case(name, "default", "default", "numpy", "call", x, out, call, in_place=in_place)


def gather(comm: Any) -> Gather:
    """Return the ranks' way to compare times: an all-reduce of one place per rank."""

    def exchange(value: float) -> list[float]:
        places = np.zeros(comm.size)
        places[comm.rank] = value
        comm.allreduce(places)
        return [float(place) for place in places]

    return exchange


def share(comm: Any) -> peers.Share:
    """Return the ranks' way to pass a short text on from rank 0."""

    def pass_on(text: str) -> str:
        places = np.zeros(_SHARED_TEXT, np.uint8)
        if comm.rank == 0:
            data = text.encode()
            places[: len(data)] = list(data)
        comm.allreduce(places, op="max")
        return bytes(places).rstrip(b"\0").decode()

    return pass_on


def _progress(first: bool, what: str) -> Callable[[str], None]:
    """Return a line on the terminal that rewrites itself; silent in a file or a pipe."""
    if not first or not sys.stderr.isatty():
        return lambda text: None

    def show(text: str) -> None:
        line = f"{what}: {text}" if text else ""
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    return show


def _finish(meta: dict[str, Any], rows: Sequence[report.Row], options: argparse.Namespace) -> None:
    if wrong := sum(row["wrong"] for row in rows):
        print(f"# {wrong} wrong elements", flush=True)
    if meta["ranks"] == 1:
        print("# one rank: nothing was sent; start with mpirun -n 2, or add --ranks 2")
    if options.json is not None:
        options.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    if options.plot is not None:
        plot.plot(rows, options.plot)
