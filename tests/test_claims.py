"""What docs/gpu.md says is shown: each line names what shows it, and that is there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
RESULTS = ROOT / "bench" / "results"
sys.path.append(str(ROOT / "tests" / "gpu"))


class Claim(NamedTuple):
    """A line of the table."""

    aim: str
    run: str  #: on a GPU
    phases: str
    tests: str  #: without one


def section() -> str:
    return PAGE.read_text().partition("## What is shown, and what is not\n")[2]


def claims() -> list[Claim]:
    rows = [line for line in section().splitlines() if line.startswith("| ")]
    return [Claim(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows[1:]]


def results(claim: Claim) -> list[Path]:
    """Return the results of runs on a GPU that a line names."""
    return [(PAGE.parent / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", claim.run)]


def shown_on_a_gpu(path: Path, phases: set[str]) -> bool:
    """Tell whether a result is one of a commit, of a GPU, and right.

    It is a benchmark's, or one of tests/gpu/run_all.py with some of a claim's phases, passed.
    """
    result = json.loads(path.read_text())
    if "phases" in result:
        seen = result["phases"]
        gpu = seen["probe"]["details"]["gpu"]["name"]
        mine = [seen[name]["status"] for name in phases if name in seen]
        right = not result["stand_in"] and bool(mine) and set(mine) == {"passed"}
    else:
        gpu = result["meta"]["machine"].get("gpu", "")
        right = bool(result["rows"]) and not any(row["wrong"] for row in result["rows"])
    return bool(result["meta"]["commit"]) and gpu.startswith("NVIDIA") and right


def test_the_table_has_what_a_user_would_ask_for() -> None:
    text = " ".join(claim.aim for claim in claims())
    for word in ("bits", "64 KiB", "64 MiB", "hop", "copy", "graphs", "IPC", "computation"):
        assert word in text
    assert len({claim.aim for claim in claims()}) == len(claims())


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.aim)
def test_a_claim_names_what_shows_it(claim: Claim) -> None:
    from run_all import PHASES

    phases = set(re.findall(r"`(\w+)`", claim.phases))
    assert phases
    assert phases <= {phase.name for phase in PHASES}
    if claim.run != "not run":
        assert results(claim), "want 'not run', or links to results in bench/results"
        for path in results(claim):
            assert path.parent == RESULTS
            assert shown_on_a_gpu(path, phases), path.name
    tests = re.findall(r"`([^`]+)`", claim.tests)
    assert tests or claim.tests == "nothing"
    for test in tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), test


def test_as_long_as_nothing_has_run_the_page_says_so() -> None:
    said = "Nothing of this page has run on a GPU yet" in PAGE.read_text()
    assert said == all(claim.run == "not run" for claim in claims())


def test_a_result_that_is_kept_is_named() -> None:
    kept = set(RESULTS.glob("gpu-*.json"))
    assert kept == {path for claim in claims() for path in results(claim)}


def test_a_result_of_a_stand_in_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"

    def told(gpu: str | None, wrong: int = 0, commit: str = "abc") -> bool:
        machine = {"cpu": "any"} | ({} if gpu is None else {"gpu": gpu})
        rows = [{"wrong": wrong}]
        path.write_text(json.dumps({"meta": {"commit": commit, "machine": machine}, "rows": rows}))
        return shown_on_a_gpu(path, {"nccl"})

    assert told("NVIDIA H100 80GB HBM3")
    assert not told("Stand-in GPU")
    assert not told(None)
    assert not told("NVIDIA H100 80GB HBM3", wrong=1)
    assert not told("NVIDIA H100 80GB HBM3", commit="")

    def passed(status: str, stand_in: bool = False, name: str = "NVIDIA H100 80GB HBM3") -> bool:
        probe = {"status": "passed", "details": {"gpu": {"name": name}}}
        phases = {"probe": probe, "fused": {"status": status}}
        meta = {"commit": "abc", "machine": {"cpu": "any"}}
        path.write_text(json.dumps({"meta": meta, "stand_in": stand_in, "phases": phases}))
        return shown_on_a_gpu(path, {"fused", "threads"})

    assert passed("passed")
    assert not passed("FAILED")
    assert not passed("skipped")
    assert not passed("passed", stand_in=True)
    assert not passed("passed", name="Stand-in GPU")
    assert not shown_on_a_gpu(path, {"nccl"}), "a phase that was not run shows nothing"
