"""Algorithms of other distributions: found, and blamed by name when they are wrong."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycoll.algorithms import get, names, plugins
from pycoll.errors import UsageError
from pycoll.verify import verify

MODULE = '''
import dataclasses
from pycoll.algorithms import Algorithm, algorithm
from pycoll.schedule import ScheduleBuilder, allgather


@algorithm(allgather)
def star(b: ScheduleBuilder) -> None:
    """Everyone sends to all."""
    others = [peer for peer in range(b.size) if peer != b.rank]
    for peer in others:
        b.send(b.input[b.rank], to=peer)
    for peer in others:
        b.recv(b.output[peer], frm=peer)


def plain(b):
    pass


odd = Algorithm(plain, dataclasses.replace(allgather, name="dance"))
'''

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a distribution with one line of entry points importable."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(line: str) -> None:
        info = tmp_path / "stars-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stars\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pycoll.algorithms]\n{line}\n")
        (tmp_path / "stars_of_a_test.py").write_text(MODULE)
        importlib.invalidate_caches()
        plugins.load.cache_clear()

    yield make
    sys.modules.pop("stars_of_a_test", None)
    plugins.load.cache_clear()


def test_a_plug_in_stands_beside_the_built_ins(install: Install) -> None:
    install("north_star = stars_of_a_test:star")
    assert names("allgather")[-1] == "north_star"
    assert "north_star" not in names("allreduce")
    assert "stars_of_a_test" in sys.modules
    assert verify(get("north_star", "allgather"), 4)


def test_the_order_of_plug_ins_is_that_of_their_names(install: Install) -> None:
    install("west = stars_of_a_test:star\neast = stars_of_a_test:star")
    assert names("allgather")[-2:] == ("east", "west")


def test_where_none_is_installed_nothing_is_loaded_to_find_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    assert not plugins._declared()
    (tmp_path / "some.dist-info").mkdir()
    (tmp_path / "some.dist-info" / "entry_points.txt").write_text("[others]\n")
    (tmp_path / "bare.egg-info").mkdir()
    assert not plugins._declared()
    (tmp_path / "bare.egg-info" / "entry_points.txt").write_text("[pycoll.algorithms]\n")
    assert plugins._declared()


def test_what_is_no_folder_may_have_plug_ins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "packed.zip").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packed.zip")])
    assert plugins._declared()


def test_another_finder_may_have_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_distributions(self) -> None: ...

    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [Finder()])
    assert plugins._declared()


def test_a_built_in_is_found_without_loading_any(install: Install) -> None:
    install("north_star = stars_of_a_test:star")
    get("ring", "allgather")
    assert "stars_of_a_test" not in sys.modules


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "star = absent_of_a_test:star",
            r"^plug-in star = absent_of_a_test:star of stars does not load: ModuleNotFoundError: ",
        ),
        ("star = stars_of_a_test:absent", r"of stars does not load: AttributeError: "),
        (
            "star = stars_of_a_test:plain",
            r"of stars is a function, want a function under @pycoll.algorithm$",
        ),
        (
            "odd = stars_of_a_test:odd",
            r"of stars is for a collective 'dance' of its own, want one of allreduce, broadcast, ",
        ),
        (
            "ring = stars_of_a_test:star",
            r"of stars: allgather has an algorithm 'ring' by pycoll; want another name$",
        ),
    ],
)
def test_a_wrong_plug_in_is_blamed(install: Install, line: str, message: str) -> None:
    install(line)
    with pytest.raises(UsageError, match=message):
        names("allgather")
    assert get("ring").name == "ring"  # which needs no plug-in


def test_two_plug_ins_of_one_name(install: Install) -> None:
    install("star = stars_of_a_test:star\nstar = stars_of_a_test:star")
    with pytest.raises(UsageError, match=r"allgather has an algorithm 'star' by stars; want anoth"):
        get("star", "allgather")
