"""Times beside NCCL's on the same GPU: bench/gpu/one_gpu.py, within the time that there is."""

from __future__ import annotations

import json
import subprocess
import sys

from phase import ROOT, Lacking, Run, main

#: Short messages, and three lengths at which a GPU's memory is the limit.
FIRST = "8,64,1K,8K,64K,1M,16M,128M"
OTHERS = "allgather,reduce_scatter,broadcast,alltoall,reduce,gather,scatter"
#: Of these, in the time that is left.
OTHERS_SIZES = "64,8K,64K,16M"
#: Of the phase's seconds, those that are kept for them; and those in which a process begins.
SHARE = 0.25
START = 10.0
REFUSED = "not measured: "


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    numbers = 1 if run.first or run.stand_in else 2  # of ranks: each has a process of its own
    sizes = ["--ranks", "2", "--modes", "graph,eager", "--sizes", FIRST]
    given = sizes if run.first else ["--max", "1M" if run.short else "256M"]
    kept = SHARE * run.seconds
    claims = contest(run, "gpu-one.json", (run.left - kept) / numbers - START, given)
    if run.time_for("other collectives", START + 5):
        given = ["--ranks", "2", "--modes", "graph", "--sizes", OTHERS_SIZES]
        given += ["--collective", OTHERS]
        claims += contest(run, "gpu-one-others.json", run.left - START, given)
    return "; ".join(claims) or f"{run.checks} checks"


def contest(run: Run, name: str, seconds: float, given: list[str]) -> list[str]:
    """Run the benchmark for so many seconds; returns what it claims."""
    import one_arch

    output = run.output / name
    command = [sys.executable, "-u", str(ROOT / "bench" / "gpu" / "one_gpu.py")]
    command += ["--output", str(output), "--device", str(run.device), "--repeats", "9"]
    command += ["--commit", run.commit, "--carried", str(run.carried or run.output), *given]
    command += ["--seconds", f"{max(5.0, seconds):.0f}"]
    library = one_arch.unpack(run.carried) if run.carried else None
    command += ["--nccl", str(library)] if library else []
    command += ["--repeats", "3"] if run.short else []
    if run.stand_in:  # no NCCL runs there: the form of a run, and results that are checked
        command += ["--stand-in", "--alone", "--repeats", "2", "--ranks", "2"]
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
    rows = result["rows"]
    run.details[name] = result["ratios"]
    run.details[f"hops of {name}"] = [
        {key: row[key] for key in ("collective", "ranks", "mode", "nbytes", "hops")}
        for row in rows
        if row["library"] == "pycoll" and "hops" in row
    ]
    run.note(f"{len(rows)} rows")
    run.check(process.returncode == 0, f"{len(rows)} rows, then {said[-1:]}")
    run.check(rows, "nothing was measured")
    run.check(not sum(row["wrong"] for row in rows), "there are wrong elements")
    return [line.removeprefix("# ") for line in said if "of NCCL" in line or "flag's" in line]


if __name__ == "__main__":
    main(phase)
