"""The stand-in's green contexts: what it refuses, as the driver does, and where kernels run."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any

import fakecuda
import pytest
from fakecuda import cu

INVALID_TYPE, INVALID_CONFIGURATION, IS_DESTROYED, NOT_SUPPORTED = 914, 915, 709, 801
SM, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]


class Resource(ctypes.Structure):
    """As CUdevResource."""

    _fields_ = (
        ("type", c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("count", c_uint),
        ("least", c_uint),
        ("unit", c_uint),
        ("more", ctypes.c_ubyte * 36),
    )


def whole(device: int = 0) -> Resource:
    out = Resource()
    cu("cuDeviceGetDevResource", device, byref(out), SM)
    return out


def split(of: Resource, least: int, groups: int = 1, flags: int = 0) -> tuple[list[Any], Resource]:
    made, count, rest = (Resource * groups)(), c_uint(groups), Resource()
    cu("cuDevSmResourceSplitByCount", made, byref(count), byref(of), byref(rest), flags, least)
    return list(made[: count.value]), rest


def described(*resources: Resource) -> int:
    out = c_void_p()
    rows = (Resource * len(resources))(*resources)
    cu("cuDevResourceGenerateDesc", byref(out), rows, len(resources))
    return out.value or 0


def green(*resources: Resource, device: int = 0, flags: int = DEFAULT_STREAM) -> c_void_p:
    out = c_void_p()
    cu("cuGreenCtxCreate", byref(out), c_void_p(described(*resources)), device, flags)
    return out


def stream_of(context: c_void_p, flags: int = NON_BLOCKING, priority: int = 0) -> fakecuda.Stream:
    made = fakecuda.Stream.__new__(fakecuda.Stream)
    out = c_void_p()
    cu("cuGreenCtxStreamCreate", byref(out), context, flags, priority)
    made.ptr = out.value or 0
    return made


def code(call: Any) -> int:
    with pytest.raises(fakecuda.CudaError) as refused:
        call()
    return refused.value.code


def test_a_gpu_has_132_and_parts_of_8() -> None:
    assert (whole().type, whole().count) == (SM, 132)
    groups, rest = split(whole(), 16)
    assert ([each.count for each in groups], rest.count) == ([16], 116)
    # What is asked for is rounded up, and the least is 8.
    assert [split(whole(), n)[0][0].count for n in (0, 1, 8, 9, 17, 128)] == [8, 8, 8, 16, 24, 128]
    groups, rest = split(whole(), 40, groups=8)
    assert ([each.count for each in groups], rest.count) == ([40] * 3, 12)
    # Without an array for the groups it counts them.
    count = c_uint(0)
    cu("cuDevSmResourceSplitByCount", None, byref(count), byref(whole()), None, 0, 8)
    assert count.value == 16


def test_what_a_split_refuses() -> None:
    assert code(lambda: split(whole(), 133)) == fakecuda.INVALID_VALUE
    assert code(lambda: split(whole(), 132)) == INVALID_CONFIGURATION  # 136 after rounding
    assert code(lambda: split(whole(), 8, flags=4)) == fakecuda.INVALID_VALUE
    assert code(lambda: split(Resource(), 8)) == INVALID_TYPE
    groups, rest = split(whole(), 16)
    assert code(lambda: split(groups[0], 8)) == INVALID_CONFIGURATION
    assert code(lambda: split(rest, 8)) == INVALID_CONFIGURATION
    out = Resource()
    assert code(lambda: cu("cuDeviceGetDevResource", 0, byref(out), 2)) == INVALID_TYPE
    assert code(lambda: cu("cuDeviceGetDevResource", 1, byref(out), SM)) == fakecuda.INVALID_DEVICE


@pytest.mark.fake_cuda(devices=2)
def test_resources_of_several_splits_or_devices_do_not_go_together() -> None:
    (one,), rest = split(whole(), 16)
    (other,), _ = split(whole(), 16)
    (foreign,), _ = split(whole(1), 16)
    assert described(one, rest)
    assert code(lambda: described(one, other)) == INVALID_CONFIGURATION
    assert code(lambda: described(one, foreign)) == INVALID_CONFIGURATION
    assert code(lambda: green(foreign)) == fakecuda.INVALID_VALUE
    assert code(lambda: green(one, flags=0)) == fakecuda.INVALID_VALUE
    assert code(lambda: described(Resource())) == INVALID_TYPE


def test_a_context_that_is_destroyed_and_its_streams() -> None:
    (part,), _ = split(whole(), 8)
    context = green(part)
    assert code(lambda: stream_of(context, flags=0)) == fakecuda.INVALID_VALUE
    kept, stream = stream_of(context), stream_of(context)
    stream.synchronize()
    stream.close()
    event = fakecuda.Event().record(kept)
    event.synchronize()
    cu("cuGreenCtxDestroy", context)
    assert code(lambda: cu("cuGreenCtxDestroy", context)) == IS_DESTROYED
    assert code(lambda: cu("cuGreenCtxDestroy", c_void_p(7))) == fakecuda.INVALID_CONTEXT
    for call in (kept.synchronize, kept.close, kept.done, lambda: event.record(kept)):
        assert code(call) == IS_DESTROYED
    assert code(lambda: stream_of(context)) == fakecuda.INVALID_CONTEXT
    assert [line.split()[0] for line in fakecuda.remarks()] == ["leak:"]
    # A handle that never was is still that.
    assert code(lambda: cu("cuStreamSynchronize", c_void_p(77))) == fakecuda.INVALID_HANDLE


def test_a_green_context_is_made_current_once_it_is_converted() -> None:
    (part,), _ = split(whole(), 8)
    context, converted, popped = green(part), c_void_p(), c_void_p()
    assert code(lambda: cu("cuCtxPushCurrent_v2", context)) == fakecuda.INVALID_CONTEXT
    cu("cuCtxFromGreenCtx", byref(converted), context)
    cu("cuCtxPushCurrent_v2", converted)
    stream = fakecuda.Stream()
    cu("cuCtxPopCurrent_v2", byref(popped))
    launch(stream)
    launch(fakecuda.Stream())
    launches = [call.arguments for call in fakecuda.calls() if call.name == "cuLaunchKernelEx"]
    assert ["8 SMs" in each for each in launches] == [True, False]
    cu("cuGreenCtxDestroy", context)
    assert code(lambda: cu("cuCtxPushCurrent_v2", converted)) == fakecuda.INVALID_CONTEXT


def launch(stream: fakecuda.Stream) -> None:
    at = fakecuda.Array(1, "u8")
    count = fakecuda.Module().function("fakecuda_count")
    fakecuda.launch(count, ctypes.c_uint64(at.ptr), stream=stream)
    stream.synchronize()


@pytest.mark.fake_cuda(green=0)
def test_a_gpu_without_green_contexts() -> None:
    assert code(lambda: green(whole())) == NOT_SUPPORTED
