"""Fences of system scope: those of the source are in the kernels, each once, and no other.

A fence more costs each message half a microsecond; a fence less loses data on a GPU alone, as hosts
order stores by themselves. Where a fence comes from is told by the line numbers of a module that is
compiled with them; that all other kernels have as many says that it is the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from unittest import mock

import pytest
from listing import fences_by_place, instructions, system_fences

from pycoll.dtypes import BY_NAME, DTYPES, ReduceOp
from pycoll.runtime.cuda import compile

# NVRTC takes minutes for a kernel, and more where the machine does other things too.
pytestmark = pytest.mark.timeout(1200)

HOPPER = (9, 0)
KEY = (BY_NAME["float32"], ReduceOp.SUM, HOPPER)
LINES = "--generate-line-info"

#: How often a kernel has the fence of a function. It is the caller's where it is inlined.
KERNEL = {
    "pc__publish": 2,  # FILL's message and DONE, behind all that was stored (PC_FLAG_FENCE)
    "pc__clean": 1,  # the zeros in slots of packets, before their numbers begin anew
    "pc__put": 1,  # an entry for the proxy, which finds what the kernel has stored
    "pc__tell_ready": 1,  # READY, behind the line that says where arrays are
    "pc__kernel": 1,  # the end of a launch that the host, or the proxy, has to look at
    "pc__apart": 1,  # behind READY, between the two addresses of the heaps
    "pc__leave_multicast": 1,  # before DONE, likewise
}
TRANSFER = {
    "pc__transfer_put": 1,  # an entry for the proxy
    "pc__transfer_signal": 1,  # a message or a credit
    "pc__transfers": 1,  # the end of a launch
}
#: The reason why a kernel gives up, before the code that says that there is one; it is inlined
#: where something is waited for, and as often as the compiler likes.
FAILURE = {"pc__give_up", "pc__transfer_give_up"}


def function_at(file: str, line: int) -> str:
    """Return the name of the function in which a line of the kernels' source stands."""
    texts = compile._sources()
    name = next((n for n in texts if n.endswith(file)), None)
    if name is None:  # the entry, whose name NVRTC is told without a folder
        return file
    for text in reversed(texts[name].splitlines()[:line]):
        if (found := re.match(r"[A-Za-z].*?\b(pc__\w+)\(", text)) and not text.endswith(";"):
            return found[1]
    raise AssertionError(f"{file}:{line} is in no function")


def fences(image: bytes) -> dict[str, Counter[str]]:
    found = fences_by_place(image, function_at)
    for counts in found.values():
        assert sum(counts.pop(name, 0) for name in FAILURE) >= 1
    return found


def count(image: bytes) -> set[int]:
    code = instructions(image)
    return {len(system_fences([line.split()[0] for line in lines])) for lines in code.values()}


def test_each_fence_of_the_source_is_there_once(kernel):
    found = fences(compile.build(*KEY, LINES))
    assert found == {
        compile.entry(*KEY[:2]): Counter(KERNEL),
        compile.fused_entry(*KEY[:2]): Counter(KERNEL),
    }
    assert fences(compile.build_transfer(HOPPER, LINES)) == {compile.TRANSFER: Counter(TRANSFER)}


@pytest.mark.parametrize("key", [(dtype, ReduceOp.SUM, HOPPER) for dtype in DTYPES], ids=str)
def test_every_kernel_has_as_many(kernel, key):
    assert count(kernel(key)) == count(kernel(KEY))


@pytest.mark.parametrize("times", [0, 2])
def test_a_fence_less_or_more_is_seen(kernel, times):
    name, text = "gpu/kernel/packets.h", "    pc__fence(call->shared); /* the peer's next packets"
    sources = dict(compile._sources())
    assert sources[name].count(text) == 1
    instead = text.replace("pc__fence(call->shared);", "pc__fence(call->shared); " * times)
    sources[name] = sources[name].replace(text, instead)
    with mock.patch.object(compile, "_sources", return_value=sources):
        found = fences(compile.build(*KEY, LINES))
    assert found
    assert all(counts == Counter(KERNEL | {"pc__clean": times}) for counts in found.values())
