"""Records of ranks that live when a job breaks: each is there, and says where its rank was and why.

Every job is one of real processes, under `pycoll run` or an MPI's launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_job import PRELUDE, Job
from waiting import wait_until

Record = dict[str, Any]
Run = Callable[..., Job]

HEAD = """
import ctypes, numpy as np, pycoll, threading
comm = pycoll.init()
def ones(count=3):
    return np.ones(count)
comm.allreduce(ones())
"""


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.fixture
def run(tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    jobs: list[Job] = []
    monkeypatch.setenv("PYCOLL_RECORD", str(records))

    def start(size: int | None, body: str, *options: str) -> Job:
        jobs.append(Job(tmp_path, size, HEAD + body, *options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
        for stream in (job.process.stdout, job.process.stderr):
            if stream:
                stream.close()


def read(folder: Path) -> dict[int, Record]:
    """The records that are there, by rank; nothing else is."""
    found: dict[int, Record] = {}
    for path in folder.iterdir() if folder.exists() else ():
        if path.name.startswith("."):  # being written
            continue
        made = json.loads(path.read_text())
        assert path.name == f"pycoll-record.{made['job']}.{made['rank']}.json"
        assert made["rank"] not in found
        found[made["rank"]] = made
    return found


def job_calls(made: Record) -> list[dict[str, Any]]:
    """The calls of the communicator of the whole job."""
    (one,) = (one for one in made["comms"] if one["name"] == "job")
    return list(one["events"])


WAYS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "exits": "os._exit(3)",
    "raises": "raise RuntimeError('of the user')",
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("victim", ["first", "last"])
@pytest.mark.parametrize("how", WAYS)
def test_a_rank_ends_amid_a_call_of_the_others(
    run: Run, records: Path, size: int, victim: str, how: str
) -> None:
    gone = 0 if victim == "first" else size - 1
    job = run(size, f"if RANK == {gone}: {WAYS[how]}\ncomm.broadcast(ones(7), root={gone})\n")
    assert job.end()[0] != 0
    found = read(records)
    assert set(found) - {gone} == set(range(size)) - {gone}
    for rank, made in found.items():
        if rank == gone:  # it raised, which may tell of the others
            continue
        event = job_calls(made)[-1]
        assert (event["seq"], event["call"], event["nbytes"]) == (2, "broadcast", 56)
        line = (PRELUDE + HEAD).count("\n") + 2
        assert event["line"].endswith(f"program.py:{line}")
        assert event["finished_ns"] is None or event["error"]
        assert "PeerLostError" in made["reason"] or "SIGTERM" in made["reason"], made["reason"]
        if "SIGTERM" not in made["reason"]:
            assert f"rank {gone} " in made["reason"]


@pytest.mark.parametrize("how", ["killed", "exits", "raises"])
def test_under_an_mpis_launcher(launcher: Any, tmp_path: Path, records: Path, how: str) -> None:
    script = tmp_path / "program.py"
    body = f"if comm.rank == 1: {WAYS[how]}\ncomm.allreduce(ones(7))\n"
    script.write_text("import os, signal\n" + HEAD + body)
    done = launcher.run(3, str(script), env={"PYCOLL_RECORD": str(records)}, check=False)
    assert done.returncode != 0
    found = read(records)
    if launcher.name != "mpich" or how == "raises":  # else Hydra ends all by SIGKILL, at once
        assert {0, 2} <= set(found), (done.stdout, done.stderr)
    for rank in {0, 2} & set(found):
        event = job_calls(found[rank])[-1]
        assert (event["seq"], event["call"]) == (2, "allreduce")


def test_calls_that_differ(run: Run, records: Path) -> None:
    job = run(3, "comm.allreduce(ones(3 + (RANK == 1)))")
    assert job.end()[0] != 0
    found = read(records)
    assert set(found) == {0, 1, 2}
    for rank, made in found.items():
        event = job_calls(made)[-1]
        assert (event["seq"], event["nbytes"]) == (2, 32 if rank == 1 else 24)
    assert sum("MismatchError" in made["reason"] for made in found.values()) >= 1


def test_a_call_that_times_out(run: Run, records: Path) -> None:
    body = """
if RANK == 1:
    wait("over")
comm.allreduce(ones(5), timeout=0.3)
"""
    job = run(2, body)
    wait_until(lambda: 0 in read(records))
    (job.folder / "over").write_text("")
    assert job.end()[0] != 0
    made = read(records)[0]
    assert "CollectiveTimeout" in made["reason"] or "SIGTERM" in made["reason"]
    event = job_calls(made)[-1]
    assert (event["seq"], event["call"], event["nbytes"]) == (2, "allreduce", 40)
    assert event["error"]
    assert event["peer"] == 1


def test_who_shrinks_and_breaks_again(run: Run, records: Path) -> None:
    body = """
if RANK == 1:
    wait("met"); os.kill(os.getpid(), signal.SIGKILL)
if RANK == 0: tell("met")
try:
    while True: comm.allreduce(ones())
except pycoll.PycollError as error:
    comm = comm.shrink()
comm.barrier()
tell(f"first{RANK}")
if RANK == 3:
    wait("again"); os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.broadcast_object(RANK, root=comm.size - 1)
except pycoll.PycollError as error:
    tell(f"second{RANK}", error)
comm = comm.shrink()
comm.barrier()
"""
    job = run(None, body, "--elastic", "2:4", "--max-restarts", "0")
    for rank in (0, 2, 3):
        job.told(f"first{rank}")
    wait_until(lambda: set(read(records)) == {0, 2, 3})
    first = read(records)
    assert all("rank 1 " in made["reason"] for made in first.values())
    (job.folder / "again").write_text("")
    for rank in (0, 2):
        job.told(f"second{rank}")
    wait_until(lambda: all("rank 2 " in read(records)[rank]["reason"] for rank in (0, 2)))
    job.end()
    for rank in (0, 2):
        made = read(records)[rank]
        called = {event["call"] for one in made["comms"] for event in one["events"]}
        assert "lengths of broadcast_object" in called


def test_who_has_no_call_under_way(run: Run, records: Path) -> None:
    body = """
if RANK == 1:
    wait("idle"); os.kill(os.getpid(), signal.SIGKILL)
tell("idle")
wait("never")
"""
    job = run(2, body)
    assert job.end()[0] != 0
    made = read(records)[0]
    (event,) = job_calls(made)
    assert (event["seq"], event["error"]) == (1, "")
    assert event["finished_ns"] is not None


HANGS = {
    "in a collective": "comm.allreduce(ones(9))",
    "asleep": "time.sleep(1000)",
    # Which begins anew behind a signal's handler, and never returns to Python.
    "in C without the GIL": "ctypes.CDLL(None).read(os.pipe()[0], bytes(1), 1)",
    "in C with the GIL": "ctypes.PyDLL(None).read(os.pipe()[0], bytes(1), 1)",
    "in another thread's": "threading.Thread(target=comm.barrier, daemon=True).start(); "
    "wait('never')",
}


@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.parametrize("where", [where for where in HANGS if "with the" not in where])
def test_a_signal_to_the_launcher(run: Run, records: Path, where: str, start: str) -> None:
    body = f"""
if RANK == 1:
    tell("up1")
    wait("never")
tell("up0")
{HANGS[where]}
"""
    job = run(2, body, "--start", start)
    for rank in range(2):
        job.told(f"up{rank}")

    def there() -> bool:
        job.process.send_signal(signal.SIGUSR1)  # again: the rank may not be there yet
        found = read(records)
        if set(found) != {0, 1}:
            return False
        event = job_calls(found[0])[-1]
        calling = "collective" in where or "thread" in where
        return not calling or (event["seq"] == 2 and event["waits"] > 0)

    wait_until(there)
    assert job.process.poll() is None
    found = read(records)
    assert {made["reason"] for made in found.values()} == {"SIGUSR1"}
    if "collective" in where:
        event = job_calls(found[0])[-1]
        assert (event["seq"], event["call"], event["finished_ns"]) == (2, "allreduce", None)
    job.process.terminate()
    job.end()
    found = read(records)
    reasons = [made["reason"] for made in found.values()]
    assert any("SIGTERM" in reason for reason in reasons)
    assert all("SIGTERM" in reason or "PeerLostError" in reason for reason in reasons)


def test_a_rank_that_holds_the_interpreter_writes_nothing_and_hinders_nobody(
    run: Run, records: Path
) -> None:
    body = f"""
if RANK == 0:
    tell("up0")
    {HANGS["in C with the GIL"]}
tell("up1")
wait("never")
"""
    job = run(2, body, "--grace", "1")
    for rank in range(2):
        job.told(f"up{rank}")
    job.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: 1 in read(records))
    assert read(records)[1]["reason"] == "SIGUSR1"
    job.process.terminate()
    job.end()
    assert 0 not in read(records)


def test_a_process_that_hangs_at_its_end_is_ended_by_a_signal(run: Run) -> None:
    body = """
class Hangs:
    def __del__(self, sleep=time.sleep, tell=tell, rank=RANK):
        tell(f"hangs{rank}")
        sleep(1000)
hangs = Hangs()
comm.close()
"""
    job = run(2, body, "--grace", "100")
    for rank in range(2):
        job.told(f"hangs{rank}")
    job.process.send_signal(signal.SIGUSR1)
    job.process.terminate()
    assert job.end()[0] != 0


def test_without_the_setting_nothing_is_written(
    run: Run, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYCOLL_RECORD")
    body = """
names = [thread.name for thread in threading.enumerate()]
assert "pycoll-record" not in names, names
if RANK == 1: os._exit(4)
comm.allreduce(ones())
"""
    assert run(2, body).end()[0] == 4
    assert not records.exists()


def ends(run: Run, body: str = "") -> tuple[int, str, str]:
    """How a job ends one of whose ranks exits with 5."""
    return run(2, body or "if RANK == 1: os._exit(5)\ncomm.allreduce(ones())").end()


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here, want root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("what", ["a file", "below a file", "read only", "full"])
def test_where_nothing_can_be_written(
    run: Run, records: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYCOLL_LOG", "warning")
    with contextlib.ExitStack() as stack:
        if what == "read only":
            stack.enter_context(mounted(records, "ro"))
        elif what == "full":
            stack.enter_context(mounted(records, "size=4k"))
            (records / "filler").write_bytes(bytes(4096))
        else:
            records.write_text("a file")
            if what == "below a file":
                monkeypatch.setenv("PYCOLL_RECORD", str(records / "folder"))
        code, _, err = ends(run)
        assert code == 5
        assert "no record can be written" in err
        if what == "full":
            assert [path.name for path in records.iterdir()] == ["filler"]
    monkeypatch.delenv("PYCOLL_RECORD")
    assert ends(run)[0] == 5


def test_a_job_that_ends_well_where_nothing_can_be_written(run: Run, records: Path) -> None:
    records.write_text("a file")
    code, out, _ = ends(run, "comm.barrier()\ncomm.close()\nprint('over')")
    assert (code, sorted(out.split())) == (0, ["[0]", "[1]", "over", "over"])
