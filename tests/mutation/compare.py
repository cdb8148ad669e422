"""Shows what one run of the mutants found, or two of them side by side."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

FOUND = ("killed", "timed out")

Entry = dict[str, Any]


def read(path: Path) -> dict[int, Entry]:
    """Read results, by the mutants' numbers."""
    return {entry["number"]: entry for entry in json.loads(path.read_text())["mutants"]}


def show(path: Path) -> None:
    """Print how many were found in each area, and those that were not."""
    entries = read(path)
    outcomes = (*FOUND, "survived", "survived at the limit", "not reached", "lost", "error")
    print(f"{'':28}{'mutants':>9}" + "".join(f"{name:>{len(name) + 2}}" for name in outcomes))
    for area in [*sorted({entry["area"] for entry in entries.values()}), ""]:
        here = [entry for entry in entries.values() if area in ("", entry["area"])]
        count = Counter(entry["outcome"] for entry in here)
        cells = "".join(f"{count[name]:>{len(name) + 2}}" for name in outcomes)
        print(f"{area or 'all':28}{len(here):>9}{cells}")
    for entry in entries.values():
        if entry["outcome"] not in FOUND:
            print(line(entry))


def compare(before: Path, after: Path) -> bool:
    """Print both by area, and what was found only before; tell whether there is no such mutant."""
    old, new = read(before), read(after)
    print(f"{'':28}{'mutants':>9}{'before':>9}{'after':>9}")
    for area in [*sorted({entry["area"] for entry in old.values()}), ""]:
        here = [n for n, entry in old.items() if area in ("", entry["area"])]
        was = sum(old[n]["outcome"] in FOUND for n in here)
        now = sum(n in new and new[n]["outcome"] in FOUND for n in here)
        print(f"{area or 'all':28}{len(here):>9}{was:>9}{now:>9}")
    missed = [
        n
        for n, entry in old.items()
        if entry["outcome"] in FOUND and (n not in new or new[n]["outcome"] not in FOUND)
    ]
    print(f"\nfound before and not after: {len(missed)}")
    for n in missed:
        print(line(old[n]))
        print(f"      after: {new[n]['outcome'] if n in new else 'has no result'}")
    return not missed


def line(entry: Entry) -> str:
    """Describe a mutant and how it ended."""
    change = f"{entry['original']}  ->  {entry['mutated'] or '(nothing)'}"
    by = f" by {entry['test']}" if entry.get("test") else ""
    where = f"{entry['file']}:{entry['line']} {entry['function']}"
    return f"{entry['number']:4} {entry['outcome']}{by}\n      {where}\n      {change}"
