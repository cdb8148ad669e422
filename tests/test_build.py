"""The package installs on a machine that cannot compile, and says what mends it."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


def source_tree(root: Path, where: Path) -> Path:
    """Copy what a build reads, and nothing that an earlier build left."""
    where.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, where)
    left = shutil.ignore_patterns("*.so", "__pycache__", "_native_missing.txt")
    for name in ("pycoll", "native"):
        shutil.copytree(root / name, where / name, ignore=left)
    return where


def refusing_compiler(folder: Path) -> str:
    """Return a compiler that exists and fails, as one does that lacks its headers."""
    path = folder / "refusing-cc"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/nonexistent/cc", "no C compiler (/nonexistent/cc) was found"),
        (refusing_compiler, "refusing-cc did not compile native/*.c"),
    ],
    ids=["no compiler", "compiler refuses"],
)
def test_installs_without_the_engine(compiler, reason: str, root: Path, tmp_path: Path) -> None:
    source = source_tree(root, tmp_path / "source")
    target = tmp_path / "installed"
    command = compiler if isinstance(compiler, str) else compiler(tmp_path)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--verbose", "--no-build-isolation", "--no-deps",
         "--no-index", "--target", target, "."],
        cwd=source,
        env={**os.environ, "CC": command},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    said = built.stdout + built.stderr  # pip shows a build's output on either
    assert "pycoll is built without its native engine: " in said
    assert reason in said
    assert not list(target.glob("pycoll/*.so"))

    use = (
        # An editable install would lend its engine to the package that lacks one.
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in f.__module__]\n"
        "import pycoll\n"
        "print(bool(pycoll.verify('ring', size=4)))\n"
        "try: pycoll.init()\n"
        "except pycoll.UnavailableError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", use],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    proved, message = done.stdout.split("\n", 1)
    assert proved == "True"
    assert reason in message
    assert "pip install --force-reinstall --no-deps ." in message


@pytest.mark.pure
def test_ships_what_the_kernels_are_compiled_from(root: Path, tmp_path: Path) -> None:
    source = source_tree(root, tmp_path / "source")
    (source / "native" / "stray.cu").write_text("/* no part of the kernels */\n")
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--formats=gztar", "build_py"],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    closure = runpy.run_path(str(root / "pycoll/runtime/cuda/source.py"))["closure"]
    wanted = closure(root / "native")
    assert {
        "gpu/kernel/kernel.cu",
        "gpu/kernel/kernel.h",
        "gpu/kernel/span.h",
        "isa.h",
    } <= wanted.keys()
    [shipped] = source.glob("build/lib*/pycoll/runtime/cuda/native")
    assert {
        file.relative_to(shipped).as_posix(): file.read_text()
        for file in shipped.rglob("*")
        if file.is_file()
    } == wanted
    with tarfile.open(next((source / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/native/")[2] for name in archive.getnames()}
    assert wanted.keys() <= names


def test_cdef_keeps_declarations_and_constants_only(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)  # where setuptools runs it
    cdef = runpy.run_path("native/build.py")["cdef"]
    header = """#ifndef A /* guard */
    #include <stdint.h>
    #define PC_SIZE 64u
    #define PC_HEX 0x10
    #define PC_BOTH(a) \\
        do_it(a)
    #define PC_SUM (1 + 2)
    int pc_a(void); // one
    _Static_assert(sizeof(int) == 4,
                   "int");
    #endif
    """
    kept = [" ".join(line.split()) for line in cdef(header).splitlines() if line.strip()]
    assert kept == ["#define PC_SIZE 64u", "#define PC_HEX 0x10", "int pc_a(void);"]
