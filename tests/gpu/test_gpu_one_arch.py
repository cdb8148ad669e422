"""A library with code for one architecture: what is kept, what is gone, and that it still loads."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import one_arch

PTX, ELF = 1, 2
NBYTES = 1 << 20
#: Kind, architecture, what its payload is made of.
CODE = ((PTX, 90, b"p"), (ELF, 80, b"8"), (ELF, 90, b"9"), (ELF, 100, b"x"), (ELF, 90, b"n"))


def container(code: tuple[tuple[int, int, bytes], ...]) -> bytes:
    """Return code for several architectures in one container, as a compiler for GPUs leaves it."""
    made = b""
    for kind, arch, byte in code:
        head = struct.pack("<HHIQ", kind, 0x101, 64, NBYTES) + bytes(12) + struct.pack("<I", arch)
        made += head.ljust(64, b"\0") + byte * NBYTES
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(made)) + made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that has a function, and code for GPUs in two containers."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "code").write_bytes(container(CODE[:2]) + bytes(24) + container(CODE[2:]))
    (folder / "source.s").write_text(
        f'.section .nv_fatbin,"a"\n.balign 8\n.incbin "{folder}/code"\n'
        '.section .note.GNU-stack,"",@progbits\n'
    )
    (folder / "source.c").write_text("int ncclAnswer(void) { return 42; }\n")
    sources = [str(folder / "source.c"), str(folder / "source.s")]
    path = folder / one_arch.NAME
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), *sources], check=True)
    return path


def test_the_code_of_others_is_gone_and_all_else_stays(library: Path, tmp_path: Path) -> None:
    before = library.read_bytes()
    data = bytearray(before)
    assert one_arch.keep(data, 90) == 2 * NBYTES
    found = list(one_arch.entries(data))
    assert [(entry.kind, entry.arch) for entry in found] == [code[:2] for code in CODE]
    for entry, (kind, arch, byte) in zip(found, CODE, strict=True):
        want = byte if (kind, arch) == (ELF, 90) else b"\0"
        assert data[entry.start : entry.start + entry.nbytes] == want * NBYTES
        # What is left in between tells that no other byte has changed.
        data[entry.start : entry.start + entry.nbytes] = byte * NBYTES
    assert data == before
    # It loads, and its holes take no room.
    one_arch.keep(data, 90)
    path = tmp_path / one_arch.NAME
    one_arch.write(data, path)
    assert path.read_bytes() == data
    assert ctypes.CDLL(str(path)).ncclAnswer() == 42
    assert path.stat().st_blocks * 512 < len(data) - 2 * NBYTES


def test_an_architecture_that_is_not_there(library: Path) -> None:
    data = bytearray(library.read_bytes())
    with pytest.raises(ValueError, match=r"no code for sm_70; there is some for \[80, 90, 100\]"):
        one_arch.keep(data, 70)
    assert data == library.read_bytes()
    with pytest.raises(ValueError, match="no ELF file"):
        one_arch.keep(bytearray(b"#!/bin/sh\n"), 90)


def test_it_is_carried_packed_and_made_whole_again(library: Path, tmp_path: Path) -> None:
    wheels, carried, there = (tmp_path / name for name in ("wheels", "carried", "there"))
    for folder in (wheels, carried, there):
        folder.mkdir()
    with zipfile.ZipFile(wheels / "nvidia_nccl_cu13-2.30.7-py3-none-any.whl", "w") as wheel:
        wheel.write(library, f"nvidia/nccl/lib/{one_arch.NAME}")
    assert one_arch.carry(carried, wheels, 90).startswith("NCCL for sm_90: 2 MiB of code, packed")
    assert one_arch.unpack(there) is None
    shutil.copy(carried / one_arch.PACKED, there)
    whole = one_arch.unpack(there)
    assert whole is not None
    assert whole.read_bytes() == (carried / one_arch.NAME).read_bytes()
    # A packed one beside the library is never taken for it.
    whole.write_bytes(b"the library")
    assert one_arch.unpack(there) == whole
    assert whole.read_bytes() == b"the library"


def test_where_there_is_no_nccl_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_arch.importlib.util, "find_spec", lambda name: None)
    said = one_arch.carry(tmp_path, tmp_path, 90)
    assert said.startswith("no NCCL: pip download")
    assert not list(tmp_path.iterdir())
