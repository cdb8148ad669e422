"""Is pycoll ever slower than an MPI between two ranks: exchange, and send and receive in turns?

sendrecv is `exchange` beside MPI's Sendrecv; pingpong is send and recv beside MPI's. Launches
under both MPIs alternate; pycoll and that launch's MPI alternate inside the same processes, from
4 B to 64 MiB. A cell's ratio is pycoll's time over the MPI's in the same launch; over the launches
it has a geometric mean and a 95 % interval. Takes about 6 minutes.

Run: python bench/between_two.py [sendrecv ...]
"""

from __future__ import annotations

from typing import Any

from launch import arguments, mpis, write
from ratio import Row, interval, sizes

FOUND = ("sendrecv", "pingpong")
#: No cell may have its whole interval above this.
SLOWER = 1.05


def main() -> None:
    parser = arguments(__doc__, "between-two.json")
    parser.add_argument("kinds", nargs="*", default=FOUND)
    parser.add_argument("--launches", type=int, default=8, help="under each MPI, 2 to 10")
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--min", default="4")
    parser.add_argument("--max", default="64M")
    options = parser.parse_args()
    sweep = ["--min", options.min, "--max", options.max, "--factor", "4"]
    rows: list[Row] = []
    meta: dict[str, Any] = {}
    for launch in range(options.launches):
        for mpi in mpis(options):
            for kind in options.kinds:
                more = [*sweep, "--repeats", options.repeats, "--against", "mpi4py"]
                result = mpi.bench(2, *more, collective=kind)
                meta = meta or result["meta"]
                meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                rows += [row | {"mpi": mpi.name, "round": launch} for row in result["rows"]]
    cells = [
        {"collective": kind, "mpi": mpi.name, "nbytes": size, **cell(rows, kind, mpi.name, size)}
        for kind in options.kinds
        for mpi in mpis(options)
        for size in sizes(rows)
    ]
    slower = [one for one in cells if one["low"] > SLOWER]
    write(options.output, meta, rows, cells=cells)
    print("# pycoll's time over that of the MPI: geometric mean, 95 % interval")
    for one in cells:
        where = f"{one['collective']:<9} {one['mpi']:<8} {one['nbytes']:>9}"
        print(f"{where}  {one['ratio']:.2f}  {one['low']:.2f} to {one['high']:.2f}")
    print(f"# slower: {len(slower)} of {len(cells)} cells")


def cell(rows: list[Row], kind: str, mpi: str, nbytes: int) -> dict[str, float]:
    """Return the ratio of one kind and size under an MPI, with its interval."""
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        if (row["collective"], row["mpi"], row["nbytes"]) == (kind, mpi, nbytes):
            own = "pycoll" if row["library"] == "pycoll" else "mpi"
            times.setdefault(row["round"], {})[own] = row["time_us"]["median"]
    mean, low, high = interval([one["pycoll"] / one["mpi"] for one in times.values()])
    return {"ratio": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}


if __name__ == "__main__":
    main()
