"""Runs a command, and ends all that it has started, however that has detached itself.

The process that runs commands becomes the parent of all orphans among their descendants, so that
what it has left afterwards is all theirs, and nobody else's. It runs one command at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

SET_CHILD_SUBREAPER = 36
#: What tests keep between sessions in the folder for temporary files: it takes minutes to make.
KEPT = (f"pycoll-fakecuda-{os.getuid()}",)
SHARED = Path("/dev/shm")


def run(
    command: Sequence[str | Path],
    cwd: Path,
    env: Mapping[str, str],
    output: Path,
    watch: Callable[[], bool],
) -> int | None:
    """Run a command until it ends, or until `watch` says that it has to end.

    Returns:
        Its exit status, negative if a signal ended it; None where `watch` has ended it.
    """
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    before = set(SHARED.iterdir())
    with output.open("w") as said:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not watch():
                _reap_orphans(process)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            code = process.poll()
        finally:
            _end_all(process)
            _unlink(before)
    return code


def _leave(number: int, _: object) -> NoReturn:
    """End this process the way that ends what it has started."""
    raise SystemExit(128 + number)


def _reap_orphans(process: subprocess.Popen[bytes]) -> None:
    """Take leave of orphans that have ended, as init would: tests wait until they are gone."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == process.pid:
                break
            os.waitpid(ended.si_pid, 0)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill every descendant of this process, until there is none."""
    deadline = time.monotonic() + 30
    while left := list(_descendants(os.getpid())):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end, though they were killed")
        time.sleep(0.01)
    process.poll()


def _descendants(ancestor: int) -> Iterator[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                told = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(told[1])
    for pid in parents:
        above = pid
        while above := parents.get(above, 0):
            if above == ancestor:
                yield pid
                break


def _unlink(before: set[Path]) -> None:
    """Remove shared memory that is new and that no process has mapped."""
    new = set(SHARED.iterdir()) - before
    if not new:
        return
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text()
    for path in new:
        if str(path) not in mapped and path.is_file():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def surroundings(state: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a run a folder for all that it leaves, and the environment that makes it use that.

    No run finds what pycoll has cached in another: a mutant may have made it.
    """
    folder = Path(tempfile.mkdtemp(prefix="m"))  # short: sockets have their paths in it
    try:
        for name in KEPT:
            (state / "kept" / name).mkdir(mode=0o700, exist_ok=True)
            (folder / name).symlink_to(state / "kept" / name)
        cache = folder / "cache"
        cache.mkdir()
        users = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        for path in users.iterdir() if users.exists() else ():
            if path.name != "pycoll":
                (cache / path.name).symlink_to(path)
        if (guest := users / "pycoll/guest").exists():  # 100 MB of Debian
            (cache / "pycoll").mkdir()
            (cache / "pycoll/guest").symlink_to(guest)
        env = {name: value for name, value in os.environ.items() if name[:6] != "PYCOLL"}
        for name in ("MUTANT", "REACH", "OBSERVE"):
            env.pop(name, None)
        env |= {
            "PATH": f"{state / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(folder),
            "XDG_CACHE_HOME": str(cache),
        }
        yield folder, env
    finally:
        shutil.rmtree(folder, ignore_errors=True)
