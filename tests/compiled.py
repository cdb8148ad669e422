"""C and C++ that tests compile: an object is made once of the same text, and kept in build/tests.

Most of a driver is the engine, which many drivers share, and so do the workers of a run and later
runs. The name of an object is a digest of the command, the compiler and every file that it reads;
within one process a file is read once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import runpy
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "native"
KEPT = ROOT / "build" / "tests"

ENGINE = [ROOT / name for name in runpy.run_path(str(NATIVE / "build.py"))["ENGINE"]]
C = ("-std=gnu11", "-g", "-pthread", "-D_GNU_SOURCE", f"-I{NATIVE}")

#: The parts of the engine, see `parts`, that open an RDMA device and a queue pair.
RAIL = (
    *("verbs/device", "verbs/qp", "verbs/gid", "verbs/port", "verbs/enumerate"),
    *("verbs/ibverbs", "core/error"),
)

#: Flags of a sanitizer, by its name.
SANITIZERS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
}

_DAYS = 7  #: until what no run has used is removed


@dataclass(frozen=True)
class Unit:
    """A source and how it is compiled: ``cc *flags -c source``."""

    source: Path
    flags: tuple[str, ...]

    @property
    def compiler(self) -> str:
        """The compiler of its language."""
        c = self.source.suffix == ".c"
        return os.environ.get("CC", "cc") if c else os.environ.get("CXX", "c++")


@functools.cache
def lack(sanitizer: str = "plain", suffix: str = ".c") -> str:
    """Say what this machine lacks to compile with a sanitizer; empty if nothing."""
    flags = SANITIZERS[sanitizer]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"probe{suffix}")
        source.write_text("int main(void) { return 0; }\n")
        compiler = Unit(source, flags).compiler
        if shutil.which(compiler) is None:
            return f"no compiler ({compiler}): apt-get install gcc g++"
        command = [compiler, source, *flags, "-o", f"{folder}/probe"]
        done = subprocess.run(command, capture_output=True)
    return f"{compiler} cannot link {' '.join(flags)}" if done.returncode else ""


def require(sanitizer: str = "plain", suffix: str = ".c") -> None:
    """Skip the test where this machine cannot compile with a sanitizer."""
    import pytest  # here: what is no test uses the stand-ins too

    if reason := lack(sanitizer, suffix):
        pytest.skip(reason)


def command(sanitizer: str, *flags: str) -> tuple[str, ...]:
    """Return the flags of C under a sanitizer; the ranks of ThreadSanitizer's are threads."""
    require(sanitizer)
    threads = ("-DPC_RANKS_ARE_THREADS",) if sanitizer == "tsan" else ()
    return (*C, "-O1", *SANITIZERS[sanitizer], *threads, *flags)


def engine(sanitizer: str, *flags: str) -> list[Unit]:
    """Return the units of the engine."""
    shared = command(sanitizer, *flags)
    # The kernels are many and generated: optimising them under a sanitizer takes a minute.
    return [Unit(p, (*shared, "-O0") if p.name == "reduce.c" else shared) for p in ENGINE]


def parts(sanitizer: str, names: Iterable[str]) -> list[Unit]:
    """Return units of the engine by their paths below native/, without suffix."""
    units = {
        unit.source.relative_to(NATIVE).with_suffix("").as_posix(): unit
        for unit in engine(sanitizer)
    }
    return [units[name] for name in names]


def driver(source: Path, sanitizer: str, units: Iterable[Unit] | None = None) -> Path:
    """Return the program of a driver and the engine, or of the units that are given."""
    units = engine(sanitizer) if units is None else units
    main = Unit(source, command(sanitizer))
    return linked(source.stem, [main, *units], *SANITIZERS[sanitizer])


def objects(units: Iterable[Unit]) -> list[Path]:
    """Compile what has not been compiled yet, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_object, units))


def linked(name: str, units: Iterable[Unit], *flags: str, reads: Sequence[Path] = ()) -> Path:
    """Return a program, or by ``-shared`` a library.

    It lies in a folder of its own, which may go on LD_LIBRARY_PATH.

    Args:
        name: Of the file.
        units: What is linked.
        flags: Of the linker, which come last; those of the units are not repeated by themselves.
        reads: Files that flags name, and whose text matters.
    """
    units = list(units)
    # A program that has any C++ is linked by that compiler.
    compiler = max(units, key=lambda unit: unit.source.suffix != ".c").compiler
    command = [compiler, "-pthread", *map(str, objects(units)), *flags, "-ldl"]
    text = "\n".join([_version(compiler), *command, *map(_digest_of, reads)])
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    return kept(f"{name}-{key}", name, lambda path: _run([*command, "-o", str(path)]))


def kept(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return a file in a folder of build/tests, made unless it is there, by one process only."""
    _sweep()
    home = KEPT / folder
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(home / ".lock"):
        if not path.exists():
            # It gets its name when it is whole: whoever is ended amid the making leaves none.
            part = path.with_name(f".{os.getpid()}-{path.name}")
            make(part)
            part.replace(path)
        os.utime(home)
    return path


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


@functools.cache
def _object(unit: Unit) -> Path:
    command = [unit.compiler, *unit.flags, "-c", str(unit.source), "-o"]
    folder = f"{unit.source.stem}-{_digest(unit)}"
    return kept(folder, f"{unit.source.stem}.o", lambda path: _run([*command, str(path)]))


def _digest(unit: Unit) -> str:
    rule = _run([unit.compiler, *unit.flags, "-M", str(unit.source)])
    _, _, read = rule.replace("\\\n", " ").partition(": ")
    digest = hashlib.sha256(repr((_version(unit.compiler), unit.flags)).encode())
    for path in read.split():
        digest.update(f"{path} {_digest_of(path)}\n".encode())
    return digest.hexdigest()[:20]


@functools.cache
def _digest_of(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"])


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _sweep() -> None:
    """Remove what no run has used for a while, once in a process."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for folder in KEPT.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _DAYS * 86400:
                shutil.rmtree(folder)
