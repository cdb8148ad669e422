"""The accesses to a multicast address: which instructions of a switch they have become."""

from __future__ import annotations

import re

import pytest
from listing import alias_fences, breaches, instructions

from pycoll.dtypes import DTYPES, DType, ReduceOp
from pycoll.runtime.cuda import compile

# NVRTC takes minutes for a kernel, and more where the machine does other things too.
pytestmark = pytest.mark.timeout(1200)

SWITCHES = ((9, 0), (10, 0))  #: compute capabilities of GPUs that NVSwitch joins
SUM, PROD, MIN, MAX, AVG = ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG
INTEGERS = {"int32": (32, "S32"), "uint32": (32, ""), "int64": (64, "S64"), "uint64": (64, "")}
#: What folds a unit of 16 bytes, by dtype and op: the opcode up to its order, and how often.
FOLDS = {
    **{
        (name, op): (rf"LDGMC\.E\.ADD\.{bits}", 128 // bits)
        for name, (bits, _) in INTEGERS.items()
        for op in (SUM, AVG)
    },
    **{
        (name, op): (rf"LDGMC\.E\.{op.name}\.{sign or rf'(?:U?{bits})'}", 128 // bits)
        for name, (bits, sign) in INTEGERS.items()
        for op in (MIN, MAX)
    },
    **{("float64", op): (r"LDGMC\.E\.ADD\.F64\.RN", 2) for op in (SUM, AVG)},
    **{("float32", op): (r"LDGMC\.E\.ADD\.F32x4\.RN", 1) for op in (SUM, AVG)},
    **{("float16", op): (r"LDGMC\.E\.(?:F32ADD|HPADD)\.F16x8\.RN", 1) for op in (SUM, AVG)},
    **{("bfloat16", op): (r"LDGMC\.E\.(?:F32ADD|HPADD)\.BF16x8\.RN", 1) for op in (SUM, AVG)},
}


def opcodes(text: str, capability: tuple[int, int]) -> dict[str, list[str]]:
    image = compile.compile_text(text, f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    return {name: [i.split()[0] for i in lines] for name, lines in instructions(image).items()}


@pytest.mark.parametrize("capability", SWITCHES)
def test_what_the_switch_folds(kernel, capability) -> None:
    """Of every dtype and op what PC_SWITCH_FOLDS says, at system scope, and no other."""
    rows = "\n".join(
        f"LOAD({dtype.code}u, {op.value}u, {dtype.name}_{op.name})"
        for dtype in DTYPES
        for op in ReduceOp
    )
    found = opcodes(
        f"""#include "gpu/kernel/target_cuda.h"
        #include "gpu/kernel/span.h"
        #include "gpu/kernel/kernel.h"
        #define LOAD(dtype, op, name) \\
            extern "C" __global__ void name(const char *from, pc_vector *to) {{ \\
                typedef pc__switch<pc__folding<dtype, op>> through; \\
                if (through::folds) pc__store16(to, through::load(from)); }}
        {rows}""",
        capability,
    )
    for dtype in DTYPES:
        for op in ReduceOp:
            loads = [o for o in found[f"{dtype.name}_{op.name}"] if o.startswith("LDGMC")]
            name, count = FOLDS.get((dtype.name, op), ("", 0))
            wanted = rf"{name}\.STRONG\.SYS"
            assert len(loads) == count, (dtype.name, op, loads)
            assert all(re.fullmatch(wanted, load) for load in loads), (dtype.name, op, loads)


@pytest.mark.parametrize("capability", SWITCHES)
def test_a_store_to_all_is_one_of_16_bytes(kernel, capability) -> None:
    text = """#include "gpu/kernel/target_cuda.h"
        extern "C" __global__ void store(char *to, uint64_t x) {
            pc__multimem_store16(to, pc_vector{x, ~x});
        }
        extern "C" __global__ void fence(uint64_t *to) {
            pc__store_relaxed64(to, 1);
            pc__fence_alias();
            pc__store_relaxed64(to, 2);
        }"""
    code = opcodes(text, capability)
    # To the GPU it is a store as any: the address says who gets it.
    assert [o for o in code["store"] if o.startswith("ST")] == ["STG.E.128.STRONG.SYS"]
    first, last = (k for k, o in enumerate(code["fence"]) if o.startswith("STG"))
    (fence,) = alias_fences(code["fence"])
    assert first < fence < last


def _kernel(kernel, dtype: DType, op: ReduceOp, capability: tuple[int, int]) -> list[str]:
    code = instructions(kernel((dtype, op, capability)))
    return [i.split()[0] for i in code[compile.entry(dtype, op)]]


BY_NAME = {dtype.name: dtype for dtype in DTYPES}
#: Kernels that test_sass compiles, too; the last ones of GPUs that no NVSwitch joins.
KEYS = [
    *((BY_NAME[name], SUM, (9, 0)) for name in ("int32", "float32", "int8")),
    *((BY_NAME["float32"], SUM, capability) for capability in ((10, 0), (8, 0), (12, 0))),
]


def name(key) -> str:
    dtype, op, (major, minor) = key
    return f"{dtype.name} {op.name.lower()} sm_{major}{minor}"


@pytest.mark.parametrize("key", KEYS, ids=name)
def test_kernels_of_gpus_that_hang_on_switches_have_the_multicast_form(kernel, key) -> None:
    """With two alias fences: one behind what a block hears, one before what it says."""
    dtype, op, capability = key
    code = _kernel(kernel, dtype, op, capability)
    has = capability in SWITCHES
    assert len(alias_fences(code)) == (2 if has else 0)
    assert any(o.startswith("LDGMC") for o in code) == (has and (dtype.name, op) in FOLDS)


def test_a_module_says_whether_it_has_them(kernel) -> None:
    """An NVRTC before 12.2 leaves them out, and so does any for other GPUs."""
    older = "-U__CUDACC_VER_MINOR__", "-D__CUDACC_VER_MINOR__=1"
    assert compile.multimem(compile.build_transfer((9, 0)))
    assert not compile.multimem(compile.build_transfer((9, 0), *older))
    assert not compile.multimem(compile.build_transfer((8, 0)))
    assert compile.multimem(compile.build(BY_NAME["int32"], SUM, (9, 0)))


@pytest.mark.parametrize(
    "key",
    [(BY_NAME[name], AVG, (10, 0)) for name in ("float64", "float32", "bfloat16", "int64")],
    ids=name,
)
def test_kernels_that_need_the_most_registers(kernel, key) -> None:
    """Averages on Blackwell: they have some for the multicast form, too."""
    assert list(breaches(kernel(key), listed=False)) == []
