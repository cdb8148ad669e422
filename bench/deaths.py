"""Do those who live go on, whoever dies and wherever the network falls apart?

Random deaths, and random partitions of hosts that are network namespaces; each seed is a job of
which every survivor must end in the same communicator with right sums, or be told that it is out.

Run: python bench/deaths.py [--deaths 500] [--partitions 50] [--seed 1]
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from launch import ROOT, arguments, write

METHOD = "each seed is a job (tests/faults/random_deaths.py, tests/net/partitions.py)"

sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "faults"), str(ROOT / "tests" / "net")]


def main() -> None:
    parser = arguments(__doc__, "shrink-deaths.json")
    parser.add_argument("--deaths", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from pycoll.benchmark import metadata

    shm = set(os.listdir("/dev/shm"))
    rows = [*deaths(options.deaths, options.seed), *parts(options.partitions, options.seed)]
    left = set(os.listdir("/dev/shm")) - shm
    assert not left, f"left in /dev/shm: {left}"
    summary: Counter[str] = Counter()
    for row in rows:
        summary[f"jobs, {row['what']}"] += 1
        summary[f"deaths, {row['transport']}"] += row["deaths"]
        summary["ranks that went on"] += row["went_on"]
        summary["ranks that were told to be out"] += row["out"]
    meta = metadata.collect("pycoll.spawn", 8, {}) | {"seed": options.seed, "method": METHOD}
    write(options.output, meta, rows, summary=summary)
    print(json.dumps(summary, indent=1))


def deaths(count: int, seed: int) -> list[dict[str, Any]]:
    """Run seeds until so many ranks have died."""
    from random_deaths import tell

    rows: list[dict[str, Any]] = []
    while sum(row["deaths"] for row in rows) < count:
        story, shrinks = tell(seed + len(rows))
        rows.append(
            {
                "what": "deaths",
                "transport": story.transport,
                "ranks": story.size,
                "of": story.how,
                "deaths": len(story.fates),
                "of_rank_0": 0 in story.fates,
                "in_shrink": sum(fate.when == "shrink" for fate in story.fates.values()),
                "shrinks": shrinks,
                "went_on": story.size - len(story.fates),
                "out": 0,
            }
        )
    return rows


def parts(count: int, seed: int) -> list[dict[str, Any]]:
    """Run so many partitions."""
    from partitions import tell

    rows = []
    for number in range(seed, seed + count):
        story, became = tell(number)
        rows.append(
            {
                "what": "partitions",
                "transport": "tcp",
                "ranks": story.hosts * story.each,
                "hosts": story.hosts,
                "hosts_away": len(story.away),
                "heals_after_s": story.heals,
                "deaths": int(story.killed is not None),
                "went_on": became["done"],
                "out": became["LostError"],
            }
        )
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
