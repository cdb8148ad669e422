from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import signal
import stat
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

import pycoll
from pycoll.bootstrap import detect, job
from pycoll.bootstrap.local_launch import spawn
from pycoll.config import MOST_RANKS
from pycoll.errors import BootstrapError, CollectiveTimeout, PeerLostError, UsageError

SECONDS = 30.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_leak")


def who() -> tuple[str, int, int, int, int]:
    bootstrap = detect()
    bootstrap.barrier()
    bootstrap.close()
    return (
        bootstrap.name,
        bootstrap.rank,
        bootstrap.size,
        bootstrap.local_rank,
        bootstrap.local_size,
    )


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_rank_finds_its_place(size):
    assert pycoll.spawn(who, size) == [("spawn", r, size, r, size) for r in range(size)]


def test_arguments_and_results_of_any_size_keep_their_order():
    def body(data: bytes, factor: int) -> bytes:
        return data * factor + b"%d" % job.current().rank

    data = bytes(3_000_000)
    assert spawn(body, 3, data, 2) == [data * 2 + b"%d" % rank for rank in range(3)]


def test_a_function_defined_anywhere_can_be_forked():
    secret = object()
    assert spawn(lambda: id(secret), 2) == [id(secret)] * 2


@pytest.mark.parametrize("frozen", [False, True])
def test_what_the_caller_has_frozen_stays_so_and_ranks_collect_nothing_of_it(frozen):
    gc.collect()
    kept = [[] for _ in range(1000)]
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    in_ranks = spawn(gc.get_freeze_count, 2)
    assert abs(gc.get_freeze_count() - before) < 100  # what is frozen may still be freed
    assert min(in_ranks) > len(kept)


def test_the_first_failure_is_raised_with_its_traceback_and_ends_the_others():
    def body() -> None:
        if job.current().rank == 2:
            raise KeyError("the cause")
        signal.pause()

    with pytest.raises(KeyError, match="the cause") as caught:
        spawn(body, 4, timeout=SECONDS)
    (note,) = caught.value.__notes__
    assert note.startswith("rank 2: Traceback")
    assert 'raise KeyError("the cause")' in note
    assert children() == set()


def test_the_cause_is_raised_and_not_its_consequence():
    def body() -> None:
        bootstrap = detect()
        if bootstrap.rank == 1:
            raise ValueError("the cause")
        bootstrap.barrier()

    for _ in range(5):
        with pytest.raises(ValueError, match="the cause"):
            spawn(body, 4, timeout=SECONDS)


def test_without_check_failures_stand_among_the_results():
    def body() -> str:
        if job.current().rank == 1:
            raise ValueError("mine")
        if job.current().rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "fine"

    fine, mine, killed, also = spawn(body, 4, timeout=SECONDS, check=False)
    assert (fine, also) == ("fine", "fine")
    assert isinstance(mine, ValueError)
    assert isinstance(killed, PeerLostError)
    assert str(killed) == "spawn: rank 2 was ended by SIGKILL"


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (lambda: os._exit(0), PeerLostError, r"^spawn: rank 0 ended with exit code 0$"),
        (lambda: os._exit(7), PeerLostError, r"^spawn: rank 0 ended with exit code 7$"),
        (lambda: sys.exit(3), BootstrapError, r"^spawn: rank 0 ended with SystemExit\(3\)\s"),
        (
            lambda: signal.raise_signal(signal.SIGINT),
            BootstrapError,
            r"^spawn: rank 0 ended with KeyboardInterrupt\s",
        ),
        (
            lambda: signal.raise_signal(signal.SIGTERM),
            PeerLostError,
            r"^spawn: rank 0 was ended by SIGTERM$",
        ),
    ],
    ids=["exit 0", "exit 7", "sys.exit", "interrupt", "terminate"],
)
def test_an_end_without_a_result(end, kind, message):
    with pytest.raises(kind, match=message):
        spawn(end, 1, timeout=SECONDS)


def test_who_still_runs_at_the_deadline_is_named_and_ended(monkeypatch):
    def body() -> None:
        if job.current().rank % 2:
            signal.pause()

    def now() -> float:  # the deadline passes as soon as ranks 0 and 2 have ended, and no sooner
        return math.inf if len(children()) == 2 else 0.0

    clock = types.SimpleNamespace(monotonic=now)
    monkeypatch.setattr("pycoll.bootstrap.local_launch.time", clock)
    with pytest.raises(CollectiveTimeout, match=r"^spawn: ranks 1, 3 still ran after 3 s$"):
        spawn(body, 4, timeout=3)
    assert children() == set()


def test_a_stopped_child_is_ended_too():
    with pytest.raises(CollectiveTimeout, match=r"^spawn: rank 0 still ran after 0\.3 s$"):
        spawn(lambda: os.kill(os.getpid(), signal.SIGSTOP), 1, timeout=0.3)
    assert children() == set()


class Awkward(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Treacherous:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("unpickled",))


def test_what_cannot_be_pickled():
    def awkward() -> None:
        raise Awkward(1, 2)

    with pytest.raises(RuntimeError, match=r"^Awkward: 1 and 2\s"):
        spawn(awkward, 1, timeout=SECONDS)
    with pytest.raises((AttributeError, TypeError), match=r"pickle"):
        spawn(lambda: lambda: None, 1, timeout=SECONDS)


class Foreign:
    """Can be unpickled only in the process that made it."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["home"] != os.getpid():
            raise ValueError("far from home")


def test_an_exception_that_has_no_text():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")

    def rank():
        raise Mute

    (error,) = spawn(rank, 1, check=False)
    assert str(error) == "Mute: <its str() failed>"


def test_a_result_that_cannot_be_unpickled():
    with pytest.raises(
        BootstrapError, match=r"^spawn: rank 0's result is lost: ValueError: far from home$"
    ):
        spawn(Foreign, 1, timeout=SECONDS)


def test_exit_handlers_of_the_child_run_and_those_of_the_parent_do_not(tmp_path):
    path = tmp_path / "log"
    log = path.open("ab", buffering=0)
    atexit.register(log.write, b"parent's")
    try:

        def body() -> None:
            atexit.register(log.write, b"child's ")

        spawn(body, 2, timeout=SECONDS)
    finally:
        atexit.unregister(log.write)
        log.close()
    assert path.read_bytes() == b"child's child's "


def test_a_child_has_no_input_and_the_default_handlers():
    def body() -> tuple[bytes, object, object]:
        return os.read(0, 1), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        got = spawn(body, 1, timeout=SECONDS)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [(b"", signal.default_int_handler, signal.SIG_DFL)]


def open_fds() -> list[int]:
    held = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own
            os.fstat(fd)
            held.append(fd)
    return held


def test_only_rank_0_holds_the_listening_socket():
    def body() -> int:
        return sum(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in open_fds())

    first, *others = spawn(body, 3, timeout=SECONDS)
    assert others == [first - 1] * 2


def test_a_child_of_a_rank_is_not_that_rank():
    def body() -> bool:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"none" if job.current() is None else b"rank")
            os._exit(0)
        os.waitpid(child, 0)
        return os.read(reader, 4) == b"none" and job.current() is not None

    assert spawn(body, 1, timeout=SECONDS) == [True]


def test_spawn_within_spawn():
    def body() -> list[object]:
        return spawn(who, 2, timeout=SECONDS)

    want = [("spawn", rank, 2, rank, 2) for rank in range(2)]
    assert spawn(body, 2, timeout=SECONDS) == [want, want]


def test_a_fresh_interpreter_per_rank():
    assert spawn(who, 2, timeout=SECONDS, start="spawn") == [
        ("spawn", rank, 2, rank, 2) for rank in range(2)
    ]


def test_bad_arguments():
    with pytest.raises(UsageError, match=r'^spawn: start is \'thread\', want "fork" or "spawn"$'):
        spawn(who, 2, start="thread")  # type: ignore[arg-type]
    for size in (0, -1, 1.5, True, "2", MOST_RANKS + 1):
        with pytest.raises(UsageError, match=r"^spawn: size is .*, want the number of ranks, 1"):
            spawn(who, size)
    with pytest.raises(UsageError, match=r'^spawn: start="spawn" cannot pickle the call: '):
        spawn(lambda: None, 1, start="spawn")
    with pytest.raises(UsageError, match=r"^timeout is 0, want seconds, more than 0"):
        spawn(who, 1, timeout=0)


def test_a_function_of_an_interactive_session_needs_fork(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(who, "__module__", "__main__")
    with pytest.raises(
        UsageError, match=r'^spawn: who is defined in a notebook .*: use start="fork", or put it'
    ):
        spawn(who, 1, start="spawn")


# From a script of its own

SCRIPT = """
import os, signal, sys, time
from pycoll import spawn
from pycoll.bootstrap import detect

class Mine(Exception):
    pass

def body(what):
    bootstrap = detect()
    bootstrap.barrier()
    if what == "fail":
        raise Mine("mine")
    if what == "wait":
        os.write(1, b"%d\\n" % os.getpid())
        signal.pause()
    return bootstrap.rank

if __name__ == "__main__":
    start, what = sys.argv[1:]
    print(spawn(body, 3, what, start=start, timeout=60))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_functions_and_classes_of_a_script(script, start):
    with run(script, start, "work") as process:
        assert process.communicate(timeout=SECONDS) == ("[0, 1, 2]\n", "")
    with run(script, start, "fail") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert (out, process.returncode) == ("", 1)
    assert 'raise Mine("mine")' in err
    assert err.count("Mine: mine") == 2  # the rank's, and the parent's


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_parent(script, start, end):
    with run(script, start, "wait") as process:
        pids = [int(process.stdout.readline()) for _ in range(3)]
        watches = [os.pidfd_open(pid) for pid in pids]
        process.send_signal(end)
        process.communicate(timeout=SECONDS)
    for watch in watches:
        assert gone(watch)
        os.close(watch)


def gone(pidfd: int) -> bool:
    import select

    return bool(select.select([pidfd], [], [], SECONDS)[0])


def test_a_notebook_cell_can_be_spawned():
    code = textwrap.dedent(
        """
        import pycoll
        from pycoll.bootstrap import detect
        def body():
            bootstrap = detect()
            return bootstrap.allgather(b"%d" % bootstrap.rank)
        print(pycoll.spawn(body, 2))
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[[b'0', b'1'], [b'0', b'1']]\n", "")


def test_64_processes_meet():
    assert [rank for _, rank, *_ in spawn(who, 64, timeout=60)] == list(range(64))
