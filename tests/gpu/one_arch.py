"""A library with code for one GPU architecture, made of one that has code for all.

NCCL's library is some hundred MiB, nearly all of it the same kernels for a dozen architectures. The
code for others is set to zero and left out of the file as holes: no address moves, what loads it
finds the one that it looks for, and the file packs well: NCCL 2.32.3 has 327 MiB, and for sm_90
alone it packs to 43 MiB and loads. It is never part of the repository.

    python tests/gpu/one_arch.py libnccl.so.2 90 build/gpu/carried/libnccl.so.2
"""

from __future__ import annotations

import importlib.util
import lzma
import shutil
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAME = "libnccl.so.2"
PACKED = f"{NAME}.xz"  #: how it travels; `unpack` makes it whole
_MAGIC = 0xBA55ED50  #: of a container of code for several architectures
_ELF = 2  #: the kind of an entry that is machine code; 1 is PTX
_HOLE = 1 << 16  #: so many bytes of zeros, at such a place, are a hole in the file


class Entry(NamedTuple):
    """Code for one architecture."""

    kind: int
    arch: int
    start: int  #: of its payload, in the file
    nbytes: int


def sections(data: bytes | bytearray) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and bytes of each section of an ELF file.

    Raises:
        ValueError: It is none, of 64 bits and little-endian.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    (start,) = struct.unpack_from("<Q", data, 0x28)
    size, number, strings = struct.unpack_from("<3H", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(number)]
    for name, _, _, _, offset, nbytes in rows:
        at = rows[strings][4] + name
        yield data[at : data.index(0, at)].decode(), offset, nbytes


def entries(data: bytes | bytearray) -> Iterator[Entry]:
    """Yield what code for GPUs a library has."""
    for name, at, nbytes in sections(data):
        if "fatbin" not in name.lower():
            continue
        end = at + nbytes
        while at + 16 <= end:
            magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
            if magic != _MAGIC:
                at += 8
                continue
            at += header
            stop = at + size
            while at < stop:
                kind, _, length, payload = struct.unpack_from("<HHIQ", data, at)
                (arch,) = struct.unpack_from("<I", data, at + 28)
                yield Entry(kind, arch, at + length, payload)
                at += length + payload


def keep(data: bytearray, arch: int) -> int:
    """Set all code to zero that is not machine code for an architecture; returns the bytes kept.

    Raises:
        ValueError: There is none for it.
    """
    found = list(entries(data))
    kept = [entry for entry in found if (entry.kind, entry.arch) == (_ELF, arch)]
    if not kept:
        there = sorted({entry.arch for entry in found if entry.kind == _ELF})
        raise ValueError(f"no code for sm_{arch}; there is some for {there or 'no GPU'}")
    for entry in set(found).difference(kept):
        data[entry.start : entry.start + entry.nbytes] = bytes(entry.nbytes)
    return sum(entry.nbytes for entry in kept)


def write(data: bytes | bytearray, path: Path) -> None:
    """Write a file whose zeros take no room, whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for at in range(0, len(data), _HOLE):
            block = data[at : at + _HOLE]
            if any(block):
                file.seek(at)
                file.write(block)
        file.truncate(len(data))
    part.replace(path)


def find(folder: Path) -> bytearray | None:
    """Return NCCL's library: of a wheel in a folder, or of this Python's packages, if any."""
    for wheel in sorted(folder.glob("nvidia_nccl_*.whl"), reverse=True):
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.endswith(f"/{NAME}"):
                    return bytearray(file.read(name))
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (library := Path(place, "nccl", "lib", NAME)).exists():
            return bytearray(library.read_bytes())
    return None


def carry(folder: Path, wheels: Path, arch: int) -> str:
    """Put NCCL for one architecture into a folder, whole and packed; says what was put there."""
    data = find(wheels)
    if data is None:
        return f"no NCCL: pip download --no-deps -d {wheels} 'nvidia-nccl-cu13>=2.30.7'"
    kept = keep(data, arch)
    write(data, folder / NAME)
    with lzma.open(folder / PACKED, "wb", preset=1) as packed:
        packed.write(data)
    size = (folder / PACKED).stat().st_size
    return f"NCCL for sm_{arch}: {kept >> 20} MiB of code, packed {size >> 20} MiB"


def unpack(folder: Path) -> Path | None:
    """Return the library that was carried; made of the packed one where only that was."""
    library, packed = folder / NAME, folder / PACKED
    if not library.is_file() and packed.is_file():
        part = library.with_suffix(".unpacked")
        with lzma.open(packed) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        part.replace(library)
    return library if library.is_file() else None


if __name__ == "__main__":
    whole = bytearray(Path(sys.argv[1]).read_bytes())
    print(f"{keep(whole, int(sys.argv[2])) >> 20} MiB of code for sm_{sys.argv[2]}")
    write(whole, Path(sys.argv[3]))
