"""The element types of the benchmark's arrays."""

from __future__ import annotations

import sys

import pytest

from pycoll.benchmark import datatypes
from pycoll.dtypes import BY_NAME
from pycoll.errors import UnavailableError


@pytest.mark.parametrize("name", datatypes.names(reduces=False))
def test_every_name_is_a_type_of_numpy(name):
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert datatypes.element(name).name == name
    assert datatypes.element(name).itemsize == datatypes.itemsize(name)


def test_what_is_moved_is_all_that_is_reduced_and_more():
    assert datatypes.names(reduces=True) == tuple(BY_NAME)
    assert datatypes.names(reduces=False)[: len(BY_NAME)] == tuple(BY_NAME)


def test_without_the_package_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    words = r"numpy has bfloat16 from ml_dtypes, which does not load .*; pip install ml_dtypes"
    with pytest.raises(UnavailableError, match=words):
        datatypes.element("bfloat16")
    assert datatypes.element("float16").itemsize == 2
