"""What every phase's script is made of: its arguments, its clock, its result."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path += [str(Path(__file__).resolve().parents[depth]) for depth in (1, 3)]

import kernels

ROOT = Path(__file__).resolve().parents[3]
#: As runner.py has it.
LACKING = 77


class Lacking(Exception):
    """This machine lacks what the phase needs; the text says what."""


class Run:
    """One run of a phase: what it was asked, and what it has seen so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.stand_in: bool = options.stand_in
        self.short: bool = options.short
        self.first: bool = options.first
        self.device: int = options.device
        self.seconds: float = options.seconds
        self.carried: Path | None = options.carried
        self.output: Path = options.output
        self.commit: str = options.commit
        # Seconds after which a kernel gives up: threads of this machine are slow to play one.
        self.deadline: float = options.deadline or (60.0 if options.stand_in else 5.0)
        self.most: int | None = options.most
        self._end = time.monotonic() + options.seconds
        self._result: Path | None = options.result
        self.checks = 0
        self.details: dict[str, Any] = {}
        self.left_out: list[str] = []

    @property
    def kernels_carried(self) -> bool:
        """Whether there are kernels that go the way to a GPU, also over the stand-in."""
        return bool(self.carried and any(self.carried.glob("pycoll/kernels/*.cubin")))

    @property
    def left(self) -> float:
        """Seconds until the phase should be done."""
        return self._end - time.monotonic()

    def time_for(self, what: str, seconds: float = 0.0) -> bool:
        """Tell whether there is time for more; what there is none for is put down."""
        if self.left > seconds:
            return True
        self.left_out.append(what)
        return False

    def check(self, good: object, text: str) -> None:
        """Count a check.

        Raises:
            AssertionError: It does not hold.
        """
        self.checks += 1
        if not good:
            raise AssertionError(text)

    def note(self, summary: str) -> None:
        """Leave a result as it stands: what a phase that is killed had reached."""
        if self._result is not None:
            row = {"summary": summary, "checks": self.checks, "details": self.details}
            part = self._result.with_suffix(".part")
            part.write_text(json.dumps(row | {"left_out": self.left_out}, default=str))
            part.replace(self._result)  # whole or not at all: it may be killed at any time

    def finish(self, summary: str) -> None:
        """Say what was seen."""
        missed = f"; no time for {len(self.left_out)}: {self.left_out[0]}" if self.left_out else ""
        print(f"{summary}{missed}")
        if self.left_out:
            self.details["left_out"] = self.left_out
        self.note(summary + missed)


def main(phase: Callable[[Run], str]) -> NoReturn:
    """Run a phase as a script: it returns what it saw in one line, or raises."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--short", action="store_true", help="a few cases of each kind")
    parser.add_argument("--first", action="store_true", help="what the first ten minutes are for")
    parser.add_argument("--most", type=int, help="cases of a number of ranks")
    parser.add_argument("--deadline", type=float, help="seconds until a kernel gives up; 5")
    parser.add_argument("--carried", type=Path, help="the folder that `prepare` filled")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--commit", default="unknown", help="of the source that runs")
    options = parser.parse_args()
    # Where it hangs is known before the runner kills it.
    faulthandler.dump_traceback_later(options.seconds + 10, exit=False)
    run = Run(options)
    if options.stand_in and not run.kernels_carried:
        kernels.take_any()
    try:
        run.finish(phase(run))
    except Lacking as lacking:
        run.finish(str(lacking))
        sys.exit(LACKING)
    except BaseException as error:
        traceback.print_exc()
        run.note(f"{type(error).__name__}: {error}"[:400])
        sys.exit(1)
    sys.exit(0)
