"""What is carried to a machine with a GPU besides the source: `prepare` fills a folder with it.

==============================  ==================================================================
``pycoll/kernels/*.cubin``      the kernels, as the cache of ``PYCOLL_CACHE`` has them
``computations_<arch>.cubin``   what `kernels.py` computes with
``python/``                     cffi and what it imports, for this Python and others of this machine
``libnccl.so.2``, and ``.xz``   NCCL for one architecture, where its package is here (one_arch.py)
``commit``                      which source it was
==============================  ==================================================================

A machine may have Python and numpy and nothing else, so all that is imported has to be here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where `prepare` puts it, and where phases look unless told otherwise.
FOLDER = ROOT / "build" / "gpu" / "carried"
#: Packages that are carried, and the module of each without which nothing runs.
PACKAGES = {"cffi": "_cffi_backend", "pycparser": "pycparser"}
#: Pythons for which the compiled part of cffi is carried, besides the one that runs.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: Tags of wheels, the oldest first, that pip is asked for.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")


def fill(folder: Path, pythons: Sequence[str] = PYTHONS) -> str:
    """Copy the packages and name the commit; says what was carried."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commit").write_text(f"{commit(folder)}\n")
    python = folder / "python"
    shutil.rmtree(python, ignore_errors=True)
    for package in PACKAGES:
        _copy(package, python)
    own = "{}.{}".format(*sys.version_info)
    found = [own] + [other for other in pythons if other != own and _fetch(other, python)]
    return f"{', '.join(PACKAGES)} for Python {', '.join(sorted(found, key=_number))}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _copy(package: str, to: Path) -> None:
    """Copy the files of an installed package, without what other Pythons cannot read."""
    for file in importlib.metadata.files(package) or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(), target)


def _fetch(python: str, to: Path) -> bool:
    """Add the compiled part of cffi for another Python, if the index has it."""
    version = importlib.metadata.version("cffi")
    tags = [f"--platform={tag}_{platform.machine()}" for tag in _PLATFORMS]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "download"]
        command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", "-d", folder]
        command += [f"--python-version={python}", *tags, f"cffi=={version}"]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (subprocess.SubprocessError, OSError) as error:  # no network is no reason to stop
            why = str(getattr(error, "stderr", "") or error).strip()
            print(f"cffi {version} for Python {python} is not to be had: {why}")
            return False
        wheels = list(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                if name.startswith("_cffi_backend") and name.endswith(".so"):
                    wheel.extract(name, to)
    return True


def paths(folder: Path) -> list[str]:
    """Return what has to be added to the path of modules: nothing where all of it is installed."""
    if all(importlib.util.find_spec(module) for module in PACKAGES.values()):
        return []
    return [str(folder / "python")]


def commit(folder: Path) -> str:
    """Return the commit of the source: as git says, or else as it was when it was prepared."""
    from pycoll.benchmark import metadata

    # A folder within some other repository would be told that one's.
    if (ROOT / ".git").exists() and (found := metadata.commit()):
        return found
    try:
        return (folder / "commit").read_text().strip()
    except FileNotFoundError:
        return "unknown"
