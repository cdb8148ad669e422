"""What README shows runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
OWN = next(block for block in BLOCKS if "@pycoll.algorithm" in block)
SUM = next(block for block in BLOCKS if "1000" in block)


@pytest.mark.native
@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs_alone(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block)  # a file: an algorithm's digest is that of its source
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.mpi
def test_five_lines_sum_over_the_ranks(launcher, tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM + "\nassert np.array_equal(x, np.full(1000, 10.0)), x\n")
    launcher.run(4, str(script))


@pytest.mark.mpi
def test_own_algorithm_runs_over_the_ranks(launcher, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN + "\nassert np.array_equal(x, comm.size * np.arange(10.0)), x\n")
    launcher.run(3, str(script))


def test_own_algorithm_with_recv_for_recv_reduce_is_refused() -> None:
    import pycoll

    text = OWN.split("print(")[0].replace("recv_reduce(", "recv(")
    names: dict[str, object] = {}
    exec(compile(text, "README.md", "exec"), names)
    drawn = r"(?s)rank 0.* lacks the contribution of ranks 1, 2.*\n-> #\d+ END"
    with pytest.raises(pycoll.PostconditionError, match=drawn):
        pycoll.verify(names["there_and_back"], size=3)


def test_the_tables_list_every_algorithm() -> None:
    from pycoll.algorithms import BUILTIN

    want = sorted((a.collective.name, a.name) for a in BUILTIN)
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert sorted(re.findall(r"^\| (\w+) \| `(\w+)` \|", page, re.M)) == want
    rows = re.findall(r"^\| (\w+) \| (`.*`) \|$", README, re.M)
    assert sorted((c, n) for c, line in rows for n in re.findall(r"`(\w+)`", line)) == want


def test_the_table_lists_every_setting() -> None:
    from pycoll.config import SETTINGS

    rows = re.findall(r"^\| `(PYCOLL_\w+)` \| (.*) \| (.*) \| (.*) \|$", README, re.M)
    assert rows == [(s.variable, s.type, s.default, s.why) for s in SETTINGS]


def test_every_linked_file_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_summary_reads_every_result_that_is_kept() -> None:
    command = [sys.executable, ROOT / "bench" / "summary.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    kept = sorted(path.stem for path in (ROOT / "bench" / "results").glob("*.json"))
    assert sorted(re.findall(r"^# (\S+): commit", done.stdout, re.M)) == kept, done.stderr
    claims = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert claims
    assert all(re.match(r"(pass|short|not measured) ", claim) for claim in claims)
