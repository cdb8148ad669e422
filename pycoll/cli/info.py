"""``pycoll info``: what this build and machine can do, what is missing and why, every setting."""

from __future__ import annotations

import argparse
import platform
from typing import Any, NamedTuple

import pycoll
from pycoll.algorithms import names
from pycoll.cli import report
from pycoll.config import Config
from pycoll.errors import UnavailableError


def add(commands: Any) -> None:
    """Declare the command, which takes no arguments."""
    parser = commands.add_parser(
        "info", help="version, build, CPU features, transports, settings and their origin"
    )
    parser.set_defaults(run=run)


class _Native(NamedTuple):
    """What the engine says about itself, or why it is not there."""

    version: str = ""
    compiler: str = ""
    features: str = ""
    missing: str = ""


def _native() -> _Native:
    try:
        from pycoll.runtime import bindings
    except UnavailableError as error:
        return _Native(missing=str(error))
    return _Native(bindings.version(), bindings.compiler(), bindings.cpu_features())


def run(options: argparse.Namespace) -> int:
    """Print everything; needs neither the engine nor a second rank."""
    native, machine = _native(), report.machine()
    commit = report.commit()
    lines = [
        ("pycoll", pycoll.__version__ + (f" (commit {commit})" if commit else "")),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"),
    ]
    if native.missing:
        lines.append(("engine", f"missing: {native.missing}"))
    else:
        lines += [
            ("engine", f"version {native.version}, built by {native.compiler}"),
            ("CPU features", native.features),
        ]
    lines.append(("algorithms", ", ".join(names("allreduce"))))
    for title, text in lines:
        print(f"{title + ':':<14}{text}")
    print("transports:")
    shm = "missing: it is part of the engine" if native.missing else "ranks of one host, by memfd"
    print(f"  {'shm':<12}{shm}")
    print("settings:")
    rows = Config.load().rows()
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for variable, value, origin, why in rows:
        columns = zip((variable, value, origin), widths, strict=True)
        print(f"  {'  '.join(text.ljust(width) for text, width in columns)}  {why}")
    return 0
