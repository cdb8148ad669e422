"""Files of the cache that somebody else has put there: read without trust, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycoll import files
from pycoll.cost import Question, store
from pycoll.verify import cache

DEEP = "[" * 100_000


def fill(path: Path, kind: str) -> None:
    """Put something at a path that is not what belongs there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)  # whoever opens it plainly waits for a writer
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes({"deep": DEEP.encode(), "bytes": b"\xff\xfe\0", "empty": b""}[kind])


KINDS = ("pipe", "folder", "deep", "bytes", "empty")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_json_is_an_error(tmp_path: Path, kind: str) -> None:
    fill(tmp_path / "x", kind)
    with pytest.raises((OSError, ValueError)):
        files.read_json(tmp_path / "x")


def test_a_file_of_json(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": [1, 2.5, "\u00e9"]}')
    assert files.read_json(tmp_path / "x") == {"a": [1, 2.5, "\u00e9"]}
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "y")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuning_that_cannot_be_read_is_a_warning(tmp_path: Path, kind: str) -> None:
    question = Question("allreduce", 8, 2, cores=2)
    fill(store.path(tmp_path, store.key("0", question)), kind)
    with pytest.warns(UserWarning, match="cannot be used .*algorithms are chosen by the model"):
        assert store.load(tmp_path, "0", question) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_that_cannot_be_read_is_made_anew(tmp_path: Path, kind: str) -> None:
    fill(tmp_path / "abc.json", kind)
    assert cache.load(tmp_path, "abc") is None


@pytest.mark.native
@pytest.mark.parametrize("cache", ["/proc/x", "/dev/null", "x" * 5000])
def test_tune_says_at_once_where_it_cannot_keep_anything(cache: str) -> None:
    command = (sys.executable, "-m", "pycoll", "tune", "--ranks", "2", "--cache", cache)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "# pycoll tune: 2 ranks" not in done.stdout  # which precedes the measuring
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "pycoll tune: tunings cannot be kept in" in done.stderr
    assert "name another directory by --cache or PYCOLL_CACHE" in done.stderr
