"""The wheel: named for every Python from 3.11 on, complete, and used without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest
import try_wheel
from test_build import source_tree

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = source_tree(root, folder / "source")
    # The engine that is built here, dated so that it is not compiled again, which takes a minute.
    built = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}/pycoll"
    (source / built).mkdir(parents=True)
    for engine in (root / "pycoll").glob("_native*.so"):
        later = time.time() + 3600
        os.utime(shutil.copy(engine, source / built), (later, later))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
         "-w", folder, "."],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=280,
    )  # fmt: skip
    (found,) = folder.glob("*.whl")
    return found


def test_it_is_for_every_python(wheel: Path) -> None:
    assert wheel.name.endswith(f"-cp311-abi3-linux_{os.uname().machine}.whl")


def test_it_has_all_that_is_needed_and_no_more(wheel: Path, root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(root).as_posix() for path in (root / "pycoll").rglob("*.py")}
    assert sources <= names
    assert {"pycoll/_native.abi3.so", "pycoll/py.typed", "pycoll/verify/certificates.json"} <= names
    kernels = "pycoll/runtime/cuda/native"  # sources: they are compiled where there is a GPU
    assert {
        f"{kernels}/{name}" for name in ("gpu/kernel/kernel.cu", "gpu/kernel/kernel.h", "isa.h")
    } <= names
    assert "pycoll/_native_missing.txt" not in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"pycoll"}


def test_it_is_installed_and_used_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    no_compiler = {"PATH": str(tmp_path), "CC": "false", "HOME": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target,
         wheel],
        env=no_compiler,
        check=True,
        capture_output=True,
        timeout=120,
    )  # fmt: skip
    program = tmp_path / "program.py"
    # An editable install would lend what the wheel lacks.
    alone = (
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'edit' not in f.__module__]\n"
    )
    program.write_text(alone + try_wheel.PROGRAM.replace("sys.prefix", repr(str(target))))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=no_compiler | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"[{try_wheel.WANT}, {try_wheel.WANT}]\n"), done
