"""The engine with another source in it: a test builds it, and a rank runs with it.

engine.py LIBRARY SCRIPT ARGUMENT...     what runs the script
"""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "pycoll._native"


def build(fault: str) -> Path:
    """Return the engine with a planted fault, of `planted.GPUDIRECT`."""
    import compiled
    import planted

    given = runpy.run_path(str(ROOT / "native" / "build.py"))
    # Sources that lie in the same place each time are compiled once.
    folder = compiled.KEPT / "-".join(["fault", *fault.split()])
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "pycoll._native.c"
    with contextlib.chdir(ROOT):
        given["ffi"]().emit_c_code(str(text))
    macros = ("-DPy_LIMITED_API=0x030b0000", f'-DPC_VERSION_TEXT="{given["version"]()}"')
    include = f"-I{sysconfig.get_path('include')}"
    flags = (*compiled.command("plain", "-fPIC", *macros, include, "-fwrapv"), "-ffp-contract=off")
    sources = [text, *(ROOT / name for name in given["SOURCES"])]
    units = [compiled.Unit(source, flags) for source in sources]
    units = planted.planted(planted.GPUDIRECT[fault], units, folder)
    return compiled.linked("_native.abi3.so", units, "-shared")


def main() -> None:
    """Run a script as the main program, whose pycoll has another engine."""
    path = sys.argv[1]
    del sys.argv[:2]
    spec = importlib.util.spec_from_file_location(NAME, loader=ExtensionFileLoader(NAME, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
