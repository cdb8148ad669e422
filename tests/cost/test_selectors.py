"""Selectors by name: plug-ins of a group of entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from pycoll.cost import Choice, Question, selector
from pycoll.errors import UsageError


def mine(question: Question) -> Choice | None:
    return None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("mine", f"{__name__}:mine", "pycoll.selectors"),
            EntryPoint("number", f"{__name__}:3", "pycoll.selectors"),
            EntryPoint("broken", "no_such_module_at_all:f", "pycoll.selectors"),
        ]
    )
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)
    monkeypatch.setattr(EntryPoint, "load", lambda self: _load(self.name))


def _load(name: str) -> object:
    if name == "broken":
        raise ModuleNotFoundError("No module named 'no_such_module_at_all'")
    return 3 if name == "number" else mine


def test_a_function_is_itself() -> None:
    assert selector(mine) is mine


def test_by_name(installed: None) -> None:
    assert selector("mine") is mine


def test_an_unknown_name_lists_the_known(installed: None) -> None:
    with pytest.raises(UsageError, match=r"selector is 'yours', want one of broken, mine, number"):
        selector("yours")


def test_a_plug_in_that_does_not_load(installed: None) -> None:
    with pytest.raises(UsageError, match="selector 'broken' does not load: ModuleNotFoundError"):
        selector("broken")


def test_a_plug_in_that_is_no_function(installed: None) -> None:
    with pytest.raises(UsageError, match=r"^selector 'number' is 3, want a function$"):
        selector("number")


def test_something_else() -> None:
    with pytest.raises(UsageError, match="selector is 3, want a function or the name"):
        selector(3)  # type: ignore[arg-type]
