"""What tests/full.txt says: the tests that `make test` leaves out."""

from __future__ import annotations

import fnmatch

import pytest

# The lines of full.txt that name no test or give no reason: tests/test_full.py. An error here
# would end xdist's workers without a word of why.
WRONG_LINES = pytest.StashKey[list[str]]()


def only_in_full(items: list[pytest.Item], lines: list[str]) -> tuple[set[pytest.Item], list[str]]:
    """Return the tests that `lines` of full.txt name, and the lines that name none or no reason.

    In a line ``*`` stands for any characters, and a bracket for itself.
    """
    left_out, wrong = set(), []
    for line in lines:
        if line and not line.startswith("#"):
            name, _, why = line.partition(" ")
            pattern = f"tests/{name}*".replace("[", "[[]")
            found = [item for item in items if fnmatch.fnmatchcase(item.nodeid, pattern)]
            left_out.update(found)
            if not (why and found):
                wrong.append(line)
    return left_out, wrong
