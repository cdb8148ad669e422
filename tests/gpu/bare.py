"""A machine with Python and numpy and nothing else, played by a folder: what is carried must do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
#: What of the source a machine with a GPU is given, besides what `prepare` makes.
CARRIED = ("pycoll", "native", "bench", "tests/gpu", "tests/fakecuda", "tests/compiled.py")


def python(folder: Path) -> Path:
    """Make an environment that has numpy, and return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    installed = Path(np.__file__).parents[1]
    for each in ("numpy", "numpy.libs", f"numpy-{np.__version__}.dist-info"):
        if (installed / each).exists():
            (site / each).symlink_to(installed / each)
    return folder / "bin" / "python"


def source(folder: Path) -> Path:
    """Copy the source and the engine, and nothing that git has of them."""
    for part in CARRIED:
        ignored = shutil.ignore_patterns("__pycache__", "results", "test_*")
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def run(
    python: Path, source: Path, *arguments: str, timeout: float, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the script there, without any of this session's ways to other modules."""
    own = ("PYTHON", "PYCOLL", "VIRTUAL_ENV", "FAKECUDA")
    environment: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    return subprocess.run(
        [str(python), "tests/gpu/run_all.py", *arguments],
        cwd=source,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


if __name__ == "__main__":  # python bare.py FOLDER: makes both
    where = Path(sys.argv[1])
    print(python(where / "python"), source(where / "source"))
