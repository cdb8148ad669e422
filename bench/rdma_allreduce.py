"""Over RDMA: is pycoll ever slower than Open MPI over UCX, and how many packets does it send?

2 and 4 ranks, 8 B to 4 MiB. Every rank is on a host of its own with a NIC of its own, all in one
guest (Soft-RoCE, emulated: what counts is the ratio, not the time). Both libraries take turns
within a launch, in blocks of milliseconds, and the launches of 2 and 4 ranks take turns as well:
`ratios` has the geometric mean over the rounds of pycoll's median over the other's, with its 95 %
interval. They send through the same devices, whose counters are read around calls of their own:
packets sent, acknowledgements among them, requests that came twice, times that it was sent again,
for each call and rank. These agree at every load of the machine, times do not. `pycoll tune` has
run before. Rows are written as they are measured: a size that fails or takes too long is listed
under `failures`, and the sizes behind it are measured by another launch. Takes 14 minutes at most,
or pieces of the time: `--ranks 2 --seconds 200`, then `--add --ranks 4` adds to the same file.
Needs `make rdma-packages`.

Run: python bench/rdma_allreduce.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from launch import RESULTS, write
from ratio import interval
from rdma import UCX, Budget, GuestError, machine, version

from pycoll.benchmark import metadata

Row = dict[str, Any]

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
RANK = str(Path(__file__).with_name("rdma_allreduce_rank.py"))
METHOD = (
    "libraries alternate within one launch, in blocks of back-to-back calls of at least 4 ms; the "
    "time of a block is the slowest rank's; min, median and p99 are over the blocks; per_call are "
    "the NIC's counters around calls of their own, for each call and rank; every element checked "
    "before; ratios are over the rounds, each of one launch for each number of ranks"
)
#: The defaults are for adapters, whose messages cost next to nothing.
TUNE = ("tune", "--collectives", "allreduce", "--max", "4M", "--seconds")
STARTUP_SECONDS = 150.0  #: that a launch may take besides its sizes, on a busy machine


class Result:
    """What was measured until now; in the file, too."""

    def __init__(self, output: Path, add: bool) -> None:
        self.meta: Row = {}
        self.rows: list[Row] = []
        self.failures: list[Row] = []
        self.seconds = 0  #: of the runs before this one
        self._output = output
        self._begun, self._commit = time.monotonic(), metadata.commit()
        if add and output.exists():
            self._read(json.loads(output.read_text()))

    def _read(self, before: Row) -> None:
        was, now = before["meta"].get("commit"), self._commit
        if was is None or now is None or was.rstrip("+") != now.rstrip("+"):
            sys.exit(f"{self._output} is of commit {was}, and this is {now}: nothing was measured")
        self.meta, self.rows, self.failures = before["meta"], before["rows"], before["failures"]
        self.seconds = before["meta"].get("seconds", 0)

    def next_round(self, ranks: int) -> int:
        """Return the number of the first round of so many ranks that there is not."""
        found = (row["round"] for row in self.rows + self.failures if row["ranks"] == ranks)
        return 1 + max(found, default=-1)

    def write(self) -> None:
        """Write the file anew."""
        self.meta |= {"commit": self._commit, "method": METHOD, "host": metadata.machine()}
        self.meta["seconds"] = self.seconds + round(time.monotonic() - self._begun)
        more = {
            "failures": self.failures,
            "medians": medians(self.rows),
            "ratios": ratios(self.rows),
        }
        write(self._output, self.meta, self.rows, **more)


def medians(rows: list[Row]) -> list[Row]:
    """Return for each cell the medians over the rounds, of the medians and of what was counted."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("ranks", "in_place", "nbytes", "library"))
        cells.setdefault(key, []).append(row)
    return [
        {
            **dict(zip(("ranks", "in_place", "nbytes", "library"), key, strict=True)),
            "rounds": len(cell),
            "median_us": statistics.median(row["time_us"]["median"] for row in cell),
            **{
                name: statistics.median(row["per_call"][name] for row in cell)
                for name in cell[0]["per_call"]
            },
        }
        for key, cell in sorted(cells.items())
    ]


def ratios(rows: list[Row]) -> list[Row]:
    """Return for each cell what pycoll takes over what the other does, over the rounds."""
    times: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for row in rows:
        cell = times.setdefault((row["ranks"], row["in_place"], row["nbytes"]), {})
        cell.setdefault(row["library"], {})[row["round"]] = row["time_us"]["median"]
    found = []
    for (ranks, in_place, nbytes), cell in sorted(times.items()):
        own, other = (cell.get(library, {}) for library in ("pycoll", "mpi4py"))
        each = [own[turn] / other[turn] for turn in sorted(own.keys() & other.keys())]
        if not each:
            continue
        row = {"ranks": ranks, "in_place": in_place, "nbytes": nbytes, "rounds": len(each)}
        mean, low, high = interval(each) if len(each) > 1 else (each[0], None, None)
        found.append(row | {"ratio": mean, "low": low, "high": high})
    return found


def launch(mpi: UCX, result: Result, options: argparse.Namespace, ranks: int, turn: int) -> None:
    """Measure all sizes with so many ranks, by as many launches as that takes."""
    left = list(options.sizes)
    file = mpi.shared / "rows"
    while left:
        file.unlink(missing_ok=True)
        place = str(int(options.in_place))
        argv = [RANK, str(file), str(options.size_seconds), place, *map(str, left)]
        limit = STARTUP_SECONDS + len(left) * (4 * options.size_seconds + 2)
        error = ""
        try:
            mpi.run(ranks, *argv, timeout=limit)
        except GuestError as failure:
            error = str(failure)
        meta, *rows = [json.loads(line) for line in lines(file)] or [{}]
        result.meta = result.meta or meta
        result.rows += [row | {"mpi": mpi.name, "round": turn} for row in rows]
        done = {row["nbytes"] for row in rows if row["library"] == "mpi4py"}  # the second of both
        if error:
            # The first that is not there failed; if nothing is, the ranks have not even met.
            failed = next((n for n in left if n not in done), None) if meta else None
            print(f"# {ranks} hosts, {failed} bytes: {error[:200]}", flush=True)
            entry = {"ranks": ranks, "round": turn, "nbytes": failed, "error": error[-2000:]}
            result.failures.append(entry)
            done |= {n for n in left if failed is None or n <= failed}
        left = [n for n in left if n not in done]
        result.write()


def lines(file: Path) -> list[str]:
    """Return the whole lines of a file, which need not be there."""
    return file.read_text().splitlines() if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    output = RESULTS / "rdma-allreduce.json"
    parser.add_argument("--output", type=Path, default=output, metavar="FILE")
    parser.add_argument("--add", action="store_true", help="to what FILE has, of this commit")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes, ascending")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--rounds", type=int, default=8, help="at most")
    parser.add_argument("--seconds", type=float, default=720, help="for all rounds")
    parser.add_argument("--size-seconds", type=float, default=1.0, help="for a size, about")
    parser.add_argument("--tune", type=float, default=20, help="seconds; 0: do not tune before")
    options = parser.parse_args()
    result = Result(options.output, options.add)
    with machine(max(options.ranks), max(options.ranks)) as mpi:
        for ranks in options.ranks:  # as the README says: once, for a machine and a number of ranks
            if options.tune:
                tune = (*TUNE, f"{options.tune:g}")
                print(f"# {ranks} hosts: pycoll {' '.join(tune)}", flush=True)
                mpi.run(ranks, "-m", "pycoll", *tune)
        for _ in Budget(options.seconds).rounds(options.rounds):
            for ranks in options.ranks:
                turn = result.next_round(ranks)
                print(f"# round {turn}, {ranks} hosts", flush=True)
                launch(mpi, result, options, ranks, turn)
        result.meta["versions"] = {
            **result.meta.get("versions", {}),
            "ucx": version("ucx_info", "-v"),
        }
        result.write()
    table(result.rows)


def table(rows: list[Row]) -> None:
    """Print what was found."""
    found = {(r["ranks"], r["in_place"], r["nbytes"], r["library"]): r for r in medians(rows)}
    print("#                     time over MPI's   |     packets    |   duplicates")
    print("# ranks      size  mean       interval  | pycoll     MPI | pycoll     MPI")
    for cell in ratios(rows):
        key = cell["ranks"], cell["in_place"], cell["nbytes"]
        own, other = (found[(*key, library)] for library in ("pycoll", "mpi4py"))
        low, high = (f"{cell[end]:.3f}" if cell[end] else "-" for end in ("low", "high"))
        print(
            f"{cell['ranks']:>7} {cell['nbytes']:>9} {cell['ratio']:>5.3f} {low:>7} to {high:>5} | "
            f"{own['packets']:>6.1f} {other['packets']:>7.1f} | "
            f"{own['duplicates']:>6.1f} {other['duplicates']:>7.1f}"
        )


if __name__ == "__main__":
    main()
