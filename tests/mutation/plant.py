"""Plants mutants into a copy of the tree, all of them at once: the environment switches one on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import mutant
from choose import c_sites, python_sites
from insertion import HEADER, inserted
from mutant import STATE, Mutant, Site

HERE = Path(__file__).parent
TOOLS = ("cc", "gcc", "c++", "g++")


def plant(
    tree: Path, target: Path, mutants: Sequence[Mutant], changes: Path | None
) -> list[Mutant]:
    """Copy a tree with the mutants in it, and set it up as its Makefile does.

    Args:
        tree: What is copied: all that git knows of it, as it lies there.
        target: Where to; must not exist.
        mutants: They may be of an earlier tree.
        changes: What files and names are called now, if that has changed.

    Returns:
        The mutants that have no place in this tree.
    """
    sites = [*c_sites(tree), *python_sites(tree)]
    renames = json.loads(changes.read_text()) if changes else {}
    files, names = renames.get("files", {}), renames.get("names", {})
    renamed = [each.renamed(files, names) for each in mutants]
    found, moved, lost = mutant.locate(renamed, sites)
    _copy(tree, target)
    by_file: defaultdict[str, dict[int, Site]] = defaultdict(dict)
    for number, site in found.items():
        by_file[site.file][number] = site
    for file, here in sorted(by_file.items()):
        path = target / file
        path.write_bytes(inserted(path.read_bytes(), here))
    # What is compiled at run time is found from native/, and all else looks there, too.
    shutil.copy(HERE / "switch.h", target / "native" / HEADER)
    state = target / STATE
    state.mkdir()
    mutant.save(state / "mutants.json", mutants)
    told = {
        "sites": {number: asdict(site) for number, site in found.items()},
        "moved": [each.number for each in moved],
        "lost": [each.number for each in lost],
    }
    (state / "planted.json").write_text(json.dumps(told, indent=1) + "\n")
    return lost


def set_up(target: Path) -> None:
    """Build a planted tree, and give its Pythons and its tests what they need."""
    make = ["make", "-C", str(target), ".venv/.built", ".venv/.test", ".venv-mpich/.base"]
    subprocess.run(make, check=True)
    build = [str(target / ".venv/bin/python"), "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=target, check=True)
    equip(target)


def equip(target: Path) -> None:
    """Give the Pythons of a planted tree the switch and the observer, and its tests a compiler."""
    for folder in sorted(target.glob(".venv*/lib/python*/site-packages")):
        shutil.copy(HERE / "switch.py", folder / "pc_mutation_switch.py")
        shutil.copy(HERE / "observer.py", folder / "pc_mutation_observer.py")
        (folder / "pc_mutation.pth").write_text("import pc_mutation_switch\n")
    state = target / STATE
    (state / "stamp").write_text(_stamp(target))
    tools = state / "bin"
    tools.mkdir(exist_ok=True)
    for tool in TOOLS:
        real = shutil.which(tool)
        if real:
            text = (HERE / "compiler.py").read_text()
            text = text.replace("{PYTHON}", os.path.realpath(sys.executable))
            (tools / tool).write_text(text.replace("{REAL}", real).replace("{STATE}", str(state)))
            (tools / tool).chmod(0o755)
    for name in ("cache", "kept"):
        (state / name).mkdir(exist_ok=True)
    (state / "kept").chmod(stat.S_IRWXU)


def _copy(tree: Path, target: Path) -> None:
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout
    target.mkdir(parents=True)
    for name in filter(None, listed.decode().split("\0")):
        source, copy = tree / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def _stamp(target: Path) -> str:
    """Return a digest of all that tests compile."""
    digest = hashlib.sha256()
    for folder in ("native", "tests"):
        for path in sorted((target / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cc", ".cpp", ".cu", ".map") and path.is_file():
                digest.update(str(path.relative_to(target)).encode() + path.read_bytes())
    return digest.hexdigest()
