"""`pycoll run --start fork`: its ranks cannot be told from fresh interpreters by what they see."""

from __future__ import annotations

import os
import py_compile
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_until, wait_until_stopped

SECONDS = 60.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]

Both = Callable[..., str]

#: What a program sees of its interpreter.
SIGHT = """
import atexit, gc, os, resource, signal, sys, threading
print("argv", sys.argv, sys.orig_argv[1:], sys.path, sys.flags)
print("main", __name__, __file__, __package__, type(__loader__), type(__spec__), sorted(globals()))
print("same", vars(sys.modules["__main__"]) is globals(), __builtins__)
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.isatty(), stream.line_buffering,
          getattr(stream, "write_through", None))
print("stdin", repr(sys.stdin.read()))
for number in signal.valid_signals():
    print(number, signal.getsignal(number))
print("mask", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print("wakeup", signal.set_wakeup_fd(-1))
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
print("descriptors", sorted(os.listdir("/proc/self/fd")), limit)
print("threads", threading.enumerate(), len(os.listdir("/proc/self/task")), os.getcwd())
print("collector", gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit())
print("environment", sorted(item for item in os.environ.items() if item[0] not in CHANGING))
parent = os.getppid()
print("family", os.getpgid(0) == os.getpgid(parent), os.getsid(0) == os.getsid(parent))
sys.exit(3)
"""
CHANGING = {"MASTER_PORT", "PYCOLL_SECRET", "TORCHELASTIC_RUN_ID", "_"}


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run an interpreter to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """Run a program as one fresh interpreter and as one fork; they say and do the same."""

    def run(*program: str, size: int = 1, **environ: str) -> str:
        said = []
        for start in ("spawn", "fork"):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pycoll",
                    "run",
                    "-n",
                    str(size),
                    "--start",
                    start,
                    *program,
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", **environ},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            text = f"{done.returncode}\n{done.stdout}\n{done.stderr}"
            said.append(re.sub(r"process \d+|0x[0-9a-f]+|Thread\(MainThread, .*?\)", "...", text))
        assert said[1].splitlines() == said[0].splitlines()
        return said[0]

    return run


@pytest.mark.parametrize("environ", [{}, {"PYTHONUNBUFFERED": "", "PYTHONSAFEPATH": "1"}])
def test_a_file_sees_the_same(both: Both, tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "program.py").write_text(f"CHANGING = {CHANGING}" + SIGHT)
    (tmp_path / "link.py").symlink_to(folder / "program.py")
    for file in ("folder/program.py", "link.py"):
        assert "'-n', '--', 'x'" in both(file, "-n", "--", "x", **environ)


def test_a_module_sees_the_same(both: Both, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for name in ("program", "__main__"):
        (tmp_path / "package" / f"{name}.py").write_text(f"CHANGING = {CHANGING}" + SIGHT)
    for module in ("package.program", "package"):
        assert "main __main__ /" in both("-m", module, "x", "-m")
    assert "No module named" in both("-m", "package.missing")


def test_a_folder_an_archive_and_compiled_code_see_the_same(both: Both, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    source = tmp_path / "folder" / "__main__.py"
    source.write_text(f"CHANGING = {CHANGING}" + SIGHT)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(source, "__main__.py")
    py_compile.compile(str(source), str(tmp_path / "code.pyc"))
    for program in ("folder", "archive.zip", "code.pyc"):
        assert "main __main__ " in both(program, "x")


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('cause')\nf()",
        "def f(:",
        "raise KeyboardInterrupt",
        "sys.exit('a text')",
        "sys.exit()",
        "sys.excepthook = lambda kind, error, where: print(kind, where.tb_frame.f_lineno)\n1 / 0",
        "os._exit(9)",
        "os.kill(os.getpid(), 11)",
        # The interpreter's own end: handlers run, threads are waited for, files are flushed.
        "file = open('out', 'w'); file.write('x')\natexit.register(print, 'bye')",
        "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    ],
)
def test_it_ends_the_same_way(both: Both, tmp_path: Path, body: str) -> None:
    (tmp_path / "program.py").write_text("import atexit, os, sys, threading, time\n" + body)
    both("program.py")
    if "open" in body:
        assert (tmp_path / "out").read_text() == "x"


def test_what_was_imported_before_does_not_tie_the_ranks_together(both: Both, tmp_path) -> None:
    """Random numbers differ between ranks; a BLAS with threads works in each."""
    (tmp_path / "program.py").write_text(
        """
import os, random, sys
import numpy as np
from pathlib import Path
assert np.allclose(np.ones((500, 500)) @ np.ones((500, 500)), 500)
Path(os.environ["RANK"]).write_text(f"{random.random()} {np.random.random()}")
"""
    )
    assert both("program.py", size=3, OMP_NUM_THREADS="2") == "0\n\n"
    said = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert len({number for pair in said for number in pair}) == 6


def test_from_how_many_ranks_on(tmp_path: Path) -> None:
    """Above 64 they are forks by themselves, and their soft limit of descriptors is the user's."""
    (tmp_path / "program.py").write_text(
        "import resource, sys; print('numpy' in sys.modules, resource.getrlimit(7)[0])"
    )
    command = ["sh", "-c", 'ulimit -Sn 90; exec "$@"', "sh", sys.executable, "-m", "pycoll", "run"]
    for size, imported in ((1, False), (65, True)):
        done = subprocess.run(
            [*command, "-n", str(size), tmp_path / "program.py"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
        assert lines == [f"{imported} 90"] * size


def test_too_few_descriptors_are_said_before_any_rank_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')")
    command = ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", sys.executable, "-m", "pycoll", "run"]
    done = subprocess.run(
        [*command, "-n", "40", tmp_path / "program.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert re.match(r"pycoll run: run: this process has \d+ of 60 file descrip.* \(as", done.stderr)


def test_a_failure_is_heeded_while_ranks_are_still_started(tmp_path: Path) -> None:
    """What the first one says is passed on, too; no rank is left, started early or late."""
    (tmp_path / "program.py").write_text(
        """
import os, signal, sys
if os.environ["RANK"] == "0":
    print("x" * 300_000)  # more than a pipe holds: it ends only if somebody reads
    sys.exit(5)
open(os.environ["RANK"], "w").write(str(os.getpid()))
signal.pause()
"""
    )
    done = python("-m", "pycoll", "run", "-n", "100", "program.py", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert done.stdout.count("x") == 300_000
    assert re.search(r"^pycoll run: rank 0 \(process \d+\) ended with exit code 5; ", done.stderr)
    pids = [file.read_text() for file in tmp_path.iterdir() if file.name.isdigit()]
    assert not [pid for pid in pids if pid and Path(f"/proc/{pid}").exists()]


def test_a_signal_that_comes_as_a_rank_is_forked_ends_it() -> None:
    """And the process that forks it hears of that signal nothing but the rank's end."""
    code = """
import os, signal
from pycoll.bootstrap import forks, supervisor
signals = supervisor.signal_pipe()
forks.die_with = lambda parent: os.kill(os.getpid(), signal.SIGTERM)  # what a rank does first
started = forks.Forks(1, 1024).start(0)
if started is None:
    os._exit(0)
_, status = os.waitpid(started.process.pid, 0)
print(os.waitstatus_to_exitcode(status), list(os.read(signals, 100)) == [signal.SIGCHLD])
"""
    done = python("-c", code)
    assert (done.stdout, done.stderr) == ("-15 True\n", "")


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_signal_that_comes_as_the_worker_is_forked_ends_the_job(
    tmp_path: Path, start: str
) -> None:
    (tmp_path / "program.py").write_text("import time; time.sleep(30)")
    code = """
import os, signal, sys
from pycoll.bootstrap import processes
from pycoll.cli import main
heard = processes.hear_of_the_end
def hear_of_the_end(parent):
    heard(parent)
    os.kill(os.getpid(), signal.SIGTERM)
processes.hear_of_the_end = hear_of_the_end
sys.exit(main(["run", "-n", "1", "--start", sys.argv[1], "program.py"]))
"""
    done = python("-c", code, start, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (143, "pycoll run: ended by SIGTERM\n")


def test_ctrl_z_that_comes_as_the_worker_is_forked_stops_the_job_for_a_while(
    tmp_path: Path,
) -> None:
    """The worker may not have made its own process group yet."""
    (tmp_path / "program.py").write_text("")
    code = """
import os, sys, time
from pathlib import Path
from pycoll.cli import main
made = os.setpgid
def setpgid(pid, group):
    if pid == 0:
        while not Path("continued").exists(): time.sleep(0.001)
    made(pid, group)
os.setpgid = setpgid
fork = os.fork
def forked():
    pid = fork()
    if pid:
        Path("forked").touch()
    return pid
os.fork = forked
sys.exit(main(["run", "-n", "1", "--start", "spawn", "program.py"]))
"""
    job = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with job:
        wait_until((tmp_path / "forked").exists)
        job.send_signal(signal.SIGTSTP)
        wait_until_stopped(job.pid)
        job.send_signal(signal.SIGCONT)
        (tmp_path / "continued").touch()
        _, err = job.communicate(timeout=SECONDS)
    assert (job.returncode, err) == (0, "")
