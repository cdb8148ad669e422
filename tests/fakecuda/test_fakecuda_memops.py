"""The stand-in's words that streams write and wait for: their order, and what is refused."""

from __future__ import annotations

import mmap
from ctypes import c_uint64, c_void_p
from typing import Any

import fakecuda
import numpy as np
import pytest
from fakecuda import cu

from pycoll.errors import UsageError
from pycoll.runtime.native import cuda

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]

NOT_SUPPORTED = 801


def code(call: Any) -> int:
    with pytest.raises(fakecuda.CudaError) as refused:
        call()
    return refused.value.code


def write(stream: fakecuda.Stream, address: int, value: int, flags: int = 0) -> None:
    cu("cuStreamWriteValue64_v2", c_void_p(stream.ptr), c_uint64(address), c_uint64(value), flags)


def wait(stream: fakecuda.Stream, address: int, value: int, flags: int = 0) -> None:
    cu("cuStreamWaitValue64_v2", c_void_p(stream.ptr), c_uint64(address), c_uint64(value), flags)


def zeros() -> fakecuda.Array:
    return fakecuda.Array.of(np.zeros(2, np.uint64))


def test_a_stream_waits_until_a_word_is_as_much() -> None:
    words, one, other = zeros(), fakecuda.Stream(), fakecuda.Stream()
    wait(one, words.ptr, 3)
    write(one, words.ptr + 8, 7)
    write(other, words.ptr, 2)
    other.synchronize()
    assert not one.done()
    write(other, words.ptr, 5)  # at least
    one.synchronize()
    assert words.get().tolist() == [5, 7]


def test_words_are_compared_as_signed_differences() -> None:
    words, stream = zeros(), fakecuda.Stream()
    words.set(np.array([1, 0], np.uint64))
    wait(stream, words.ptr, (1 << 64) - 1)  # 1 is two more
    stream.synchronize()


def test_the_host_ends_a_wait_by_a_word_of_its_own() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    words = np.frombuffer(memory, np.uint64)
    address = cuda.host_register(0, int(words.ctypes.data), mmap.PAGESIZE)
    stream = fakecuda.Stream()
    cuda.stream_wait64(0, stream.ptr, address, 1)
    assert not stream.done()
    words[0] = 1 << 62
    stream.synchronize()
    cuda.stream_write64(0, stream.ptr, address, 9)
    stream.synchronize()
    assert words[0] == 9


def test_what_is_refused() -> None:
    words, stream = zeros(), fakecuda.Stream()
    for call in (write, wait):
        assert code(lambda call=call: call(stream, words.ptr + 4, 1)) == fakecuda.INVALID_VALUE
        assert code(lambda call=call: call(stream, words.ptr, 1, 2)) == fakecuda.INVALID_VALUE
        assert code(lambda call=call: call(stream, 4096, 1)) == fakecuda.INVALID_VALUE
    with pytest.raises(UsageError, match=r"cuStreamWaitValue64\(.*invalid argument"):
        cuda.stream_wait64(0, stream.ptr, 4096, 1)
    assert cuda.memops(0) == ""


@pytest.mark.fake_cuda(memops=0)
def test_a_gpu_without_them() -> None:
    words, stream = zeros(), fakecuda.Stream()
    assert code(lambda: wait(stream, words.ptr, 0)) == NOT_SUPPORTED
    assert cuda.memops(0) == ("GPU 0 has no 64-bit stream memory operations (cuStreamWaitValue64)")
    with pytest.raises(UsageError, match="GPU 3: there are 1"):
        cuda.memops(3)
