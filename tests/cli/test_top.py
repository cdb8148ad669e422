"""`pycoll top` beside real jobs, and in a terminal that it must give back as it was."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_job import SECONDS, Job
from waiting import wait_until, wait_until_stopped

pytestmark = pytest.mark.native

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
ROOT = Path(__file__).parents[2]
#: Rank 1 does not come to the last all-reduce until it may.
LATE = """
import dataclasses
import numpy as np
import pycoll

comm = pycoll.init()
for count in (1, 5, 3000):
    comm.allreduce(np.ones(count))
comm.broadcast(np.ones(2), root=0)
comm.allgather(np.ones(7, np.float32))
group = comm.split(0 if RANK < 2 else None)
tell(f"stats{RANK}", json.dumps(dataclasses.asdict(comm.stats())))
tell(f"pid{RANK}", os.getpid())
if RANK == 1:
    wait("go")
comm.allreduce(np.ones(3))
comm.close()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int, str], Job]]:
    jobs: list[Job] = []

    def begin(size: int, body: str) -> Job:
        jobs.append(Job(tmp_path, size, body))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.communicate()


def test_a_rank_that_does_not_come_is_named(cli, start) -> None:
    job = start(3, LATE)
    pid = job.told("pid1")
    [job.told(f"stats{rank}") for rank in range(3)]

    def group() -> dict[str, Any]:
        done = cli("top", "--once", "--json", "--interval", "0.05", "--pid", pid)
        assert done.code == 0
        found = json.loads(done.out)["communicators"]
        return found[0] if found else {}

    wait_until(lambda: group().get("waits_for") == [1])
    found = group()
    assert (found["name"], found["size"], found["here"]) == ("job", 3, 3)
    zero, one, two = found["ranks"]
    for stuck in (zero, two):
        assert (stuck["state"], stuck["call"], stuck["nbytes"]) == ("calling", "allreduce", 24)
        assert stuck["seconds"] > 0.1
        assert (stuck["behind"], stuck["awaited"], stuck["calls_per_s"]) == (0, False, 0)
    assert (one["state"], one["behind"], one["awaited"]) == ("idle", 1, True)
    assert one["pid"] == int(pid)
    for rank, row in enumerate(found["ranks"]):
        stats = json.loads(job.told(f"stats{rank}"))
        assert row["number"] == stats["calls"] + (rank != 1)
        counted = stats["collectives"]
        if rank != 1:  # the call that it is in
            reduce = counted["allreduce"]
            [algorithm] = {row["algorithm"]}
            reduce["algorithms"].setdefault(algorithm, 0)
            reduce["algorithms"][algorithm] += 1
            reduce["calls"] += 1
            reduce["nbytes"] += 24
        assert row["collectives"] == counted
    text = cli("top", found["job"], "--once", "--interval", "0.05").out
    assert "3 of 3 ranks are here" in text
    assert "the others wait for rank 1" in text
    assert re.search(r"^> +1 ", text, re.M)
    assert "split 1 #" in text
    (job.folder / "go").touch()
    assert job.end()[0] == 0
    text = cli("top", found["job"], "--once", "--interval", "0.05").out
    assert "no job of pycoll that can be seen runs here" in text


def test_a_rank_that_was_stopped_amid_a_call_is_named(cli, start) -> None:
    body = """
import numpy as np, pycoll
comm = pycoll.init()
tell(f"pid{RANK}", os.getpid())
while not comm.allreduce(np.array([float((HERE / "go").exists())]))[0]: pass
"""
    job = start(2, body)
    pid = int(job.told("pid1"))
    job.told("pid0")
    os.kill(pid, signal.SIGSTOP)
    wait_until_stopped(pid)

    def named() -> bool:
        done = cli("top", "--once", "--json", "--interval", "0.05", "--pid", str(pid))
        [group] = json.loads(done.out)["communicators"]
        return group["waits_for"] == [1] and group["ranks"][1]["state"] == "stopped"

    wait_until(named)
    (job.folder / "go").touch()
    os.kill(pid, signal.SIGCONT)
    assert job.end()[0] == 0


def test_where_nothing_runs_it_says_so(cli) -> None:
    done = cli("top", "no such job", "--once", "--interval", "0.05")
    assert done.code == 0
    assert "no job of pycoll that can be seen runs here" in done.out
    done = cli("top", "no such job", "--once", "--interval", "0.05", "--json")
    assert json.loads(done.out)["communicators"] == []


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "x", "1e9"])
def test_an_interval_that_is_none_is_refused(cli, given: str) -> None:
    done = cli("top", "--once", f"--interval={given}")
    assert done.code == 2
    assert f"{given!r}, want seconds, 0.05 to 86400" in done.err


def test_a_file_gets_a_table_each_interval() -> None:
    command = [sys.executable, "-m", "pycoll", "top", "no such job", "--interval", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout
    found = [process.stdout.readline() for _ in range(30)]
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0
    text = "".join([*found, rest])
    assert text.count("pycoll top: ") >= 2
    assert "\x1b" not in text


class Terminal:
    """`pycoll top` in a terminal of its own."""

    def __init__(self, *options: str, rows: int = 12, columns: int = 70, **more: str) -> None:
        self.ours, self.its = os.openpty()
        self.resize(rows, columns)
        self.mode = termios.tcgetattr(self.its)
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pycoll", "top", *options],
            **dict.fromkeys(("stdin", "stdout", "stderr"), self.its),
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", **more},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def until(self, text: str) -> str:
        """Wait until it shows a text; return what it has shown since the last time."""
        deadline = time.monotonic() + SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown[-400:]
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.ours, 1 << 16).decode()
                except OSError:  # nobody has it open any more
                    raise AssertionError(self.shown[-400:]) from None
        before, _, self.shown = self.shown.partition(text)
        return before

    def ended(self, code: int) -> None:
        """It ends, and the terminal is as it was."""
        self.until("\x1b[?25h" + LEAVE)
        assert self.process.wait(SECONDS) == code
        assert termios.tcgetattr(self.its) == self.mode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.its)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*options: str, **more: Any) -> Terminal:
        made.append(Terminal(*options, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("end", "code"), [(b"q", 0), (b"\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_it_gives_the_terminal_back(terminal, end: bytes | signal.Signals, code: int) -> None:
    top = terminal("no such job", "--interval", "0.1")
    top.until(ENTER)
    for _ in range(2):
        top.until("runs here")
    assert termios.tcgetattr(top.its) != top.mode
    if isinstance(end, bytes):
        top.press(end)
    else:
        top.process.send_signal(end)
    top.ended(code)


def test_a_new_size_is_heeded_at_once(terminal) -> None:
    top = terminal("no such job", "--interval", "3600", rows=5, columns=70)
    top.until("pycoll that can be seen runs here")
    for rows, columns in ((5, 30), (1, 12), (40, 10)):
        top.until("\x1b[J")
        top.resize(rows, columns)
        frame = top.until("\x1b[J")
        top.shown = "\x1b[J" + top.shown
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame)
        lines = text.replace("\r", "").split("\n")
        assert len(lines) <= rows
        assert max(map(len, lines)) == columns
    top.press(b"q")
    top.ended(0)


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(terminal) -> None:
    top = terminal("no such job", "--interval", "3600")
    top.until("\x1b[J")
    top.press(b"\x1a")
    top.until(LEAVE)
    wait_until_stopped(top.process.pid)
    assert termios.tcgetattr(top.its) == top.mode
    top.process.send_signal(signal.SIGCONT)
    top.until(ENTER)
    top.until("runs here")
    top.press(b"q")
    top.ended(0)


def test_colours_can_be_left_out(terminal) -> None:
    top = terminal("no such job", "--interval", "3600")
    assert "\x1b[1m" in top.until("runs here")
    top.press(b"q")
    top.ended(0)
    top = terminal("no such job", "--interval", "3600", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*m", top.until("runs here"))
    top.press(b"q")
    top.ended(0)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal) -> None:
    top = terminal("no such job", "--interval", "0.05", TERM="dumb")
    for _ in range(2):
        assert "\x1b" not in top.until("runs here")
    top.press(b"\x03")
    assert top.process.wait(SECONDS) == 0


def test_what_does_not_fit_is_reached_by_arrows(terminal, start) -> None:
    job = start(3, LATE)
    top = terminal("--pid", job.told("pid1"), "--interval", "0.2", rows=6, columns=60)
    top.until("the others wait")
    top.until("more lines: arrows")
    for key in (b"\x1b[B", b"j", b"\x1bOB", b"j", b"j"):
        top.press(key)
        top.until("\x1b[J")
    top.until("split 1 #")
    for key in (b"\x1b[A", b"k", b"\x1bOA", b"k", b"k", b"k"):
        top.press(key)
        top.until("\x1b[J")
    top.until("the others wait")
    top.press(b"q")
    top.ended(0)
    (job.folder / "go").touch()
    assert job.end()[0] == 0
