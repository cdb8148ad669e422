"""Between hosts, over TCP: is pycoll ever slower than MPI in the collectives beside all-reduce?

4 hosts (network namespaces) with a rank each; pycoll and one launch's MPI alternate within the
launch, 4 B to 64 MiB, and launches under both MPIs alternate. A cell is the geometric mean over the
launches of pycoll's time over the MPI's, with its 95 % interval; the worse of the two MPIs counts.
Needs root and iproute2.

Run: python bench/tcp_collectives.py [broadcast ...] [--rounds 8]
"""

from __future__ import annotations

from typing import Any

from cluster import cluster
from launch import arguments, write
from ratio import sizes, worst_interval

HOSTS = 4
COLLECTIVES = (
    "broadcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
)


def main() -> None:
    parser = arguments(__doc__, "tcp-collectives.json")
    parser.add_argument("collectives", nargs="*", default=COLLECTIVES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--max", default="64M")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    sweep = ["--min", "4", "--max", options.max, "--factor", "4", "--repeats", options.repeats]
    with cluster(options, HOSTS) as mpis:
        for turn in range(options.rounds):
            for mpi in mpis:
                for name in options.collectives:
                    result = mpi.bench(
                        HOSTS, *sweep, "--against", "mpi4py", collective=name, timeout=300
                    )
                    meta = meta or result["meta"]
                    meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                    rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
    write(options.output, meta, rows, hosts=HOSTS)
    print("# pycoll's time over that of the better MPI, and its 95 % interval")
    for name in options.collectives:
        found = [row for row in rows if row["collective"] == name]
        for nbytes in sizes(found):
            mean, low, high = worst_interval(found, nbytes)
            print(
                f"{name:<15}{nbytes:>10}{mean:8.2f}{low:8.2f}{high:8.2f}", "slower" * (low > 1.05)
            )


if __name__ == "__main__":
    main()
