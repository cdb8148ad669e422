"""The ``pycoll`` command and its commands, which parse arguments and print.

Each command is one module with ``add(commands)``, which declares its arguments, and a function
that runs it and returns the exit code: 0 done, 1 a wrong result or a failed run, 2 bad arguments
or something this machine lacks.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import pycoll
from pycoll.errors import PycollError, UnavailableError, UsageError

COMMANDS = (
    "info",
    "doctor",
    "topology",
    "verify",
    "show",
    "explain",
    "plan",
    "bench",
    "tune",
    "run",
    "trace",
    "top",
    "completion",
)


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line, as all of pycoll's are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of these commands; their modules are loaded here, and no others."""
    top = _Parser(
        prog="pycoll",
        description="Write, verify, draw, run and time collective algorithms.",
    )
    top.add_argument("--version", action="version", version=f"pycoll {pycoll.__version__}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    top.set_defaults(parser=top)  # which `completion` reads
    for name in commands:
        importlib.import_module(f"pycoll.cli.{name}").add(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    # Some bring numpy, which takes longer to load than others run.
    alone = given[:1] if given and given[0] in COMMANDS and given[0] != "completion" else COMMANDS
    options = parser(alone).parse_args(given)
    try:
        code: int = options.run(options)
    except (UsageError, UnavailableError) as error:
        print(f"pycoll {options.command}: {error}", file=sys.stderr)
        return 2
    except PycollError as error:
        print(f"pycoll {options.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `pycoll show ... | head`
        sys.stderr.close()  # or Python would complain once more while it flushes at exit
        return 1
    except KeyboardInterrupt:
        print(f"pycoll {options.command}: interrupted", file=sys.stderr)
        return 130
    return code
