"""Kernels that are paced, and those that are not: nothing of it is left where it is not wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from listing import breaches, budget, instructions, usage

from pycoll.dtypes import BY_NAME, DType, ReduceOp
from pycoll.errors import UsageError
from pycoll.runtime.cuda import compile, pace, source

KINDS = [
    ("float32", ReduceOp.SUM, (9, 0)),
    ("bfloat16", ReduceOp.MAX, (9, 0)),
    ("int8", ReduceOp.SUM, (10, 0)),
]
Key = tuple[DType, ReduceOp, tuple[int, int]]


@pytest.fixture
def paced() -> Iterator[None]:
    pace.set_rate(450 * 10**9)
    yield
    pace.set_rate(0)


def key_of(kind: tuple[str, ReduceOp, tuple[int, int]]) -> Key:
    return BY_NAME[kind[0]], *kind[1:]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_without_it_the_machine_code_is_as_if_there_were_none(
    kind: tuple[str, ReduceOp, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(kind)
    built = instructions(compile.build(*key))
    whole = source.closure(source.folder())
    text, count = re.subn(r"^ *pc__pace\w*\(.*\);\n", "", whole["gpu/kernel/kernel.h"], flags=re.M)
    assert count == 2
    text = text.replace('#include "gpu/kernel/pace.h"\n', "")
    assert "pc__pace" not in text
    without = whole | {"gpu/kernel/kernel.h": text}
    monkeypatch.setattr(compile, "_sources", lambda: without)
    assert instructions(compile.build(*key)) == built


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_paced_kernels_are_as_small_and_ordered(
    kind: tuple[str, ReduceOp, tuple[int, int]], paced: None
) -> None:
    key = key_of(kind)
    image = compile.build(*key)
    assert list(breaches(image, True, True, budget(key[2]))) == []
    assert set(usage(image)) == {compile.entry(*key[:2]), compile.fused_entry(*key[:2])}
    pace.set_rate(0)
    assert instructions(image) != instructions(compile.build(*key))


def test_the_cache_tells_them_apart(paced: None) -> None:
    one = compile._name("kernel", (9, 0), (12, 9))
    pace.set_rate(10**9)
    two = compile._name("kernel", (9, 0), (12, 9))
    pace.set_rate(0)
    assert len({one, two, compile._name("kernel", (9, 0), (12, 9))}) == 3


def test_results_say_so(paced: None) -> None:
    assert pace.label() == "paced at 450 GB/s: no measurement of a link"
    pace.set_rate(0)
    assert (pace.label(), pace.options()) == ("", ())


def test_what_is_no_rate() -> None:
    for rate in (-1, 1.5, 10**15 + 1, "fast"):
        with pytest.raises(UsageError, match="pace: bytes_per_second is"):
            pace.set_rate(rate)  # type: ignore[arg-type]
