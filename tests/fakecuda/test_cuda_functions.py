"""The engine's own functions for CUDA (native/cuda*.c), over the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes import c_int, c_void_p
from pathlib import Path

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, cu
from pycoll._native import ffi, lib

from pycoll.dtypes import DTYPES, OPS

fake_cuda = pytest.mark.fake_cuda
error = ffi.new("struct pc_error *")


def text() -> str:
    said: bytes = ffi.string(error.text)
    return said.decode()


def event(timing: bool = False) -> int:
    out = ffi.new("uintptr_t *")
    assert lib.pc_cuda_event(0, timing, error, out) == 0, text()
    return int(out[0])


def stream(priority: int = 0) -> int:
    out = ffi.new("uintptr_t *")
    assert lib.pc_cuda_stream(0, priority, error, out) == 0, text()
    return int(out[0])


def function(module: bytes, name: bytes) -> int:
    made, out = ffi.new("uintptr_t *"), ffi.new("uintptr_t *")
    assert lib.pc_cuda_module(0, ffi.from_buffer(module), error, made) == 0, text()
    assert lib.pc_cuda_function(0, made[0], name, error, out) == 0, text()
    return int(out[0])


def launch(grid: dict[str, object], *values: object) -> int:
    """Launch with cffi values as arguments; its code."""
    asked = ffi.new("struct pc_cuda_grid *", {"blocks": (1, 1, 1), "threads": (1, 1, 1), **grid})
    arguments = ffi.new("void *[]", list(values))
    return int(lib.pc_cuda_launch(0, asked, arguments, error))


@fake_cuda(devices=2)
def test_devices() -> None:
    assert ffi.string(lib.pc_cuda_missing()) == b""
    assert lib.pc_cuda_devices() == 2
    device = ffi.new("struct pc_cuda_device *")
    assert lib.pc_cuda_device(1, error, device) == 0, text()
    assert ffi.string(device.name) == b"Stand-in GPU"
    assert ffi.string(device.bus) == b"0000:11:00.0"
    assert (device.major, device.minor, device.multiprocessors) == (9, 0, 132)
    assert (device.threads_per_block, device.warp, device.sync_domains) == (4, 32, 4)
    assert device.shared_per_multiprocessor == 228 << 10
    assert device.nbytes == 4 << 30
    assert lib.pc_cuda_peer(0, 1, error) == 0, text()
    assert lib.pc_cuda_peer(0, 1, error) == 0, text()  # enabled already: that is fine
    assert lib.pc_cuda_device(2, error, device) == lib.PC_INVALID
    assert text() == "GPU 2: there are 2"


@fake_cuda(devices=2, peers=0)
def test_gpus_that_do_not_reach_each_other() -> None:
    assert lib.pc_cuda_peer(0, 1, error) == lib.PC_UNMAPPABLE
    assert text().startswith("GPU 0 cannot reach the memory of GPU 1")


ASK = """
from pycoll._native import ffi, lib
print(ffi.string(lib.pc_cuda_missing()).decode(), lib.pc_cuda_devices())
error = ffi.new("struct pc_error *")
assert lib.pc_cuda_alloc(0, 8, error, ffi.new("uint64_t *")) == lib.PC_UNMAPPABLE
print(ffi.string(error.text).decode())
"""


def asked(folder: Path) -> list[str]:
    """What a process says whose libcuda is in that folder."""
    return subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("this is no library")
    why = "libcuda.so.1 was not found: install NVIDIA's driver"
    assert asked(tmp_path) == [f"{why} 0", why]


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    """It has what the registration of memory wants, and no more."""
    older = Path(__file__).parents[1] / "native" / "cuda.c"
    output = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", str(older), "-o", str(output)]
    subprocess.run(command, check=True)
    why = "libcuda.so.1 has no cuLaunchKernelEx: install NVIDIA's driver 520 or later"
    assert asked(tmp_path) == [f"{why} 0", why]


@fake_cuda
def test_a_forked_child_has_no_cuda() -> None:
    assert lib.pc_cuda_devices() == 1
    child = os.fork()
    if child == 0:
        why = ffi.string(lib.pc_cuda_missing())
        os._exit(lib.pc_cuda_devices() or not why.startswith(b"CUDA cannot be used in a child"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lib.pc_cuda_devices() == 1


@pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack())
@pytest.mark.own_process
def test_a_child_finds_what_its_parent_had_not(tmp_path: Path) -> None:
    """As where a job asks what there is, and its ranks are forked from it."""
    if lib.pc_cuda_devices():
        pytest.skip("this machine has a GPU")
    child = os.fork()
    if child == 0:
        fakecuda.load()
        os._exit(lib.pc_cuda_devices())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@fake_cuda(fail="cuMemAlloc:1,cuMemAlloc:2=719")
def test_an_error_has_the_driver_s_words() -> None:
    out = ffi.new("uint64_t *")
    assert lib.pc_cuda_alloc(0, 4096, error, out) == lib.PC_NOMEM
    assert text() == "cuMemAlloc(4096) on GPU 0: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    assert error.errnum == 2
    assert lib.pc_cuda_alloc(0, 4096, error, out) == lib.PC_SYSTEM
    assert (error.errnum, text().split(": ")[1]) == (719, "CUDA_ERROR_LAUNCH_FAILED")
    assert lib.pc_cuda_free(0, 4097, error) == lib.PC_INVALID
    assert text() == "cuMemFree(0x1001): CUDA_ERROR_INVALID_VALUE: invalid argument"


@fake_cuda(devices=2)
def test_the_current_context_stays() -> None:
    out = ffi.new("uint64_t *")
    assert lib.pc_cuda_alloc(1, 8, error, out) == 0, text()
    found = ffi.new("struct pc_cuda_pointer *")
    assert lib.pc_cuda_pointer(out[0], error, found) == 0, text()
    assert (found.kind, found.device, found.base, found.nbytes) == (2, 1, out[0], 8)
    mine = Array(8)
    assert lib.pc_cuda_pointer(mine.ptr + 4, error, found) == 0, text()
    assert (found.device, found.base, found.nbytes, found.ipc) == (0, mine.ptr, 32, 1)


@fake_cuda
def test_pointers_that_are_no_gpu_s() -> None:
    found = ffi.new("struct pc_cuda_pointer *")
    host = np.zeros(8)
    assert lib.pc_cuda_pointer(host.ctypes.data, error, found) == 0, text()
    assert (found.kind, found.device, found.id) == (lib.PC_CUDA_UNKNOWN, -1, 0)
    pinned, address = ffi.new("void **"), ffi.new("uint64_t *")
    assert lib.pc_cuda_host_alloc(0, 4096, error, pinned, address) == 0, text()
    assert bytes(ffi.buffer(pinned[0], 4096)) == bytes(4096)
    assert lib.pc_cuda_pointer(address[0], error, found) == 0, text()
    assert (found.kind, found.device) == (lib.PC_CUDA_HOST, 0)
    assert lib.pc_cuda_host_free(0, pinned[0], error) == 0, text()
    assert lib.pc_cuda_pointer(address[0], error, found) == 0, text()
    assert found.kind == lib.PC_CUDA_UNKNOWN


@fake_cuda
def test_host_memory_that_is_there() -> None:
    pages = np.zeros(3 * 4096, np.uint8)
    at = ffi.cast("void *", (pages.ctypes.data + 4095) // 4096 * 4096)
    address = ffi.new("uint64_t *")
    assert lib.pc_cuda_host_register(0, at, 8192, error, address) == 0, text()
    assert address[0] == int(ffi.cast("uintptr_t", at))
    assert lib.pc_cuda_host_register(0, at, 8192, error, address) == lib.PC_SYSTEM
    assert "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" in text()
    assert lib.pc_cuda_host_unregister(0, at, error) == 0, text()
    assert lib.pc_cuda_host_unregister(0, at, error) == lib.PC_SYSTEM


@fake_cuda
def test_copies_fills_and_their_stream() -> None:
    array, other, own = Array.of(np.arange(8.0)), Array(8, np.float64), stream()
    assert lib.pc_cuda_copy(0, other.ptr, array.ptr, 64, own, error) == 0, text()
    assert lib.pc_cuda_fill(0, other.ptr, 0, 8, own, error) == 0, text()
    assert lib.pc_cuda_stream_wait(0, own, error) == 0, text()
    assert other.get().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert lib.pc_cuda_fill(0, other.ptr, 0, 65, own, error) == lib.PC_INVALID
    assert lib.pc_cuda_stream_free(0, own, error) == 0, text()
    assert lib.pc_cuda_stream_wait(0, own, error) == lib.PC_INVALID


@fake_cuda
def test_launches_and_events() -> None:
    count = function(b"any\0", b"fakecuda_count")
    word = Array.of(np.zeros(1, np.uint64))
    least, greatest = ffi.new("int *"), ffi.new("int *")
    assert lib.pc_cuda_priorities(0, error, least, greatest) == 0, text()
    assert (least[0], greatest[0]) == (0, -5)
    first, second = stream(greatest[0]), stream(least[0])
    start, end = event(timing=True), event(timing=True)
    at = ffi.new("uint64_t *", word.ptr)
    assert lib.pc_cuda_event_record(0, start, first, error) == 0, text()
    flags = lib.PC_CUDA_COOPERATIVE | lib.PC_CUDA_REMOTE | lib.PC_CUDA_PRIORITY
    grid = {"function": count, "stream": first, "blocks": (2, 3, 1), "threads": (4, 1, 1)}
    assert launch({**grid, "flags": flags, "priority": -2}, at) == 0, text()
    assert lib.pc_cuda_event_record(0, end, first, error) == 0, text()
    assert lib.pc_cuda_stream_after(0, second, end, error) == 0, text()
    assert launch({**grid, "stream": second}, at) == 0, text()
    assert lib.pc_cuda_stream_wait(0, second, error) == 0, text()
    assert word.get().tolist() == [48]
    assert lib.pc_cuda_event_query(0, end, error) == 0, text()
    assert lib.pc_cuda_event_wait(0, end, error) == 0, text()
    assert lib.pc_cuda_stream_query(0, first, error) == 0, text()
    seconds = ffi.new("double *")
    assert lib.pc_cuda_event_seconds(0, start, end, error, seconds) == 0, text()
    assert seconds[0] >= 0
    said = [call.arguments for call in fakecuda.calls() if call.name == "cuLaunchKernelEx"]
    assert said[0].startswith("fakecuda_count, 2x3x1, 4, 0, ")
    assert said[0].endswith(", cooperative, remote, priority -2")
    assert "cooperative" not in said[1]
    assert launch({**grid, "threads": (5, 1, 1)}, at) == lib.PC_INVALID
    assert text().startswith("cuLaunchKernelEx(0x")
    assert text().endswith("2 x 3 blocks of 5 threads): CUDA_ERROR_INVALID_VALUE: invalid argument")


@fake_cuda
def test_functions() -> None:
    said = {"registers": 168, "shared": 65536, "threads": 512}
    found = function(fakecuda.image(gemm=said), b"gemm")
    about = ffi.new("struct pc_cuda_function *")
    assert lib.pc_cuda_function_read(0, found, error, about) == 0, text()
    assert (about.registers, about.shared, about.threads, about.local) == (168, 65536, 512, 0)
    assert about.dynamic == 48 << 10
    blocks, room = ffi.new("int *"), ffi.new("size_t *")
    assert lib.pc_cuda_occupancy(0, found, 256, 0, error, blocks) == 0, text()
    assert blocks[0] == 1
    assert lib.pc_cuda_room(0, found, 1, 256, error, room) == 0, text()
    assert room[0] == (227 << 10) - 65536
    assert lib.pc_cuda_room(0, found, 2, 256, error, room) == lib.PC_INVALID
    assert lib.pc_cuda_function_dynamic(0, found, 100_000, error) == 0, text()
    assert lib.pc_cuda_function_read(0, found, error, about) == 0, text()
    assert about.dynamic == 100_000
    assert lib.pc_cuda_function_dynamic(0, found, 200_000, error) == lib.PC_INVALID
    module, out = ffi.new("uintptr_t *"), ffi.new("uintptr_t *")
    assert lib.pc_cuda_module(0, b"any", error, module) == 0, text()
    assert lib.pc_cuda_function(0, module[0], b"no_such", error, out) == lib.PC_INVALID
    assert text() == "cuModuleGetFunction(no_such): CUDA_ERROR_NOT_FOUND: named symbol not found"
    assert lib.pc_cuda_module_free(0, module[0], error) == 0, text()
    assert lib.pc_cuda_module_free(0, module[0], error) == lib.PC_INVALID


@fake_cuda
def test_capture_is_seen_and_what_it_refers_to_is_kept() -> None:
    own, number, users = fakecuda.Stream(), ffi.new("uint64_t *"), ffi.new("uint32_t *")
    assert lib.pc_cuda_capturing(0, own.ptr, error, number) == lib.PC_CUDA_NO_CAPTURE
    assert lib.pc_cuda_capture_pin(0, own.ptr, users, error) == lib.PC_INVALID
    with fakecuda.capture(own) as graphs:
        assert lib.pc_cuda_capturing(0, own.ptr, error, number) == lib.PC_CUDA_CAPTURING
        assert number[0] > 0
        assert lib.pc_cuda_capture_pin(0, own.ptr, users, error) == 0, text()
        assert lib.pc_cuda_capture_pin(0, own.ptr, users, error) == 0, text()
    assert users[0] == 2
    graphs[0].launch(own)
    own.synchronize()
    assert users[0] == 2
    graphs[0].close()
    while users[0]:
        os.sched_yield()
    assert lib.pc_cuda_capturing(0, own.ptr, error, number) == lib.PC_CUDA_NO_CAPTURE


@fake_cuda
def test_a_relaxed_thread_ends_nobody_s_capture() -> None:
    own, out = fakecuda.Stream(), ffi.new("uint64_t *")
    assert lib.pc_cuda_thread_mode(0, lib.PC_CUDA_RELAXED, error) == 0, text()
    with fakecuda.capture(own):
        assert lib.pc_cuda_alloc(0, 8, error, out) == 0, text()
    assert lib.pc_cuda_thread_mode(0, lib.PC_CUDA_GLOBAL, error) == 0, text()
    cu("cuStreamBeginCapture_v2", c_void_p(own.ptr), c_int(0))
    assert lib.pc_cuda_alloc(0, 8, error, out) == lib.PC_SYSTEM
    assert error.errnum == fakecuda.CAPTURE_UNSUPPORTED
    assert lib.pc_cuda_capturing(0, own.ptr, error, out) == lib.PC_CUDA_INVALIDATED


@fake_cuda
def test_memory_of_another_process(tmp_path: Path) -> None:
    array = Array.of(np.arange(4, dtype=np.uint64))
    handle = ffi.new("unsigned char[]", lib.PC_CUDA_HANDLE)
    assert lib.pc_cuda_ipc_get(0, array.ptr, error, handle) == 0, text()
    out = ffi.new("uint64_t *")
    assert lib.pc_cuda_ipc_open(0, handle, error, out) == lib.PC_SYSTEM
    assert "CUDA_ERROR_INVALID_CONTEXT" in text()
    script = """
import ctypes, sys
from pycoll._native import ffi, lib
from pycoll.dtypes import DTYPES, OPS
error, out = ffi.new("struct pc_error *"), ffi.new("uint64_t *")
assert lib.pc_cuda_ipc_open(0, bytes.fromhex(sys.argv[1]), error, out) == 0
words = (ctypes.c_uint64 * 4).from_address(out[0])
print(list(words))
words[0] = 9
assert lib.pc_cuda_ipc_close(0, out[0], error) == 0
assert lib.pc_cuda_ipc_close(0, out[0], error) == lib.PC_INVALID
"""
    said = subprocess.run(
        [sys.executable, "-c", script, bytes(handle).hex()],
        env=os.environ | fakecuda.environment(log=tmp_path / "other.log"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "[0, 1, 2, 3]\n"
    assert array.get().tolist() == [9, 1, 2, 3]


@fake_cuda
def test_the_engine_s_kernels_are_there() -> None:
    module, out = ffi.new("uintptr_t *"), ffi.new("uintptr_t *")
    assert lib.pc_cuda_module(0, b"any", error, module) == 0, text()
    found = ffi.new("struct pc_cuda_function *")
    for dtype in DTYPES:
        for op in OPS:
            for name in (f"pc_{dtype.name}_{op}", f"pc_fused_{dtype.name}_{op}"):
                assert lib.pc_cuda_function(0, module[0], name.encode(), error, out) == 0, text()
                assert lib.pc_cuda_function_read(0, out[0], error, found) == 0, text()
                assert found.registers <= 80
