"""Which arrays alias: the one rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pycoll.arrays import families
from pycoll.arrays.view import ArrayView, Device, intersect, written_twice

SPANS = st.tuples(st.integers(0, 20), st.integers(0, 8))


def seen(part: np.ndarray) -> ArrayView:
    return families.look(part, "x")


def test_overlaps() -> None:
    x = np.zeros(10)
    assert seen(x[:6]).overlaps(seen(x[5:]))
    assert seen(x[:6]).overlaps(seen(x))
    assert seen(x).overlaps(seen(x))
    assert not seen(x[:5]).overlaps(seen(x[5:]))
    assert not seen(x[4:4]).overlaps(seen(x))


@given(SPANS, SPANS)
def test_ranges_intersect_where_they_have_a_byte_in_common(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    a, b = (set(range(start, start + length)) for start, length in (one, other))
    assert intersect(*one, *other) == bool(a & b)


@given(st.lists(st.tuples(SPANS, st.booleans()), max_size=8))
def test_many_arrays_are_looked_at_as_pairs_are(spans: list[tuple[tuple[int, int], bool]]) -> None:
    memory = np.zeros(32, np.uint8)
    arrays = [(seen(memory[start : start + n]), written) for (start, n), written in spans]
    clash = any(
        (written or also) and x.overlaps(y)
        for i, (x, written) in enumerate(arrays)
        for y, also in arrays[:i]
    )
    found = written_twice(arrays)
    assert (found is not None) == clash
    if found is not None:
        assert any(arrays[found][0].overlaps(y) for j, (y, _) in enumerate(arrays) if j != found)


def test_devices_say_what_they_are() -> None:
    assert (str(Device("cpu")), str(Device("cuda", 3))) == ("the host", "cuda:3")
