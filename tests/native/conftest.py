"""What the drivers of this folder run: the Programs of every all-reduce."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pycoll.algorithms import get, names
from pycoll.program.lower import compile_program
from pycoll.schedule import NotDirect


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder SIZE/ALGORITHM.RANK of every all-reduce for 2, 3 and 4 ranks."""
    root = tmp_path_factory.mktemp("programs")
    for size in (2, 3, 4):
        (root / str(size)).mkdir()
        for name in names("allreduce"):
            for rank in range(size):
                path = root / str(size) / f"{name}.{rank}"
                path.write_bytes(compile_program(get(name), size, rank).to_bytes())
                with contextlib.suppress(NotDirect):
                    direct = compile_program(get(name), size, rank, direct=True)
                    path.with_name(f"{path.name}.direct").write_bytes(direct.to_bytes())
    return root
