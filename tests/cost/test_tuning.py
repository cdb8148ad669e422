"""Measured rows: between them by logarithms, on disk and on the wire as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pycoll.cost import Question, Tuning, load
from pycoll.cost.machine import Rates
from pycoll.cost.store import key, path, store
from pycoll.errors import UsageError
from pycoll.schedule import Level, Placement

ROWS = {
    ("allreduce", "ring"): ((8, 1e-6), (800, 1e-4), (8000, 2e-4)),
    ("allgather", "bruck"): ((64, 3e-6),),
}
TUNING = Tuning(4, (0, 0, 1, 1), Rates(copy=1e-10), ROWS)
QUESTION = Question("allreduce", 8, 4, 2)


def test_between_rows_by_logarithms() -> None:
    assert TUNING.measured("allreduce", "ring", 8) == 1e-6
    assert TUNING.measured("allreduce", "ring", 80) == pytest.approx(1e-5)
    assert TUNING.measured("allreduce", "ring", 8000) == 2e-4
    low, high = math.log(1e-4), math.log(2e-4)
    middle = TUNING.measured("allreduce", "ring", round(800 * math.sqrt(10)))
    assert middle == pytest.approx(math.exp((low + high) / 2), rel=1e-3)


def test_outside_of_the_rows_nothing_was_measured() -> None:
    for n in (0, 7, 8001):
        assert TUNING.measured("allreduce", "ring", n) is None
    assert TUNING.measured("allreduce", "two_shot", 8) is None
    assert TUNING.nearest("allreduce", "ring", 0) == (8, 1e-6)
    assert TUNING.nearest("allreduce", "ring", 9000) == (8000, 2e-4)
    assert TUNING.nearest("allreduce", "two_shot", 9000) is None


def test_json_brings_it_back() -> None:
    assert Tuning.from_json(json.loads(json.dumps(TUNING.to_json()))) == TUNING


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "version 99, want 1"),
        ({"rows": 3}, "AttributeError"),
        ({"rows": {"allreduce": {"ring": [[8, -1.0]]}}}, "rows of allreduce ring: want ascending"),
        ({"rows": {"allreduce": {"ring": [[8, 1.0], [8, 1.0]]}}}, "want ascending sizes"),
        ({"rates": {"copy": 0}}, "rates: want seconds > 0"),
        ({"hosts": None}, "TypeError"),
    ],
)
def test_json_of_something_else(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Tuning.from_json(TUNING.to_json() | change)


def test_a_tuning_is_found_again_by_the_same_job_only(tmp_path: Path) -> None:
    assert load(tmp_path, "1.0", QUESTION) is None
    file = store(tmp_path, "1.0", QUESTION, TUNING, {"date": "today"})
    assert json.loads(file.read_text())["meta"] == {"date": "today"}
    assert load(tmp_path, "1.0", QUESTION) == TUNING
    assert load(tmp_path, "1.0", QUESTION._replace(collective="gather", nbytes=1)) == TUNING
    for other in (
        QUESTION._replace(size=5),
        QUESTION._replace(cores=4),
        QUESTION._replace(placement=Placement.of(Level("node", (0, 0, 1, 1))), remote=True),
    ):
        assert load(tmp_path, "1.0", other) is None
    assert load(tmp_path, "1.1", QUESTION) is None
    assert key("1.0", QUESTION, "one cpu") != key("1.0", QUESTION, "another")
    assert [p.name for p in file.parent.iterdir()] == [file.name]  # no half-written file stays


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"version": 1', "\x00"])
def test_a_broken_file_is_a_warning(tmp_path: Path, text: str) -> None:
    file = path(tmp_path, key("1.0", QUESTION))
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.warns(UserWarning, match=rf"{file.name} cannot be used .* Run pycoll tune again"):
        assert load(tmp_path, "1.0", QUESTION) is None


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("a file")
    with pytest.raises(UsageError, match="tunings cannot be kept in"):
        store(tmp_path, "1.0", QUESTION, TUNING, {})
