"""Every kernel compiles, and is what was meant: small, without a stack, ordered, not contracted."""

from __future__ import annotations

import pytest
from listing import (
    BUDGET,
    FEW_PACKETS,
    FIRST_LISTED,
    breaches,
    budget,
    in_flight,
    instructions,
    packets_in_flight,
    usage,
)

from pycoll.dtypes import BY_NAME, DTYPES, ReduceOp
from pycoll.runtime.cuda import compile

CAPABILITIES = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
FAMILIES = (("float32", ReduceOp.SUM), ("bfloat16", ReduceOp.MAX))  #: for every GPU
HOPPER = (9, 0)

SOME = [
    (dtype, op, capability)
    for dtype in DTYPES
    for op in ReduceOp
    for capability in CAPABILITIES
    if (dtype.name, op) in FAMILIES and capability != HOPPER
]
EVERY = [(dtype, op, HOPPER) for dtype in DTYPES for op in ReduceOp]


def name(key) -> str:
    dtype, op, (major, minor) = key
    return f"{dtype.name} {op.name.lower()} sm_{major}{minor}"


@pytest.mark.parametrize("key", EVERY + SOME, ids=name)
def test_kernel_is_what_was_meant(kernel, key):
    dtype, op, capability = key
    image = kernel(key)
    # Of an average only the sum is the kernel's own; a division consists of contractions.
    contracts = op in (ReduceOp.SUM, ReduceOp.PROD)
    # All instructions of one kernel of each dtype: what else they share is the same text.
    listed = capability >= FIRST_LISTED and (op is ReduceOp.SUM or capability != HOPPER)
    assert list(breaches(image, listed, contracts, budget(capability))) == []
    assert set(usage(image)) == {compile.entry(dtype, op), compile.fused_entry(dtype, op)}


@pytest.mark.parametrize(
    ("key", "packets"),
    [
        ((BY_NAME[dtype], ReduceOp.SUM, HOPPER), packets)
        for dtype, packets in (("float32", 8), ("float64", 6), ("bfloat16", 8))
    ],
    ids=lambda given: name(given) if isinstance(given, tuple) else "",
)
def test_loads_of_many_sources_are_in_flight_together(kernel, key, packets):
    """Eight peers cost the way to memory once: of 16 bytes each, or of an LL packet.

    Where words have 8 bytes, three peers: of two packets.
    """
    code = instructions(kernel(key))[compile.entry(*key[:2])]
    few = instructions(compile.build(*key, FEW_PACKETS))[compile.entry(*key[:2])]
    assert in_flight(code, r"LDG\.E\.128\.STRONG\.SYS", apart=True) == 8
    assert packets_in_flight(code, few) == packets


@pytest.mark.parametrize("capability", [c for c in CAPABILITIES if c >= FIRST_LISTED], ids=str)
def test_a_packet_is_one_access(kernel, capability):
    """Also where NVRTC is too old for a type of 128 bits, and a vector takes its place."""
    text = """#include "gpu/kernel/target_cuda.h"
        extern "C" __global__ void packet(const pc_vector *from, pc_vector *to) {
            pc__store_packet(to, pc__load_packet(from));
        }
        extern "C" __global__ void vector(const pc_vector *from, pc_vector *to) {
            pc__store16(to, pc__load16(from));
        }"""
    image = compile.compile_text(text, f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    for lines in instructions(image).values():
        accesses = [i.split()[0] for i in lines if i.startswith(("LDG", "STG", "LD.", "ST."))]
        assert accesses == ["LDG.E.128.STRONG.SYS", "STG.E.128.STRONG.SYS"]


@pytest.mark.parametrize("key", [(c,) for c in CAPABILITIES], ids=str)
def test_the_kernel_of_messages_is_what_was_meant(kernel, key):
    image = kernel(key)
    assert list(breaches(image, key[0] >= FIRST_LISTED)) == []
    assert set(usage(image)) == {compile.TRANSFER}


#: What kernels must not be: how, of which the checks must say what.
BAD = {
    "a table of its own": (
        """extern "C" __global__ void bad(const uint64_t *in, uint64_t *out, uint32_t n) {
            const uint64_t *from[8];
            for (uint32_t s = 0; s < n; s++)
                from[s] = in + (s * in[s]);
            for (uint32_t s = 0; s < n; s++)
                out[s] = *from[out[s]];
        }""",
        ("stack of", "local memory (LDL)", "local memory (STL)"),
    ),
    "contraction": (
        """extern "C" __global__ void bad(const float *in, float *out) {
            *out = in[0] * in[1] + in[2];
        }""",
        ("contracts a product and a sum",),
    ),
    "narrow": (
        """extern "C" __global__ void bad(const uint64_t *in, uint64_t *out) {
            pc__store_relaxed64(out, pc__load_relaxed64(in));
        }""",
        ("no LDG of 16 bytes", "no STG of 16 bytes"),
    ),
    "weak": (
        """extern "C" __global__ void bad(const uint64_t *in, uint64_t *out) {
            while (pc__load_relaxed64(in) == 0)
                continue;
            *out = 1;
        }""",
        ("releases nothing", "acquires nothing"),
    ),
    "a fence for nothing": (
        """extern "C" __global__ void bad(uint64_t *out) {
            out[threadIdx.x] = 1;
            __threadfence_system();
        }""",
        ("a fence at",),
    ),
    "large": (
        """extern "C" __global__ void __launch_bounds__(256, 1)
        bad(const volatile float *in, float *out) {
            float x[96];
            _Pragma("unroll") for (int k = 0; k < 96; k++)
                x[k] = in[k * 1024];
            __syncthreads();
            _Pragma("unroll") for (int k = 0; k < 96; k++)
                out[k * 1024] = x[(k + 7) % 96] * x[95 - k];
        }""",
        (f"registers, want at most {BUDGET}",),
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_kernel_is_seen(kernel, how):
    text, wanted = BAD[how]
    contracted = ("--fmad=true",) if how == "contraction" else ()
    image = compile.compile_text(
        f'#include "gpu/kernel/target_cuda.h"\n{text}', "--gpu-architecture=sm_90", *contracted
    )
    found = list(breaches(image))
    for breach in wanted:
        assert any(breach in text for text in found), found


@pytest.mark.parametrize("capability", [c for c in CAPABILITIES if c >= FIRST_LISTED])
def test_counts_are_released_and_acquired_at_system_scope(kernel, capability):
    """What SIMT cannot tell: which instructions the target's inline PTX has become."""
    text = """#include "gpu/kernel/target_cuda.h"
        extern "C" __global__ void release(uint64_t *to) { pc__store_release(to, 1); }
        extern "C" __global__ void acquire(const uint64_t *from, uint64_t *to) {
            pc__store_relaxed64(to, pc__load_acquire(from));
        }"""
    image = compile.compile_text(text, f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    code = {name: [i.split()[0] for i in lines] for name, lines in instructions(image).items()}
    release, acquire = code["release"], code["acquire"]
    fence = next(k for k, i in enumerate(release) if i.startswith("MEMBAR") and i.endswith(".SYS"))
    assert "STG.E.64.STRONG.SYS" in release[fence:]
    load = acquire.index("LDG.E.64.STRONG.SYS")
    assert "CCTL.IVALL" in acquire[load:]
