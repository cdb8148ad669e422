"""Lightning, accelerate and transformers' Trainer end with what they end with over Gloo.

None of them is installed with pycoll: what is missing is skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("library", ["lightning", "accelerate", "transformers"])
def test_a_library_over_torch_ends_with_the_same(jobs: Any, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: pip install {library}")
    if library == "transformers":
        pytest.importorskip("accelerate", reason="transformers' Trainer wants accelerate")
    ends = {}
    for backend in ("gloo", "pycoll"):
        launched = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
        said = jobs.run(2, "trainers.py", library, backend, str(tmp_path / backend), **launched)
        ends[backend] = [text[text.rindex("ends with ") :].splitlines()[0] for text in said]
    assert ends["pycoll"] == ends["gloo"]
    assert ends["pycoll"][0] == ends["pycoll"][1]
