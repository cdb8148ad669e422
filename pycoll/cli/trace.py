"""``pycoll trace``: what record files of a job say, as a report, as JSON and as a timeline."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from pycoll.cli.types import at_least
from pycoll.errors import UsageError


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "trace",
        help="who was late, which links are slow, where ranks disagree, from their record files",
        description="Read the record files of a job's ranks, which comm.record(path), SIGUSR1 or "
        "an error with PYCOLL_RECORD wrote, bring their clocks together, and say who was late and "
        "what it cost, which links were slow, where ranks disagreed, who stopped, and what the "
        "calls took. Exit code 1 if a file could not be used.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="record files, or folders that hold them"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write a timeline for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument("--json", action="store_true", help="print all of the report as JSON")
    parser.add_argument(
        "--call", type=at_least(0), metavar="N", help="only the call of this number, rank by rank"
    )
    parser.add_argument("--comm", metavar="NAME", help="only the communicator of this name or id")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report, and write the timeline if asked to; 1 if a file was bad."""
    from pycoll.trace.analysis import analyse
    from pycoll.trace.job import UnreadableError, gather
    from pycoll.trace.report import report

    try:
        job = gather(options.files)
    except UnreadableError as error:
        for line in str(error).splitlines():
            print(f"pycoll trace: {line}", file=sys.stderr)
        return 1
    for path, why in job.bad:
        print(f"pycoll trace: {path}: {why}", file=sys.stderr)
    found = analyse(job, options.comm, options.call)
    if options.output is not None:
        _write(options.output, found)
    print(json.dumps(found.encode(), indent=1) if options.json else report(found))
    return int(bool(job.bad))


def _write(path: str, found: Any) -> None:
    from pycoll.trace.timeline import write

    try:
        with open(path, "w", encoding="utf-8") as file:
            write(found, file)
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}; want where a file can be made") from None
