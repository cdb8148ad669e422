"""What README and the pages of docs/ show runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "docs/first-allreduce.md", "docs/collectives.md", "docs/own-algorithm.md")


def blocks_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


OWN = next(block for block in blocks_of("README.md") if "@pycoll.algorithm" in block)
SUM = blocks_of("docs/first-allreduce.md")[0]
STAR = blocks_of("docs/own-algorithm.md")[0]


@pytest.mark.native
@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page)])
def test_block_runs_alone(block: str, tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(STAR)
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


def test_the_tutorial_shows_what_the_commands_print(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(STAR)
    for block in blocks_of("docs/own-algorithm.md", "console"):
        commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
        assert commands
        for command, want in commands:
            done = subprocess.run(
                command.replace("pycoll ", f"{sys.executable} -m pycoll ", 1),
                shell=True,
                cwd=tmp_path,
                env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            took = re.compile(r"proved in [0-9.]+ s")
            said = done.stdout + done.stderr
            assert took.sub("proved", said) == took.sub("proved", want), command


def test_the_table_lists_every_algorithm() -> None:
    from pycoll.algorithms import BUILTIN

    want = sorted((a.collective.name, a.name) for a in BUILTIN)
    page = (DOCS / "algorithms.md").read_text()
    assert sorted(re.findall(r"^\| (\w+) \| `(\w+)` \|", page, re.M)) == want
    assert f"[{len(BUILTIN)} algorithms](docs/algorithms.md)" in README


def test_the_table_lists_every_setting() -> None:
    from pycoll.config import SETTINGS

    page = (DOCS / "settings.md").read_text()
    rows = re.findall(r"^\| `(PYCOLL_\w+)` \| (.*) \| (.*) \| (.*) \|$", page, re.M)
    assert rows == [(s.variable, s.type, s.default, s.why) for s in SETTINGS]


def test_every_linked_file_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
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
