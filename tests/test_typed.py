"""What a type checker tells a user of pycoll: mypy --strict on a good file and on a bad one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from pycoll.dtypes import OPS, OpName
from pycoll.order import ORDERS, OrderName
from pycoll.schedule.collective import COLLECTIVES, CollectiveName

ROOT = Path(__file__).parents[1]
TYPED = ROOT / "tests/typed"


def refused(file: Path) -> tuple[set[int], str]:
    """Return the lines of a file in which mypy finds something, and all that it says."""
    cache = ROOT / "build/tests/mypy"
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    command += ["--follow-imports=silent", "--python-version=3.11", str(file)]
    path = os.pathsep.join((str(ROOT), str(TYPED / "stubs")))
    ran = subprocess.run(
        command, cwd=TYPED, env=os.environ | {"MYPYPATH": path}, text=True, capture_output=True
    )
    assert ran.returncode < 2, ran.stdout + ran.stderr
    found = re.findall(rf"^{re.escape(file.name)}:(\d+): error: ", ran.stdout, flags=re.M)
    return {int(line) for line in found}, ran.stdout


def test_nothing_that_is_right_is_refused() -> None:
    lines, said = refused(TYPED / "good.py")
    assert not lines, said


def test_what_is_wrong_is_refused_where_it_stands() -> None:
    lines, said = refused(TYPED / "bad.py")
    text = (TYPED / "bad.py").read_text().splitlines()
    want = {number for number, line in enumerate(text, 1) if line.endswith("# refused")}
    assert lines == want, said


def test_the_names_are_those_of_the_tables() -> None:
    assert get_args(OpName) == tuple(OPS)
    assert get_args(CollectiveName) == tuple(COLLECTIVES)
    assert get_args(OrderName) == ORDERS
