"""The engine's shared object, loaded; the only importer of the native module.

Importing this module raises UnavailableError where the engine is not built.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import ExtensionFileLoader
from typing import Any

from pycoll import installed
from pycoll.errors import InternalError, UnavailableError

#: Written by the build when it could not compile the engine: the reason and the cure.
_RECORD = installed.HERE / "_native_missing.txt"
_COMPILER = "apt-get install gcc python3-dev"
_REINSTALL = "pip install --force-reinstall --no-deps pycoll"


def _missing(error: ImportError) -> UnavailableError:
    what = "pycoll's native engine is not there, so nothing can run"
    if there := installed.engine_elsewhere():
        return UnavailableError(
            f"{what}: this Python imports pycoll from {installed.HERE}, which has no engine, and "
            f"so not the one that is installed in {there}; to mend it: start from another folder, "
            f"or with python -P, or build the engine in {installed.HERE.parent} too (make build)"
        )
    why = _RECORD.read_text(encoding="utf-8").strip() if _RECORD.exists() else ""
    if not why:
        again = "make build" if installed.in_sources() else _REINSTALL
        why = f"{error}; to mend it: {_COMPILER}, then {again}"
    return UnavailableError(f"{what}: {why}")


def _load() -> tuple[Any, Any]:
    """Load the shared object as the two modules that it holds."""
    try:
        native = importlib.import_module("pycoll._native")
    except ImportError as error:
        raise _missing(error) from error
    loader = ExtensionFileLoader("pycoll._fastcall", native.__file__ or "")
    spec = importlib.util.spec_from_file_location("pycoll._fastcall", loader=loader)
    if spec is None:  # cannot be: a loader was given
        raise InternalError(f"{native.__file__} gives no module spec")
    fastcall = importlib.util.module_from_spec(spec)
    loader.exec_module(fastcall)
    return native, fastcall


_native, fastcall = _load()
ffi: Any = _native.ffi
lib: Any = _native.lib


def text_of(chars: Any) -> str:
    """Return a text of C."""
    return bytes(ffi.string(chars)).decode("utf-8", "replace")


def version() -> str:
    """Return the version that the native engine was built as."""
    return text_of(lib.pc_version())


def compiler() -> str:
    """Return what compiled the engine."""
    return text_of(lib.pc_compiler())


def cpu_features() -> str:
    """Return the instruction sets that the reduce kernels use here."""
    return text_of(lib.pc_cpu_features())
