"""Between hosts, over TCP: what does an all-reduce cost, and how far is that from the least?

System calls, context switches, packets and time of a call and rank: of pycoll and its algorithms,
of both MPIs, and of a C program that only sends and receives the same bytes (tcp_floor.c), which
there is for all-reduce alone. 4 hosts (network namespaces) with a rank each; all take turns within
a launch. Needs root and iproute2.

Run: python bench/tcp_counts.py [--sizes 4,64K] [--algorithms auto,ring] [--rounds 8]
     [--collective broadcast]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import syscalls
from cluster import cluster
from launch import arguments, write
from ratio import interval

from pycoll.cli import types

HOSTS = 4
RANK = Path(__file__).with_name("tcp_counts_rank.py")
SHOWN = ("all", "voluntary_switches", "involuntary_switches", "segments_sent", "cpu_ns")


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line for each row, the times relative to MPI's of the same launch."""
    mpi = {r["nbytes"]: r["time_us"]["median"] for r in rows if r["library"] == "mpi4py"}
    for row in rows:
        counts = row["per_call_and_rank"]
        names = {k: round(v, 2) for k, v in counts.items() if k not in SHOWN and v >= 0.05}
        median = row["time_us"]["median"]
        ratio = median / mpi[row["nbytes"]]
        print(f"{row['nbytes']:>9} {row['library']:32} {median:9.1f} us {ratio:6.2f}",
              *(f"{counts.get(name, 0):8.2f}" for name in SHOWN), names,
              f"WRONG {row['wrong']}" if row["wrong"] else "")  # fmt: skip


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each size, pycoll's time over others' in the same launch: mean and interval."""
    launches: dict[tuple[int, str, int], dict[str, float]] = {}
    for row in rows:
        launch = launches.setdefault((row["nbytes"], row["mpi"], row["round"]), {})
        launch[row["library"]] = row["time_us"]["median"]
    found: dict[tuple[int, str], list[float]] = {}
    for (nbytes, mpi, _), times in launches.items():
        own = times["pycoll:auto"]
        floors = [time for name, time in times.items() if name.startswith("floor")]
        found.setdefault((nbytes, mpi), []).append(own / times["mpi4py"])
        if floors:
            found.setdefault((nbytes, f"floor, beside {mpi}"), []).append(own / min(floors))
    return [
        {"nbytes": nbytes, "over": other, "ratio": mean, "low": low, "high": high}
        for (nbytes, other), values in found.items()
        if len(values) > 1
        for mean, low, high in [interval(values)]
    ]


def main() -> None:
    parser = arguments(__doc__, "tcp-counts.json")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sizes", default="4,16,64,256,1K,4K,16K,64K,256K,1M,4M,16M,64M")
    parser.add_argument("--collective", default="allreduce")
    parser.add_argument("--algorithms", default="auto")
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    sizes = [str(types.nbytes(size)) for size in options.sizes.split(",")]
    if reason := syscalls.lack():
        sys.exit(f"system calls cannot be counted: {reason}")
    events = json.dumps(syscalls.events())
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    with cluster(options, HOSTS) as mpis:
        for turn in range(options.rounds):
            for mpi in mpis:
                addresses = ",".join(mpi.hosts.address(host) for host in range(HOSTS))
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder, "rows")
                    what = [addresses, events, str(options.seconds), options.collective]
                    what += [options.algorithms, *sizes]
                    mpi.run(HOSTS, "-m", "mpi4py", str(RANK), str(file), *what, timeout=600)
                    first, *found = map(json.loads, file.read_text().splitlines())
                print(f"# {mpi.name}")
                show(found)
                meta = meta or first
                meta["versions"][mpi.name] = first["versions"]["mpi"]
                rows += [row | {"mpi": mpi.name, "round": turn} for row in found]
    found = ratios(rows)
    write(options.output, meta, rows, hosts=HOSTS, ratios=found)
    print("# pycoll's time over others' in the same launch: mean of the launches, 95 % interval")
    for one in found:
        print(f"{one['nbytes']:>9} {one['over']:24}",
              f"{one['ratio']:6.2f} ({one['low']:.2f} to {one['high']:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
