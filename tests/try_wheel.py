"""Install a wheel where nothing can compile, and use it: `make wheel` ends with this.

Usage: python tests/try_wheel.py dist/pycoll-....whl
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROGRAM = """
import sys
import numpy as np
import pycoll

def total():
    with pycoll.init() as comm:
        return comm.size, float(comm.allreduce(np.arange(1e5) + comm.rank)[-1])

if __name__ == "__main__":
    assert pycoll.__file__.startswith(sys.prefix), pycoll.__file__
    print(total() if sys.argv[1:] else pycoll.spawn(total, 2))
"""
WANT = "(2, 199999.0)"


def try_wheel(wheel: Path, folder: Path) -> str:
    """Install into a new environment in `folder`, whose PATH is all there is; what was seen."""
    bin_ = folder / "env" / "bin"
    venv.create(folder / "env", with_pip=True)
    program = folder / "program.py"
    program.write_text(PROGRAM)

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [bin_ / command[0], *command[1:]],
            cwd=folder,
            env={"PATH": str(bin_), "CC": "false", "HOME": str(folder), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
        return done.stdout

    pip = ["python", "-m", "pip", "-qq", "--disable-pip-version-check"]
    run(*pip, "install", "--only-binary", ":all:", wheel.resolve())
    spawned = run("python", program)
    assert spawned == f"[{WANT}, {WANT}]\n", spawned
    launched = run("pycoll", "run", "-n", "2", program, "as a rank")
    assert sorted(launched.splitlines()) == [f"[0] {WANT}", f"[1] {WANT}"], launched
    proved = run("pycoll", "verify", "ring", "--size", "8")
    assert proved.startswith("ring at 8 ranks is right"), proved
    return f"{wheel.name}: installed without a compiler; 2 ranks, by spawn and by run: {WANT}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pycoll-wheel-") as name:
        print(try_wheel(Path(sys.argv[1]), Path(name)))
