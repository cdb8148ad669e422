"""The memory of ranks, looked at from outside: found, only read, and never believed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from run_job import Job
from waiting import wait_until

import pycoll
from pycoll.runtime.native.load import ffi
from pycoll.runtime.record import arenas
from pycoll.runtime.record.arenas import About, Arenas, Seen, Sight, process_state
from pycoll.runtime.record.kinds import Kind
from pycoll.top.text import lines
from pycoll.top.view import View

LINK = "/memfd:pycoll (deleted)"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: Where struct pc_arena says which version it is and where the ring lies.
VERSION_AT, TRACE_AT = 4, 64
RING = ffi.sizeof("struct pc_trace")
TEXTS = ["\x1b[2J\x1b]0;owned\x07", "²", "9" * 200, "\t\t\t\t", "‮", "\n\r\0", "🙂" * 40]
WHOLE = [text for text in TEXTS if "\t" not in text and "\0" not in text]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this process is looked into: others test the same meanwhile."""
    monkeypatch.setattr(arenas, "_pids", lambda: iter([os.getpid()]))


@contextlib.contextmanager
def made(content: bytes, seals: int = SEALS, size: int | None = None) -> Iterator[None]:
    """Have this process hold memory with the name of a rank's."""
    fd = os.memfd_create("pycoll", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        os.ftruncate(fd, len(content) if size is None else size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield
    finally:
        os.close(fd)


def ring_of(content: bytes) -> int:
    return int(struct.unpack_from("Q", content, TRACE_AT)[0])


def mine(found: Arenas | None = None) -> list[Seen]:
    return [seen for seen in (found or Arenas()).look().ranks if seen.pid == os.getpid()]


def own_paths() -> list[str]:
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [path for path in paths if os.path.islink(path) and os.readlink(path) == LINK]


@pytest.fixture(scope="module")
def real() -> bytes:
    """The memory of a rank that has made some calls, up to the end of its ring."""
    with pycoll.init() as comm:
        for count in (1, 1, 3000):
            comm.allreduce(np.ones(count))
        [path] = own_paths()
        with open(path, "rb") as file:
            end = ring_of(file.read(4096)) + RING
            file.seek(0)
            return file.read(end)


def mapped() -> list[str]:
    """The permissions of this process's mappings of such memory."""
    rows = Path("/proc/self/maps").read_text().splitlines()
    return [row.split()[1] for row in rows if row.endswith(LINK)]


def shown(found: Arenas) -> None:
    """Show all that there is in every way; nothing of it may reach a terminal as a command."""
    view = View("here")
    for _ in range(2):
        snapshot = view.next(found.look())
        json.dumps(snapshot.told())
        for width in (None, 80, 7):
            for line in lines(snapshot, width):
                assert line.text.isprintable()


def test_a_rank_of_this_process_is_seen_as_it_counts_itself() -> None:
    with pycoll.init() as comm:
        for _ in range(3):
            comm.allreduce(np.ones(5))
        [seen] = mine()
        stats = comm.stats()
        assert (seen.about.rank, seen.about.size, seen.about.name) == (0, 1, "job")
        assert seen.look.calls == stats.calls == 3
        assert seen.look.collectives == stats.collectives
        assert seen.look.state == "idle"
        assert seen.look.kind[::2] == ("allreduce", 40, "sum")
    assert mine() == []


def test_it_is_mapped_for_reading_only_and_given_back(real: bytes) -> None:
    assert mapped() == []
    found = Arenas()
    with made(real):
        assert len(mine(found)) == 1
        assert mapped() == ["r--s"]
    assert mine(found) == []
    assert mapped() == []


def test_a_look_writes_nothing(real: bytes) -> None:
    fd = os.memfd_create("pycoll", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with contextlib.closing(os.fdopen(fd, "wb+", buffering=0)) as file:
        file.write(real)
        # Nobody can write there any more, not even through a mapping.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_WRITE)
        assert len(mine()) == 1
        assert os.pread(fd, len(real), 0) == real


@pytest.mark.parametrize(
    ("content", "seals", "size"),
    [
        (b"", SEALS, None),
        (b"PCAR", SEALS, None),
        (bytes(4096), SEALS, None),
        (b"PCAR" * 1024, SEALS, None),
        (b"RACP" * 100_000, SEALS, None),
        (b"", SEALS, 1 << 45),
        (b"RACP" * 1000, 0, None),
    ],
)
def test_what_is_no_rank_is_counted(content: bytes, seals: int, size: int | None) -> None:
    with made(content, seals, size):
        assert Arenas().look() == Sight([], 0, 1)


def test_memory_that_could_be_cut_short_is_not_read(real: bytes) -> None:
    with made(real, seals=0):
        assert mine() == []
    with made(real):
        assert len(mine()) == 1


def with_word(real: bytes, at: int, form: str, value: int) -> bytes:
    return real[:at] + struct.pack(form, value) + real[at + struct.calcsize(form) :]


def test_another_version_is_not_read(real: bytes) -> None:
    with made(with_word(real, VERSION_AT, "I", 99)):
        assert mine() == []


def test_a_ring_that_is_said_to_lie_elsewhere_is_not_read(real: bytes) -> None:
    at, end = ring_of(real), len(real)
    for wrong in (0, 1, at + 8, end - 8, end, end + 8, 1 << 40, 2**64 - 8, 2**64 - 1):
        with made(with_word(real, TRACE_AT, "Q", wrong)):
            assert mine() == [], wrong


def test_a_ring_that_is_cut_off_is_not_read(real: bytes) -> None:
    at = ring_of(real)
    for length in (at, at + 8, at + 4096, at + RING - 1):
        with made(real[:length]):
            assert mine() == [], length


def test_garbage_in_a_ring_is_shown_as_such_and_harms_nobody(real: bytes) -> None:
    at, pick = ring_of(real), random.Random(7)
    about = at + ffi.offsetof("struct pc_trace", "about")
    labels = at + ffi.offsetof("struct pc_trace", "labels")
    label = ffi.sizeof("struct pc_trace_label")
    text = ffi.offsetof("struct pc_trace_label", "text")
    for turn in range(8):
        bad = bytearray(real)
        begin = labels if turn % 2 else at + 8
        bad[begin : at + RING] = pick.randbytes(at + RING - begin)
        for k in range(20):
            said = "\t".join(pick.choice(TEXTS) for _ in range(5)).encode()[:111]
            to = labels + k * label + text
            bad[to : to + len(said)] = said
        names = pick.choice(WHOLE), pick.choice(TEXTS[:5])
        device, rails = pick.choice(WHOLE), ",".join(pick.choices(WHOLE, k=3))
        fields = (str(os.getpid()), *names, "0", "3", device, rails)
        said = "\t".join(fields).encode()[:1000]
        bad[about : about + len(said) + 1] = said + b"\0"
        with made(bytes(bad)):
            assert len(mine()) == 1
            shown(Arenas())


def test_what_a_rank_says_of_itself_is_read_only_if_it_can_be() -> None:
    good = "7\tjob id\ta\tname\t1\t2\tcpu\tmlx5_0,mlx5_1"
    assert About.read(good) == About(7, "job id", "a\tname", 1, 2, "cpu", ("mlx5_0", "mlx5_1"))
    for bad in (
        *("", "\t" * 6, "\t" * 900, "x\tj\tn\t0\t1\tcpu\t", "7\tj\tn\t2\t2\tcpu\t"),
        *("7\tj\tn\t-1\t2\tcpu\t", "7\tj\tn\t²\t3\tcpu\t", "7\tj\tn\t0\t0\tcpu\t"),
        *("7\tj\tn\t0\t999999999\tcpu\t", f"{'9' * 5000}\tj\tn\t0\t1\tcpu\t"),
    ):
        assert About.read(bad) is None, bad


@pytest.mark.parametrize("nbytes", ["²", "9" * 90, "-1", "٣", ""])
def test_a_label_whose_bytes_are_no_number_has_none(nbytes: str) -> None:
    assert Kind.read(f"allreduce\tring\t{nbytes}\tint8\tsum").nbytes == 0


def test_a_child_that_has_the_memory_of_a_rank_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pycoll.init():
        [path] = own_paths()
        come, gone = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(gone)
            os.read(come, 1)
            os._exit(0)
        os.close(come)
        try:
            assert os.readlink(f"/proc/{child}/fd/{Path(path).name}") == LINK
            monkeypatch.setattr(arenas, "_pids", lambda: iter([child, os.getpid()]))
            assert [seen.pid for seen in Arenas().look().ranks] == [os.getpid()]
        finally:
            os.close(gone)
            os.waitpid(child, 0)


def test_processes_that_may_not_be_looked_into_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = arenas._descriptors

    def descriptors(pid: int) -> Iterator[str]:
        if pid != os.getpid():
            raise PermissionError(13, "Permission denied")
        return of(pid)

    monkeypatch.setattr(arenas, "_pids", lambda: iter([1, os.getpid(), 2]))
    monkeypatch.setattr(arenas, "_descriptors", descriptors)
    with pycoll.init():
        sight = Arenas().look()
    assert sight.passed_over == 2
    assert len(sight.ranks) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_user_sees_no_rank_and_is_told_how_many_processes_it_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = os.getpid()
    with pycoll.init():
        come, go = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresuid(65534, 65534, 65534)
                monkeypatch.setattr(arenas, "_pids", lambda: iter([parent, os.getpid()]))
                sight = Arenas().look()
                os.write(go, f"{len(sight.ranks)} {sight.passed_over}".encode())
                code = 0
            os._exit(code)
        os.close(go)
        with os.fdopen(come) as said:
            assert said.read() == "0 1"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_that_another_user_may_not_open_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    with pycoll.init():
        monkeypatch.setattr(arenas.os, "open", refuse)
        assert mine() == []


def test_a_process_that_ends_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_pids", lambda: iter([2**22 + 5, os.getpid()]))
    with pycoll.init():
        assert len(Arenas().look().ranks) == 1
    assert process_state(2**22 + 5) == ""
    assert process_state(os.getpid()) == "R"


def test_without_proc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "process_state", lambda pid: "")
    with pytest.raises(pycoll.UnavailableError, match="found in /proc, which is not mounted"):
        Arenas()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[[int, str], Job]]:
    jobs: list[Job] = []

    def start(size: int, body: str) -> Job:
        jobs.append(Job(tmp_path, size, body))
        return jobs[-1]

    yield start
    for one in jobs:
        one.process.kill()
        one.process.communicate()


ENDS = """
import pycoll
comm = pycoll.init()
tell(f"pid{RANK}", os.getpid())
wait("go")
"""


def test_a_job_comes_and_ends_between_two_looks(
    job: Callable[[int, str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    found = Arenas()
    found.look()
    running = job(2, ENDS)
    pids = {int(running.told(f"pid{rank}")) for rank in range(2)}

    def here() -> set[int]:
        return {seen.pid for seen in found.look().ranks} & pids

    wait_until(lambda: here() == pids)
    (running.folder / "go").touch()
    assert running.end()[0] == 0
    assert here() == set()
