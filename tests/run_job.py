"""A launcher that runs: `pycoll run` as a process of its own, and what its ranks tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from waiting import wait_until

SECONDS = 60.0  #: generous: reached only by a hang

#: Begins every program: `tell` leaves a file, `wait` waits for one.
PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
HERE, RANK = Path(sys.argv[0]).parent, int(os.environ["RANK"])
def tell(name, text=""):
    (HERE / (name + ".new")).write_text(str(text)); (HERE / (name + ".new")).rename(HERE / name)
def wait(name):
    while not (HERE / name).exists(): time.sleep(0.001)
def child():
    "A process that leaves its family and never ends."
    code = "import signal; print('up', flush=True); signal.pause()"
    made = subprocess.Popen([sys.executable, "-c", code], start_new_session=True,
                            stdout=subprocess.PIPE)
    made.stdout.readline()
    return made.pid
"""


def heed_hangups() -> None:
    """As a program does that nohup, or a job of its kind, has not started."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Job:
    """A launcher that runs."""

    def __init__(
        self, folder: Path, size: int | None, body: str, *options: str, **popen: object
    ) -> None:
        self.folder = folder
        count = [] if size is None else ["-n", str(size)]
        script = folder / "program.py"
        script.write_text(PRELUDE + body)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pycoll", "run", *count, *options, str(script)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "preexec_fn": heed_hangups,
                **popen,
            },
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err

    def told(self, name: str) -> str:
        wait_until((self.folder / name).exists)
        return (self.folder / name).read_text()


def gone(pid: int) -> bool:
    """Whether a process has ended; whoever is left to reap it may take a while."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
