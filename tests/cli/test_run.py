"""`pycoll run`: what ranks are told, what is shown of them, and that nothing of them is left."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import ports
import pytest
from run_job import PRELUDE, SECONDS, Job, gone
from waiting import wait_until

from pycoll.bootstrap.forwarding import LONGEST, Lines, Sink


@pytest.fixture(params=["spawn", "fork"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(size: int, body: str, *options: str, **popen: object) -> Job:
        jobs.append(Job(tmp_path, size, body, "--start", request.param, *options, **popen))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
        for stream in (job.process.stdout, job.process.stderr):
            if stream:
                stream.close()


PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


def test_the_environment_names_each_rank(run, tmp_path: Path) -> None:
    assert run(2, "tell(f'environ{RANK}', json.dumps(dict(os.environ)))").end()[0] == 0
    zero, one = (json.loads((tmp_path / f"environ{rank}").read_text()) for rank in range(2))
    assert [zero[name] for name in PLACE] == ["0", "2", "0", "2", "0", "0"]
    assert [one[name] for name in PLACE] == ["1", "2", "1", "2", "0", "1"]
    differ = {name for name in zero if zero[name] != one[name]}
    assert differ == {"RANK", "LOCAL_RANK", "ROLE_RANK"}
    assert zero["MASTER_ADDR"] == "127.0.0.1"
    assert re.fullmatch("[0-9a-f]{64}", zero["PYCOLL_SECRET"])


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchrun_tells_no_more(run, tmp_path: Path) -> None:
    body = "tell(f'environ{RANK}', json.dumps(dict(os.environ)))"
    assert run(2, body).end()[0] == 0
    ours = json.loads((tmp_path / "environ1").read_text())
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(ports.free())]
    subprocess.run(
        [sys.executable, *torchrun, tmp_path / "program.py"],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    theirs = json.loads((tmp_path / "environ1").read_text())
    place = {name for name in theirs if re.search("RANK|WORLD|MASTER|ROLE|TORCHELASTIC", name)}
    place -= {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}  # of its own agent
    assert {*PLACE, "MASTER_ADDR"} <= place <= set(ours)
    varying = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"}
    for name in place - varying:
        assert ours[name] == theirs[name], name


def test_an_environment_for_other_ranks_is_not_passed_on(run, tmp_path: Path) -> None:
    stale = {"PYCOLL_RANK": "5", "PYCOLL_SIZE": "9", "PYCOLL_ADDRESS": "node7:1", "RANK": "7"}
    set_by_user = {"OMP_NUM_THREADS": "3", "PYCOLL_SECRET": "ab" * 32, "PYTHONUNBUFFERED": ""}
    script = tmp_path / "program.py"
    script.write_text(PRELUDE + "tell('environ', json.dumps(dict(os.environ)))")
    subprocess.run(
        [sys.executable, "-m", "pycoll", "run", "-n", "1", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **stale, **set_by_user},
        check=True,
        timeout=SECONDS,
    )
    environ = json.loads((tmp_path / "environ").read_text())
    assert environ["RANK"] == "0"
    assert not {"PYCOLL_RANK", "PYCOLL_SIZE", "PYCOLL_ADDRESS"} & set(environ)
    assert {name: environ[name] for name in set_by_user} == set_by_user


@pytest.mark.native
def test_ranks_meet(run) -> None:
    body = """
import numpy as np, pycoll
with pycoll.init() as comm:
    print(comm.rank, comm.size, comm.local_rank, comm.allreduce(np.arange(3.0)))
"""
    code, out, err = run(3, body).end()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{r}] {r} 3 {r} [0. 3. 6.]" for r in range(3)]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_meets_at_the_port_that_is_held(run) -> None:
    body = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(x.item())
dist.destroy_process_group()
"""
    code, out, err = run(2, body).end()
    assert (code, sorted(out.splitlines())) == (0, ["[0] 2.0", "[1] 2.0"]), err


def test_a_line_has_one_rank_in_it_and_one_stream(run) -> None:
    body = """
for i in range(300):
    for fd, what in ((1, "out"), (2, "err")):
        for piece in (f"{what} {RANK} ", f"{i} ", "x" * 50, "\\n"):
            os.write(fd, piece.encode())
"""
    code, out, err = run(4, body).end()
    assert code == 0
    for what, text in (("out", out), ("err", err)):
        lines = text.splitlines()
        for rank in range(4):
            mine = [line for line in lines if line.startswith(f"[{rank}] ")]
            assert mine == [f"[{rank}] {what} {rank} {i} {'x' * 50}" for i in range(300)]
        assert len(lines) == 1200


def test_prefixes_are_of_one_width(run) -> None:
    out = run(11, "print(RANK)").end()[1]
    assert sorted(out.splitlines()) == [f"[{rank:2}] {rank}" for rank in range(11)]


def test_a_line_is_shown_while_its_rank_still_runs(run) -> None:
    job = run(1, "print('now'); wait('seen')")
    assert job.process.stdout.readline() == "[0] now\n"
    (job.folder / "seen").touch()
    assert job.end() == (0, "", "")


def test_arguments_are_the_programs(run, tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])")
    command = [sys.executable, "-m", "pycoll", "run", "-n", "1"]
    for program, name in ((["-m", "mod"], "__main__"), (["mod.py"], "__main__")):
        done = subprocess.run(
            [*command, *program, "-n", "7", "--grace", "-m", "--", "x"],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.stdout == f"[0] {name} ['-n', '7', '--grace', '-m', '--', 'x']\n", done.stderr


def test_standard_input_is_empty(run) -> None:
    read, write = os.pipe()  # that nobody will ever write to
    assert run(2, "print(repr(sys.stdin.read()))", stdin=read).end()[0] == 0
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("way", ["sys.exit(7)", "os._exit(7)"])
def test_the_first_failure_ends_all_and_is_shown(run, way: str) -> None:
    body = f"""
if RANK == 1:
    wait('0'); wait('2')
    print("working"); print("the cause", file=sys.stderr)
    {way}
tell(str(RANK)); signal.pause()
"""
    code, out, err = run(3, body).end()
    assert (code, out) == (7, "[1] working\n")
    assert re.fullmatch(
        r"\[1\] the cause\n"
        r"pycoll run: rank 1 \(process \d+\) ended with exit code 7; ranks 0, 2 got SIGTERM\n"
        r"pycoll run: the last lines of rank 1:\n    working\n    the cause\n",
        err,
    ), err


def test_who_does_not_heed_sigterm_is_killed(run) -> None:
    body = """
if RANK == 1:
    wait('0')
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tell('0'); signal.pause()
"""
    code, _, err = run(2, body, "--grace", "0.1").end()
    assert code == 3
    assert "rank 0 got SIGTERM; rank 0 had to be killed\n" in err


def test_who_heeds_sigterm_may_clean_up(run, tmp_path: Path) -> None:
    body = """
if RANK == 1:
    wait('0')
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    tell('0')
    while True: time.sleep(0.01)
finally:
    tell('cleaned')
"""
    code, _, err = run(2, body, "--grace", "86400").end()
    assert code == 3
    assert "killed" not in err
    assert (tmp_path / "cleaned").exists()


def test_a_rank_that_is_killed_is_named(run) -> None:
    job = run(2, "tell(str(RANK), os.getpid()); signal.pause()")
    pids = [int(job.told(str(rank))) for rank in range(2)]
    os.kill(pids[0], signal.SIGKILL)
    code, _, err = job.end()
    assert code == 128 + signal.SIGKILL
    assert err == (
        f"pycoll run: rank 0 (process {pids[0]}) was ended by SIGKILL; rank 1 got SIGTERM\n"
    )
    assert all(gone(pid) for pid in pids)


@pytest.mark.native
def test_a_rank_that_is_killed_is_named_and_not_who_lost_it(run) -> None:
    body = """
import numpy as np, pycoll
comm = pycoll.init()
comm.barrier()
if RANK == 2:
    os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
"""
    code, _, err = run(3, body).end()
    assert code == 128 + signal.SIGKILL
    assert re.search(r"^pycoll run: rank 2 \(process \d+\) was ended by SIGKILL", err, re.M)


def test_the_cause_may_come_after_its_consequence(run) -> None:
    body = """
if RANK == 0:
    print("pycoll.errors.PeerLostError: rank 1 (process 1 on vm) died", file=sys.stderr)
    tell("0", os.getpid())
    sys.exit(1)
wait("0")
while True:  # until the launcher has taken note
    try: os.kill(int((HERE / "0").read_text()), 0)
    except ProcessLookupError: break
os._exit(9)  # at once: the launcher waits for the cause only a while
"""
    code, _, err = run(2, body).end()
    assert code == 9
    assert re.search(r"^pycoll run: rank 1 \(process \d+\) ended with exit code 9\n", err, re.M)


FAMILY = """
tell(str(RANK), json.dumps([os.getpid(), os.getppid(), child()]))
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_outlives_the_launcher(run, number: signal.Signals) -> None:
    job = run(2, FAMILY)
    pids = [pid for rank in range(2) for pid in json.loads(job.told(str(rank)))]
    job.process.send_signal(number)
    code, _, err = job.end()
    wait_until(lambda: all(gone(pid) for pid in pids))
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + number
        assert f"pycoll run: ended by {number.name}\n" in err


def test_nothing_outlives_the_process_that_does_the_work(run) -> None:
    job = run(2, FAMILY)
    families = [json.loads(job.told(str(rank))) for rank in range(2)]
    assert families[0][1] == families[1][1] != job.process.pid
    os.kill(families[0][1], signal.SIGKILL)
    code, _, _ = job.end()
    assert code == 128 + signal.SIGKILL
    assert all(gone(pid) for family in families for pid in family)


@pytest.mark.parametrize("code", [0, 5])
def test_what_a_rank_leaves_behind_is_ended(run, code: int) -> None:
    job = run(1, f"tell('child', child()); sys.exit({code})")
    assert job.end()[0] == code
    assert gone(int(job.told("child")))


def test_a_child_that_keeps_the_output_open_holds_up_nobody(run) -> None:
    body = """
code = "import signal; signal.pause()"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("left")
"""
    code, out, err = run(2, body).end()
    assert (code, sorted(out.splitlines()), err) == (0, ["[0] left", "[1] left"], "")


def test_ctrl_c_ends_all(run) -> None:
    """As a terminal has it: the whole foreground group gets the signal."""
    leader, terminal = pty.openpty()
    body = """
try:
    tell(str(RANK), os.getpid())
    while True: time.sleep(0.01)
except KeyboardInterrupt:
    tell(f"interrupted {RANK}")
"""
    job = run(
        2,
        body,
        "--grace",
        "86400",
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    pids = [int(job.told(str(rank))) for rank in range(2)]
    os.write(leader, b"\x03")
    assert job.process.wait(SECONDS) == 128 + signal.SIGINT
    for rank in range(2):
        job.told(f"interrupted {rank}")
    assert all(gone(pid) for pid in pids)
    os.close(leader)


def test_ctrl_c_again_does_not_wait(run) -> None:
    body = """
def again(*_): tell("told")
signal.signal(signal.SIGINT, again); signal.signal(signal.SIGTERM, lambda *_: tell("term"))
tell("ready")
while True: time.sleep(0.01)
"""
    job = run(1, body, "--grace", "86400")
    job.told("ready")
    for name in ("told", "term"):
        job.process.send_signal(signal.SIGINT)
        job.told(name)
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.end()
    assert (code, err) == (130, "pycoll run: ended by SIGINT; rank 0 had to be killed\n")


def test_a_reader_that_goes_away_ends_all(run) -> None:
    job = run(2, "while True: print('x' * 1000)")
    assert job.process.stdout.readline()
    job.process.stdout.close()
    job.process.stdout = None
    code, _, err = job.end()
    assert (code, err) == (128 + signal.SIGPIPE, "pycoll run: ended by SIGPIPE\n")


def test_streams_that_are_closed_swallow_what_is_said(run, tmp_path: Path) -> None:
    def close() -> None:
        os.closerange(0, 3)

    job = run(2, "print('x'); tell(f'said {RANK}')", stdout=None, stderr=None, preexec_fn=close)
    assert job.process.wait(SECONDS) == 0
    assert [(tmp_path / f"said {rank}").exists() for rank in (0, 1)] == [True, True]


def test_a_reader_that_does_not_read_holds_up_no_end(run) -> None:
    job = run(1, "tell('0', os.getpid())\nwhile True: print('x' * 1000)", "--grace", "0.1")
    pid = int(job.told("0"))
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(SECONDS) == 128 + signal.SIGTERM
    assert gone(pid)


def test_a_reader_that_comes_late_gets_all_of_a_failure(run) -> None:
    job = run(1, "print('x' * 300_000); sys.exit(3)", "--grace", "0")
    assert re.search(r"ended with exit code 3$", job.process.stderr.readline())
    code, out, _ = job.end()  # only now
    assert code == 3
    assert out.replace("\n[0] ", "") == f"[0] {'x' * 300_000}\n"


def test_a_failure_that_nobody_reads_can_be_ended(run) -> None:
    job = run(1, "print('x' * 300_000); sys.exit(3)", "--grace", "0")
    job.process.stderr.readline()
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(SECONDS) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "x.py"], "'0', want an integer of at least 1"),
        (["x.py"], "-n"),
        (["-n", "2"], "PROGRAM"),
        (["-n", "2", "/nowhere/x.py"], "/nowhere/x.py is not there, want a Python file (-m for"),
        (["-n", "2", "--grace", "-1", "x.py"], "--grace is -1, want seconds, 0 to 86400"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(cli, arguments, message) -> None:
    done = cli("run", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


def lines_of(pieces: list[bytes]) -> list[str]:
    """What `Lines` makes of a stream that comes in these pieces."""
    read, write = os.pipe()
    sink, last = Sink(-1), deque(maxlen=3)
    lines = Lines(read, "> ", sink, last)
    for piece in pieces:
        os.write(write, piece)
        assert lines.read()
    os.close(write)
    assert not lines.read()
    os.close(read)
    found = sink.held.decode().split("\n")
    assert found.pop() == ""
    assert list(last) == [line.removeprefix("> ") for line in found[-3:]]
    return found


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"a\nb\n"], ["> a", "> b"]),
        ([b"a", b"b\n", b"\n"], ["> ab", "> "]),
        ([b"no end"], ["> no end"]),
        ([b"a\r\nb\r", b"\nc\n"], ["> a", "> b", "> c"]),
        ([b" 1%\r", b" 2%\r 3%", b"\n"], [">  1%", ">  2%", ">  3%"]),
        ([b"a\r", b"\n", b"\n"], ["> a", "> "]),
        (["é\n".encode()[:1], "é\n".encode()[1:]], ["> é"]),
    ],
)
def test_lines_are_cut_at_their_ends(pieces: list[bytes], lines: list[str]) -> None:
    assert lines_of(pieces) == lines


def test_a_line_without_end_is_cut() -> None:
    found = lines_of([b"x" * 40_000, b"x" * 40_000, b"y\n"])
    assert found == ["> " + "x" * LONGEST, "> " + "x" * (80_000 - LONGEST) + "y"]


def test_a_program_needs_no_arguments(cli):
    done = cli("run", "-n", "2")
    assert done.code == 2
    assert "the following arguments are required: PROGRAM;" in done.err


def test_an_order_for_all_ranks(run) -> None:
    body = "assert os.environ['PYCOLL_ORDER'] == 'fixed'"
    assert run(2, body, "--order", "fixed").end()[0] == 0
