"""A message that has no room is refused before it is allocated."""

from __future__ import annotations

import pytest

from pycoll.benchmark import memory
from pycoll.errors import UnavailableError


def test_what_fits_passes():
    memory.require(1 << 30, 2, 5 << 30)
    memory.require(1 << 40, 64, None)  # nobody knows


def test_what_cannot_fit_says_how_much_there_is_and_what_to_do():
    words = r"a call of 1 GiB takes 8 GiB of memory for 4 ranks of this host, which has 7 GiB to g"
    with pytest.raises(UnavailableError, match=words):
        memory.require(1 << 30, 4, 7 << 30)
    with pytest.raises(UnavailableError, match=r"for 1 rank of .*; lower --max, or --min"):
        memory.require(1 << 30, 1, 0)


def test_this_machine_says_what_it_has():
    found = memory.available()
    assert found is not None
    assert found > 1 << 20
