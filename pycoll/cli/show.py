"""``pycoll show``: an algorithm's schedule and programs as text."""

from __future__ import annotations

import argparse
from typing import Any

from pycoll.cli.algorithm import equal_hosts, load_algorithm
from pycoll.cli.types import positive
from pycoll.errors import UsageError


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
    parser.add_argument("--rank", type=int, help="only this rank")
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
        from pycoll.program.disassemble import disassemble
        from pycoll.program.lower import compile_program

        ranks = range(size) if rank is None else [rank]
        programs = (
            compile_program(algorithm, size, r, direct=options.direct, placement=placement)
            for r in ranks
        )
        print("\n".join(disassemble(program).rstrip() for program in programs))
        return 0
    from pycoll.schedule import dump, schedule

    print(_only(dump(schedule(algorithm, size, placement)), rank), end="")
    return 0


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
