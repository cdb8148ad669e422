"""The cffi builder of ``pycoll._native``; ``setup.py`` names it.

The cdef is read from the headers that C itself includes, so a signature is written once.
``native/python/fastcall.c`` defines a second module, ``_fastcall``, in the same shared object: cffi
wrappers cost too much for the one call that every collective makes.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cffi

HEADERS = ("native/isa.h", "native/code.h", "native/pycoll.h")


def files(*suffixes: str) -> list[str]:
    """Return the engine's files with these suffixes, by their paths from the root of the tree."""
    native = Path(__file__).resolve().parent
    found = (path for path in native.rglob("*") if path.suffix in suffixes)
    return sorted(path.relative_to(native.parent).as_posix() for path in found)


SOURCES = files(".c")
DEPENDS = files(".h", ".cu")
#: Without module _fastcall: what a program in C is linked with, as it has no Python.
ENGINE = [name for name in SOURCES if not name.startswith("native/python/")]

# -fwrapv: integer sums wrap, by definition. -ffp-contract=off: gcc would otherwise fuse a*b+c,
# and results must not depend on the CPU.
# -Wswitch-enum as an error: an opcode that some switch forgets does not build.
COMPILE = [
    "-std=gnu11",
    "-O3",
    "-pthread",
    "-fvisibility=hidden",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Werror=switch-enum",
    "-Werror=implicit-function-declaration",
]

#: Wheels are to load where glibc is as old as 2.28; see native/old_glibc.h.
WHEEL = bool(os.environ.get("PYCOLL_WHEEL"))
OLD_GLIBC = ["-include", "native/old_glibc.h"]
OLD_LIBRARIES = ["-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"]

_VERSION = re.compile(r"^__version__ = \"(.+)\"$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CONTINUED = re.compile(r"\\\n")
_ASSERT = re.compile(r"_Static_assert\s*\(.*?\)\s*;", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_CONSTANT = re.compile(r"\s*#\s*define\s+\w+\s+-?(0x[0-9a-f]+|[0-9]+)[ul]*\s*", re.IGNORECASE)


def cdef(header: str) -> str:
    """Return what cffi can read of a C header: declarations and integer constants."""
    text = _CONTINUED.sub(" ", _COMMENT.sub(" ", header))
    text = _ASSERT.sub("", text)
    return _DIRECTIVE.sub(lambda line: line[0] if _CONSTANT.fullmatch(line[0]) else "", text)


def read(path: str) -> str:
    """Return the text of a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def version() -> str:
    """Return pycoll's version, without importing pycoll."""
    found = _VERSION.search(read("pycoll/__init__.py"))
    if found is None:
        raise ValueError("pycoll/__init__.py has no line that begins with `__version__ = `")
    return found[1]


def ffi() -> cffi.FFI:
    """Return the builder that setuptools compiles."""
    import cffi  # here: who asks for the list of sources may have none

    builder = cffi.FFI()
    for header in HEADERS:
        builder.cdef(cdef(read(header)))
    # Free-threaded CPython before 3.15 has no limited API; cffi then builds for that version.
    limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
    builder.set_source(
        "pycoll._native",
        "\n".join(f'#include "{os.path.basename(header)}"' for header in HEADERS),
        sources=SOURCES,
        depends=DEPENDS,
        include_dirs=["native"],
        define_macros=[
            ("_GNU_SOURCE", None),
            ("PC_VERSION_TEXT", f'"{version()}"'),
            *([("Py_LIMITED_API", "0x030b0000")] if limited else []),
        ],
        extra_compile_args=[*COMPILE, *(OLD_GLIBC if WHEEL else [])],
        # -ldl: dlopen, before glibc 2.34
        extra_link_args=["-pthread", "-ldl", *(OLD_LIBRARIES if WHEEL else [])],
        optional=True,  # without a compiler everything up to `init` still works
    )
    return builder
