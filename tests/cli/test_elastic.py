"""`pycoll run --elastic`: who dies is replaced, too few are the end, and nothing is left."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_job import Job, gone

from pycoll.cli import main

SECONDS = 60.0

#: Begins every program: `late` is whether this is a replacement.
PRELUDE = """
late = os.environ.get("PYCOLL_NEWCOMER")
def die(): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(elastic: str, body: str, *options: str, **popen: object) -> Job:
        jobs.append(Job(tmp_path, None, PRELUDE + body, "--elastic", elastic, *options, **popen))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
        for stream in (job.process.stdout, job.process.stderr):
            if stream:
                stream.close()


def test_what_a_replacement_is_told(run, tmp_path: Path) -> None:
    body = """
tell("late" if late else f"first{RANK}", json.dumps(dict(os.environ)))
if RANK == 1 and not late: die()
wait("late")
"""
    code, _, err = run("1:2", body).end()
    assert code == 0
    assert re.search(
        r"pycoll run: rank 1 \(process \d+\) was ended by SIGKILL; 1 rank left, and replacement 1 "
        r"of at most 6 is started",
        err,
    )
    zero, one, late = (
        json.loads((tmp_path / name).read_text()) for name in ("first0", "first1", "late")
    )
    assert zero["PYCOLL_JOIN_ADDRESS"] == one["PYCOLL_JOIN_ADDRESS"] == late["PYCOLL_JOIN_ADDRESS"]
    assert {name for name in late if late[name] != one.get(name)} == {
        "PYCOLL_NEWCOMER",
        "TORCHELASTIC_RESTART_COUNT",
    }
    assert "PYCOLL_NEWCOMER" not in zero
    assert late["TORCHELASTIC_RESTART_COUNT"] == "1"


def test_too_few_are_the_end(run) -> None:
    body = """
tell(f"pid{RANK}", os.getpid())
if RANK: wait("pid0"); sys.exit(40 + RANK)
signal.pause()
"""
    job = run("3:3", body)
    code, _, err = job.end()
    assert code in (41, 42)
    assert re.search(r"pycoll run: [12] ranks? left, want at least 3: the job ends", err)
    assert f"ended with exit code {code}" in err
    assert gone(int(job.told("pid0")))


def test_a_death_and_its_consequence(run) -> None:
    """The program does not shrink: what ends the job is the death, and not who noticed it."""
    body = """
import pycoll
comm = pycoll.init(timeout=60)
comm.barrier()
if RANK == 1 and not late: die()
while True: comm.barrier()
"""
    code, _, err = run("1:2", body, "--max-restarts", "0").end()
    assert code == 128 + signal.SIGKILL
    assert "and no replacement is started: there have been 0" in err
    assert "pycoll run: 0 ranks left, want at least 1: the job ends" in err
    assert re.search(r"pycoll run: rank 1 \(process \d+\) was ended by SIGKILL", err)


def test_restarts_are_bounded(run) -> None:
    body = """
if RANK == 0: wait("enough"); sys.exit()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "3": tell("enough")
sys.exit(9)
"""
    code, _, err = run("1:2", body, "--max-restarts", "3").end()
    assert code == 0  # at least one rank has ended well
    assert err.count("is started") >= 3
    assert len(re.findall(r"replacement \d of at most 3 is started", err)) == 3


def test_who_waits_in_vain_is_ended(run) -> None:
    body = """
import pycoll
if late: tell("late", os.getpid())
comm = pycoll.init(timeout=600)
if comm.rank == 1: die()
wait("late")
"""
    job = run("1:2", body)
    code, _, err = job.end()
    assert code == 0, err
    assert gone(int(job.told("late")))


def test_who_has_joined_may_end_last(run) -> None:
    body = """
import pycoll
comm = pycoll.init(timeout=60)
if late:
    wait("others are about to end"); time.sleep(0.5); print("I end last"); sys.exit()
if comm.rank == 1: die()
try:
    comm.barrier()
except pycoll.PycollError:
    comm = comm.shrink().grow(1)
tell("others are about to end")
"""
    code, out, err = run("1:2", body).end()
    assert code == 0, err
    assert "I end last" in out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all(run, how) -> None:
    body = """
tell(f"late{RANK}" if late else f"pid{RANK}", os.getpid())
if RANK == 1 and not late: die()
signal.pause()
"""
    job = run("1:3", body)
    pids = [int(job.told(name)) for name in ("pid0", "pid2", "late1")]
    job.process.send_signal(how)
    code, _, err = job.end()
    assert code == 128 + how
    assert f"pycoll run: ended by {how.name}" in err
    assert all(map(gone, pids))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "no number of ranks, want -n N or --elastic MIN:MAX"),
        (["--elastic", "3:2"], "--elastic is '3:2', want MIN:MAX"),
        (["--elastic", "0:2"], "--elastic is '0:2', want MIN:MAX"),
        (["--elastic", "x"], "--elastic is 'x', want MIN:MAX"),
        (["--elastic", "1:2", "-n", "2"], "-n is given besides --elastic"),
        (["--elastic", "1:2", "--start", "fork"], "--start fork is given besides --elastic"),
        (["--elastic", "1:2", "--max-restarts", "-1"], "--max-restarts is -1, want at least 0"),
        (["-n", "2", "--max-restarts", "1"], "--max-restarts is given without --elastic"),
    ],
)
def test_options_that_make_no_sense(options, text, tmp_path, capsys) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    assert main(["run", *options, str(program)]) != 0
    assert text in capsys.readouterr().err
