"""Times beside NCCL's on the same GPU: bench/gpu/one_gpu.py, within the time that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from phase import ROOT, Lacking, Run, main

REFUSED = "not measured: "


def phase(run: Run) -> str:
    from pycoll.runtime import bindings_cuda as cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    output = (run.carried or ROOT / "build" / "gpu" / "carried").parent / "gpu-one.json"
    command = [sys.executable, "-u", str(ROOT / "bench" / "gpu" / "one_gpu.py")]
    command += ["--output", str(output), "--device", str(run.device), "--repeats", "9"]
    command += ["--seconds", f"{max(20.0, run.left / 2):.0f}"]
    found = sorted((run.carried or Path("none")).glob("libnccl.so*"))
    command += ["--nccl", str(found[0])] if found else []
    command += ["--max", "1M", "--repeats", "3"] if run.short else []
    if run.stand_in:  # no NCCL runs there: the form of a run, and results that are checked
        command += ["--stand-in", "--alone", "--max", "512", "--factor", "64", "--repeats", "2"]
    said = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="")
            said.append(line.rstrip())
    refused = [line for line in said if line.startswith(REFUSED)]
    if process.returncode and refused:
        raise Lacking(refused[0].removeprefix(REFUSED))
    run.check(process.returncode == 0, f"exit status {process.returncode}: {said[-1:]}")
    result = json.loads(output.read_text())
    run.details["ratios"] = result["ratios"]
    run.check(not sum(row["wrong"] for row in result["rows"]), "there are wrong elements")
    claims = [line.removeprefix("# ") for line in said if line.startswith("# ") and "NCCL" in line]
    return "; ".join(claims) or f"{len(result['rows'])} rows"


if __name__ == "__main__":
    main(phase)
