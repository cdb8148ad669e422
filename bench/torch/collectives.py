"""torch.distributed by pycoll and by gloo: 2 ranks, 4 B to 64 MiB, in turns inside one job.

Beside the two, the same call on the Communicator itself, without torch around it, and on the
process group without torch's Python function: what the backend adds to the first is the
difference of those two. From 16 MiB on, a third of the repeats.

Run: python bench/torch/collectives.py [all_reduce ...]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch import RESULTS, environment, write

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "broadcast",
    "all_to_all_single",
)
RANK = Path(__file__).with_name("collectives_rank.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collectives", nargs="*", default=COLLECTIVES)
    parser.add_argument("--output", type=Path, default=RESULTS / "torch-2.json", metavar="FILE")
    parser.add_argument("--max", type=int, default=64 << 20, metavar="BYTES")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        arguments = [str(path), str(options.max), str(options.repeats), *options.collectives]
        job([options.python, str(RANK), *arguments], 2)
        import json

        found: dict[str, Any] = json.loads(path.read_text())
    write(options.output, found["meta"], found["rows"], summary=summary(found["rows"]))


def job(command: list[str], size: int) -> None:
    """Run ranks as torchrun would; ends with the first failure."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            command,
            env={**environment(), **variables, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(size)
    ]
    try:
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        sys.exit(f"ranks ended with {codes}, in {os.getcwd()}")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much faster than gloo at every size, and what the backend adds."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["collective"] for row in rows):
        median = {
            (row["library"], row["nbytes"]): row["time_us"]["median"]
            for row in rows
            if row["collective"] == name
        }
        sizes = sorted({nbytes for _, nbytes in median})
        ratio = {n: round(median["gloo", n] / median["pycoll", n], 2) for n in sizes}
        adds = {
            library: {n: round(median["backend", n] - median[library, n], 2) for n in sizes}
            for library in ("communicator", "communicator numpy")
        }
        found[name] = {
            "gloo_over_pycoll": ratio,
            "least": min(ratio.values()),
            "backend_adds_us": adds,
        }
        print(f"{name:<24} gloo/pycoll:", *(f"{n}:{r}" for n, r in ratio.items()))
        for library, by_size in adds.items():
            print(f"{'':<24} backend adds to {library}, us, at {sizes[0]} B: {by_size[sizes[0]]}")
    return found


if __name__ == "__main__":
    main()
