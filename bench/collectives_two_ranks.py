"""Is pycoll ever slower than the better MPI with 2 ranks, in the collectives beside all-reduce?

Launches under both MPIs alternate; pycoll and that launch's MPI alternate inside the same
processes, from 4 B to 64 MiB. Takes about 4 minutes.

Run: python bench/collectives_two_ranks.py [broadcast ...]
"""

from __future__ import annotations

from typing import Any

from launch import arguments, mpis, write
from ratio import sizes, worst

BETWEEN_TWO = ("sendrecv", "pingpong")
REST = ("broadcast", "reduce", "allgather", "reduce_scatter", "alltoall", "gather", "scatter")


def main() -> None:
    parser = arguments(__doc__, "collectives-2.json")
    parser.add_argument("collectives", nargs="*", default=[*REST, *BETWEEN_TWO])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", default="7")
    parser.add_argument("--max", default="64M")
    options = parser.parse_args()
    sweep = ["--min", "4", "--max", options.max, "--factor", "4", "--repeats", options.repeats]
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    for turn in range(options.rounds):
        for mpi in mpis(options):
            for name in options.collectives:
                calls = [] if name in BETWEEN_TWO else ["--call", "both"]
                result = mpi.bench(2, *sweep, *calls, "--against", "mpi4py", collective=name)
                meta = meta or result["meta"]
                meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
    write(options.output, meta, rows)
    print("# pycoll's time over that of the better MPI")
    for name in options.collectives:
        found = [row for row in rows if row["collective"] == name]
        ratios = ((size, worst(found, size)) for size in sizes(found))
        print(f"{name:<15}", *(f"{size}:{value:.2f}" for size, value in ratios if value))


if __name__ == "__main__":
    main()
