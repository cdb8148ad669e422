"""The architecture, held by a walk over every import, attribute and string of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "pycoll").rglob("*.py"))

COMMUNICATOR = {
    "communicator",
    "collectives",
    "vector_collectives",
    "point_to_point",
    "objects",
    "groups",
    "profiler",
    "corruption",
}
ABOVE = (
    *("bootstrap", "runtime", "arrays", *COMMUNICATOR),
    *("benchmark", "cli", "__init__", "__main__"),
)

#: All rules. A module imports only from its own step or one to its left; a name appears only in
#: the places (prefixes of the path below pycoll/) that `only_in` lists for it.
LAW = {
    "order": (
        {
            "errors",
            "arguments",
            "collector",
            "config",
            "dtypes",
            "fabric",
            "files",
            "installed",
            "log",
            "order",
            "sysfs",
            "verbosity",
        },
        {"schedule", "topology"},
        {"algorithms", "passes"},
        {"program"},
        {"verify", "cost"},
        {"arrays"},
        {"bootstrap", "runtime"},
        COMMUNICATOR,
        {"benchmark", "rehearsal"},
        {"interop", "overlap"},
        {"doctor", "top", "trace"},
        {"cli", "__init__", "__main__"},
    ),
    "only_in": {
        # imports and attributes
        "pycoll._native": ("runtime/native/load.py",),
        "pycoll.runtime.native.bindings": ("runtime/",),
        "pycoll.runtime.native.codes": ("runtime/", "communicator"),
        "pycoll.runtime.native.load": ("runtime/", "communicator", "cli/"),
        "pycoll.runtime.native.verbs": ("runtime/", "cli/"),
        "cffi": (),
        "ctypes": ("bootstrap/", "runtime/", "arrays/dlpack.py"),
        "mmap": ("bootstrap/", "runtime/"),
        "socket": ("bootstrap/", "runtime/", "doctor/dcb.py"),
        "multiprocessing": ("bootstrap/",),
        "logging": ("log.py",),
        "subprocess": ("benchmark/metadata.py", "bootstrap/"),
        "threading": (*ABOVE, "interop/torch_"),
        "os.environ": ("config.py", "bootstrap/"),
        "os.getenv": (),
        "numpy": (
            *("program/reference.py", "program/arithmetic.py", "program/image.py"),
            *("verify/symmetry/canonical.py", "verify/symmetry/group.py", "rehearsal", *ABOVE),
        ),
        "mpi4py": ("bootstrap/mpi.py", "benchmark/backends/mpi4py.py"),
        "torch": ("arrays/torch.py", "benchmark/backends/gloo.py", "interop/torch_"),
        "matplotlib": ("benchmark/plot.py",),
        "cupy": ("arrays/cupy.py", "runtime/cuda/compile.py"),
        "pyverbs": ("interop/pyverbs.py",),
        "shtab": ("cli/completion.py",),
    },
    # imported when first needed, never by `import pycoll`; but what torch loads to make a process
    # group of it is made of torch's classes
    "lazy": {
        "mpi4py": (),
        "torch": ("interop/torch_",),
        "matplotlib": (),
        "pyverbs": (),
        "shtab": (),
        "cupy": (),
    },
    # of a function, without its docstring
    "lines": 60,
    # whole string literals
    "strings": {
        r"pycoll\._native": ("runtime/native/load.py",),
        r"PYCOLL_[A-Z_]+": ("config.py",),
        r"(OMPI|PMI|PMIX|SLURM|MPI|TORCHELASTIC)_\w+": ("bootstrap/",),
        r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT": ("bootstrap/",),
    },
    # words that must not occur at all, comments included
    "words": {
        r"shm|tcp|verbs|cuda|memfd": ("algorithms/", "passes/", "schedule/"),
    },
}


def step(name: str) -> int:
    """Return where a part of the package stands in the order."""
    for index, parts in enumerate(LAW["order"]):
        if name in parts:
            return index
    raise AssertionError(f"pycoll/{name} has no place in LAW['order']: give it one")


def part(path: str) -> str:
    """Return the part of the package that a file belongs to."""
    return path.removeprefix("pycoll/").split("/")[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every imported module and every name taken from it, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every `module.attribute` that stands in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}", node.lineno


def top_level(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield what is imported as soon as the module is."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(ast.Module([node], []))


def within(name: str, rule: str) -> bool:
    """Tell whether a dotted name is `rule` or lies inside it."""
    return name == rule or name.startswith(rule + ".")


def breaches(path: str, source: str) -> Iterator[str]:
    """Yield every way in which a file breaks the law."""
    tree = ast.parse(source)
    place = path.removeprefix("pycoll/")
    here = step(part(path))
    for name, line in imports(tree):
        if within(name, "pycoll"):
            to = (*name.split("."), "__init__")[1]
            if to == "_native":
                to = "runtime"
            elif not any(to in parts for parts in LAW["order"]):
                to = "__init__"  # a name that the package itself hands out
            if step(to) > here:
                yield f"{path}:{line}: imports {name}, which stands to its right"
    for name, line in (*imports(tree), *attributes(tree)):
        for rule, homes in LAW["only_in"].items():
            if within(name, rule) and not place.startswith(homes):
                yield f"{path}:{line}: {rule} belongs in {homes or 'no file yet'}"
    for name, line in top_level(tree):
        for rule, homes in LAW["lazy"].items():
            if within(name, rule) and not place.startswith(homes):
                yield f"{path}:{line}: {rule} must be imported where it is first needed"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for pattern, homes in LAW["strings"].items():
                if re.fullmatch(pattern, node.value) and not place.startswith(homes):
                    yield f"{path}:{node.lineno}: {node.value} is read in {homes} only"
    for pattern, places in LAW["words"].items():
        if place.startswith(places):
            for match in re.finditer(rf"\b({pattern})\b", source, re.IGNORECASE):
                line = source.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: says {match[0]}; an algorithm knows no transport"


def require_no_circle(sources: dict[str, str]) -> None:
    """Raise CycleError, which names the circle, unless imports among these files have an order."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): ast.parse(source)
        for path, source in sources.items()
    }
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, tree in modules.items():
        for imported, _ in imports(tree):
            graph[name].add(imported if imported in modules else imported.rpartition(".")[0])
    TopologicalSorter(graph).prepare()


def test_no_module_imports_one_that_imports_it() -> None:
    """Not even within a function, or for types alone."""
    require_no_circle({path: (ROOT / path).read_text() for path in FILES})


@pytest.mark.parametrize(
    "source",
    [
        "from pycoll.verify import prove",
        "import pycoll.verify",
        "def f():\n    from pycoll.verify import verify",
        "if TYPE_CHECKING:\n    from pycoll.verify import Verdict",
    ],
)
def test_a_planted_circle_is_found(source: str) -> None:
    package = "from pycoll.verify.prove import Verdict, verify"
    with pytest.raises(CycleError, match=r"pycoll\.verify"):
        require_no_circle({"pycoll/verify/__init__.py": package, "pycoll/verify/prove.py": source})


def too_long(source: str) -> list[str]:
    """Return the functions that have more lines than the law allows, without their docstrings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            above = text.end_lineno - text.lineno + 1 if text else 0
            if (lines := node.end_lineno - node.lineno - above) > LAW["lines"]:
                found.append(f"{node.name}: {lines} lines")
    return found


@pytest.mark.parametrize("path", FILES)
def test_functions_fit_a_screen(path: str) -> None:
    assert too_long((ROOT / path).read_text()) == []


def test_a_function_that_fits_no_screen_is_found() -> None:
    text = '    """' + "It is long.\n" * 70 + '"""\n'
    assert too_long(f"def f():\n{text}" + "    x = 0\n" * 60) == []
    assert too_long(f"def f():\n{text}" + "    x = 0\n" * 61) == ["f: 61 lines"]


@pytest.mark.parametrize("path", FILES)
def test_file_keeps_the_law(path: str) -> None:
    assert list(breaches(path, (ROOT / path).read_text())) == []


@pytest.mark.parametrize(
    ("path", "source", "breach"),
    [
        ("pycoll/schedule/chunk.py", "from pycoll.program import isa", "to its right"),
        ("pycoll/runtime/plan/cache.py", "import pycoll.communicator", "to its right"),
        ("pycoll/arrays/interface.py", "from pycoll.runtime import bindings", "to its right"),
        ("pycoll/runtime/cuda/executor.py", "def f():\n    import torch", "torch belongs"),
        ("pycoll/arrays/host.py", "import cupy", "cupy belongs"),
        ("pycoll/verify/run.py", "from pycoll import algorithm", "to its right"),
        ("pycoll/verify/run.py", "from pycoll import runtime", "to its right"),
        ("pycoll/program/lower.py", "import numpy as np", "numpy belongs"),
        ("pycoll/program/lower.py", "from os import environ", "os.environ belongs"),
        ("pycoll/program/lower.py", "import os\nx = os.environ['A']", "os.environ belongs"),
        ("pycoll/runtime/engine.py", "from pycoll import _native", "_native belongs"),
        ("pycoll/runtime/engine.py", "import os\nos.getenv('A')", "os.getenv belongs"),
        ("pycoll/bootstrap/mpi.py", "from mpi4py import MPI", "first needed"),
        ("pycoll/bootstrap/tcp.py", "def f():\n    import mpi4py", "mpi4py belongs"),
        ("pycoll/communicator.py", "x = 'PYCOLL_TIMEOUT'", "read in"),
        ("pycoll/communicator.py", "x = 'OMPI_COMM_WORLD_RANK'", "read in"),
        ("pycoll/algorithms/ring.py", "# fast over TCP", "knows no transport"),
    ],
)
def test_a_planted_breach_is_found(path: str, source: str, breach: str) -> None:
    assert any(breach in found for found in breaches(path, source))


def test_what_the_law_allows_passes() -> None:
    source = "def f():\n    from mpi4py import MPI\n    return MPI, os.environ['RANK']\nimport os"
    assert list(breaches("pycoll/bootstrap/mpi.py", source)) == []


def test_a_part_without_a_place_is_named() -> None:
    with pytest.raises(AssertionError, match=r"pycoll/utils has no place"):
        step("utils")
