"""Between hosts, over TCP: is pycoll ever slower than MPI or Gloo, from 4 B to 64 MiB?

4 hosts (network namespaces) with a rank each; pycoll, Gloo and one launch's MPI alternate within
the launch. A cell is the geometric mean over the launches, with its 95 % interval; the worse of the
two MPIs counts. Needs root and iproute2; takes about 10 minutes.

Run: python bench/tcp_allreduce.py
"""

from __future__ import annotations

from typing import Any

from cluster import cluster
from launch import arguments, write
from ratio import sizes, worst_interval

HOSTS = 4


def main() -> None:
    parser = arguments(__doc__, "tcp-allreduce.json")
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
                result = mpi.bench(HOSTS, *sweep, "--against", "mpi4py,gloo", timeout=300)
                meta = meta or result["meta"]
                meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
    write(options.output, meta, rows, hosts=HOSTS)
    print("# pycoll's time over that of the better MPI, its interval; the same over Gloo's")
    for nbytes in sizes(rows):
        found = (*worst_interval(rows, nbytes), *worst_interval(rows, nbytes, "gloo"))
        print(f"{nbytes:>12}", *(f"{value:8.3f}" for value in found))


if __name__ == "__main__":
    main()
