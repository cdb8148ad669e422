"""What is there, asked of the system alone: it is known even where nothing of pycoll loads."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from phase import Run, main

FILES = ("/proc/driver/nvidia/version", "/proc/version", "/sys/fs/cgroup/memory.max")
COMMANDS = {
    "nvidia-smi": ["nvidia-smi", "-L"],
    "clocks": ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv"],
    "compute-sanitizer": ["compute-sanitizer", "--version"],
    "nvcc": ["nvcc", "--version"],
}
PREFIXES = ("CUDA", "NCCL", "NVIDIA", "PYCOLL", "LD_")


def phase(run: Run) -> str:
    found: dict[str, object] = {
        "system": " ".join(platform.uname()),
        "python": sys.version,
        "cores": len(os.sched_getaffinity(0)),
        "locked memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "shared memory MiB": shutil.disk_usage("/dev/shm").total >> 20,
        "devices": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)},
    }
    for name in FILES:
        found[name] = Path(name).read_text().strip() if Path(name).exists() else "none"
    for name, command in COMMANDS.items():
        found[name] = said(command)
    run.details |= found
    for name, text in found.items():
        print(f"{name}: {text}")
    return f"{platform.system()} {platform.release()}; {found['nvidia-smi']}"


def said(command: list[str]) -> str:
    """Return what a command prints, or why it does not."""
    if shutil.which(command[0]) is None:
        return "none"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    text = (done.stdout + done.stderr).strip()
    return text if done.returncode == 0 else f"exit status {done.returncode}: {text}"


if __name__ == "__main__":
    main(phase)
