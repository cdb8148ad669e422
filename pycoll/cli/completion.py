"""``pycoll completion``: what makes a shell complete pycoll's commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pycoll.errors import UnavailableError

SHELLS = ("bash", "zsh", "fish")


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands and options",
        description="Write it to where the shell looks for it: "
        "~/.local/share/bash-completion/completions/pycoll, _pycoll in a folder of zsh's fpath, "
        "or ~/.config/fish/completions/pycoll.fish. It is made by shtab, which nothing else needs.",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise UnavailableError(
            f"completion is made by shtab, which does not load ({error}); pip install shtab"
        ) from error
    if options.shell not in shtab.SUPPORTED_SHELLS:
        raise UnavailableError(
            f"shtab {shtab.__version__} makes nothing for {options.shell}; "
            "pip install --upgrade shtab"
        )
    top = options.parser
    kinds = {"FILE": shtab.FILE, "PROGRAM": shtab.FILE, "DIRECTORY": shtab.DIRECTORY}
    for action in _actions(top):
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(top, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
