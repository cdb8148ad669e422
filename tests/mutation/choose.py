"""Chooses mutants: the same ones for the same tree and seed, spread over all parts of it."""

from __future__ import annotations

import random
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import c_mutants
import python_mutants
from insertion import HEADER, inserted
from mutant import Mutant, Site

Fits = Callable[[Site], bool]

#: cffi reads these as they are, or nothing that is shipped has them.
_KEPT = ("isa.h", "code.h", "pycoll.h", "target_simt.h", "target_cuda.h")


def area(file: str) -> str:
    """Return what a source is counted under."""
    path = Path(file)
    if path.suffix == ".py":
        return path.parent.as_posix()
    return "/".join(path.parts[:2])


def python_sites(root: Path) -> list[Site]:
    """Return all sites of the package."""
    files = sorted(path.relative_to(root).as_posix() for path in (root / "pycoll").rglob("*.py"))
    return [site for file in files for site in python_mutants.sites(root, file)]


def c_sites(root: Path) -> list[Site]:
    """Return all sites of the engine, and of the kernels as they are simulated."""
    sources = [*sorted((root / "native").rglob("*.c")), *sorted((root / "tests/simt").glob("*.cc"))]
    units = [path.relative_to(root).as_posix() for path in sources]
    found = c_mutants.sites(root, "native", units)
    return [site for site in found if Path(site.file).name not in _KEPT]


def choose(root: Path, c: int, python: int, seed: int) -> list[Mutant]:
    """Choose so many mutants of each language."""
    drawn = random.Random(seed)
    found = []
    for sites, count, fits in (
        (c_sites(root), c, lambda site: compiles(root, site)),
        (python_sites(root), python, lambda site: True),
    ):
        found += _spread(sites, count, drawn, fits)
    return [
        Mutant(
            number,
            area(site.file),
            site.file,
            site.function,
            site.operator,
            site.original,
            site.mutated,
            site.line,
            site.ordinal,
        )
        for number, site in enumerate(found, 1)
    ]


def _spread(sites: Sequence[Site], count: int, drawn: random.Random, fits: Fits) -> list[Site]:
    """Choose `count` sites, at most one in each function, operators in equal parts."""
    by_area: defaultdict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_area[area(site.file)].append(site)
    shares = _shares({name: len(group) for name, group in by_area.items()}, count)
    used: Counter[str] = Counter()
    chosen = []
    for name in sorted(by_area):
        functions: defaultdict[str, defaultdict[str, list[Site]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for site in by_area[name]:
            functions[site.file][site.function].append(site)
        files: Counter[str] = Counter()
        for _ in range(shares[name]):
            if (one := _next(functions, files, used, drawn, fits)) is not None:
                files[one.file] += 1
                used[one.operator] += 1
                chosen.append(one)
    return sorted(chosen, key=lambda site: (site.file, site.line))


def _next(
    functions: defaultdict[str, defaultdict[str, list[Site]]],
    files: Counter[str],
    used: Counter[str],
    drawn: random.Random,
    fits: Fits,
) -> Site | None:
    """Take a function of the file that has most code for each mutant so far, and one site of it."""

    def weight(file: str) -> tuple[float, str]:
        left = sum(map(len, functions[file].values()))
        return left / (2 * files[file] + 1) ** 2, file

    while fullest := sorted(filter(functions.get, functions), key=weight, reverse=True)[:3]:
        file = drawn.choice(fullest)
        sites = functions[file].pop(drawn.choice(sorted(functions[file])))
        drawn.shuffle(sites)
        sites.sort(key=lambda site: used[site.operator])
        for site in sites[:8]:
            if fits(site):
                return site
    return None


def _shares(weights: dict[str, int], count: int) -> dict[str, int]:
    """Share `count` by the roots of weights, so that what is small is not left out."""
    roots = {name: max(1.0, weight**0.5) for name, weight in weights.items()}
    total = sum(roots.values())
    shares = {name: max(1, int(count * root / total)) for name, root in roots.items()}
    # What rounding down has left goes to those that it cost most.
    left = max(0, count - sum(shares.values()))
    for name in sorted(roots, key=lambda name: shares[name] - count * roots[name] / total)[:left]:
        shares[name] += 1
    return shares


def compiles(root: Path, site: Site) -> bool:
    """Tell whether the compiler takes a planted site, and warns of nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "tree")
        folder.mkdir()
        for part in ("native", "tests/simt"):
            shutil.copytree(root / part, folder / part)
        path = folder / site.file
        path.write_bytes(inserted(path.read_bytes(), {1: site}))
        header = Path(__file__).with_name("switch.h")
        shutil.copy(header, path.with_name(HEADER))
        return all(not _complaint(folder, unit) for unit in _units(folder, path))


def _units(folder: Path, path: Path) -> Iterable[Path]:
    """Return what is compiled to see a source: itself, or some that include it."""
    if path.suffix == ".c":
        return [path]
    above = {path}
    for _ in range(4):  # headers include headers
        for other in sorted((folder / "native").rglob("*.[ch]")):
            text = other.read_text()
            names = [each.as_posix().partition("/native/")[2] for each in above]
            if any(f'#include "{each}"' in text for each in names if each):
                above.add(other)
    sources = sorted(each for each in above if each.suffix == ".c")[:2]
    return [*sources, *sorted((folder / "tests/simt").glob("entry.cc"))]


def _complaint(folder: Path, unit: Path) -> str:
    where = [f"-I{path}" for path in sorted({p.parent for p in (folder / "native").rglob("*.h")})]
    where += [f"-I{folder / 'tests/simt'}", f"-I{sysconfig.get_path('include')}"]
    if unit.suffix == ".c":
        command = ["cc", "-std=gnu11"]
    else:
        command = ["g++", "-std=c++17", "-DPC_KERNEL_DTYPE=1", "-DPC_KERNEL_OP=0"]
    flags = ["-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wextra", "-Werror=switch-enum"]
    done = subprocess.run([*command, *flags, *where, unit], capture_output=True, text=True)
    return done.stderr
