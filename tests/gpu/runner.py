"""Runs phases one after the other, each in a process of its own under a limit, and remembers.

What is remembered is one JSON file: a second run goes on behind the phases that have passed at the
same commit. A phase that hangs is killed by its process group; nothing else is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
#: What a phase exits with that lacks something, as its result says.
LACKING = 77
PASSED, FAILED, HUNG, SKIPPED, LEFT = "passed", "FAILED", "HUNG", "skipped", "no time"


@dataclass(frozen=True)
class Phase:
    """A script that proves one thing about GPUs."""

    name: str
    about: str
    seconds: float  #: it is given at most; it fits its work into them
    least: float = 5.0  #: seconds below which it is not worth beginning
    stand_in: bool = True  #: it runs over the stand-in for the driver, too
    gpu: bool = True  #: it needs one, or the stand-in
    script: Path | None = None  #: phases/<name>.py by default

    @property
    def command(self) -> list[str]:
        """Return the command, without its arguments."""
        script = self.script or Path(__file__).parent / "phases" / f"{self.name}.py"
        return [sys.executable, "-u", str(script)]


@dataclass
class Outcome:
    """How a phase ended."""

    status: str
    seconds: float = 0.0
    summary: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class State:
    """What is known of all phases, in a file that is written after each."""

    path: Path
    commit: str
    stand_in: bool
    meta: dict[str, Any]
    form: str = "all"  #: of the run: what has passed in another form has not in this one
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def load(self) -> None:
        """Take over what an earlier run found out about the same commit on the same driver."""
        try:
            known = json.loads(self.path.read_text())
        except FileNotFoundError:
            return
        alike = "commit", "stand_in", "form"
        if [known.get(name) for name in alike] == [getattr(self, name) for name in alike]:
            self.outcomes = {name: Outcome(**row) for name, row in known["phases"].items()}

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: asdict(outcome) for name, outcome in self.outcomes.items()}
        document = {
            "commit": self.commit,
            "stand_in": self.stand_in,
            "form": self.form,
            "meta": self.meta,
            "phases": rows,
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        part.replace(self.path)


@dataclass
class Runner:
    """One run over some phases."""

    state: State
    log: TextIO  #: everything that phases print
    seconds: float  #: for all of them
    arguments: Sequence[str] = ()  #: handed to every phase
    environment: Mapping[str, str] = field(default_factory=dict)  #: of phases, besides this one's
    keep_going: bool = False  #: behind a hang
    again: bool = False  #: also what has passed
    grace: float = 20.0  #: seconds that a phase has beyond those it was told, to end by itself
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], object] = print

    def run(self, phases: Sequence[Phase]) -> bool:
        """Run what has not passed yet; returns whether nothing failed."""
        end = self.clock() + self.seconds
        for phase in phases:
            known = self.state.outcomes.get(phase.name)
            if known and known.status == PASSED and not self.again:
                self.say(f"== {phase.name}: passed before")
                continue
            outcome = self._one(phase, end - self.clock())
            self.state.outcomes[phase.name] = outcome
            self.state.save()
            self.say(f"== {phase.name}: {outcome.status}: {outcome.summary}")
            if outcome.status == HUNG and not self.keep_going:
                self.say("stopped: what hangs once may leave the GPU busy (--keep-going goes on)")
                break
        states = [self.state.outcomes.get(phase.name) for phase in phases]
        return all(outcome and outcome.status in (PASSED, SKIPPED) for outcome in states)

    def _one(self, phase: Phase, left: float) -> Outcome:
        if self.state.stand_in and not phase.stand_in:
            return Outcome(SKIPPED, summary="means nothing over the stand-in")
        if left < (wanted := phase.least + self.grace):
            return Outcome(LEFT, summary=f"{left:.0f} s are left, wants {wanted:.0f}")
        seconds = min(phase.seconds, left - self.grace)
        self.say(f"== {phase.name}: {phase.about}; at most {seconds:.0f} s")
        start = self.clock()
        # Beside the whole's, so that what it had seen is there whoever is killed.
        result = self.state.path.with_suffix("") / f"{phase.name}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        result.unlink(missing_ok=True)
        code = self._process(phase, seconds, result)
        found = json.loads(result.read_text()) if result.exists() else {}
        taken = round(self.clock() - start, 2)
        summary, details = found.get("summary", ""), found.get("details", {})
        if code is None:
            where = f"; it had said: {summary}" if summary else ""
            return Outcome(HUNG, taken, f"killed after {taken:.0f} s{where}", details)
        if code == LACKING:
            return Outcome(SKIPPED, taken, summary, details)
        if code or not found:
            why = summary or (f"exit status {code}" if code else "it left no result")
            return Outcome(FAILED, taken, why, details)
        return Outcome(PASSED, taken, summary, details)

    def _process(self, phase: Phase, seconds: float, result: Path) -> int | None:
        """Run a phase; returns its exit status, None if it had to be killed."""
        command = [*phase.command, "--seconds", f"{seconds:.1f}", "--result", str(result)]
        command += self.arguments
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it starts can be ended with it
        ) as process:
            with _killed_after(process, seconds + self.grace) as killed:
                for line in process.stdout or ():
                    self.log.write(f"[{phase.name}] {line}")
                    self.log.flush()
                    self.say(f"   {line.rstrip()}")
                code = process.wait()
            return None if killed() else code


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[Callable[[], bool]]:
    """Kill a process and all that it started when its time is over, or when this is left."""
    over = threading.Event()

    def kill() -> None:
        over.set()
        _kill(process.pid)

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield over.is_set
    finally:
        timer.cancel()
        timer.join()
        _kill(process.pid)  # what it left behind; the group's number is not given anew before
        process.wait()


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def table(phases: Sequence[Phase], outcomes: Mapping[str, Outcome]) -> str:
    """Return what is known of every phase, a line each."""
    lines = [f"{'phase':<12} {'status':<8} {'seconds':>8}  what was seen"]
    for phase in phases:
        outcome = outcomes.get(phase.name, Outcome("-"))
        lines.append(
            f"{phase.name:<12} {outcome.status:<8} {outcome.seconds:>8.1f}  {outcome.summary}"
        )
    return "\n".join(lines)
