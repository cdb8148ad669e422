"""The stand-in for libcuda: memory of other processes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import byref, c_uint, c_uint64
from pathlib import Path

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, Memory, cu
from fakecuda_checks import refused

fake_cuda = pytest.mark.fake_cuda

NONSENSE = 0x5A5A5A5A5A5A5A5A  #: in memory that is freed while another process has it open


OPEN = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import fakecuda
fakecuda.load()
def told(*words):
    print(*words, flush=True)
    return sys.stdin.readline()
handle = ctypes.create_string_buffer(bytes.fromhex(sys.argv[1]), 64)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
by_value = Handle.from_buffer(handle)
out, again = ctypes.c_uint64(), ctypes.c_uint64()
def open_(to):
    code = fakecuda._driver().cuIpcOpenMemHandle_v2(ctypes.byref(to), by_value, ctypes.c_uint(1))
    if code:
        told(code)
        sys.exit()
open_(out)
open_(again)
at = ctypes.c_uint64.from_address
told(out.value == again.value, at(out.value).value)
at(out.value + 8).value = 77
fakecuda.cu("cuIpcCloseMemHandle", out)
told(at(out.value).value)
fakecuda.cu("cuIpcCloseMemHandle", out)
told(fakecuda._driver().cuIpcCloseMemHandle(out))
"""


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


def handle_of(address: int) -> bytes:
    out = ctypes.create_string_buffer(64)
    cu("cuIpcGetMemHandle", out, c_uint64(address))
    return out.raw


class Opener:
    """A process that opens a handle, and goes on when it is told."""

    def __init__(self, handle: bytes) -> None:
        script = OPEN.format(folder=str(Path(fakecuda.__file__).parent))
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, handle.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@fake_cuda
def test_another_process_opens_memory() -> None:
    array = Array.of(np.array([42, 0], np.uint64))
    opener = Opener(handle_of(array.ptr))
    # Opened twice, it has the same address, and is open until it is closed twice.
    assert opener.says() == "True 42"
    opener.go_on()
    assert opener.says() == "42"
    assert array.get().tolist() == [42, 77]
    opener.go_on()
    assert opener.says() == str(fakecuda.INVALID_VALUE)
    opener.go_on()
    opener.end()
    array.memory.free()
    assert fakecuda.remarks() == []


@fake_cuda
def test_the_handle_is_that_of_the_whole_allocation() -> None:
    memory = Memory(1 << 20)
    assert handle_of(memory.address) == handle_of(memory.address + 4096 + 3)
    other = Memory(1 << 20)
    assert handle_of(memory.address) != handle_of(other.address)


@fake_cuda
def test_an_address_that_comes_again_has_another_handle() -> None:
    memory = Memory(1 << 20)
    handle, address = handle_of(memory.address), memory.address
    memory.free()
    again = Memory(1 << 20)
    assert again.address == address
    assert handle_of(again.address) != handle


@fake_cuda
def test_what_cannot_be_opened() -> None:
    out, memory = c_uint64(), Memory(8)
    own = Handle.from_buffer_copy(handle_of(memory.address))
    opens = "cuIpcOpenMemHandle_v2"
    refused(fakecuda.INVALID_CONTEXT, opens, byref(out), own, c_uint(1))
    refused(fakecuda.INVALID_HANDLE, opens, byref(out), Handle(), c_uint(1))
    # The flag that peers' access is enabled must be given.
    refused(fakecuda.INVALID_VALUE, opens, byref(out), own, c_uint(0))
    refused(fakecuda.INVALID_VALUE, "cuIpcCloseMemHandle", c_uint64(memory.address))


@fake_cuda
def test_freed_memory_cannot_be_opened() -> None:
    memory = Memory(8)
    handle = handle_of(memory.address)
    memory.free()
    Memory(8)  # its descriptor may be another's now
    opener = Opener(handle)
    assert opener.says() == str(fakecuda.MAP_FAILED)
    opener.go_on()
    opener.end()


@fake_cuda
def test_freeing_what_another_process_has_open_is_noticed() -> None:
    memory = Memory(64)
    opener = Opener(handle_of(memory.address))
    assert opener.says() != f"True {NONSENSE}"
    memory.free()
    assert [remark.split(" of ")[1] for remark in fakecuda.remarks()] == [
        "memory that another process has open"
    ]
    opener.go_on()
    assert opener.says() == str(NONSENSE)  # what it finds there now
    for _ in range(2):
        opener.go_on()
    opener.end()


BOTH = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import fakecuda
fakecuda.load()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
out = ctypes.c_uint64()
def open_next():
    handle = ctypes.create_string_buffer(bytes.fromhex(sys.stdin.readline()), 64)
    given = Handle.from_buffer(handle)
    code = fakecuda._driver().cuIpcOpenMemHandle_v2(ctypes.byref(out), given, ctypes.c_uint(1))
    print(code, flush=True)
open_next()
first = ctypes.c_uint64(out.value)
open_next()
fakecuda.cu("cuIpcCloseMemHandle", first)
open_next()
"""


@fake_cuda
def test_an_address_that_comes_again_is_opened_once_the_earlier_memory_is_closed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BOTH.format(folder=str(Path(fakecuda.__file__).parent))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def opened(memory: Memory) -> int:
        process.stdin.write(handle_of(memory.address).hex() + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    memory = Memory(1 << 20)
    before = memory.address
    assert opened(memory) == fakecuda.SUCCESS
    memory.free()
    memory = Memory(1 << 20)
    assert memory.address == before
    assert opened(memory) == fakecuda.ALREADY_MAPPED
    assert opened(memory) == fakecuda.SUCCESS
    process.communicate(timeout=60)
    assert process.returncode == 0
