"""The stand-in for libcuda: functions, how many fit, launches."""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, Module, Stream, cu
from fakecuda_checks import code_of, refused

fake_cuda = pytest.mark.fake_cuda


@fake_cuda
def test_what_cannot_be_launched() -> None:
    module = Module(fakecuda.image(wide={"threads": 2}, large={"shared": 200_000}))
    word = Array.of(np.zeros(1, np.uint64))
    count = module.function("fakecuda_count")
    at = c_uint64(word.ptr)
    codes = [
        code_of(lambda: module.function("no_such_kernel")),
        code_of(lambda: fakecuda.launch(count, at, threads=5)),  # more than the device has
        code_of(lambda: fakecuda.launch(count, at, blocks=0)),
        code_of(lambda: fakecuda.launch(count, at, shared=48 * 1024 + 1)),  # wants to be asked for
        code_of(lambda: fakecuda.launch(count, at, attributes={99: 1})),
        code_of(lambda: fakecuda.launch(12345, at)),
        code_of(lambda: fakecuda.launch(module.function("wide"), at, threads=3)),
        code_of(lambda: fakecuda.launch(count, at, blocks=132 * 32 + 1, attributes={2: 1})),
    ]
    assert codes == [
        *(fakecuda.NOT_FOUND, *[fakecuda.INVALID_VALUE] * 4, fakecuda.INVALID_HANDLE),
        *(fakecuda.LAUNCH_OUT_OF_RESOURCES, fakecuda.COOPERATIVE_TOO_LARGE),
    ]
    fakecuda.launch(count, at, threads=4, attributes={2: 1, 8: -5, 10: 1})
    cu("cuCtxSynchronize")
    assert word.get().tolist() == [4]
    last = [call for call in fakecuda.calls() if call.name == "cuLaunchKernelEx"][-1]
    assert last.arguments.startswith("fakecuda_count, 1x1x1, 4, 0,")
    assert last.arguments.endswith("cooperative, priority -5, remote")


@fake_cuda
def test_a_module_that_is_unloaded() -> None:
    module = Module()
    count = module.function("fakecuda_count")
    module.close()
    assert code_of(lambda: fakecuda.launch(count, c_uint64(0))) == fakecuda.INVALID_HANDLE


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "dynamic", "blocks"),
    [
        (32, 0, 256, 0, 8),  # 64 warps
        (32, 0, 32, 0, 32),  # 32 blocks
        (255, 0, 256, 0, 1),  # 256 registers a thread: 8 warps
        (168, 65536, 256, 0, 1),  # 12 warps by registers
        (76, 0, 256, 0, 3),  # 80 a thread: 6 warps in each quarter
        (80, 0, 256, 57_472, 3),  # 228 KiB / (57,472 + 1024) = 3.99
        (32, 0, 256, 38_016, 5),
        (32, 0, 256, 227 * 1024, 1),
        (32, 0, 256, 227 * 1024 + 1, 0),
        (32, 0, 1024, 0, 2),
    ],
)
@fake_cuda
def test_occupancy(registers: int, shared: int, threads: int, dynamic: int, blocks: int) -> None:
    """The arithmetic of compute capability 9.0 in NVIDIA's occupancy calculator."""
    data = fakecuda.image(it={"registers": registers, "shared": shared})
    function, out = Module(data).function("it"), c_int()
    cu(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        *(byref(out), c_void_p(function), c_int(threads), c_size_t(dynamic)),
    )
    assert out.value == blocks


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8])
@fake_cuda
def test_the_room_for_shared_memory_is_the_most_that_fits(blocks: int) -> None:
    data = fakecuda.image(it={"registers": 32, "shared": 1024})
    function, room, out = Module(data).function("it"), c_size_t(), c_int()
    cu(
        "cuOccupancyAvailableDynamicSMemPerBlock",
        *(byref(room), c_void_p(function), c_int(blocks), c_int(256)),
    )
    found = []
    for dynamic in (room.value, room.value + 1):
        cu(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            *(byref(out), c_void_p(function), c_int(256), c_size_t(dynamic)),
        )
        found.append(out.value)
    assert found == [blocks, blocks - 1]


@fake_cuda
def test_more_shared_memory_has_to_be_asked_for() -> None:
    function = Module(fakecuda.image(it={"shared": 1024})).function("it")
    set_, handle = "cuFuncSetAttribute", c_void_p(function)
    array = Array.of(np.zeros(8, np.float32))
    arguments = (c_uint64(array.ptr), c_uint64(8), c_uint(3))
    refused(fakecuda.INVALID_VALUE, set_, handle, c_int(8), c_int(226 * 1024 + 1))
    cu(set_, handle, c_int(8), c_int(226 * 1024))
    fakecuda.launch(function, *arguments, shared=226 * 1024)
    cu("cuCtxSynchronize")
    assert array.get().tolist() == [1.75] * 8


@fake_cuda(devices=2)
def test_a_stream_of_another_device() -> None:
    stream = Stream()
    fakecuda.use(1)
    count = Module().function("fakecuda_count")
    launch = lambda: fakecuda.launch(count, c_uint64(8), stream=stream)  # noqa: E731
    assert code_of(launch) == fakecuda.INVALID_HANDLE
