"""What is wrong with a job of 8 ranks on 4 hosts is named by `pycoll trace`, without being told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 200.0  #: generous: reached only by a hang


def test_a_late_rank_a_slow_host_and_another_algorithm_are_named(
    root: Path, tmp_path: Path
) -> None:
    output = tmp_path / "found.json"
    script = root / "bench" / "planted_faults.py"
    command = [sys.executable, str(script), "--jobs", "1", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(output.read_text())["rows"]
    # A busy machine may hold up another rank, and that is said, too.
    for planted in row["planted"]:
        assert planted in row["named"]
    assert len(row["planted"]) == 3
