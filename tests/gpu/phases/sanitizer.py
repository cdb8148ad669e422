"""compute-sanitizer over the fused form, whose blocks all run at once whatever it does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from phase import Lacking, Run, main

TOOLS = ("memcheck", "racecheck", "synccheck")
PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)


def phase(run: Run) -> str:
    tool = shutil.which("compute-sanitizer") or next(filter(shutil.which, PLACES), None)
    if tool is None:
        raise Lacking("no compute-sanitizer: it comes with the CUDA toolkit")
    if lack := refused(tool, run.device):
        raise Lacking(lack)
    seen = []
    tools = TOOLS[:1] if run.first else TOOLS
    for name in tools:
        if not run.time_for(name, 20.0):
            break
        seconds = run.left / (len(tools) - tools.index(name))
        inner = [sys.executable, str(Path(__file__).with_name("fused.py"))]
        inner += ["--seconds", f"{max(10.0, seconds - 15):.0f}", "--short", "--deadline", "60"]
        inner += ["--most", "10"] if run.first else []
        inner += ["--device", str(run.device)]
        command = [tool, "--tool", name, "--error-exitcode", "9", *inner]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 60, check=False
        )
        print(done.stdout[-2000:], done.stderr[-2000:])
        found = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)", done.stdout)
        run.details[name] = found[-1] if found else "no summary"
        run.check(done.returncode == 0, f"{name}: exit status {done.returncode}: {found}")
        seen.append(f"{name}: {run.details[name]}")
        run.note("; ".join(seen))
    return "; ".join(seen)


def refused(tool: str, device: int) -> str:
    """Say why the tool cannot look at a GPU here, by a program that does little; empty if it can.

    The program alone has to go well: else it is no matter of the tool's.
    """
    little = [sys.executable, str(Path(__file__).with_name("probe.py")), "--touch", str(device)]
    subprocess.run(little, check=True, capture_output=True, timeout=60)
    done = subprocess.run(
        [tool, "--tool", "memcheck", *little],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 0 and "Error: " not in done.stdout + done.stderr:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
    why = lines[0].lstrip("= ") if lines else f"exit status {done.returncode}"
    return f"compute-sanitizer cannot look at this GPU: {why}"


if __name__ == "__main__":
    main(phase)
