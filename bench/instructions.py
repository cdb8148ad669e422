"""How many instructions does a call take? This checkout beside another one, counted by callgrind.

Run: python bench/instructions.py --before ../other-checkout

Two ranks share memory, and one thread steps both, so a count is the same in each run and on a busy
machine, too. A count is of one all-reduce of both ranks: that of a run of many calls less that of a
run of few, by their difference. The result of every run is checked. Wants valgrind.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from before_after import commit
from launch import write

from pycoll.benchmark import metadata

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "instructions.json"
ALGORITHMS, SIZES = ("ring", "one_shot", "two_shot"), (64, 4096)
FEW, MANY = 100, 600
#: A tree's Python writes the programs of its two ranks so.
WRITES = """
import sys
from pathlib import Path
from pycoll.algorithms import get
from pycoll.program.lower import compile_program
for name in sys.argv[2:]:
    for rank in range(2):
        blob = compile_program(get(name), 2, rank).to_bytes()
        Path(sys.argv[1], f"{name}.{rank}").write_bytes(blob)
"""
FLAGS = (
    *("-std=gnu11", "-O3", "-pthread", "-w", "-D_GNU_SOURCE", '-DPC_VERSION_TEXT="bench"'),
    *(
        "-fwrapv",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fPIC",
        "-fvisibility=hidden",
        "-Inative",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = {"before": options.before.resolve(), "after": ROOT}
        programs = {which: build(tree, folder / which) for which, tree in trees.items()}
        for algorithm in ALGORITHMS:
            for nbytes in SIZES:
                found = {
                    which: per_call(program, algorithm, nbytes)
                    for which, program in programs.items()
                }
                ratio = found["after"] / found["before"]
                rows.append({"algorithm": algorithm, "nbytes": nbytes, **found, "ratio": ratio})
                counts = f"{found['before']:7.0f} {found['after']:7.0f}"
                print(f"{algorithm:9} {nbytes:5} B  {counts}  {ratio:.4f}")
    meta = metadata.collect("none", 2, {}) | {"before": commit(trees["before"])}
    write(options.output, meta, rows)


def build(tree: Path, folder: Path) -> Path:
    """Compile the driver with a tree's engine, without Python's part, and what it shall run."""
    folder.mkdir()
    program, native = folder / "instructions", tree / "native"
    # By the tree itself: the other one may have another version of the instruction set.
    subprocess.run([sys.executable, "-c", WRITES, folder, *ALGORITHMS], cwd=tree, check=True)
    sources = sorted(path for path in native.rglob("*.c") if path.parent.name != "python")
    driver = Path(__file__).with_suffix(".c")
    command = [os.environ.get("CC", "cc"), *FLAGS, *sources, driver, "-o", program, "-ldl"]
    subprocess.run(command, cwd=tree, check=True)
    return program


def per_call(program: Path, algorithm: str, nbytes: int) -> float:
    """Return the instructions of a call, of both ranks together."""
    few, many = (count(program, algorithm, nbytes, calls) for calls in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def count(program: Path, algorithm: str, nbytes: int, calls: int) -> int:
    """Return the instructions of a run."""
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [*tool, str(program), str(program.parent), algorithm, str(nbytes), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return int(found[1])


if __name__ == "__main__":
    main()
