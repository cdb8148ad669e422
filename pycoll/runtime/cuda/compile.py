"""Compiles kernels for a GPU by NVRTC, and keeps what it made on disk.

One kernel serves one dtype and one operator, see ``native/gpu/kernel/kernel.cu``; one more, for all
dtypes, messages between two ranks (``transfer.cu``). NVRTC is reached
through cupy's low-level binding, which needs no GPU: so kernels can be made in advance elsewhere,
and every test of what they consist of runs on any machine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycoll.dtypes import DType, ReduceOp
from pycoll.errors import InternalError, UnavailableError
from pycoll.runtime.cuda import pace, source

#: A sum must not depend on the compiler's mood: nothing is contracted, denormals are kept, and a
#: quotient is rounded as IEEE 754 says.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true")

#: Compute capability: what has loads that acquire and stores that release.
OLDEST = (7, 0)

#: Name of the kernel of `transfer_cubin`.
TRANSFER = "pc_transfer"

_MULTIMEM = b"pc_has_multimem"  #: as native/gpu/kernel/target_cuda.h has it
_CURE = "pip install 'pycoll[cuda]' (with CUDA 13: pip install cupy-cuda13x nvidia-cuda-nvrtc)"
_CHECK = hashlib.sha256().digest_size

# NVRTC has no headers of the system. These types are the same as vm.h's.
_STDINT = "\n".join(
    f"typedef {type} {name}_t;"
    for name, type in (
        ("int8", "signed char"),
        ("uint8", "unsigned char"),
        ("int16", "short"),
        ("uint16", "unsigned short"),
        ("int32", "int"),
        ("uint32", "unsigned int"),
        ("int64", "long long"),
        ("uint64", "unsigned long long"),
        ("uintptr", "unsigned long long"),
    )
)


def entry(dtype: DType, op: ReduceOp) -> str:
    """Return the name of the kernel that runs one rank, in the module of ``cubin``."""
    return f"pc_{dtype.name}_{op.name.lower()}"


def fused_entry(dtype: DType, op: ReduceOp) -> str:
    """Return the name of the kernel that runs several ranks of one GPU in one launch."""
    return f"pc_fused_{dtype.name}_{op.name.lower()}"


def missing() -> str:
    """Say what is not here that compiling takes, and what mends it; "" if nothing is missing."""
    try:
        _nvrtc()
        source.folder()
    except UnavailableError as error:
        return str(error)
    return ""


def version() -> tuple[int, int]:
    """Return NVRTC's version; UnavailableError says what is missing."""
    major, minor = _nvrtc().getVersion()
    return int(major), int(minor)


def cubin(dtype: DType, op: ReduceOp, capability: tuple[int, int], cache: Path) -> bytes:
    """Return the kernels of a dtype and operator as a module that CUDA loads.

    What is in ``cache`` is taken: by the NVRTC that is here, or else what any has compiled of this
    source, so that a cache can be carried to where there is another NVRTC or none. What is not
    there is compiled, which takes about a second; where that cannot be written it will be compiled
    again. UnavailableError says what is missing: cupy, NVRTC, or an NVRTC that knows the GPU.

    Args:
        dtype: Of the elements.
        op: How they are combined.
        capability: The GPU's compute capability, like (9, 0).
        cache: The folder of ``Config.cache``.
    """
    return _cubin(entry(dtype, op), capability, cache, lambda: build(dtype, op, capability))


def transfer_cubin(capability: tuple[int, int], cache: Path) -> bytes:
    """Return the kernel of messages between two ranks, as `cubin` does."""
    return _cubin(TRANSFER, capability, cache, lambda: build_transfer(capability))


def _cubin(
    which: str, capability: tuple[int, int], cache: Path, build: Callable[[], bytes]
) -> bytes:
    kept = _kept(which, capability, cache)
    if kept is None:
        name = _name(which, capability, version())
        kept = build()
        _store(cache / "kernels" / f"{name}.cubin", name, kept)
    return kept


def multimem(image: bytes) -> bool:
    """Tell whether a module reaches multicast addresses.

    It does if it is for a GPU that has them, and an NVRTC from 12.2 on has compiled it.
    """
    return _MULTIMEM in image


def require(capability: tuple[int, int], cache: Path) -> None:
    """Raise UnavailableError unless kernels for a GPU can be compiled, or some are in the cache."""
    if not any(_of_cache(cache, f"*-sm_{capability[0]}{capability[1]}-{_digest()}-*.cubin")):
        _compile("", capability)


def build(dtype: DType, op: ReduceOp, capability: tuple[int, int], *options: str) -> bytes:
    """Compile without the cache; ``options`` are further ones of NVRTC's."""
    chosen = f"-DPC_KERNEL_DTYPE={dtype.code}", f"-DPC_KERNEL_OP={int(op)}"
    return _compile(_sources()[source.ENTRY], capability, *chosen, *pace.options(), *options)


def build_transfer(capability: tuple[int, int], *options: str) -> bytes:
    """Compile the kernel of messages between two ranks without the cache."""
    return _compile(_sources()[source.TRANSFER_ENTRY], capability, *options)


def _compile(text: str, capability: tuple[int, int], *options: str) -> bytes:
    major, minor = capability
    if capability < OLDEST:
        raise UnavailableError(
            f"a GPU of compute capability {major}.{minor} is too old, want {OLDEST[0]}.{OLDEST[1]} "
            "or later: before it a kernel cannot order its stores for other GPUs"
        )
    # What is compiled for an earlier GPU of the same major number runs on a later one.
    for number in range(minor, -1, -1):
        made = compile_text(text, f"--gpu-architecture=sm_{major}{number}", *options)
        if made is not None:
            return made
    raise UnavailableError(
        f"NVRTC {'.'.join(map(str, version()))} does not know GPUs of compute capability "
        f"{major}.{minor}: install another, and the cupy that is made for it: {_CURE}"
    )


def compile_text(text: str, *options: str) -> bytes | None:
    """Compile a source that may include the kernels' headers; None: NVRTC does not know the GPU."""
    nvrtc = _nvrtc()
    headers = {"stdint.h": _STDINT, **_sources()}
    program = nvrtc.createProgram(
        text,
        source.ENTRY,
        [header.encode() for header in headers.values()],
        [name.encode() for name in headers],
    )
    try:
        nvrtc.compileProgram(program, [*OPTIONS, *options])
        return _whole(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        if "--gpu-architecture" in log:
            return None
        raise InternalError(f"NVRTC refused the kernels ({error}):\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)


def _whole(image: bytes) -> bytes:
    """Return all bytes of an ELF file. cupy keeps the last to itself, as if this were text."""
    (programs, sections) = struct.unpack_from("<2Q", image, 0x20)
    sizes = struct.unpack_from("<4H", image, 0x36)
    end = max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    if len(image) == end - 1:
        image += b"\0"  # of a number of 64 bits that is small
    if len(image) < end:
        raise InternalError(f"NVRTC gave {len(image)} bytes of a module of {end}")
    return image


def _nvrtc() -> Any:
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise UnavailableError(
            f"arrays of a GPU need cupy, by which their kernels are compiled ({error}): {_CURE}"
        ) from None
    try:
        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise UnavailableError(
            f"arrays of a GPU need NVRTC, which compiles their kernels, and cupy finds none "
            f"({error}): {_CURE}"
        ) from None
    return nvrtc


@functools.cache
def _sources() -> dict[str, str]:
    return source.closure(source.folder())


def _digest() -> str:
    what = (_sources(), _STDINT, OPTIONS + pace.options())
    return hashlib.sha256(repr(what).encode()).hexdigest()[:32]


def _name(which: str, capability: tuple[int, int], by: tuple[int | str, int | str]) -> str:
    arch = f"sm_{capability[0]}{capability[1]}"
    return f"{which}-{arch}-{_digest()}-nvrtc_{by[0]}.{by[1]}"


def _kept(which: str, capability: tuple[int, int], cache: Path) -> bytes | None:
    """Return what this NVRTC has compiled of this source, or else what some other has."""
    files = _of_cache(cache, f"{_name(which, capability, ('*', '*'))}.cubin")
    if len(files) > 1:  # only then does it matter which NVRTC is here, if any
        with contextlib.suppress(UnavailableError):
            exact = _name(which, capability, version())
            files.sort(key=lambda file: file.stem != exact)
    return next((found for file in files if (found := _load(file, file.stem)) is not None), None)


def _of_cache(cache: Path, pattern: str) -> list[Path]:
    return sorted((cache / "kernels").glob(pattern))


def _load(file: Path, name: str) -> bytes | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    image = content[_CHECK:]
    return image if content[:_CHECK] == _check(name, image) and image else None


def _store(file: Path, name: str, image: bytes) -> None:
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may compile the same; each writes a file of its own and renames it.
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            stream.write(_check(name, image) + image)
        os.replace(temporary, file)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _check(name: str, image: bytes) -> bytes:
    return hashlib.sha256(name.encode() + image).digest()
