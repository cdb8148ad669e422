"""The engine and a driver of it, compiled with a sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1] / "native"
DRIVERS = Path(__file__).parent / "native"
SOURCES = sorted(p for p in NATIVE.glob("*.c") if not p.name.startswith("fast"))
TSAN = ("-fsanitize=thread", "-DPC_RANKS_ARE_THREADS")
ASAN = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

#: Where the engine's objects lie, by flags: drivers share them.
_ENGINES: dict[tuple[str, ...], Path] = {}


def build(folder: Path, driver: str, flags: Iterable[str]) -> Path:
    """Compile the engine and one driver; skip where the compiler has no such sanitizer."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler: apt-get install gcc")
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    command = [cc, "-std=gnu11", "-O1", "-g", "-pthread", "-D_GNU_SOURCE", *flags, f"-I{NATIVE}"]
    if subprocess.run([*command, probe, "-o", folder / "probe"], capture_output=True).returncode:
        pytest.skip(f"the compiler cannot link {' '.join(flags)}")
    engine = _ENGINES.get(tuple(flags), folder)
    objects = {source: engine / f"{source.stem}.o" for source in SOURCES}
    objects[DRIVERS / f"{driver}.c"] = folder / f"{driver}.driver.o"
    jobs = []
    for source, output in objects.items():
        if output.exists():  # by an earlier driver
            continue
        # the kernels are many and generated: optimising them under a sanitizer takes a minute
        level = ["-O0"] if source.name == "reduce.c" else []
        jobs.append(subprocess.Popen([*command, *level, "-c", source, "-o", output]))
    failed = [job.args for job in jobs if job.wait() != 0]
    assert not failed
    _ENGINES[tuple(flags)] = engine
    subprocess.run([*command, *objects.values(), "-ldl", "-o", folder / driver], check=True)
    return folder / driver


def engine_of(flags: Iterable[str]) -> Path:
    """Return where the objects lie of an engine that was built with these flags."""
    return _ENGINES[tuple(flags)]
