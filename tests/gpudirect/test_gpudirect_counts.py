"""What bench/gpudirect_counts.py has counted holds still, and docs/gpudirect.md says the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakecuda
import fakeverbs_library
import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "bench" / "results" / "gpudirect-counts.json"
#: What depends on nothing but the message; how much comes together depends on the machine.
STILL = ("gpu_bytes", "host_bytes", "gpu_flushed", "handed_over", "both: held")


def rows(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = json.loads(path.read_text())["rows"]
    keys = ("call", "nbytes", "way", "rank")
    return {tuple(row[key] for key in keys): row for row in found}


def still(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in STILL} | {"data": row["requests"] - row["credits"]}


@pytest.mark.skipif(
    bool(fakecuda.lack() or fakeverbs_library.lack()),
    reason=fakecuda.lack() or fakeverbs_library.lack() or "-",
)
@pytest.mark.usefixtures("cluster")  # skips where there can be no hosts
def test_what_is_counted_now_is_what_was(tmp_path: Path) -> None:
    found = tmp_path / "counts.json"
    command = [sys.executable, ROOT / "bench" / "gpudirect_counts.py", "--output", found]
    subprocess.run([*command, "--sizes", "4K", "--calls", "8"], check=True, timeout=280)
    kept = {key: row for key, row in rows(KEPT).items() if key[1] == 4096}
    now = rows(found)
    assert {key: still(row) for key, row in now.items()} == {k: still(r) for k, r in kept.items()}


@pytest.mark.pure
def test_no_flush_is_made_for_nothing() -> None:
    for (_, nbytes, way, _), row in rows(KEPT).items():
        assert row["gpu_flushes"] <= row["gpu_flushed"], row
        by_driver = "by the driver" in row["gpudirect"]
        assert row["driver_flushes"] == (row["gpu_flushes"] if by_driver else 0), row
        if "no flush" in way or way == "staged" or nbytes == 40:
            assert row["gpu_flushed"] == row["both: held"] == 0, row


@pytest.mark.pure
def test_the_page_says_what_was_counted() -> None:
    page = (ROOT / "docs" / "gpudirect.md").read_text().partition("## What a message costs\n")[2]
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
    said = {
        int(number) * units[unit]: [int(figure) for figure in figures.split("|")]
        for number, unit, figures in re.findall(r"^\| (\d+) (\w+) \|([\d |]+)\|$", page, re.M)
    }
    kept = rows(KEPT)
    assert sorted(said) == sorted({key[1] for key in kept})
    for nbytes, figures in said.items():
        staged, direct = (
            kept["stream", nbytes, way, 0] for way in ("staged", "direct, flushed by reads")
        )
        there = kept["stream", nbytes, "direct, flushed by reads", 1]
        want = [staged["requests"], direct["requests"], staged["host_bytes"], direct["host_bytes"]]
        assert figures == [*want, direct["handed_over"], there["gpu_flushed"]], nbytes
