"""The stand-in for libcuda: beginning, devices, errors, failures on demand, the log."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64

import fakecuda
import pytest
from fakecuda import Event, Memory, cu
from fakecuda_checks import code_of, refused

fake_cuda = pytest.mark.fake_cuda


@pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack())
@pytest.mark.own_process
def test_nothing_before_cuinit() -> None:
    library = ctypes.CDLL(str(fakecuda.library() / "libcuda.so.1"))
    out = c_int()
    assert library.cuDeviceGetCount(byref(out)) == fakecuda.NOT_INITIALIZED
    assert library.cuInit(0) == fakecuda.SUCCESS
    assert library.cuDeviceGetCount(byref(out)) == fakecuda.SUCCESS
    # The driver's functions that work on a context want a current one.
    address = c_uint64()
    assert library.cuMemAlloc_v2(byref(address), c_size_t(8)) == fakecuda.INVALID_CONTEXT


@fake_cuda
def test_a_forked_child_has_no_driver() -> None:
    child = os.fork()
    if child == 0:
        os._exit(code_of(lambda: Memory(8)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == fakecuda.NOT_INITIALIZED


@fake_cuda(devices=3)
def test_devices() -> None:
    out, name = c_int(), ctypes.create_string_buffer(64)
    cu("cuDeviceGetCount", byref(out))
    assert out.value == 3
    refused(fakecuda.INVALID_DEVICE, "cuDeviceGet", byref(out), c_int(3))
    cu("cuDeviceGetName", name, c_int(64), c_int(0))
    uuids = []
    for device in range(3):
        uuid = ctypes.create_string_buffer(16)
        cu("cuDeviceGetUuid_v2", uuid, c_int(device))
        uuids.append(uuid.raw)
    assert len(set(uuids)) == 3


@fake_cuda
def test_nvrtc_compiles_beside_it() -> None:
    """It asks the driver for a table that tools may have there, and crashed where none answered."""
    from pycoll.runtime.cuda import compile

    if lack := compile.missing():
        pytest.skip(lack)
    refused(fakecuda.INVALID_VALUE, "cuGetExportTable", byref(c_uint64()), byref(c_uint64()))
    made = compile.compile_text('extern "C" __global__ void k() {}', "--gpu-architecture=sm_90")
    assert made is not None
    assert made.startswith(b"\x7fELF")


@fake_cuda
def test_errors_have_names_and_texts() -> None:
    out = ctypes.c_char_p()
    cu("cuGetErrorName", c_int(900), byref(out))
    assert out.value == b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    cu("cuGetErrorString", c_int(900), byref(out))
    assert out.value == b"operation not permitted when stream is capturing"
    # An unknown code is an invalid value, and the text is then NULL.
    refused(fakecuda.INVALID_VALUE, "cuGetErrorName", c_int(12345), byref(out))
    assert out.value is None


@fake_cuda(fail="cuMemAlloc:2,cuEventCreate:1=999")
def test_calls_fail_on_demand() -> None:
    kept = Memory(8)
    assert code_of(lambda: Memory(8)) == fakecuda.OUT_OF_MEMORY
    assert Memory(8).address != kept.address
    assert code_of(Event) == 999
    Event()
    fakecuda.fail("cuMemAlloc:1=700")
    assert code_of(lambda: Memory(8)) == 700


@fake_cuda
def test_the_log_has_every_call_in_order() -> None:
    memory = Memory(4096)
    memory.free()
    assert code_of(lambda: Memory(0)) == fakecuda.INVALID_VALUE
    names = [(call.name, call.result) for call in fakecuda.calls()]
    assert names[-3:] == [("cuMemAlloc", 0), ("cuMemFree", 0), ("cuMemAlloc", 1)]
    assert fakecuda.calls()[-3].arguments == "4096"
    assert {call.pid for call in fakecuda.calls()} == {os.getpid()}
