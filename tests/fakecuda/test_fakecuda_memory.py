"""The stand-in for libcuda: memory, its numbers, copies."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import signal
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, Memory, Module, Stream, cu
from fakecuda_checks import Gate, code_of, refused

fake_cuda = pytest.mark.fake_cuda


def attributes(address: int) -> dict[str, int]:
    """What cuPointerGetAttributes says."""
    which = (c_int * 5)(2, 7, 9, 11, 12)
    words = [c_uint64() for _ in which]
    pointers = (c_void_p * 5)(*map(ctypes.addressof, words))
    cu("cuPointerGetAttributes", c_uint(5), which, pointers, c_uint64(address))
    names = ("type", "id", "device", "start", "size")
    return dict(zip(names, (word.value for word in words), strict=True))


@fake_cuda
def test_an_address_comes_again_with_another_number() -> None:
    first = Memory(10_000)
    seen = attributes(first.address + 9999)
    assert seen | {"id": 0} == {
        "type": 2,
        "id": 0,
        "device": 0,
        "start": first.address,
        "size": 10_000,
    }
    again = first.address
    first.free()
    assert attributes(again)["type"] == 0
    second = Memory(10_000)
    assert second.address == again
    # "Allocations have a unique ID as long as the process lives": never that of one that is freed.
    assert attributes(again)["id"] not in (0, seen["id"])


@fake_cuda
def test_pointers() -> None:
    memory = Memory(100)
    base, size = c_uint64(), c_size_t()
    ends = memory.address + 99
    cu("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(ends))
    assert (base.value, size.value) == (memory.address, 100)
    refused(fakecuda.NOT_FOUND, "cuMemGetAddressRange_v2", byref(base), None, c_uint64(ends + 1))
    # An address that the driver does not know is no error here: every attribute is zero.
    host = np.zeros(8)
    assert not any(attributes(host.ctypes.data).values())


@fake_cuda
def test_what_cannot_be_freed() -> None:
    memory = Memory(100)
    inside = c_uint64(memory.address + 64)
    refused(fakecuda.INVALID_VALUE, "cuMemFree_v2", inside)
    refused(fakecuda.INVALID_VALUE, "cuMemFree_v2", c_uint64(12345))
    at = c_uint64(memory.address)
    memory.free()
    refused(fakecuda.INVALID_VALUE, "cuMemFree_v2", at)


@fake_cuda(memory_mib=1)
def test_memory_ends() -> None:
    kept = Memory(1 << 19)
    assert code_of(lambda: Memory((1 << 19) + 1)) == fakecuda.OUT_OF_MEMORY
    kept.free()
    Memory(1 << 20)


@fake_cuda
def test_new_memory_is_not_zero() -> None:
    assert Array(100, np.uint8).get().tolist() == [0xA5] * 100


def touched(address: int) -> int:
    """How a process ends that reads a byte there."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.string_at(address, 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@fake_cuda
def test_who_touches_freed_memory_dies() -> None:
    array = Array(100, np.uint8)
    address = array.ptr
    assert touched(address) == 0
    array.memory.free()
    assert touched(address) == -signal.SIGSEGV


@fake_cuda(strict=1)
def test_the_host_cannot_touch_a_gpu_s_memory() -> None:
    array, stream = Array.of(np.zeros(100, np.uint64)), Stream()
    assert touched(array.ptr) == -signal.SIGSEGV
    count = Module().function("fakecuda_count")
    fakecuda.launch(count, c_uint64(array.ptr), stream=stream, threads=4)
    stream.synchronize()
    assert touched(array.ptr) == -signal.SIGSEGV
    assert array.get()[0] == 4


@fake_cuda
def test_copies_and_fills() -> None:
    values = np.arange(1000.0)
    array, other = Array.of(values), Array(1000, np.float64)
    stream = Stream()
    handle, nbytes = c_void_p(stream.ptr), c_size_t(8000)
    cu("cuMemcpyAsync", c_uint64(other.ptr), c_uint64(array.ptr), nbytes, handle)
    stream.synchronize()
    assert (other.get() == values).all()
    cu("cuMemsetD8Async", c_uint64(other.ptr), 0, nbytes, handle)
    stream.synchronize()
    assert not other.get().any()
    # Past the end of an allocation, and where there is none.
    over = c_size_t(8001)
    refused(
        fakecuda.INVALID_VALUE,
        *("cuMemcpyAsync", c_uint64(other.ptr), c_uint64(array.ptr), over, handle),
    )
    refused(fakecuda.INVALID_VALUE, "cuMemsetD8Async", c_uint64(other.ptr), 0, over, handle)
    host = np.zeros(8000, np.uint8)
    refused(
        fakecuda.INVALID_VALUE, "cuMemsetD8Async", c_uint64(host.ctypes.data), 0, nbytes, handle
    )


@fake_cuda
def test_a_copy_of_freed_memory_is_an_error_that_stays() -> None:
    """An error of the device's work is told by whoever synchronises, and by all later calls."""
    array, other, stream = Array(8), Array(8), Stream()
    gate = Gate(stream)
    handle, nbytes = c_void_p(stream.ptr), c_size_t(8)
    cu("cuMemcpyAsync", c_uint64(other.ptr), c_uint64(array.ptr), nbytes, handle)
    free = threading.Thread(target=lambda: (fakecuda.use(0), array.memory.free()))
    free.start()  # it waits for the device, so the copy is made: the order is the driver's
    gate.open()
    free.join()
    cu("cuMemsetD8Async", c_uint64(other.ptr), 0, nbytes, handle)
    stream.synchronize()
    fakecuda.fail("kernel:1=700")
    Gate(stream)
    assert code_of(stream.synchronize) == fakecuda.ILLEGAL_ADDRESS
    assert code_of(lambda: Memory(8)) == fakecuda.ILLEGAL_ADDRESS
    assert code_of(Stream) == fakecuda.ILLEGAL_ADDRESS


@fake_cuda
def test_registered_host_memory() -> None:
    pages = np.zeros(3 * 4096, np.uint8)
    at = (pages.ctypes.data + 4095) // 4096 * 4096
    host, nbytes, out = c_void_p(at), c_size_t(4096), c_uint64()
    refused(fakecuda.INVALID_VALUE, "cuMemHostGetDevicePointer_v2", byref(out), host, c_uint(0))
    cu("cuMemHostRegister_v2", host, nbytes, c_uint(3))
    refused(fakecuda.ALREADY_REGISTERED, "cuMemHostRegister_v2", host, nbytes, c_uint(3))
    cu("cuMemHostGetDevicePointer_v2", byref(out), host, c_uint(0))
    assert out.value == at
    assert attributes(at)["type"] == 1
    cu("cuMemHostUnregister", host)
    refused(fakecuda.NOT_REGISTERED, "cuMemHostUnregister", host)
    refused(fakecuda.INVALID_VALUE, "cuMemFreeHost", host)


@fake_cuda
def test_pinned_host_memory_is_seen_by_kernels() -> None:
    host = c_void_p()
    cu("cuMemHostAlloc", byref(host), c_size_t(8), c_uint(3))
    word = ctypes.cast(host, ctypes.POINTER(c_uint64))
    word[0] = 5
    count = Module().function("fakecuda_count")
    fakecuda.launch(count, c_uint64(host.value or 0), blocks=3, threads=4)
    cu("cuCtxSynchronize")
    assert word[0] == 17
    refused(fakecuda.NOT_REGISTERED, "cuMemHostUnregister", host)
    cu("cuMemFreeHost", host)


@fake_cuda
def test_a_gap_that_just_fits_does_not_hide_a_neighbour() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    taken = [Memory(page) for _ in range(8)]
    del taken[3], taken[1]
    taken += [Memory(nbytes) for nbytes in (2 * page, page, 2 * page, page)]
    ends = sorted((memory.address, memory.address + memory.nbytes) for memory in taken)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(ends))
    for memory in taken:
        for at in (memory.address, memory.address + memory.nbytes - 1):
            assert attributes(at)["start"] == memory.address
