"""How a test starts a job of torch: processes as torchrun would, or the launchers themselves.

The former are forked from one process that has imported torch; the launchers' start cold.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import ports
import pytest
from forked import Forked, ForkServer

ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"
SECONDS = 150


@functools.cache
def lack() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: make torch"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("native")
            if reason := lack():
                item.add_marker(pytest.mark.skip(reason=reason))


class Jobs:
    """Starts ranks that have what an installed pycoll has: the entry points of pyproject.toml."""

    def __init__(self, installed: Path) -> None:
        self._installed = installed
        self._server: ForkServer | None = None
        self._started: list[Forked] = []

    def environment(self, **more: str) -> dict[str, str]:
        paths = [str(ROOT), str(self._installed)]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "PYTHONPATH"))}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **more,
        }

    def start(self, size: int, job: str, *arguments: str, **env: str) -> list[Forked]:
        """Start a job as torchrun starts it; the ranks' processes."""
        port = str(ports.free())
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
        if self._server is None:
            self._server = ForkServer(Path(__file__).with_name("warm.py"), self.environment())
        ranks = [
            self._server.start(
                [str(JOBS / job), *arguments],
                self.environment(**common, RANK=str(rank), LOCAL_RANK=str(rank)),
            )
            for rank in range(size)
        ]
        self._started += ranks
        return ranks

    def run(self, size: int, job: str, *arguments: str, **env: str) -> list[str]:
        """Run a job to its end; what the ranks printed. Fails unless every one ends with 0."""
        ranks = self.start(size, job, *arguments, **env)
        said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
        for rank, (process, text) in enumerate(zip(ranks, said, strict=True)):
            if process.returncode:
                pytest.fail(f"rank {rank} ended with {process.returncode}\n{text}", pytrace=False)
        return said

    def command(self, command: list[str], **env: str) -> str:
        """Run a launcher's command to its end; what it printed."""
        done = subprocess.run(
            command,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def end(self) -> None:
        """End what a test has left."""
        for process in self._started:
            process.kill()
            process.wait()
            process.close()
        self._started.clear()

    def close(self) -> None:
        if self._server:
            self._server.close()


def install(folder: Path, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Make what tells importlib.metadata of the entry points, as pip would."""
    made = folder / "pycoll-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: pycoll\nVersion: 0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def every_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("installed")
    install(folder, project["entry-points"])
    found = Jobs(folder)
    yield found
    found.close()


@pytest.fixture
def jobs(every_job: Jobs) -> Iterator[Jobs]:
    yield every_job
    every_job.end()
