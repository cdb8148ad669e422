"""What follows from the rows of a contest: lines of the table, ratios, the floor, the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pycoll.benchmark.operation import Operation
from pycoll.errors import counted


def touched(operation: Operation, ranks: int, nbytes: int) -> int:
    """Return the bytes that ranks which share a GPU read and write at least: inputs, and outputs.

    Of a broadcast, which is in place, the root's output is its input.
    """
    blocks = {"all": ranks * nbytes, "own": nbytes, "root": nbytes}
    twice = nbytes if operation.name == "broadcast" else 0
    return blocks[operation.takes] + blocks[operation.gives] - twice


def line(row: dict[str, Any]) -> str:
    """Return one row of the table."""
    time = row["time_us"]
    floor = f"{row['of_floor']:>6.1%} of the floor " if "of_floor" in row else ""
    hops = f"{row['hops']:>6.1f} hops " if "hops" in row else ""
    return (
        f"{row['ranks']:>2} ranks {row['mode']:<5} {row['collective']:<14} {row['nbytes']:>12} B "
        f"{row['library']:<7} {time['min']:>10.2f} {time['median']:>10.2f} {time['p99']:>10.2f} us "
        f"{row['busbw_GBps']:>9.2f} GB/s {floor}{hops}{row['wrong']:>3} wrong; {_shape(row)}"
    )


def _shape(row: dict[str, Any]) -> str:
    if "blocks" in row:
        direct = (
            f", {counted(row['direct_calls'], 'call')} direct" if row.get("direct_calls") else ""
        )
        shape = f"{row['algorithm']}, {counted(row['blocks'], 'block')}, {row['protocol']}"
        return shape + direct
    bound = row.get("blocks_at_most")
    return f"at most {counted(bound, 'block')}" if bound else "blocks unknown"


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return pycoll's time over NCCL's, of every pair of rows that were measured together."""
    names = "ranks", "mode", "collective", "nbytes"
    times = {
        (*(row[name] for name in names), row["library"]): row["time_us"]["median"] for row in rows
    }
    return [
        dict(zip(names, key, strict=True)) | {"ratio": own / other}
        for (*key, library), own in times.items()
        if library == "pycoll" and (other := times.get((*key, "nccl")))
    ]


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what the claims are about: latency up to 64 KiB, bandwidth from 64 MiB."""
    found = ratios(rows)
    same = lambda entry: (entry["ranks"], entry["mode"], entry["collective"])  # noqa: E731
    for key in dict.fromkeys(map(same, found)):
        mine = [entry for entry in found if same(entry) == key]
        ranks, mode, collective = key
        mode = mode if collective == "allreduce" else f"{mode}, {collective}"
        small = [entry["ratio"] for entry in mine if entry["nbytes"] <= 64 << 10]
        large = [1 / entry["ratio"] for entry in mine if entry["nbytes"] >= 64 << 20]
        if small:
            text = f"latency up to 64 KiB at most {max(small):.2f} of NCCL's"
            yield f"# {ranks} ranks, {mode}: {text}"
        if large:
            text = f"bandwidth from 64 MiB at least {min(large):.2f} of NCCL's"
            yield f"# {ranks} ranks, {mode}: {text}"
    own = [row for row in rows if (row["library"], row["collective"]) == ("pycoll", "allreduce")]
    for key in dict.fromkeys(map(same, own)):
        if hops := [row["hops"] for row in own if same(row) == key and "hops" in row]:
            text = f"the shortest all-reduce takes {min(hops):.1f} times a flag's way"
            yield f"# {key[0]} ranks, {key[1]}: {text}"
