"""Draw a result: the time against the message size, one line per library.

Run: python bench/plot.py bench/results/allreduce-2.json picture.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pycoll.benchmark.plot import plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    rows = result["rows"]
    for row in rows:  # one line per MPI, not one for "mpi4py" under whichever
        if row["library"] == "mpi4py" and "mpi" in row:
            row["library"] = row["mpi"]
    plot(rows, options.picture, result["meta"])


if __name__ == "__main__":
    main()
