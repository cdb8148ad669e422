"""Is pycoll ever slower than the better MPI with 2 ranks, from 4 B to 256 MiB?

Two MPI libraries cannot live in one process, so launches under each alternate, and pycoll runs in
every launch beside that launch's MPI. A ratio is pycoll's time over the MPI's within one launch;
its median over the rounds is compared with each of the MPIs, and the worse of the two counts.

Run: python bench/allreduce_two_ranks.py [--in-place]
"""

from __future__ import annotations

from typing import Any

from launch import arguments, mpis, write
from ratio import sizes, worst

NAME = "allreduce-2.json"


def main() -> None:
    parser = arguments(__doc__, NAME)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", default="7")
    parser.add_argument("--max", default="256M")
    parser.add_argument("--against", default="mpi4py,gloo")
    parser.add_argument("--in-place", action="store_true")
    options = parser.parse_args()
    if options.in_place and options.output.name == NAME:
        options.output = options.output.with_name("allreduce-2-in-place.json")
    common = ["--repeats", options.repeats, "--against", options.against, "--call", "both"]
    common += ["--arrays", "both", "--in-place" if options.in_place else "--out-of-place"]
    sweeps = (["--min", "4", "--max", options.max, "--factor", "4"], ["--min", "8", "--max", "8"])
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    for turn in range(options.rounds):
        for mpi in mpis(options):
            for sweep in sweeps:
                result = mpi.bench(2, *sweep, *common)
                meta = meta or result["meta"]
                meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
    write(options.output, meta, rows)
    print("# pycoll's time over that of the better MPI; call, plan(), plan() on comm.empty arrays")
    for nbytes in sizes(rows):
        forms = (("call", "numpy"), ("plan", "numpy"), ("plan", "empty"))
        found = [worst(rows, nbytes, call=call, arrays=arrays) for call, arrays in forms]
        print(f"{nbytes:>12}", *(f"{value:8.3f}" for value in found if value is not None))


if __name__ == "__main__":
    main()
