"""How long does it take to prove an algorithm?

Run: python bench/verification.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launch import RESULTS, write

from pycoll.algorithms import names
from pycoll.benchmark import metadata
from pycoll.verify import verify


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "verification.json")
    options = parser.parse_args()
    rows = []
    for name in names("allreduce"):
        for size in (2, 8, 64):
            seconds = min(verify(name, size).seconds for _ in range(3))
            rows.append({"algorithm": name, "ranks": size, "seconds": round(seconds, 4)})
            print(rows[-1])
    write(options.output, metadata.collect("none", 1, {}), rows)


if __name__ == "__main__":
    main()
