"""The stand-in for libcuda: memory by handles, multicast objects, and what they refuse."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

import fakecuda
import pytest
from fakecuda import cu
from fakecuda_checks import refused

fake_cuda = pytest.mark.fake_cuda

UNIT = 2 << 20
NONE = c_ulonglong(0)
NOT_SUPPORTED = 801


class Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        *(("type", c_int), ("handles", c_int), ("place", c_int), ("device", c_int)),
        *(("win32", c_void_p), ("flags", c_uint64)),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("place", c_int), ("device", c_int), ("flags", c_int))


class Object(ctypes.Structure):
    """CUmulticastObjectProp."""

    _fields_ = (
        *(("ndevices", c_uint), ("nbytes", c_size_t)),
        *(("handles", c_ulonglong), ("flags", c_ulonglong)),
    )


def memory(device: int = 0, nbytes: int = UNIT, handles: int = 1) -> c_uint64:
    out = c_uint64()
    prop = Allocation(1, handles, 1, device)
    cu("cuMemCreate", byref(out), c_size_t(nbytes), byref(prop), NONE)
    return out


def multicast(ndevices: int = 2, nbytes: int = UNIT, handles: int = 1) -> c_uint64:
    out = c_uint64()
    cu("cuMulticastCreate", byref(out), byref(Object(ndevices, nbytes, handles, 0)))
    return out


def reserved(nbytes: int = UNIT) -> c_uint64:
    out = c_uint64()
    cu("cuMemAddressReserve", byref(out), c_size_t(nbytes), c_size_t(UNIT), c_uint64(0), NONE)
    return out


def arguments_of_map(at: c_uint64, handle: c_uint64, nbytes: int = UNIT) -> tuple[object, ...]:
    return at, c_size_t(nbytes), c_size_t(0), handle, NONE


def access(at: c_uint64, device: int = 0, nbytes: int = UNIT) -> tuple[object, ...]:
    return at, c_size_t(nbytes), byref(Access(1, device, 3)), c_size_t(1)


def bind(
    handle: c_uint64, what: c_uint64, at: int = 0, inside: int = 0, nbytes: int = UNIT
) -> tuple[object, ...]:
    return handle, c_size_t(at), what, c_size_t(inside), c_size_t(nbytes), NONE


def both(handle: c_uint64) -> None:
    for device in (0, 1):
        cu("cuMulticastAddDevice", handle, c_int(device))


@fake_cuda(devices=2, memory_mib=64)
def test_memory_by_a_handle() -> None:
    handle = memory(nbytes=2 * UNIT)
    at = reserved(2 * UNIT)
    cu("cuMemMap", *arguments_of_map(at, handle, 2 * UNIT))
    assert at.value % UNIT == 0
    refused(fakecuda.INVALID_VALUE, "cuMemcpyHtoD_v2", at, b"abcd", c_size_t(4))  # no access yet
    cu("cuMemSetAccess", *access(at, nbytes=2 * UNIT))
    ctypes.c_uint32.from_address(at.value).value = 77
    cu("cuMemRelease", handle)  # which is mapped still
    assert ctypes.c_uint32.from_address(at.value).value == 77
    cu("cuMemUnmap", at, c_size_t(2 * UNIT))
    cu("cuMemAddressFree", at, c_size_t(2 * UNIT))
    most = 64 << 20
    refused(
        fakecuda.OUT_OF_MEMORY,
        *("cuMemCreate", byref(c_uint64()), c_size_t(most + UNIT), byref(Allocation(1, 1, 1, 0))),
        NONE,
    )
    memory(nbytes=most)  # all of it is there again


@fake_cuda(devices=2)
def test_memory_in_another_handle_and_address() -> None:
    handle, fd, again = memory(1), c_int(-1), c_uint64()
    cu("cuMemExportToShareableHandle", byref(fd), handle, c_int(1), NONE)
    cu("cuMemImportFromShareableHandle", byref(again), c_void_p(fd.value), c_int(1))
    os.close(fd.value)
    places = []
    for one, device in ((handle, 1), (again, 0)):
        at = reserved()
        cu("cuMemMap", *arguments_of_map(at, one))
        cu("cuMemSetAccess", *access(at, device))
        places.append(ctypes.c_uint32.from_address(at.value))
    places[0].value = 99
    assert places[1].value == 99


@fake_cuda(devices=2, multicast=1)
def test_what_memory_refuses() -> None:
    for prop, nbytes, code in (
        (Allocation(1, 1, 1, 0), UNIT + 4096, fakecuda.INVALID_VALUE),  # no whole units
        (Allocation(1, 1, 1, 0), 0, fakecuda.INVALID_VALUE),
        (Allocation(0, 1, 1, 0), UNIT, fakecuda.INVALID_VALUE),
        (Allocation(1, 1, 2, 0), UNIT, fakecuda.INVALID_VALUE),
        (Allocation(1, 1, 1, 2), UNIT, fakecuda.INVALID_DEVICE),
        (Allocation(1, 8, 1, 0), UNIT, NOT_SUPPORTED),  # a fabric handle
    ):
        refused(code, "cuMemCreate", byref(c_uint64()), c_size_t(nbytes), byref(prop), NONE)
    own = memory(handles=0)
    refused(
        fakecuda.INVALID_VALUE,
        *("cuMemExportToShareableHandle", byref(c_int()), own, c_int(1), NONE),
    )
    at = reserved()
    refused(fakecuda.INVALID_VALUE, "cuMemSetAccess", *access(at))  # nothing is mapped
    refused(fakecuda.INVALID_VALUE, "cuMemMap", *arguments_of_map(c_uint64(at.value + UNIT), own))
    refused(fakecuda.INVALID_VALUE, "cuMemMap", *arguments_of_map(at, own, 2 * UNIT))
    cu("cuMemMap", *arguments_of_map(at, own))
    refused(fakecuda.INVALID_VALUE, "cuMemMap", *arguments_of_map(at, own))  # taken
    refused(fakecuda.INVALID_VALUE, "cuMemAddressFree", at, c_size_t(UNIT))  # mapped
    refused(fakecuda.INVALID_DEVICE, "cuMemSetAccess", *access(at, 7))
    cu("cuMemSetAccess", *access(at))
    refused(fakecuda.INVALID_VALUE, "cuIpcGetMemHandle", ctypes.create_string_buffer(64), at)
    refused(fakecuda.INVALID_VALUE, "cuMemFree_v2", at)


@fake_cuda(devices=3, multicast=1)
def test_what_a_multicast_object_refuses() -> None:
    create = byref(c_uint64())
    for prop in (Object(2, UNIT + 1, 1, 0), Object(0, UNIT, 1, 0), Object(2, UNIT, 1, 1)):
        refused(fakecuda.INVALID_VALUE, "cuMulticastCreate", create, byref(prop))
    handle, first = multicast(), memory(0)
    cu("cuMulticastAddDevice", handle, c_int(0))
    refused(fakecuda.INVALID_VALUE, "cuMulticastAddDevice", handle, c_int(0))  # a member already
    # Here the driver waits for the second device.
    refused(fakecuda.ILLEGAL_STATE, "cuMulticastBindMem", *bind(handle, first))
    refused(fakecuda.ILLEGAL_STATE, "cuMemMap", *arguments_of_map(reserved(), handle))
    assert [text.split()[0] for text in fakecuda.remarks()] == ["hang:", "hang:"]
    cu("cuMulticastAddDevice", handle, c_int(1))
    refused(fakecuda.INVALID_VALUE, "cuMulticastAddDevice", handle, c_int(2))  # one too many
    large = memory(0, 2 * UNIT)
    for what, at, inside, nbytes, code in (
        (first, 4096, 0, UNIT, fakecuda.INVALID_VALUE),
        (first, 0, 0, UNIT // 2, fakecuda.INVALID_VALUE),
        (large, 0, 0, 2 * UNIT, fakecuda.INVALID_VALUE),  # more than the object's
        (first, 0, UNIT, UNIT, fakecuda.INVALID_VALUE),  # more than the memory's
        (memory(0, handles=0), 0, 0, UNIT, fakecuda.INVALID_VALUE),  # not to be shared
        (memory(2), 0, 0, UNIT, fakecuda.INVALID_DEVICE),  # of no member
        (handle, 0, 0, UNIT, fakecuda.INVALID_VALUE),  # no memory
    ):
        refused(code, "cuMulticastBindMem", *bind(handle, what, at, inside, nbytes))
    cu("cuMulticastBindMem", *bind(handle, first))
    refused(fakecuda.INVALID_VALUE, "cuMulticastBindMem", *bind(handle, first))  # twice
    refused(fakecuda.INVALID_VALUE, "cuMulticastBindMem", *bind(handle, large))
    at = reserved()
    cu("cuMemMap", *arguments_of_map(at, handle))
    refused(fakecuda.INVALID_DEVICE, "cuMemSetAccess", *access(at, 2))  # no member
    cu("cuMemSetAccess", *access(at, 1))
    unbind = handle, c_int(1), c_size_t(0), c_size_t(UNIT)
    refused(fakecuda.INVALID_VALUE, "cuMulticastUnbind", *unbind)
    cu("cuMulticastUnbind", handle, c_int(0), c_size_t(0), c_size_t(UNIT))


@fake_cuda(devices=2)
def test_without_a_switch() -> None:
    refused(
        NOT_SUPPORTED,
        *("cuMulticastCreate", byref(c_uint64()), byref(Object(2, UNIT, 1, 0))),
    )
    value = c_int(-1)
    cu("cuDeviceGetAttribute", byref(value), c_int(132), c_int(0))
    assert value.value == 0


@fake_cuda(devices=2, virtual=0, multicast=1)
def test_without_virtual_memory() -> None:
    refused(
        NOT_SUPPORTED,
        *("cuMemCreate", byref(c_uint64()), c_size_t(UNIT), byref(Allocation(1, 1, 1, 0)), NONE),
    )
    value = c_int(-1)
    cu("cuDeviceGetAttribute", byref(value), c_int(102), c_int(0))
    assert value.value == 0
