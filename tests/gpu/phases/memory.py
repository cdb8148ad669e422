"""What the engine finds out about GPU memory that a NIC is to reach: memory/mem_type.c itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from phase import ROOT, Lacking, Run, main

SOURCES = ("memory/mem_type", "gpu/driver/cuda", "gpu/driver/cuda_memory", "core/error")


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda, verbs

    if lack := cuda.missing():
        raise Lacking(lack)
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        raise Lacking(f"no C compiler ({compiler}): apt-get install gcc")
    native = ROOT / "native"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "memory")
        sources = [native / f"{name}.c" for name in SOURCES]
        sources.append(ROOT / "tests" / "gpu" / "memory.c")
        flags = ["-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", f"-I{native}", "-Wall"]
        subprocess.run([compiler, *flags, "-o", program, *sources, "-ldl"], check=True)
        done = subprocess.run(
            [program, str(run.device)], capture_output=True, text=True, timeout=60, check=False
        )
    run.check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr.strip()}")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    run.details |= lines
    run.details["verbs"] = verbs.verbs_missing() or "there"
    print(done.stdout, end="")
    return "; ".join(f"{name}: {text}" for name, text in lines.items())


if __name__ == "__main__":
    main(phase)
