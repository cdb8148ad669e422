"""Over RDMA: is pycoll ever slower than Open MPI over UCX, with 2 and 4 ranks, 8 B to 4 MiB?

Every rank is on a host of its own with a NIC of its own, all in one guest (Soft-RoCE, emulated:
what counts is the ratio, not the time). Both libraries take turns within a launch, in blocks of
milliseconds; they send through the same devices. `pycoll tune` has run before. Takes 9 minutes at
most. Needs `make rdma-packages`.

Run: python bench/rdma_allreduce.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from launch import RESULTS, write
from ratio import sizes, worst
from rdma import Budget, machine

#: Small messages take more turns: what the guest's two processors do besides weighs more there.
SWEEPS = (
    ("--min", "8", "--max", "32K", "--factor", "8", "--repeats", "25"),
    ("--min", "64K", "--max", "4M", "--factor", "4", "--repeats", "9"),
)


#: The defaults are for adapters, whose messages cost next to nothing.
TUNE = ("tune", "--collectives", "allreduce", "--max", "4M", "--seconds", "25")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    output = RESULTS / "rdma-allreduce.json"
    parser.add_argument("--output", type=Path, default=output, metavar="FILE")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3, help="at most")
    parser.add_argument("--seconds", type=float, default=420, help="for all rounds")
    parser.add_argument("--repeats", help="instead of each sweep's own")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    more = ["--repeats", options.repeats] if options.repeats else []
    with machine(max(options.ranks), max(options.ranks)) as mpi:
        for ranks in options.ranks:  # as the README says: once, for a machine and a number of ranks
            print(f"# {ranks} hosts: pycoll {' '.join(TUNE)}", flush=True)
            mpi.run(ranks, "-m", "pycoll", *TUNE)
        for turn in Budget(options.seconds).rounds(options.rounds):
            for ranks in options.ranks:
                for place in ("--out-of-place", "--in-place"):
                    for sweep in SWEEPS:
                        asked = (*sweep, *more, place, "--against", "mpi4py")
                        result = mpi.bench(ranks, *asked)
                        meta = meta or result["meta"]
                        rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
            write(options.output, meta, rows)
    print("# pycoll's time over MPI's; by ranks out of place and in place")
    for nbytes in sizes(rows):
        found = [
            worst(of(rows, ranks, in_place), nbytes)
            for ranks in options.ranks
            for in_place in (False, True)
        ]
        print(f"{nbytes:>12}", *(f"{value:8.3f}" for value in found if value is not None))


def of(rows: list[dict[str, Any]], ranks: int, in_place: bool) -> list[dict[str, Any]]:
    """Return the rows of so many ranks, in one of the two forms."""
    return [row for row in rows if (row["ranks"], row["in_place"]) == (ranks, in_place)]


if __name__ == "__main__":
    main()
