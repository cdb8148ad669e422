"""The script that proves what needs a GPU, proved itself: limits, hangs, results, going on."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakecuda
import pytest

sys.path.append(str(Path(__file__).parent))

from runner import FAILED, HUNG, LEFT, PASSED, SKIPPED, Phase, Runner, State, table

#: Phases that the stand-in for the driver can play.
PLAYED = (
    *("probe", "memory", "micro", "fused", "threads", "processes"),
    *("nccl", "alone", "overlap", "tiles"),
)
PHASE = Path(__file__).parent / "phases" / "phase.py"
HEAD = f"import sys\nsys.path.insert(0, {str(PHASE.parent)!r})\nfrom phase import Lacking, main\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Makes a phase of a body of Python."""

    def make(name: str, body: str, **more: Any) -> Phase:
        script = tmp_path / f"{name}.py"
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        script.write_text(f"{HEAD}def phase(run):\n{lines}\nmain(phase)\n")
        return Phase(name, "for a test", more.pop("seconds", 30), 0.0, script=script, **more)

    return make


def run(tmp_path: Path, *phases: Phase, **more: Any) -> tuple[bool, State, str]:
    state = State(tmp_path / "out" / "gpu.json", "abc", more.pop("stand_in", False), {})
    state.load()
    said: list[str] = []
    seconds = more.pop("seconds", 100)
    runner = Runner(state, io.StringIO(), seconds, say=said.append, **{"grace": 10.0, **more})
    return runner.run(phases), state, "\n".join(said)


def test_a_phase_that_passes_says_what_it_saw(tmp_path: Path, write: Any) -> None:
    phase = write("good", "run.check(1 == 1, '')\nrun.details['n'] = 3\nreturn 'saw 3'")
    good, state, said = run(tmp_path, phase)
    assert good
    outcome = state.outcomes["good"]
    assert (outcome.status, outcome.summary, outcome.details) == (PASSED, "saw 3", {"n": 3})
    assert "== good: passed: saw 3" in said
    assert json.loads(state.path.read_text())["phases"]["good"]["status"] == PASSED
    assert "good         passed" in table([phase], state.outcomes)


@pytest.mark.parametrize(
    ("body", "status", "summary"),
    [
        ("run.check(0, 'wrong bits')", FAILED, "AssertionError: wrong bits"),
        ("raise Lacking('no tool here')", SKIPPED, "no tool here"),
        ("import os; os._exit(3)", FAILED, "exit status 3"),
        ("import os; os._exit(0)", FAILED, "it left no result"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", FAILED, "exit status -11"),
    ],
)
def test_how_a_phase_ends(tmp_path: Path, write: Any, body: str, status: str, summary: str) -> None:
    good, state, _ = run(tmp_path, write("one", body))
    outcome = state.outcomes["one"]
    assert (outcome.status, outcome.summary) == (status, summary)
    assert good == (status == SKIPPED)


def test_a_hang_is_killed_with_all_that_it_started_and_stops_the_run(
    tmp_path: Path, write: Any
) -> None:
    pids = tmp_path / "pids"
    body = f"""
import os, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
run.note("7 of 9 done")
threading.Event().wait()"""
    hang = write("hang", body, seconds=1.0)
    later = write("later", "return 'ran'")
    good, state, said = run(tmp_path, hang, later, grace=1.0)
    assert not good
    assert state.outcomes["hang"].status == HUNG
    assert state.outcomes["hang"].summary.endswith("it had said: 7 of 9 done")
    assert "later" not in state.outcomes
    assert "stopped: what hangs once" in said
    for pid in pids.read_text().split():
        assert ended(int(pid))
    # A second run tries it again; told to, it goes on behind it.
    _, state, _ = run(tmp_path, hang, later, grace=1.0, keep_going=True)
    assert state.outcomes["hang"].status == HUNG
    assert state.outcomes["later"].status == PASSED


def ended(pid: int) -> bool:
    """Wait for the end of a process that was killed; it may take the kernel a moment."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(fd):
        return bool(select.select([fd], [], [], 30)[0])


def test_what_a_phase_leaves_behind_is_ended(tmp_path: Path, write: Any) -> None:
    pid = tmp_path / "pid"
    body = f"""
import subprocess, sys
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], **quiet)
open({str(pid)!r}, "w").write(str(child.pid))
return "left one behind" """
    _, state, _ = run(tmp_path, write("untidy", body))
    assert state.outcomes["untidy"].status == PASSED
    assert ended(int(pid.read_text()))


def test_a_second_run_goes_on(tmp_path: Path, write: Any) -> None:
    count = tmp_path / "count"
    once = write("once", f"open({str(count)!r}, 'a').write('x')\nreturn 'done'")
    other = write("other", "run.check(0, 'not yet')")
    assert not run(tmp_path, once, other)[0]
    mended = write("other", "return 'mended'")
    good, _, said = run(tmp_path, once, mended)
    assert good
    assert "== once: passed before" in said
    assert count.read_text() == "x"
    run(tmp_path, once, again=True)
    assert count.read_text() == "xx"


def test_another_commit_begins_anew(tmp_path: Path, write: Any) -> None:
    phase = write("one", "return 'done'")
    run(tmp_path, phase)
    state = State(tmp_path / "out" / "gpu.json", "def", False, {})
    state.load()
    assert not state.outcomes
    state = State(tmp_path / "out" / "gpu.json", "abc", True, {})
    state.load()
    assert not state.outcomes


def test_another_form_begins_anew(tmp_path: Path, write: Any) -> None:
    phase = write("one", "return 'done'")
    run(tmp_path, phase)
    known = State(tmp_path / "out" / "gpu.json", "abc", False, {}, "short")
    known.load()
    assert not known.outcomes, "what has passed in short has not passed"
    # Nor do files of before the form was written down count.
    document = json.loads(known.path.read_text())
    del document["form"]
    known.path.write_text(json.dumps(document))
    state = State(known.path, "abc", False, {})
    state.load()
    assert not state.outcomes


def test_what_a_phase_had_seen_is_on_disk_while_it_runs(tmp_path: Path, write: Any) -> None:
    seen = tmp_path / "out" / "gpu" / "one.json"
    body = f"""
import json, pathlib
run.details["step"] = 1
run.note("one step")
return json.loads(pathlib.Path({str(seen)!r}).read_text())["summary"]"""
    _, state, _ = run(tmp_path, write("one", body))
    assert state.outcomes["one"].summary == "one step"


def test_a_phase_for_which_no_time_is_left_does_not_begin(tmp_path: Path, write: Any) -> None:
    phase = write("one", "return 'done'")
    good, state, _ = run(tmp_path, phase, seconds=5)
    assert not good
    assert state.outcomes["one"].status == LEFT
    assert "5 s are left" in state.outcomes["one"].summary


def test_a_phase_is_told_its_time_and_says_what_it_left_out(tmp_path: Path, write: Any) -> None:
    body = """
run.check(0 < run.left < 20, run.left)
done = [n for n in range(3) if run.time_for(f'case {n}', 15 * n)]
return f'did {done}'"""
    _, state, _ = run(tmp_path, write("one", body, seconds=20))
    assert state.outcomes["one"].summary == "did [0, 1]; no time for 1: case 2"
    assert state.outcomes["one"].details == {"left_out": ["case 2"]}


def test_what_means_nothing_over_the_stand_in_is_skipped(tmp_path: Path, write: Any) -> None:
    good, state, _ = run(tmp_path, write("one", "1/0", stand_in=False), stand_in=True)
    assert good
    assert state.outcomes["one"].status == SKIPPED


def test_the_command_line() -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PHASE.parents[1] / "run_all.py"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=os.environ
        )

    listed = call("--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names[:4] == ["prepare", "machine", "probe", "memory"]
    for name in names:
        assert (PHASE.parent / f"{name}.py").exists(), name
    wrong = call("fussed")
    assert wrong.returncode == 2
    assert "no phase is called fussed; there are prepare, machine, probe" in wrong.stderr


@pytest.mark.native
@pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")
@pytest.mark.parametrize("name", PLAYED)
def test_a_phase_over_the_stand_in(tmp_path: Path, name: str) -> None:
    fakecuda.library()  # built before the phase's own time begins
    command = [sys.executable, str(PHASE.parents[1] / "run_all.py"), "--stand-in", "--short"]
    done = subprocess.run(
        [*command, "--minutes", "4", "--output", str(tmp_path), name],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["stand_in"]
    assert result["phases"][name]["status"] == PASSED


def test_what_wants_the_runtime_library_means_nothing_over_the_stand_in() -> None:
    from run_all import PHASES

    alone = {phase.name for phase in PHASES if not phase.stand_in}
    assert alone == {"sanitizer", "pool", "tensors"}
    assert alone.isdisjoint(PLAYED)
    assert {phase.name for phase in PHASES} == alone.union(PLAYED, {"machine"})


@pytest.mark.native
@pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")
def test_what_a_kernel_did_not_write_is_found_and_the_next_case_is_run(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text(f"{HEAD}import fused\nfused.launch = lambda *a: None\nmain(fused.phase)\n")
    idle = Phase("idle", "kernels that do nothing", 100, script=script)
    more = {"arguments": ["--stand-in", "--short"], "environment": fakecuda.environment()}
    good, state, _ = run(tmp_path, idle, **more)
    assert not good
    outcome = state.outcomes["idle"]
    assert "failures, first 2 ranks, rank " in outcome.summary
    assert "elements, first 0: got" in outcome.summary
    # Every case of all ranks was run, and is put down.
    for size in (2, 4):
        assert len(outcome.details[f"{size} ranks"]["failures"]) == 40


GIVES_UP = """
import fused
from pycoll.errors import CollectiveTimeout
real, left = fused.launch, [2]
def launch(comm, case, *rest):
    if case.collective == "broadcast" and case.count == 4097 and left[0]:
        left[0] -= 1
        raise CollectiveTimeout("it gave up")
    real(comm, case, *rest)
fused.launch = launch
main(fused.phase)
"""


@pytest.mark.native
@pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")
def test_behind_a_kernel_that_gave_up_the_next_case_is_run(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"{HEAD}{GIVES_UP}")
    ends = Phase("ends", "two kernels give up", 100, script=script)
    more = {"arguments": ["--stand-in", "--short"], "environment": fakecuda.environment()}
    good, state, _ = run(tmp_path, ends, **more)
    assert not good
    found = state.outcomes["ends"].details
    failures = found["2 ranks"]["failures"]
    assert [text.split(": ", 2)[2] for text in failures] == ["CollectiveTimeout: it gave up"] * 2
    assert found["4 ranks"]["failures"] == []
    assert found["2 ranks"]["cases"] == found["4 ranks"]["cases"] - 2
