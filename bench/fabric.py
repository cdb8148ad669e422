"""Over libfabric: is pycoll ever slower than Open MPI through the same provider?

All-reduce and ping-pong on 2 and 4 hosts (network namespaces) with a rank each; both libraries take
turns within a launch, in blocks, and their system calls and packets are counted. MPI is the
system's Open MPI, by its messages over libfabric (pml cm, mtl ofi): the wheels that the other
benchmarks take are built without. Needs root, iproute2 and `apt-get install openmpi-bin`.

Run: python bench/fabric.py [--sizes 8,64K] [--ranks 2] [--rounds 4]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import syscalls
from cluster import AGENT, Hosts, Spread, lack
from launch import RESULTS, write
from ratio import interval

from pycoll.cli import types

RANK = Path(__file__).with_name("fabric_rank.py")
SHOWN = ("all", "voluntary_switches", "involuntary_switches", "segments_sent", "cpu_ns")
METHOD = (
    "libraries alternate within one launch, in blocks of back-to-back calls; the time of a block "
    "is the slowest rank's; a ratio is of the medians of one launch, its interval over launches"
)


@dataclass(frozen=True)
class OFI(Spread):
    """The system's Open MPI over one provider of libfabric, which pycoll takes, too."""

    provider: str = field(kw_only=True)
    library: Path = field(kw_only=True)  #: libmpi

    def command(self, ranks: int) -> list[str]:
        """Return mpirun, on the hosts' front, and the Python that it starts on every rank."""
        each = ranks // self.hosts.count
        names = [f"{self.hosts.address(host)}:{each}" for host in range(self.hosts.count)]
        options = {
            "plm_rsh_agent": AGENT,
            "pml": "cm",
            "mtl": "ofi",
            "mtl_ofi_provider_include": self.provider,
            # The hosts share this machine's cores, which ranks that only poll would keep.
            "mpi_yield_when_idle": "1",
        }
        more = [text for key, value in options.items() for text in ("--mca", key, value)]
        more += ["--host", ",".join(names), "--map-by", f"ppr:{each}:node", "--bind-to", "none"]
        mpirun = str(self.folder / "mpirun")
        return [*self.hosts.front, mpirun, *more, "-n", str(ranks), sys.executable]

    def environment(self) -> dict[str, str]:
        """Return what the ranks need, which the agent hands on."""
        own = {"PYCOLL_TRANSPORT": "libfabric", "PYCOLL_FABRIC": self.provider}
        return {**super().environment(), **own, "MPI4PY_LIBMPI": str(self.library)}


def libmpi() -> Path:
    """Return the system's; says what is missing where there is none."""
    reason = lack() or syscalls.lack()
    libraries = [*Path("/usr/lib").glob("*/libmpi.so.40")]
    if not reason and not (libraries and shutil.which("mpirun", path="/usr/bin")):
        reason = "no Open MPI of the system's: apt-get install openmpi-bin"
    if reason:
        print(f"# not measured: {reason}")
        sys.exit()
    return libraries[0]


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line for each row, the times relative to MPI's of the same launch."""
    mpi = {
        (r["call"], r["nbytes"]): r["time_us"]["median"] for r in rows if r["library"] != "pycoll"
    }
    for row in rows:
        counts = row["per_call_and_rank"]
        names = {k: round(v, 2) for k, v in counts.items() if k not in SHOWN and v >= 0.05}
        median = row["time_us"]["median"]
        print(f"{row['ranks']} {row['call']:9} {row['nbytes']:>9} {row['library']:8}",
              f"{median:9.1f} us {median / mpi[row['call'], row['nbytes']]:6.2f}",
              *(f"{counts.get(name, 0):8.2f}" for name in SHOWN), names, row["algorithm"] or "",
              f"WRONG {row['wrong']}" if row["wrong"] else "")  # fmt: skip


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each call, pycoll's time over MPI's in the same launch: mean and interval."""
    times: dict[tuple[int, str, int], dict[int, dict[str, float]]] = {}
    for row in rows:
        cell = times.setdefault((row["ranks"], row["call"], row["nbytes"]), {})
        cell.setdefault(row["round"], {})[row["library"]] = row["time_us"]["median"]
    found = []
    for (ranks, call, nbytes), launches in sorted(times.items()):
        values = [each["pycoll"] / each["mpi4py"] for each in launches.values()]
        if len(values) > 1:
            mean, low, high = interval(values)
            found.append({"ranks": ranks, "call": call, "nbytes": nbytes,
                          "ratio": mean, "low": low, "high": high})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "fabric.json", metavar="FILE")
    parser.add_argument("--provider", default="tcp", help="of libfabric")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sizes", default="8,64,512,4K,16K,64K,256K,1M,4M")
    parser.add_argument("--calls", default="allreduce,pingpong")
    parser.add_argument("--seconds", type=float, default=1, help="for a call and size, about")
    options = parser.parse_args()
    library = libmpi()
    events = json.dumps(syscalls.events())
    sizes = [str(types.nbytes(size)) for size in options.sizes.split(",")]
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    for turn in range(options.rounds):
        for ranks in map(int, options.ranks.split(",")):
            with Hosts(ranks) as hosts, tempfile.TemporaryDirectory() as folder:
                mpi = OFI("openmpi", Path("/usr/bin"),
                          hosts=hosts, provider=options.provider, library=library)  # fmt: skip
                file = Path(folder, "rows")
                what = [events, str(options.seconds), options.calls, *sizes]
                mpi.run(ranks, "-m", "mpi4py", str(RANK), str(file), *what, timeout=600)
                first, *found = map(json.loads, file.read_text().splitlines())
            print(f"# round {turn}, {ranks} hosts, {first['provider']}")
            show(found)
            meta = meta or first
            rows += [row | {"mpi": mpi.name, "round": turn} for row in found]
            write(options.output, meta | {"method": METHOD}, rows, ratios=ratios(rows))
    print("# pycoll's time over Open MPI's in the same launch: mean of the launches, 95 % interval")
    for one in ratios(rows):
        print(f"{one['ranks']} {one['call']:9} {one['nbytes']:>9}",
              f"{one['ratio']:6.2f} ({one['low']:.2f} to {one['high']:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
