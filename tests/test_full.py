"""tests/full.txt, the list of what `make test` leaves out, names tests that there are."""

from __future__ import annotations

import full
import pytest


def test_each_line_names_a_test_and_gives_a_reason(request: pytest.FixtureRequest) -> None:
    if request.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("not all tests were collected")
    assert request.config.stash[full.WRONG_LINES] == []


def test_brackets_mean_themselves_and_a_line_without_a_reason_is_wrong() -> None:
    class Item:
        def __init__(self, name: str) -> None:
            self.nodeid = f"tests/test_x.py::{name}"

    items = [Item(name) for name in ("test_a[2]", "test_a[21]", "test_a2", "test_b[x-2]")]
    lines = ["# no line", "", "test_x.py::test_a[2] long", "test_x.py::test_b*2", "test_y.py long"]
    left_out, wrong = full.only_in_full(items, lines)  # type: ignore[arg-type]
    assert {item.nodeid.partition("::")[2] for item in left_out} == {"test_a[2]", "test_b[x-2]"}
    assert wrong == ["test_x.py::test_b*2", "test_y.py long"]
