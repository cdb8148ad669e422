"""Between hosts, over TCP: is pycoll ever slower than MPI or Gloo, from 4 B to 64 MiB?

4 hosts (network namespaces) with a rank each; pycoll, Gloo and one launch's MPI alternate within
the launch. Needs root and iproute2; takes about 4 minutes.

Run: python bench/tcp_allreduce.py
"""

from __future__ import annotations

from typing import Any

from cluster import cluster
from launch import arguments, write
from ratio import sizes, worst

HOSTS = 4


def main() -> None:
    parser = arguments(__doc__, "tcp-allreduce.json")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", default="7")
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
    print("# pycoll's time over that of the better MPI, and over Gloo's")
    for nbytes in sizes(rows):
        found = (worst(rows, nbytes), worst(rows, nbytes, "gloo"))
        print(f"{nbytes:>12}", *(f"{value:8.3f}" for value in found if value is not None))


if __name__ == "__main__":
    main()
