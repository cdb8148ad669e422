"""Which of the claims do the committed results bear out?

Run: python bench/summary.py [--results DIR]; exit code 1 if a claim is not met or not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from launch import RESULTS
from ratio import MPIS, Row, best, ratio, sizes, worst

MIB = 1 << 20


class Claim(NamedTuple):
    """What is promised, and what was measured (None: nothing was)."""

    text: str
    measured: float | None
    limit: float
    unit: str
    least: bool = False  #: the measured figure must be at least the limit; else at most

    @property
    def verdict(self) -> str:
        """Say whether the claim holds."""
        if self.measured is None or math.isnan(self.measured):
            return "not measured"
        good = self.measured >= self.limit if self.least else self.measured <= self.limit
        return "pass" if good else "short"

    def __str__(self) -> str:
        got = "-" if self.measured is None else f"{self.measured:.4g}"
        sign = ">=" if self.least else "<="
        return f"{self.verdict:<13}{got:>9} {sign} {self.limit:<5g} {self.unit:<5} {self.text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    for name, result in results.items():
        meta = result["meta"]
        print(f"# {name}: commit {meta['commit']}, {meta['date']}, {meta['machine']['cpu']}")
    claims = [claim for part in PARTS for claim in part(results)]
    print(*claims, sep="\n")
    sys.exit(any(claim.verdict != "pass" for claim in claims))


def rows_of(results: dict[str, Any], name: str) -> list[Row]:
    """Return the rows of one result; none when it is not there."""
    rows: list[Row] = results.get(name, {}).get("rows", [])
    return rows


def extreme(pick: Callable[..., float], values: Iterator[float | None]) -> float | None:
    """Return the largest or smallest of what was measured."""
    known = [value for value in values if value is not None]
    return pick(known) if known else None


def two_ranks(results: dict[str, Any]) -> Iterator[Claim]:
    rows = rows_of(results, "allreduce-2")
    by_four = [n for n in sizes(rows) if n != 8]
    times = {n: worst(rows, n) for n in sizes(rows)}
    yield Claim(
        "2 ranks: time over the better MPI's, worst size",
        extreme(max, iter(times.values())),
        1.05,
        "x",
    )
    known = [1 / t for n in by_four if (t := times[n])]
    mean = statistics.geometric_mean(known) if known else None
    yield Claim("2 ranks: faster than the better MPI, geometric mean", mean, 2.5, "x", True)
    for text, name, limit in (
        ("out of place", "allreduce-2", 3.0),
        ("in place", "allreduce-2-in-place", 2.7),
    ):
        found = rows_of(results, name)
        large = [n for n in sizes(found) if n >= 64 * MIB]
        faster = extreme(min, (1 / t if (t := worst(found, n)) else None for n in large))
        yield Claim(f"2 ranks: faster at 64 MiB and above, {text}", faster, limit, "x", True)
    gloo = extreme(min, (1 / t if (t := worst(rows, n, "gloo")) else None for n in by_four))
    yield Claim("2 ranks: faster than Gloo, worst size", gloo, 4, "x", True)
    for call, limit in (("call", 0.6), ("plan", 0.5)):
        tiny = extreme(max, (worst(rows, n, call=call) for n in (4, 8)))
        yield Claim(f"2 ranks: 4 B and 8 B, {call}: time over mpi4py's", tiny, limit, "x")


def engine(results: dict[str, Any]) -> Iterator[Claim]:
    times: dict[tuple[int, str, str], float] = {}
    for row in rows_of(results, "interpreter"):
        # The cached and the past-the-cache loops are one twin: the faster counts.
        key = (row["nbytes"], row["library"].split()[0], row["arrays"])
        median = row["time_us"]["median"]
        times[key] = min(median, times.get(key, math.inf))

    def over(n: int, own: tuple[str, str], other: tuple[str, str]) -> float | None:
        pair = times.get((n, *own)), times.get((n, *other))
        return pair[0] / pair[1] if pair[0] and pair[1] else None

    found = sorted({key[0] for key in times})
    share = extreme(
        min,
        (
            1 / t if (t := over(n, ("pycoll", "empty"), ("limit", "empty"))) else None
            for n in found
            if n >= 16 * MIB
        ),
    )
    yield Claim(
        "comm.empty at 16 MiB and above: share of the machine's limit", share, 0.85, "", True
    )
    slower = extreme(
        max, (over(n, ("pycoll", "numpy"), ("twin", "numpy")) for n in found if n >= 64 << 10)
    )
    yield Claim("interpreter over C written by hand, from 64 KiB", slower, 1.05, "x")
    pair = times.get((8, "pycoll", "numpy")), times.get((8, "twin", "numpy"))
    extra = (pair[0] - pair[1]) * 1e3 if pair[0] and pair[1] else None
    yield Claim("interpreter beyond C written by hand, 8 B", extra, 100, "ns")
    ratios = results.get("user-algorithm", {}).get("ratios", [])
    own = extreme(max, (entry["ratio"] for entry in ratios))
    yield Claim("built-in's source under a user's decorator", own, 1.05, "x")


def oversubscribed(results: dict[str, Any]) -> Iterator[Claim]:
    measured = rows_of(results, "oversubscribed")
    for name in dict.fromkeys(row["collective"] for row in measured):
        rows = [row for row in measured if row["collective"] == name]
        if name != "allreduce":
            slowest = extreme(max, (worst(rows, n) for n in sizes(rows)))
            yield Claim(
                f"4 ranks, {name}: time over the best MPI's, worst size", slowest, 1.05, "x"
            )
    every = [row for row in measured if row["collective"] == "allreduce"]
    quiet = [row for row in every if not row["foreign"]]
    for ranks in (4, 8):
        rows = [row for row in quiet if row["ranks"] == ranks]
        slowest = extreme(max, (worst(rows, n) for n in sizes(rows) if n >= 1024))
        yield Claim(f"{ranks} ranks: time over the best MPI's, worst size", slowest, 1.05, "x")
    eight = [row for row in quiet if row["ranks"] == 8]
    small = ratio(eight, 4, "openmpi", "mpi4py", "call", "numpy")
    yield Claim("8 ranks, 4 B: time over Open MPI's", small, 0.6, "x")
    busy = [row for row in every if row["foreign"]]
    for mpi in MPIS:
        found = ratio(busy, 4, mpi, "mpi4py", "call", "numpy")
        faster = 1 / found if found else None
        yield Claim(f"8 ranks, 4 B, one foreign process: faster than {mpi}", faster, 50, "x", True)
    many = [row["time_us"]["median"] for row in quiet if row["ranks"] == 64]
    yield Claim("64 ranks, 4 B", max(many, default=None), 1000, "us")
    shares = [
        s for entry in results.get("oversubscribed", {}).get("idle", []) for s in entry["share"]
    ]
    yield Claim("share of a core of a waiting rank after 1 s", max(shares, default=None), 0.05, "")


def collectives(results: dict[str, Any]) -> Iterator[Claim]:
    every = rows_of(results, "collectives-2")
    names = dict.fromkeys(row["collective"] for row in every)
    for name in names or ["collectives"]:
        rows = [row for row in every if row["collective"] == name]
        yield from against(rows, f"2 ranks, {name}", "mpi4py", 1, 2)


def between_hosts(results: dict[str, Any]) -> Iterator[Claim]:
    rows = rows_of(results, "tcp-allreduce")
    yield from against(rows, "4 hosts, TCP, allreduce", "mpi4py", 1, 1.5)
    yield from against(rows, "4 hosts, TCP, allreduce", "gloo", 1 / 1.5, 1.5)
    found = results.get("tcp-counts", {}).get("ratios", [])
    mpis = [one for one in found if "floor" not in one["over"]]
    slower = extreme(max, (one["low"] for one in mpis))
    what = "4 hosts, TCP, allreduce"
    text = f"{what}: time over an MPI's, lower end of the 95 % interval, worst size"
    yield Claim(text, slower, 1.05, "x")
    floor = [one["ratio"] for one in found if "floor" in one["over"] and one["nbytes"] <= 256 << 10]
    text = f"{what}: time over the least that sends and receives, up to 256 KiB, worst size"
    yield Claim(text, max(floor, default=None), 1.3, "x")
    rows = rows_of(results, "tcp-hierarchical")
    gains: dict[int, float] = {}
    for nbytes in sizes(rows):
        flat, aware = best(rows, nbytes, False), best(rows, nbytes, True)
        if flat and aware:
            gains[nbytes] = flat["time_us"]["median"] / aware["time_us"]["median"]
    ranges = ((64 << 10, 512 << 10, 1.5), (1 << 20, 1 << 40, 1.0))
    for (low, high, limit), where in zip(ranges, ("64 to 512 KiB", "above"), strict=True):
        found = [gain for nbytes, gain in gains.items() if low <= nbytes <= high]
        text = f"4 hosts of 2 ranks, {where}: hierarchical faster than flat, worst size"
        yield Claim(text, min(found, default=None), limit, "x", True)


def over_rdma(results: dict[str, Any]) -> Iterator[Claim]:
    every = rows_of(results, "rdma-allreduce")
    for ranks in (2, 4):
        forms = [
            [row for row in every if (row["ranks"], row["in_place"]) == (ranks, in_place)]
            for in_place in (False, True)
        ]
        times = {(i, n): worst(rows, n) for i, rows in enumerate(forms) for n in sizes(rows)}
        what = f"{ranks} hosts, RDMA, allreduce"
        slowest = extreme(max, iter(times.values()))
        yield Claim(f"{what}: time over Open MPI's on UCX, worst size", slowest, 1, "x")
        large = [1 / t for (_, n), t in times.items() if t and n >= 64 << 10]
        faster = min(large, default=None)
        yield Claim(f"{what}: faster from 64 KiB, worst size", faster, 1.3, "x", True)
        tiny = extreme(max, (t for (_, n), t in times.items() if n == 8))
        yield Claim(f"{what}: 8 B, time over Open MPI's", tiny, 0.8, "x")
    found = results.get("rdma-put", {}).get("ratios", [])
    slow = extreme(max, (r["ratio"] for r in found if r["what"] == "latency"))
    yield Claim("RDMA, put of 8 B with its signal: time over ib_write_lat's", slow, 1.2, "x")
    share = extreme(min, (r["ratio"] for r in found if r["what"] == "bandwidth"))
    yield Claim("RDMA, puts of 64 KiB to 1 MiB: share of ib_write_bw's", share, 0.9, "", True)
    cuts = results.get("rdma-cuts", {}).get("summary", {})
    yield Claim("RDMA: cut links under a job's way", cuts.get("cuts"), 200, "", True)
    bad = cuts["flaws"] + cuts["leaks"] + cuts["not_ready"] if cuts else None
    yield Claim("RDMA: of them hangs, leaks and receivers not ready", bad, 0, "")


def gpudirect(results: dict[str, Any]) -> Iterator[Claim]:
    """Counted over stand-ins: nothing of it is speed, and nothing ran on a GPU."""
    rows = [row for row in rows_of(results, "gpudirect-counts") if row["nbytes"] > 40]
    direct = [row for row in rows if row["way"].startswith("direct")]
    through = extreme(max, (row["host_bytes"] for row in direct))
    yield Claim("GPUDirect, counted: bytes sent out of the host's memory", through, 0, "B")
    staged = {
        (row["call"], row["nbytes"], row["rank"]): row["requests"] - row["credits"]
        for row in rows
        if row["way"] == "staged"
    }
    more = (
        (row["requests"] - row["credits"]) / first
        for row in direct
        if (first := staged[row["call"], row["nbytes"], row["rank"]])
    )
    yield Claim("GPUDirect, counted: work requests over staged's", extreme(max, more), 2, "x")
    flushes = (row["gpu_flushes"] / row["gpu_flushed"] for row in rows if row["gpu_flushed"])
    text = "GPUDirect, counted: flushes for each message or fragment that waited"
    yield Claim(text, extreme(max, flushes), 1, "")


def one_gpu(results: dict[str, Any]) -> Iterator[Claim]:
    """Where ranks share a GPU: kernels against kernels, no links."""
    found = [row for row in results.get("gpu-one", {}).get("ratios", []) if row["mode"] == "graph"]
    for text, own in (
        ("up to 64 KiB", [row["ratio"] for row in found if row["nbytes"] <= 64 << 10]),
        ("from 64 MiB", [row["ratio"] for row in found if row["nbytes"] >= 64 << 20]),
    ):
        yield Claim(f"2 ranks on a GPU: time over NCCL's, {text}", max(own, default=None), 1, "x")


def prediction(results: dict[str, Any]) -> Iterator[Claim]:
    found = results.get("prediction", {}).get("summary", {}).get("all", {})
    yield Claim("tuned: median error of the prediction", found.get("median_error"), 0.15, "")
    text = "tuned: cells whose pick is within 10 % of the best"
    yield Claim(text, found.get("within_10_percent"), 0.9, "", True)


def against(
    rows: list[Row], what: str, library: str, worst_limit: float, mean_limit: float
) -> Iterator[Claim]:
    """Claim something of the worst size and of the mean over all sizes."""
    times = [t for n in sizes(rows) if (t := worst(rows, n, library))]
    yield Claim(
        f"{what}: time over {library}'s, worst size", max(times, default=None), worst_limit, "x"
    )
    mean = 1 / statistics.geometric_mean(times) if times else None
    yield Claim(f"{what}: faster than {library}, geometric mean", mean, mean_limit, "x", True)


def after_a_death(results: dict[str, Any]) -> Iterator[Claim]:
    found = results.get("shrink", {}).get("ms", {})
    limits = (
        ("shm, 8 ranks", 50, 200),
        ("tcp, 4 ranks", 100, 400),
        ("forked, 64 ranks", 250, None),
    )
    for what, median, slowest in limits:
        ms = found.get(f"pycoll, {what}", {})
        text = f"from a kill to the first right all-reduce, {what}"
        yield Claim(text, ms.get("median"), median, "ms")
        if slowest:
            yield Claim(f"{text}, worst", ms.get("worst"), slowest, "ms")
    grown = results.get("grow", {}).get("beyond_the_start_ms", {})
    beyond = max(grown.values(), default=None)
    yield Claim("grow by one beyond the start of the process", beyond, 200, "ms")
    summary = results.get("shrink-deaths", {}).get("summary", {})
    deaths = sum(n for name, n in summary.items() if name.startswith("deaths, ")) or None
    yield Claim("ranks that died at random and were survived", deaths, 500, "", True)
    yield Claim("partitions survived", summary.get("jobs, partitions"), 50, "", True)


def rest(results: dict[str, Any]) -> Iterator[Claim]:
    medians = results.get("startup", {}).get("median_ms", {})
    yield Claim("import pycoll", medians.get("import"), 80, "ms")
    yield Claim("pycoll.init() of 2 ranks after MPI_Init", medians.get("init"), 60, "ms")
    slots = [row["mib_per_rank"] for row in rows_of(results, "startup") if row["what"] == "slots"]
    yield Claim("slots per rank at 8 ranks", max(slots, default=None), 32, "MiB")
    proof = [
        row["seconds"]
        for row in rows_of(results, "verification")
        if (row["algorithm"], row["ranks"]) == ("ring", 64)
    ]
    yield Claim("proof of the ring at 64 ranks", max(proof, default=None), 1, "s")
    kills = rows_of(results, "random-kills")
    bad = sum(row["troubles"] + row["later_than_1_s"] for row in kills) if kills else None
    yield Claim("random kills: hangs, wrong names, elements and leaks, late survivors", bad, 0, "")
    rows = [row for name in results for row in rows_of(results, name)]
    wrong = [row["wrong"] for row in rows if "wrong" in row]
    yield Claim("wrong elements in all results", sum(wrong) if wrong else None, 0, "")


PARTS = (
    two_ranks,
    collectives,
    engine,
    oversubscribed,
    between_hosts,
    over_rdma,
    gpudirect,
    one_gpu,
    prediction,
    after_a_death,
    rest,
)

if __name__ == "__main__":
    main()
