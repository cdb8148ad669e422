"""The stand-in for libcuda: memory that a NIC reaches, and the flush of what it has written.

What a NIC does with it is in tests/fakeverbs/test_fakeverbs_gpu.py.
"""

from __future__ import annotations

import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p

import fakecuda
import pytest
from fakecuda import Memory, cu
from fakecuda_checks import refused

fake_cuda = pytest.mark.fake_cuda
EXPORT, FLUSH = "cuMemGetHandleForAddressRange", "cuFlushGPUDirectRDMAWrites"
PAGE = 4096


def arguments(at: int, nbytes: int, kind: int = 1, flags: int = 0) -> tuple[object, ...]:
    out = c_int(-1)
    return byref(out), c_uint64(at), c_size_t(nbytes), c_int(kind), c_ulonglong(flags)


def attribute(which: int, device: int = 0) -> int:
    out = c_int()
    cu("cuDeviceGetAttribute", byref(out), c_int(which), c_int(device))
    return out.value


@fake_cuda
def test_a_range_is_exported() -> None:
    memory, fd = Memory(3 * PAGE), c_int(-1)
    cu(EXPORT, byref(fd), *arguments(memory.address + PAGE, 2 * PAGE)[1:])
    os.close(fd.value)
    # The last page is whole, though the allocation ends within it.
    short = Memory(PAGE + 1)
    cu(EXPORT, byref(fd), *arguments(short.address, 2 * PAGE)[1:])
    os.close(fd.value)


@fake_cuda
def test_exports_that_are_refused() -> None:
    memory, host = Memory(2 * PAGE), c_void_p()
    cu("cuMemHostAlloc", byref(host), c_size_t(PAGE), c_int(3))
    at, value = memory.address, fakecuda.INVALID_VALUE
    refused(value, EXPORT, *arguments(at + 512, PAGE))
    refused(value, EXPORT, *arguments(at, PAGE + 512))
    refused(value, EXPORT, *arguments(at, 0))
    refused(value, EXPORT, *arguments(at, 3 * PAGE))
    refused(value, EXPORT, *arguments(host.value or 0, PAGE))
    refused(value, EXPORT, *arguments(PAGE, PAGE))
    refused(value, EXPORT, *arguments(at, PAGE, kind=2))
    refused(value, EXPORT, *arguments(at, PAGE, flags=2))
    memory.free()
    refused(value, EXPORT, *arguments(at, PAGE))


@fake_cuda(dmabuf=0)
def test_a_driver_without_dmabuf() -> None:
    memory = Memory(PAGE)
    assert attribute(124) == 0
    refused(801, EXPORT, *arguments(memory.address, PAGE))


@fake_cuda
def test_a_flush() -> None:
    assert attribute(117) == 1
    cu(FLUSH, c_int(0), c_int(100))
    cu(FLUSH, c_int(0), c_int(200))
    refused(fakecuda.INVALID_VALUE, FLUSH, c_int(1), c_int(100))
    refused(fakecuda.INVALID_VALUE, FLUSH, c_int(0), c_int(0))
    assert [call.result for call in fakecuda.calls() if call.name == FLUSH] == [0, 0, 1, 1]


@fake_cuda(flush=0)
def test_a_driver_that_does_not_flush() -> None:
    assert attribute(117) == 0
    refused(801, FLUSH, c_int(0), c_int(100))


@fake_cuda(capability=86, ordering=100, coherent=1, rdma=0)
def test_what_a_gpu_says_of_itself() -> None:
    which = {75: 8, 76: 6, 100: 1, 116: 0, 117: 1, 118: 100, 124: 1}
    assert {number: attribute(number) for number in which} == which
