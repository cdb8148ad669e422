"""Between hosts of several ranks: what do algorithms that know the placement win?

4 hosts (network namespaces) with 2 ranks each run every all-reduce algorithm, in turn within one
launch, from 64 KiB to 16 MiB; that launch's MPI runs beside them. Needs root and iproute2; takes
about 4 minutes.

Run: python bench/tcp_hierarchical.py
"""

from __future__ import annotations

from typing import Any

from cluster import cluster
from launch import arguments, write
from ratio import best, sizes

HOSTS, EACH = 4, 2


def main() -> None:
    from pycoll.algorithms import names

    parser = arguments(__doc__, "tcp-hierarchical.json")
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--max", default="16M")
    parser.add_argument("--algorithms", default=",".join(names("allreduce")))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    sweep = ["--min", "64K", "--max", options.max, "--factor", "2", "--repeats", options.repeats]
    sweep += ["--algorithm", options.algorithms, "--against", "mpi4py"]
    with cluster(options, HOSTS) as mpis:
        for mpi in mpis:
            result = mpi.bench(HOSTS * EACH, *sweep, timeout=300)
            meta = meta or result["meta"]
            meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
            rows += [row | {"mpi": mpi.name, "round": 0} for row in result["rows"]]
    write(options.output, meta, rows, hosts=HOSTS)
    print("# the fastest flat and the fastest hierarchical algorithm: name, us")
    for nbytes in sizes(rows):
        for hierarchical in (False, True):
            if row := best(rows, nbytes, hierarchical):
                time = row["time_us"]["median"]
                print(f"{nbytes:>12}  {row['algorithm']:<28} {time:>12.1f}")


if __name__ == "__main__":
    main()
