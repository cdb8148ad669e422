"""``pycoll show``: an algorithm's schedule and programs as text."""

from __future__ import annotations

import argparse
from typing import Any

from pycoll.cli.algorithm import equal_hosts, load_algorithm
from pycoll.cli.progress import working
from pycoll.cli.types import positive
from pycoll.errors import UsageError
from pycoll.schedule import Algorithm, Placement

#: Up to so many ranks the schedule of all is made and checked to show one.
TOGETHER = 256


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "show",
        help="print an algorithm's schedule or programs",
        description="Print what every rank does: the steps that the algorithm wrote, or with "
        "--program the instructions that the engine runs.",
    )
    parser.add_argument("algorithm", help="a built-in's name, or file.py:function")
    parser.add_argument("--size", type=positive, required=True, help="number of ranks")
    parser.add_argument("--nodes", type=positive, metavar="N", help="equal hosts (default 1)")
    parser.add_argument(
        "--rank",
        type=int,
        help=f"only this rank; beyond {TOGETHER} ranks its steps are not held against its peers'",
    )
    parser.add_argument("--program", action="store_true", help="the lowered instructions")
    parser.add_argument("--direct", action="store_true", help="of the zero-copy form")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the schedule or the programs."""
    size, rank = options.size, options.rank
    if rank is not None and not 0 <= rank < size:
        raise UsageError(f"--rank is {rank}, want 0 to {size - 1} (--size {size})")
    if options.direct and not options.program:
        raise UsageError("--direct is a form of the programs: add --program")
    algorithm = load_algorithm(options.algorithm)
    placement = equal_hosts(size, options.nodes)
    if options.program:
        _show_programs(algorithm, size, rank, placement, options.direct)
        return 0
    with working(f"tracing {algorithm.name} at {size} ranks"):
        text = _steps(algorithm, size, rank, placement)
    print(text, end="")
    return 0


def _show_programs(
    algorithm: Algorithm, size: int, rank: int | None, placement: Placement, direct: bool
) -> None:
    from pycoll.program.disassemble import disassemble
    from pycoll.program.lower import compile_program

    if rank is not None and size > TOGETHER:
        # Loaded here: it brings the prover.
        from pycoll.cli.own_program import origin, own_program

        with working(f"lowering {algorithm.name} at {size} ranks") as stage:
            program, record = own_program(algorithm, size, rank, placement, stage, direct)
        print(f"proof: {origin(record)}")
        print(disassemble(program).rstrip())
        return
    for r in range(size) if rank is None else [rank]:
        with working(f"lowering rank {r} of {size}"):
            program = compile_program(algorithm, size, r, direct=direct, placement=placement)
        print(disassemble(program).rstrip())


def _steps(algorithm: Algorithm, size: int, rank: int | None, placement: Placement) -> str:
    """Return a schedule's text: of all ranks, or its head and one rank's steps."""
    from pycoll.schedule import Schedule, ScheduleBuilder, dump, schedule

    if rank is None or size <= TOGETHER:
        return _only(dump(schedule(algorithm, size, placement)), rank)
    b = ScheduleBuilder(size, rank, algorithm.collective, placement)
    algorithm(b)
    alone = Schedule(algorithm.name, b.collective, size, b.nchunks, b.nscratch, (tuple(b.steps),))
    return dump(alone).replace("\nrank 0\n", f"\nrank {rank}\n", 1)


def _only(text: str, rank: int | None) -> str:
    """Keep the head of a schedule's text and one rank's steps."""
    if rank is None:
        return text
    head, *lines = text.splitlines(keepends=True)
    start = lines.index(f"rank {rank}\n")
    end = next(
        (i for i, line in enumerate(lines) if i > start and line.startswith("rank ")), len(lines)
    )
    return head + "".join(lines[start:end])
