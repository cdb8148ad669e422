"""What a kernel has become: its machine instructions and what it takes of a multiprocessor."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Registers of each of 256 threads: three such blocks fit into a multiprocessor, and one fits
#: beside a block of 256 threads that takes 168 of them.
BUDGET = 80

#: The same of GPUs without NVLink, from (12, 0) on: two such blocks fit.
BUDGET_ALONE = 88

#: Before this the disassembler knows no GPU.
FIRST_LISTED = (7, 5)

_INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", re.M)
_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.M)
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class Usage(NamedTuple):
    """What a thread takes, in registers and bytes; what a block takes."""

    registers: int
    stack: int
    shared: int
    local: int


@functools.cache
def tool(name: str) -> str | None:
    """Return the path of one of NVIDIA's tools: beside this Python, or on PATH."""
    for folder in sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin")):
        if (folder / name).exists():
            return str(folder / name)
    return shutil.which(name)


def lack() -> str:
    """Say what is missing to look into kernels; empty if nothing."""
    missing = [name for name in ("cuobjdump", "nvdisasm") if tool(name) is None]
    return f"{' and '.join(missing)} not found: {_INSTALL}" if missing else ""


def usage(image: bytes) -> dict[str, Usage]:
    """Return what each kernel of a module takes."""
    return {
        name: Usage(*map(int, numbers))
        for name, *numbers in _USAGE.findall(_dump(image, "-res-usage"))
    }


def instructions(image: bytes) -> dict[str, list[str]]:
    """Return each kernel's instructions in the order of memory, as `OPCODE operands`."""
    parts = _FUNCTION.split(_dump(image, "-sass"))
    return {
        name: [opcode + operands for opcode, operands in _INSTRUCTION.findall(text)]
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


_REGISTER = re.compile(r"\bR(\d+)\b")


def in_flight(code: list[str], opcode: str, apart: bool = False) -> int:
    """Return how many loads at most are under way together, as `flights` counts them."""
    return max(flights(code, opcode, apart), default=0)


def flights(code: list[str], opcode: str, apart: bool = False) -> list[int]:
    """Return how many loads are under way together each time: nothing in between reads one.

    Args:
        code: A kernel's instructions.
        opcode: A pattern of the loads that are counted.
        apart: Only those count whose address is a register's: one for each source.
    """
    found, pending, count = list[int](), set[int](), 0
    for line in code:
        name, _, operands = line.partition(" ")
        numbers = [int(n) for n in _REGISTER.findall(operands)]
        loads = re.fullmatch(opcode, name) is not None
        if pending.intersection(numbers[1:] if loads else numbers):
            found.append(count)
            pending, count = set(), 0
        if loads:
            width = 4 if ".128" in name else 2 if ".64" in name else 1
            pending.update(range(numbers[0], numbers[0] + width))
            count += not (apart and "+0x" in operands)
    return [*found, count]


#: Of NVRTC: a thread waits for the packets of few sources at a time.
FEW_PACKETS = "-DPC_TARGET_LL_PACKETS=4"


def packets_in_flight(code: list[str], few: list[str]) -> int:
    """Return how many LL packets of different sources a thread loads together.

    They look like other loads of 16 bytes, so the code is compared with that of a kernel which has
    half as many.

    Args:
        code: A kernel's instructions.
        few: The same kernel's, compiled with `FEW_PACKETS`.
    """
    opcode = r"LDG\.E\.128\.STRONG\.SYS"
    more = Counter(flights(code, opcode, apart=True)) - Counter(flights(few, opcode, apart=True))
    return max(more, default=0)


def budget(capability: tuple[int, int]) -> int:
    """Return how many registers a thread may take on a GPU."""
    return BUDGET_ALONE if capability >= (12, 0) else BUDGET


def breaches(
    image: bytes, listed: bool = True, contracts: bool = True, registers: int = BUDGET
) -> Iterator[str]:
    """Yield every way in which the kernels of a module are not as they are meant to be.

    Args:
        image: The module.
        listed: Its instructions are looked at, too.
        contracts: Products and sums in one instruction are looked for.
        registers: That a thread may take.
    """
    for name, taken in usage(image).items():
        if taken.registers > registers:
            yield f"{name} takes {taken.registers} registers, want at most {registers}"
        if taken.stack or taken.local:
            yield f"{name} has a stack of {taken.stack} bytes, and {taken.local} of local memory"
    if not listed:
        return
    for name, code in instructions(image).items():
        opcodes = [line.split()[0] for line in code]
        for kind in ("LDL", "STL"):
            if any(opcode.startswith(kind) for opcode in opcodes):
                yield f"{name} accesses local memory ({kind})"
        for kind in ("LDG", "STG"):
            if not any(re.fullmatch(rf"{kind}\.E\.128\.STRONG\.SYS", opcode) for opcode in opcodes):
                yield f"{name} has no {kind} of 16 bytes that other GPUs see"
        if contracts and any(re.match(r"[FD]FMA", opcode) for opcode in opcodes):
            yield f"{name} contracts a product and a sum (FMA)"
        yield from _unordered(name, opcodes)


def alias_fences(opcodes: list[str]) -> list[int]:
    """Return where the fences of `fence.proxy.alias` are, by their widest instruction.

    From sm_90 on the driver says which of two is needed, in a bank of constants.
    """
    shape = ["MEMBAR.SC.GPU", "BRA.U", "MEMBAR.SC.SYS", "CCTL.IVALL"]
    return [k for k in range(2, len(opcodes)) if opcodes[k - 2 : k + 2] == shape]


def system_fences(opcodes: list[str]) -> list[int]:
    """Return where the fences of system scope are, but for those between addresses."""
    alias = alias_fences(opcodes)
    found = [k for k, o in enumerate(opcodes) if re.match(r"MEMBAR\.\w+\.SYS", o)]
    return [k for k in found if k not in alias]


_SECTION = re.compile(r"^\.text\.(\w+):")
_PLACE = re.compile(r'//## File "[^"]*?([\w.]+/[\w.]+)", line (\d+)')


def fences_by_place(image: bytes, place: Callable[[str, int], str]) -> dict[str, Counter[str]]:
    """Return for each kernel how many fences of system scope, of any kind, are of which function.

    Args:
        image: A module that was compiled with line numbers.
        place: Names the function of a file's line.
    """
    disassembler = tool("nvdisasm")
    assert disassembler is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [disassembler, "-gi", "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Counter[str]] = {}
    kernel, chain, listed = "", list[tuple[str, int]](), False
    for line in text.splitlines():
        if section := _SECTION.match(line):
            kernel = section[1]
        elif at := _PLACE.search(line):  # where it is, where that is inlined, and so on
            chain = [*(chain if listed else []), (at[1], int(at[2]))]
        elif re.search(r"\bMEMBAR\.\w+\.SYS\b", line):
            whose = next(at for at in chain if not at[0].endswith("/target_cuda.h"))
            found.setdefault(kernel, Counter())[place(*whose)] += 1
        listed = _PLACE.search(line) is not None
    return found


def _unordered(name: str, opcodes: list[str]) -> Iterator[str]:
    """Look for counts that are raised before what they stand for, or read after it."""
    alias, release = alias_fences(opcodes), system_fences(opcodes)
    acquire = [k for k, o in enumerate(opcodes) if o.startswith("CCTL.IVALL")]
    # A fence between two addresses of the same memory orders them by itself.
    acquire = [k for k in acquire if k - 1 not in alias]
    if not release:
        yield f"{name} releases nothing to other GPUs (MEMBAR.SYS)"
    if not acquire:
        yield f"{name} acquires nothing from other GPUs (CCTL.IVALL)"
    for k in release:
        if not any(re.match(r"STG?\.E.*STRONG\.SYS", o) for o in opcodes[k : k + 32]):
            yield f"{name} has a fence at {k} that no store of a count follows"
    for k in acquire:  # a load that acquires, or a fence, which does both
        before = opcodes[max(0, k - 12) : k]
        if not any(re.match(r"LDG?\.E.*STRONG\.|MEMBAR\.ALL\.SYS", o) for o in before):
            yield f"{name} forgets L1 at {k}, but no load of a count comes before that"


def _dump(image: bytes, what: str) -> str:
    program, disassembler = tool("cuobjdump"), tool("nvdisasm")
    assert program is not None
    assert disassembler is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run(
            [program, what, file.name],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": str(Path(disassembler).parent)},
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
