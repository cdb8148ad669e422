"""What the benchmark prints and writes: the table, and the rows and meta of the JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from pycoll.cli.data import Problem
from pycoll.cli.measure import METHOD, Case, Timing

Row = dict[str, Any]

_HEAD = (
    f"#{'size':>11} {'count':>10} {'type':>8} {'op':>4}  {'library':<17} {'algorithm':<18} "
    f"{'min':>10} {'median':>10} {'p99':>10} {'algbw':>8} {'busbw':>8} {'wrong':>5}\n"
    f"#{'(B)':>11} {'':>10} {'':>8} {'':>4}  {'':<17} {'':<18} "
    f"{'(us)':>10} {'(us)':>10} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8} {'':>5}"
)


def row(case: Case, timing: Timing, problem: Problem) -> Row:
    """Return one row of the JSON. Bandwidths are of the median, with busbw as nccl-tests has it."""
    algbw = problem.nbytes / timing.median / 1e3
    return {
        "library": case.library,
        "collective": problem.operation.name,
        "ranks": problem.size,
        "dtype": str(case.x.dtype),
        "op": problem.op.name.lower() if problem.operation.reduces else "-",
        "nbytes": problem.nbytes,
        "count": problem.count,
        "algorithm": case.algorithm,
        "transport": case.transport,
        "arrays": case.arrays,
        "call": case.call,
        "in_place": case.in_place,
        "time_us": {
            "min": round(timing.low, 4),
            "median": round(timing.median, 4),
            "p99": round(timing.p99, 4),
        },
        "algbw_GBps": round(algbw, 4),
        "busbw_GBps": round(algbw * problem.operation.crossings(problem.size), 4),
        "wrong": timing.wrong,
    }


def label(row: Row) -> str:
    """Return the library's name with what tells its rows apart: ``pycoll plan empty``."""
    extra = [row["call"]] if row["call"] != "call" else []
    extra += [row["arrays"]] if row["arrays"] != "numpy" else []
    return " ".join([row["library"], *extra])


def head(meta: dict[str, Any], collective: str, in_place: bool) -> str:
    """Return what stands above the table's first row."""
    machine = meta["machine"]
    place = "in place" if in_place else "out of place"
    between = "" if meta["transport"] == "shm" else f", {meta['transport']} between hosts"
    return (
        f"# pycoll bench {collective}: {meta['ranks']} ranks, {place}, launched by "
        f"{meta['launcher']}{between}, {machine['cores']} cores of {machine['cpu']}\n{_HEAD}"
    )


def line(row: Row) -> str:
    """Return one row of the table."""
    t = row["time_us"]
    times = " ".join(f"{t[key]:>10.2f}" for key in ("min", "median", "p99"))
    return (
        f"{row['nbytes']:>12} {row['count']:>10} {row['dtype']:>8} {row['op']:>4}  "
        f"{label(row):<17} {row['algorithm']:<18} {times} "
        f"{row['algbw_GBps']:>8.2f} {row['busbw_GBps']:>8.2f} {row['wrong']:>5}"
    )


def meta(
    launcher: str, ranks: int, versions: dict[str, str], transport: str = "shm"
) -> dict[str, Any]:
    """Return who measured what, where and how; ``transport`` is a Communicator's."""
    own = {"python": platform.python_version(), "numpy": importlib.metadata.version("numpy")}
    return {
        "commit": commit(),
        "machine": machine(),
        "versions": own | versions,
        "launcher": launcher,
        "ranks": ranks,
        "transport": transport,
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
    model = platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    for entry in text.splitlines():
        key, _, value = entry.partition(":")
        if key.strip() == "model name":
            model = value.strip()
            break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def nbytes(number: int) -> str:
    """Return a size as the command line takes it: 8, 4K, 256M."""
    for suffix, shift in (("G", 30), ("M", 20), ("K", 10)):
        if number >= 1 << shift and not number % (1 << shift):
            return f"{number >> shift}{suffix}"
    return str(number)
