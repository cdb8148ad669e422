"""Over RDMA: what does pycoll's put cost beside a bare write of the verbs?

A C driver sends through the engine's own transport between two devices of a guest: one way, slots
of 64 KiB to 1 MiB with their lines and credits, against ib_write_bw; and 8 bytes there and back,
against ib_write_lat. They take turns, pinned to the same two processors. Beside that, what a user
of Python sees: pycoll.send and recv against MPI's over UCX, in ping-pong. Takes 3 minutes at most.
Needs `make rdma-packages`.

Run: python bench/rdma_put.py
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launch import RESULTS, ROOT, write
from ratio import sizes, worst
from rdma import UCX, Budget, machine, version

Row = dict[str, Any]

NEAR, FAR = "rxe0", "rxe1"
LATENCY_BYTES = 8
BANDWIDTH_BYTES = (64 << 10, 256 << 10, 1 << 20)
LATENCY_COUNT, BANDWIDTH_SUM = 5000, 32 << 20
PINGPONG = ("--min", "8", "--max", "1M", "--factor", "8", "--repeats", "15", "--against", "mpi4py")
#: The server is where the bytes go; the client starts once it listens (18515, in hexadecimal).
PERFTEST = """
server=$1 client=$2 address=$3; shift 3
taskset -c 1 "$@" --ib-dev="$server" --gid-index=1 >/dev/null &
until grep -qs ':4853 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done
taskset -c 0 "$@" --ib-dev="$client" --gid-index=1 -F "$address"
wait $!
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "rdma-put.json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=9, help="at most")
    parser.add_argument("--seconds", type=float, default=100, help="for all rounds")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        driver = build(Path(folder))
        with machine(2, 2) as mpi:
            public = mpi.bench(2, *PINGPONG, collective="pingpong")
            for turn in Budget(options.seconds).rounds(options.rounds):
                for nbytes in (LATENCY_BYTES, *BANDWIDTH_BYTES):
                    # Who comes first changes: the machine is not the same a second later.
                    for measure in (pycoll, perftest)[:: -1 if turn % 2 else 1]:
                        rows.append(measure(mpi, nbytes, driver) | {"round": turn})
    meta = public["meta"]
    meta["versions"]["perftest"] = version("ib_write_bw", "--version")
    meta["method"] = (
        "put: a C driver on the engine and perftest take turns as processes of their own, each end "
        "pinned to a processor; latency is the median half round trip, after a tenth to warm up; "
        "bandwidth until the last acknowledgement; every byte the driver received checked. "
        f"pingpong: {meta['method']}"
    )
    pingpong = [row | {"mpi": "openmpi", "round": 0} for row in public["rows"]]
    write(options.output, meta, [*rows, *pingpong], ratios=ratios(rows))
    for entry in ratios(rows):
        text = "{nbytes:>8} {what:<10} {pycoll:>12.4g} {perftest:>12.4g} {unit:<4} {ratio:.3f}"
        print(text.format(**entry))
    print("# send and recv in Python, there and back: pycoll's time over MPI's")
    for nbytes in sizes(pingpong):
        print(f"{nbytes:>8} {worst(pingpong, nbytes) or 0:.3f}")


def build(folder: Path) -> Path:
    """Compile the engine and the driver, and return the driver."""
    flags = ["-std=gnu11", "-pthread", "-fwrapv", "-D_GNU_SOURCE", '-DPC_VERSION_TEXT="bench"']
    flags.append(f"-I{ROOT / 'native'}")
    compiler = [os.environ.get("CC", "cc"), *flags]
    listed = runpy.run_path(str(ROOT / "native" / "build.py"))["ENGINE"]
    sources = [ROOT / name for name in listed]
    sources.append(Path(__file__).with_suffix(".c"))

    def compile_one(source: Path) -> Path:
        made = folder / "-".join(source.relative_to(ROOT).with_suffix(".o").parts)
        # Nothing is reduced here, and the reductions are half the time.
        level = "-O0" if source.name == "reduce.c" else "-O3"
        subprocess.run([*compiler, level, "-c", source, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compile_one, sources)]
    driver = folder / "rdma_put"
    subprocess.run([*compiler, *objects, "-o", driver, "-ldl"], check=True)
    return driver


def pycoll(mpi: UCX, nbytes: int, driver: Path) -> Row:
    """Measure the engine once."""
    what, count = what_of(nbytes)
    argv = [str(driver), "verbs", NEAR, FAR, what, str(nbytes), str(count)]
    found = json.loads(mpi.guest.run(argv, timeout=120).stdout)
    return {"library": "pycoll", "what": what, "nbytes": nbytes, **found}


def perftest(mpi: UCX, nbytes: int, _driver: Path) -> Row:
    """Measure a bare write once."""
    what, count = what_of(nbytes)
    command = "ib_write_lat" if what == "latency" else "ib_write_bw"
    argv = [command, f"--size={nbytes}", f"--iters={count}"]
    ends = (FAR, NEAR, mpi.rack.nics.address(int(FAR.removeprefix("rxe"))))
    for _ in range(5):
        done = mpi.guest.run(["sh", "-c", PERFTEST, "perftest", *ends, *argv], timeout=120)
        lines = done.stdout.splitlines()
        head = next(i for i, line in enumerate(lines) if line.lstrip().startswith("#bytes"))
        figures = [float(word) for word in lines[head + 1].split()]
        if figures[3]:  # now and then it has counted nothing
            break
    row = {"library": "perftest", "what": what, "nbytes": nbytes}
    if what == "latency":  # bytes, iterations, min, max, typical (the median), ...
        return row | {"us": figures[4], "min_us": figures[2], "p99_us": figures[7]}
    return row | {"bytes_per_second": figures[3] * (1 << 20)}  # what it calls MB are MiB


def what_of(nbytes: int) -> tuple[str, int]:
    """Return what is measured with so many bytes, and how often they are sent."""
    if nbytes == LATENCY_BYTES:
        return "latency", LATENCY_COUNT
    return "bandwidth", BANDWIDTH_SUM // nbytes


def ratios(rows: list[Row]) -> list[Row]:
    """Return pycoll's figure over perftest's, the median over the rounds, for every size."""
    found = []
    for nbytes in sizes(rows):
        what, _ = what_of(nbytes)
        key = "us" if what == "latency" else "bytes_per_second"
        by = {(row["library"], row["round"]): row[key] for row in rows if row["nbytes"] == nbytes}
        rounds = {turn for _, turn in by}
        own, other = ([by[name, turn] for turn in rounds] for name in ("pycoll", "perftest"))
        found.append(
            {
                "what": what,
                "unit": "us" if what == "latency" else "B/s",
                "nbytes": nbytes,
                "pycoll": statistics.median(own),
                "perftest": statistics.median(other),
                "ratio": statistics.median(a / b for a, b in zip(own, other, strict=True)),
            }
        )
    return found


if __name__ == "__main__":
    main()
