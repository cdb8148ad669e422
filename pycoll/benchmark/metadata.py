"""Who measured what, where and how: what a result is worth nothing without."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycoll.benchmark.timing import METHOD
from pycoll.sysfs import cpu_model


def collect(
    launcher: str,
    ranks: int,
    versions: dict[str, str],
    transport: str = "shm",
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return who measured what, where and how.

    Args:
        launcher: What started the ranks.
        ranks: How many.
        versions: Of the libraries.
        transport: A Communicator's.
        warnings: Why the figures may be worth less, a sentence each.
    """
    own = {"python": platform.python_version(), "numpy": importlib.metadata.version("numpy")}
    return {
        "commit": commit(),
        "machine": machine(),
        "versions": own | versions,
        "launcher": launcher,
        "ranks": ranks,
        "transport": transport,
        "warnings": list(warnings),
        "method": METHOD,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Return the commit of the source that runs, with ``+`` when it was changed; None outside."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git: then no commit either
        return None
    return done.stdout.strip() or None


def machine() -> dict[str, Any]:
    """Return the CPU model, the cores this process may use and the kernel."""
    model = cpu_model() or platform.machine()
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}
