"""A finding says enough to act on, or is none."""

from __future__ import annotations

import pytest

from pycoll.doctor.finding import Finding, Level, bad, ok, problem, unknown, warning
from pycoll.errors import InternalError


def test_levels():
    more = {"got": "1", "wanted": "2", "cure": "3"}
    assert ok("x", "y").level == "ok"
    assert unknown("x", "y", cure="z").level == "not known"
    assert warning("x", "y", **more).level == bad(False, "x", "y", **more).level == "warning"
    assert problem("x", "y", **more).level == bad(True, "x", "y", **more).level == "problem"


@pytest.mark.parametrize("left_out", ["got", "wanted", "cure"])
@pytest.mark.parametrize("level", ["warning", "problem"])
def test_what_is_wrong_comes_with_a_cure(level, left_out):
    fields = {"where": "x", "what": "y", "got": "1", "wanted": "2", "cure": "3"}
    with pytest.raises(InternalError, match="says too little: want where, what, got"):
        Finding(level=Level(level), **(fields | {left_out: ""}))


def test_what_is_not_known_comes_with_a_way_to_find_out():
    with pytest.raises(InternalError, match="says too little"):
        Finding(Level.UNKNOWN, "x", "y")


def test_json_has_every_field():
    assert ok("x", "y").encode() == {
        "level": "ok",
        "where": "x",
        "what": "y",
        "got": "",
        "wanted": "",
        "cure": "",
        "check": "",
    }
