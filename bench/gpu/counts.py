"""What does a collective's kernel do, counted where there is no GPU, by machine code and image?

Of machine code for compute capability 9.0: registers, and how many loads of different sources are
under way together. Of an all-reduce's image, for each block and tile: barriers, fences of system
scope and messages, and how many blocks there are. Nothing is timed.

Run: python bench/gpu/counts.py [--before FILE]; it wants NVRTC and NVIDIA's disassembler (make
cuda, and what tests/sass asks for) and g++ (tests/simt). `--before` takes in the rows of another
commit, where this file and tests/sass/listing.py were run beside that commit's source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[1])]
sys.path += [
    str(Path(__file__).resolve().parents[2] / "tests" / folder) for folder in (".", "sass", "simt")
]

import listing
import test_simt
from launch import RESULTS
from simulation import Case, write

from pycoll.algorithms import get
from pycoll.benchmark import metadata
from pycoll.dtypes import BY_NAME, INT32, ReduceOp
from pycoll.runtime.cuda import compile

NAME = "kernel-counts.json"
KERNELS = (("float32", "SUM"), ("float64", "SUM"), ("bfloat16", "SUM"), ("int8", "SUM"))
CAPABILITY = (9, 0)
ALGORITHMS = ("one_shot", "recursive_doubling", "two_shot", "ring")
SIZES = (2, 4, 8)
LENGTHS = (8, 4 << 10, 64 << 10, 1 << 20, 64 << 20)


def machine_code(dtype: str, op: str) -> dict[str, Any]:
    """Return what a kernel has become."""
    image = compile.build(BY_NAME[dtype], ReduceOp[op], CAPABILITY)
    name = compile.entry(BY_NAME[dtype], ReduceOp[op])
    code = listing.instructions(image)[name]
    other = compile.build(BY_NAME[dtype], ReduceOp[op], CAPABILITY, listing.FEW_PACKETS)
    few = listing.instructions(other)[name]
    opcodes = [line.split()[0] for line in code]
    return {
        "kernel": name,
        "registers": listing.usage(image)[name].registers,
        "shared_bytes": listing.usage(image)[name].shared,
        "instructions": len(code),
        "sources_in_flight_16B": listing.in_flight(code, r"LDG\.E\.128\.STRONG\.SYS", apart=True),
        "packets_in_flight": listing.packets_in_flight(code, few),
        "fences_in_code": sum(opcode.startswith("MEMBAR.ALL.SYS") for opcode in opcodes),
    }


def lines(driver: Path, name: str, size: int, packets: bool) -> dict[str, int]:
    """Return how many lines of each kind the block has that has most of them, in each tile."""
    case = Case(get(name), size, INT32, ReduceOp.SUM, (64 * size,), packets=packets)
    with tempfile.NamedTemporaryFile() as file:
        write(Path(file.name), [case])
        command = [str(driver), "count", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {kind: int(count) for kind, count in (line.split() for line in told.splitlines())}


def image(driver: Path, name: str, size: int, nbytes: int) -> dict[str, Any]:
    """Return what an all-reduce does in each block and tile."""
    try:
        from pycoll.cost.kernel import LL, Kernel  # which tests/cuda holds to the plans' shapes

        protocol, blocks = Kernel().shape(nbytes, 1, True)
        packets = protocol is LL
    except ImportError:  # before: a lane for each 64 KiB, doubled up to 4; packets of 16 KiB
        blocks = min(4, 1 << max(0, (nbytes - 1) // (64 << 10)).bit_length())
        packets = nbytes // (size if name in ("two_shot", "ring") else 1) // blocks <= 16 << 10
    found = lines(driver, name, size, packets)
    signals = found["credit"] + found["message"]
    return {
        "algorithm": name,
        "ranks": size,
        "nbytes": nbytes,
        "blocks": blocks,
        "packets": packets,
        "messages_received": found["message"],
        "reduce_copies": found.get("move"),
        "barriers_before_counts": found["sync"],
        # Before, each count that was raised had a fence, and the end of the block.
        "fences": found["fence"] if "fence" in found else signals - packets * found["credit"] + 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="rows of another commit")
    parser.add_argument("--output", type=Path, default=RESULTS / NAME)
    options = parser.parse_args()
    driver = test_simt.driver(test_simt.KERNELS[:1])
    rows = [machine_code(*kernel) for kernel in KERNELS]
    rows += [image(driver, a, n, b) for a in ALGORITHMS for n in SIZES for b in LENGTHS]
    result: dict[str, Any] = {"meta": metadata.collect("none", 1, {}, "none"), "rows": rows}
    if options.before:
        before = json.loads(options.before.read_text())
        result["before"] = {"commit": before["meta"]["commit"], "rows": before["rows"]}
        if "before" in before:
            result["before"]["before"] = before["before"]
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(*(f"{key} {value}" for key, value in row.items()), sep=", ")


if __name__ == "__main__":
    main()
