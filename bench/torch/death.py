"""How soon a killed rank is known: 4 ranks train by DDP, one is killed in the middle of backward.

Every other rank raises and names it; the time is from just before the kill to the slowest rank's
exception. The job is the one of the tests (tests/torch_backend/jobs/death.py).

Run: python bench/torch/death.py
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

from launch import RESULTS, environment, write  # noqa: E402

from pycoll.benchmark import metadata  # noqa: E402

JOB = ROOT / "tests" / "torch_backend" / "jobs" / "death.py"
KILLED = 1  #: the rank, as the job has it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS / "torch-death.json", metavar="FILE")
    options = parser.parse_args()
    rows = []
    for how in ("ddp", "wait", "call"):
        slowest = [max(once(how, options.ranks)) for _ in range(options.repeats)]
        rows.append({"noticed_by": how, "seconds": slowest})
        print(f"{how}: median {statistics.median(slowest)} s, worst {max(slowest)} s")
    write(options.output, metadata.collect("env", options.ranks, {}), rows)


def once(how: str, size: int) -> list[float]:
    """Seconds until each survivor raised an error that names the killed rank."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(JOB), how, str(Path(folder, "killed"))],
                env={**environment(), **job, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    said.pop(KILLED)
    found = [re.search(rf"([\d.]+) s: .*rank {KILLED} \(process", text) for text in said]
    if not all(found):
        sys.exit(f"{how}: a survivor did not name rank {KILLED}: {said}")
    return [float(match[1]) for match in found if match]


if __name__ == "__main__":
    main()
