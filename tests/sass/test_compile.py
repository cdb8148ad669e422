"""Kernels are compiled once, kept whole, and what is missing is named."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pycoll.dtypes import FLOAT32, UINT8, ReduceOp
from pycoll.errors import InternalError, UnavailableError
from pycoll.runtime.cuda import compile, source

HOPPER = (9, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What was compiled; nothing is, so that neither cupy nor NVRTC is needed."""
    asked: list[tuple] = []

    def build(*what: object) -> bytes:
        asked.append(what)
        return f"module {len(asked)}".encode()

    monkeypatch.setattr(compile, "build", build)
    monkeypatch.setattr(compile, "version", lambda: (12, 9))
    return asked


def test_a_kernel_is_compiled_once(made, tmp_path):
    first = compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)
    assert compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path) == first == b"module 1"
    assert made == [(FLOAT32, ReduceOp.SUM, HOPPER)]
    assert not list(tmp_path.rglob("*.part"))


def test_the_kernel_of_messages_is_kept_too(made, tmp_path, monkeypatch):
    monkeypatch.setattr(compile, "build_transfer", compile.build)
    assert compile.transfer_cubin(HOPPER, tmp_path) == b"module 1"
    assert compile.transfer_cubin(HOPPER, tmp_path) == b"module 1"
    assert compile.transfer_cubin((8, 0), tmp_path) == b"module 2"
    assert made == [(HOPPER,), ((8, 0),)]


def test_what_makes_another_kernel_is_compiled_anew(made, tmp_path, monkeypatch):
    def get() -> bytes:
        return compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)

    get()
    compile.cubin(UINT8, ReduceOp.SUM, HOPPER, tmp_path)
    compile.cubin(FLOAT32, ReduceOp.AVG, HOPPER, tmp_path)
    compile.cubin(FLOAT32, ReduceOp.SUM, (8, 0), tmp_path)
    assert len(made) == 4
    monkeypatch.setattr(compile, "OPTIONS", ("--fmad=true",))
    get()
    monkeypatch.setattr(compile, "_sources", lambda: {"gpu/kernel/kernel.cu": "another"})
    get()
    get()
    assert len(made) == 6


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 1000], ids=["empty", "cut", "other"])
def test_a_damaged_file_is_made_anew(made, tmp_path, damage):
    first = compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)
    [file] = tmp_path.rglob("*.cubin")
    whole = file.read_bytes()
    file.write_bytes(damage or whole[:-1])
    assert compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path) == b"module 2" != first
    assert compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path) == b"module 2"


def test_a_file_under_another_kernels_name_is_not_taken(made, tmp_path):
    compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)
    [file] = tmp_path.rglob("*.cubin")
    compile.cubin(UINT8, ReduceOp.SUM, HOPPER, tmp_path)
    [other] = set(tmp_path.rglob("*.cubin")) - {file}
    other.write_bytes(file.read_bytes())
    assert compile.cubin(UINT8, ReduceOp.SUM, HOPPER, tmp_path) == b"module 3"


def test_where_nothing_can_be_kept_it_is_compiled_each_time(made, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    for _ in range(2):
        compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, blocked)
    assert len(made) == 2


TWO = """
import sys
from pathlib import Path
from pycoll.dtypes import FLOAT32, ReduceOp
from pycoll.runtime.cuda import compile
compile.version = lambda: (12, 9)
compile.build = lambda *what: sys.argv[2].encode() * 100_000
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    found = compile.cubin(FLOAT32, ReduceOp.SUM, (9, 0), Path(sys.argv[1]))
    assert found in (b"a" * 100_000, b"b" * 100_000), len(found)
    for file in Path(sys.argv[1]).rglob("*.cubin"):
        file.unlink(missing_ok=True)
"""


def test_two_processes_may_compile_the_same(tmp_path, root):
    argv = [sys.executable, "-c", TWO, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    both = [subprocess.Popen([*argv, letter], **pipes) for letter in "ab"]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    for one in both:
        one.communicate(timeout=120)
        assert one.returncode == 0
    assert not list(tmp_path.rglob("*.part"))


def test_the_sources_of_an_in_place_build_are_found(root):
    assert source.folder() == root / "native"
    names = source.closure(source.folder())
    assert {
        "gpu/kernel/kernel.cu",
        "gpu/kernel/kernel.h",
        "gpu/kernel/transfer.cu",
        "gpu/kernel/transfer.h",
        "vm/interpreter.h",
        "gpu/kernel/span.h",
        "gpu/kernel/fold.h",
        "isa.h",
    } <= {*names}
    assert "core/internal.h" not in names  # the host's own is no part of a kernel


def test_an_install_without_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "_HERE", tmp_path / "a" / "b" / "c" / "d")
    with pytest.raises(UnavailableError, match=r"sources of the GPU's kernels are not in .*native"):
        source.folder()
    assert "sources of the GPU's kernels" in compile.missing() or "cupy" in compile.missing()


def test_setup_can_ask_for_the_sources_without_importing_the_package(root):
    found = runpy.run_path(str(root / "pycoll" / "runtime" / "cuda" / "source.py"))
    assert found["closure"](root / "native") == source.closure(root / "native")


def test_without_cupy_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(UnavailableError, match=r"need cupy.*pip install 'pycoll\[cuda\]'"):
        compile.version()
    assert "cupy" in compile.missing()


class NoLibrary:
    @staticmethod
    def getVersion() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12: OSError")


def test_without_nvrtc_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", type(sys)("cupy"))
    cuda = type(sys)("cupy.cuda")
    cuda.nvrtc = NoLibrary
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    with pytest.raises(UnavailableError, match=r"need NVRTC.*libnvrtc\.so\.12.*pip install"):
        compile.version()


def test_a_gpu_that_is_too_old_is_named():
    with pytest.raises(UnavailableError, match=r"capability 6\.1 is too old, want 7\.0"):
        compile.build(FLOAT32, ReduceOp.SUM, (6, 1))


def test_a_gpu_that_nvrtc_does_not_know_is_named(nvrtc):
    with pytest.raises(UnavailableError, match=r"NVRTC 1\d\.\d+ does not know .* 99\.1: install"):
        compile.build(FLOAT32, ReduceOp.SUM, (99, 1))


def test_a_later_gpu_of_a_known_kind_is_served(nvrtc):
    """Like sm_89 by what was compiled for sm_87 and before: here there is no sm_89.5."""
    assert compile.build(UINT8, ReduceOp.SUM, (9, 2))[:4] == b"\x7fELF"


def test_a_source_that_does_not_compile_says_where(nvrtc):
    with pytest.raises(InternalError, match=r"kernel\.cu\(2\): error: .*surely_not"):
        compile.compile_text("\nint x = surely_not;", "--gpu-architecture=sm_90")


def test_a_module_that_was_cut_is_refused():
    whole = bytearray(128)
    whole[0x20:0x30] = (64).to_bytes(8, "little") + (64).to_bytes(8, "little")
    whole[0x36:0x3E] = b"".join(n.to_bytes(2, "little") for n in (56, 1, 64, 1))
    assert compile._whole(bytes(whole[:127])) == bytes(whole)  # what cupy leaves out
    with pytest.raises(InternalError, match="gave 126 bytes of a module of 128"):
        compile._whole(bytes(whole[:126]))


@pytest.fixture
def nvrtc() -> None:
    if compile.missing():
        pytest.skip(compile.missing())


def test_names_of_kernels():
    assert compile.entry(FLOAT32, ReduceOp.SUM) == "pc_float32_sum"
    assert compile.fused_entry(UINT8, ReduceOp.AVG) == "pc_fused_uint8_avg"


def test_nothing_of_it_is_imported_with_the_package(root: Path):
    code = "import sys, pycoll; assert not any(m.split('.')[0] == 'cupy' for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


def test_what_was_carried_serves_where_there_is_another_nvrtc(made, tmp_path, monkeypatch):
    def get() -> bytes:
        return compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)

    def compiles(text: str, *options: str) -> bytes:
        raise AssertionError("something was compiled")

    by_12 = get()
    monkeypatch.setattr(compile, "version", lambda: (13, 0))
    monkeypatch.setattr(compile, "compile_text", compiles)
    assert get() == by_12
    compile.require(HOPPER, tmp_path)  # nothing has to be compiled to know that kernels are there
    # What this very NVRTC has compiled comes first, whatever else is there.
    [first] = tmp_path.rglob("*.cubin")
    own = first.stem.replace("nvrtc_12.9", "nvrtc_13.0")
    compile._store(first.with_name(f"{own}.cubin"), own, b"by 13.0")
    assert get() == b"by 13.0"
    monkeypatch.setattr(compile, "version", lambda: (12, 9))
    assert get() == by_12
    # One that is damaged is no reason to compile where there is another.
    first.write_bytes(b"damaged")
    assert get() == b"by 13.0"


def test_what_was_carried_serves_where_there_is_no_nvrtc(made, tmp_path, monkeypatch):
    def lacks() -> None:
        raise UnavailableError("no NVRTC")

    kept = compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path)
    monkeypatch.setattr(compile, "version", lacks)
    monkeypatch.setattr(compile, "_nvrtc", lacks)
    assert compile.cubin(FLOAT32, ReduceOp.SUM, HOPPER, tmp_path) == kept
    compile.require(HOPPER, tmp_path)
    for call in (
        lambda: compile.cubin(UINT8, ReduceOp.SUM, HOPPER, tmp_path),
        lambda: compile.require((8, 0), tmp_path),
    ):
        with pytest.raises(UnavailableError, match="no NVRTC"):
            call()
    monkeypatch.setattr(compile, "_sources", lambda: {"gpu/kernel/kernel.cu": "another"})
    with pytest.raises(UnavailableError, match="no NVRTC"):
        compile.require(HOPPER, tmp_path)
