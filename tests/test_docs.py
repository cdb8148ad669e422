"""The documentation: what its pages say is true of the code, and the site can be built."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPHINX = ROOT / ".venv-docs" / "bin" / "python"


@pytest.mark.skipif(not SPHINX.exists(), reason="Sphinx is not installed: make docs")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    command = [SPHINX, "-m", "sphinx", "-q", "-W", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "trees", ROOT / "docs", tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    loads = re.compile(r"""(?:<(?:script|img|iframe|object)\b|<link\b)[^>]*(?:https?:)?//[^>]*>""")
    for page in (tmp_path / "site").rglob("*.html"):
        assert loads.findall(page.read_text()) == []
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[\s\"']*(?:https?:)?//", style.read_text())
