"""The element types that the benchmark's arrays may have, as numpy knows them."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np

from pycoll.dtypes import BY_NAME
from pycoll.errors import UnavailableError

#: What is moved only: no kernel reduces it.
MOVED = (
    "bool",
    "int16",
    "uint16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
#: Types that numpy gets from the package ml_dtypes.
_EXTENSIONS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def names(reduces: bool) -> tuple[str, ...]:
    """Return the names of all types that are reduced, or of all that are moved."""
    return tuple(BY_NAME) if reduces else (*BY_NAME, *MOVED)


def element(name: str) -> np.dtype[Any]:
    """Return numpy's dtype.

    Raises:
        UnavailableError: Numpy has it from a package that is not there.
    """
    if name not in _EXTENSIONS:
        return np.dtype(name)
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError) as error:
        raise UnavailableError(
            f"numpy has {name} from ml_dtypes, which does not load ({error}); pip install ml_dtypes"
        ) from error
    return found


def itemsize(name: str) -> int:
    """Return the bytes of an element, whether or not numpy has the type here."""
    bits = re.search(r"[0-9]+", name)
    return 1 if bits is None else int(bits[0]) // 8  # what has no number is bool


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Tell whether elements are integers, and so wrap where a float would round."""
    return dtype.kind in "iu"


def most_exact(dtype: np.dtype[Any]) -> int:
    """Return up to which number every integer is exact, as far as sums may want to go."""
    return {"bfloat16": 1 << 8, "float16": 1 << 11}.get(dtype.name, 1 << 20)
