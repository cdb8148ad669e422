"""Times beside NCCL's on the same GPU: bench/gpu/one_gpu.py, within the time that there is."""

from __future__ import annotations

import json
import subprocess
import sys

from phase import ROOT, Lacking, Run, main

#: Short messages, and three lengths at which a GPU's memory is the limit.
FIRST = "8,64,1K,8K,64K,1M,16M,128M"
REFUSED = "not measured: "


def phase(run: Run) -> str:
    import one_arch

    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    output = run.output / "gpu-one.json"
    command = [sys.executable, "-u", str(ROOT / "bench" / "gpu" / "one_gpu.py")]
    command += ["--output", str(output), "--device", str(run.device), "--repeats", "9"]
    command += ["--seconds", f"{max(20.0, run.left / 2 - 10):.0f}", "--commit", run.commit]
    library = one_arch.unpack(run.carried) if run.carried else None
    command += ["--nccl", str(library)] if library else []
    command += ["--max", "1M", "--repeats", "3"] if run.short else []
    if run.first:
        command += ["--ranks", "2", "--modes", "graph,eager", "--sizes", FIRST]
        command += ["--seconds", f"{max(10.0, run.left - 15):.0f}"]
    if run.stand_in:  # no NCCL runs there: the form of a run, and results that are checked
        command += ["--stand-in", "--alone", "--repeats", "2"]
        command += ["--sizes", "8,512"]
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
    result = json.loads(output.read_text()) if output.exists() else {"rows": [], "ratios": []}
    run.details["ratios"] = result["ratios"]
    run.note(f"{len(result['rows'])} rows")
    run.check(process.returncode == 0, f"{len(result['rows'])} rows, then {said[-1:]}")
    run.check(not sum(row["wrong"] for row in result["rows"]), "there are wrong elements")
    claims = [line.removeprefix("# ") for line in said if line.startswith("# ") and "NCCL" in line]
    return "; ".join(claims) or f"{len(result['rows'])} rows"


if __name__ == "__main__":
    main(phase)
