"""Should a slot be stored through the cache or past it?

It depends on where the host runs the two cores, and that changes; see
docs/decisions/0006-slots-past-the-cache.md.

Run: python bench/slot_stores.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from launch import RESULTS, write

from pycoll.benchmark import metadata


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "slot-stores.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        binary = str(Path(folder, "slot_stores"))
        source = str(Path(__file__).with_suffix(".c"))
        flags = ["-O2", "-mavx2", "-std=gnu11", "-pthread"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", binary, source], check=True)
        done = subprocess.run([binary], stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        form = "past the cache" if row["past_the_cache"] else "cached"
        times = [f"{row[k + '_us']:8.2f} us {k}" for k in ("whole", "store", "fold")]
        print(f"{row['nbytes']:>8} {form:<15}", *times)
    write(options.output, metadata.collect("threads", 2, {}), rows)


if __name__ == "__main__":
    main()
