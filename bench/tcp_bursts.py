"""Between hosts, over TCP: what does a small rooted collective take, called again and again?

Where one rank only sends, it may run ahead of the others. An edge holds 32 small messages, and then
its sender waits; MPI's send into the sockets' buffers, which grow. So a burst of calls is timed,
between two barriers, for bursts of 16 to 1,600. 4 hosts (network namespaces) with a rank each;
pycoll and one launch's MPI alternate within the launch, and launches under both MPIs alternate.
Needs root and iproute2.

Run: python bench/tcp_bursts.py [--rounds 4]
"""

from __future__ import annotations

from typing import Any

from cluster import cluster
from launch import arguments, write
from ratio import worst_interval

from pycoll.cli import types

HOSTS = 4
CALLS = (16, 32, 64, 128, 400, 1600)
MESSAGES = (("gather", "16K"), ("scatter", "1K"))


def main() -> None:
    parser = arguments(__doc__, "tcp-bursts.json")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", default="21")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    with cluster(options, HOSTS) as mpis:
        for turn in range(options.rounds):
            for mpi in mpis:
                for name, size in MESSAGES:
                    sweep = ["--min", size, "--max", size, "--repeats", options.repeats]
                    for calls in CALLS:
                        more = ["--iters", str(calls), "--against", "mpi4py"]
                        result = mpi.bench(HOSTS, *sweep, *more, collective=name, timeout=300)
                        meta = meta or result["meta"]
                        meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                        known = {"mpi": mpi.name, "round": turn, "burst": calls}
                        rows += [row | known for row in result["rows"]]
    write(options.output, meta, rows, hosts=HOSTS)
    print("# pycoll's time over that of the better MPI, and its 95 % interval, by calls in a row")
    for name, size in MESSAGES:
        for calls in CALLS:
            found = [row for row in rows if (row["collective"], row["burst"]) == (name, calls)]
            mean, low, high = worst_interval(found, types.nbytes(size))
            print(f"{name:<15}{size:>6}{calls:>6}{mean:8.2f}{low:8.2f}{high:8.2f}")


if __name__ == "__main__":
    main()
