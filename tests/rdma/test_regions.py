"""Memory regions of the registration cache on real verbs, while the memory changes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from rack import Rack

ROOT = Path(__file__).parents[2]
CACHE = ["region", "pin", "unmap", "memory", "cuda", "cuda_memory"]
RAIL = ["rail", "pair", "gid", "port", "ports", "ibverbs", "error"]


def test_no_write_goes_to_memory_of_before(rack: Rack, tmp_path: Path) -> None:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler: apt-get install gcc")
    driver = tmp_path / "regions"
    sources = [ROOT / "native" / f"{name}.c" for name in CACHE + RAIL]
    sources.append(ROOT / "tests" / "native" / "regions.c")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-pthread", f"-I{ROOT / 'native'}"]
    subprocess.run([cc, *flags, *sources, "-ldl", "-o", driver], check=True)
    done = rack.guest.run([str(driver), "rxe0", "rxe1", "36"])
    assert done.stdout.splitlines() == [
        "36 writes to memory as it was; kept: yes, found again: yes",
        "a region that was kept in spite of it: nothing arrives",
    ]
