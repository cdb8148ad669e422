"""``python -m pycoll.verify.certify``: prove built-ins and write their certificates.

Those are proved whose certificate is not of this source; the others keep theirs. All are proved for
flat placements. An algorithm that looks at the placement and refuses a flat one has no certificate:
it is proved when a job has another.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from pycoll.algorithms import BUILTIN, Algorithm, get
from pycoll.errors import ScheduleError
from pycoll.program import slots
from pycoll.program.lower import Facts, facts_of
from pycoll.schedule import NotDirect, ScheduleBuilder, asks_placement, schedule
from pycoll.schedule.trace import forget
from pycoll.verify import beyond
from pycoll.verify.algorithm import verify
from pycoll.verify.beyond import row_of
from pycoll.verify.certificates import FILE, Certificate, Form, digest, entry_of, forms
from pycoll.verify.gate import TooLargeError
from pycoll.verify.gate import prove as prove_record
from pycoll.verify.sources import files_of

SIZES = (1, 64)
BEYOND = beyond.SIZES
SLOTS_BEYOND = slots.SLOTS  #: as the engine has
MOST = 1 << 18  #: chunks that are moved where each rank is proved by itself: seconds
SLOTS = 2  #: the fewest that the engine uses; a proof holds with more


def prove(task: tuple[str, str, int, Form]) -> Certificate | None:
    """Prove one form at one size; None where there is no such form."""
    collective, name, size, form = task
    algorithm = get(name, collective)
    try:
        verify(algorithm, size, slots=SLOTS, direct=form.direct, average=form.average, whole=True)
    except NotDirect:
        return None
    except ScheduleError:
        if refuses_flat(algorithm, size):
            return None
        raise
    return Certificate(facts_of(schedule(algorithm, size)), asks_placement(algorithm, size))


def refuses_flat(algorithm: Algorithm, size: int) -> bool:
    """Tell whether a rank asks for the placement and raises at what it sees."""
    for rank in range(size):
        b = ScheduleBuilder(size, rank, algorithm.collective)
        try:
            algorithm(b)
        except ScheduleError:
            return b.asked_placement
    return False


def prove_beyond(task: tuple[str, str, int, bool]) -> list[Any] | None:
    """Prove a staged form at one of the sizes beyond; None where that takes too long."""
    collective, name, size, average = task
    algorithm = get(name, collective)
    try:
        record = prove_record(algorithm, size, SLOTS_BEYOND, Form(False, average), limit=MOST)
    except TooLargeError:
        return None
    except ScheduleError:
        if refuses_flat(algorithm, size):
            return None
        raise
    finally:
        forget()  # of thousands of ranks a few fill the memory
    return row_of(record)


def certify(
    algorithms: Sequence[Algorithm],
    sizes: tuple[int, int],
    workers: int | None = None,
    beyond: Sequence[int] = (),
) -> dict[str, dict[str, Any]]:
    """Prove built-ins at all sizes; an error ends it, with its counterexample."""
    tasks, further = list(_tasks(algorithms, sizes)), list(_further(algorithms, beyond))
    with ProcessPoolExecutor(workers, initializer=_quiet) as pool:
        # The longest proofs first, so that no worker is left alone with them at the end.
        further.sort(key=lambda task: -task[2])
        tasks.sort(key=lambda task: -task[2])
        rows = dict(zip(further, pool.map(prove_beyond, further), strict=True))
        proved = dict(zip(tasks, pool.map(prove, tasks, chunksize=4), strict=True))
    table: dict[str, dict[str, Any]] = {}
    for a in algorithms:
        found_forms, known = {}, dict[int, Certificate]()
        for form in forms(a):
            found = {}
            for n in range(sizes[0], sizes[1] + 1):
                if one := proved[a.collective.name, a.name, n, form]:
                    found[n] = one
            if found:
                found_forms[str(form)] = spans(list(found))
            known.update(found)
        files = files_of(a)
        table[key(a)] = {
            "digest": digest(a, files),
            "files": files,
            "slots": SLOTS,
            "asks": any(one.asks for one in known.values()),
            "forms": found_forms,
            "facts": runs({n: one.facts for n, one in sorted(known.items())}),
            "beyond": {
                "slots": SLOTS_BEYOND,
                **{
                    kind: {
                        str(size): row
                        for (*of, size, average), row in sorted(rows.items())
                        if of == [a.collective.name, a.name] and row and average == averages
                    }
                    for kind, averages in (("sum", False), ("average", True))
                },
            },
        }
    return table


def runs(facts: dict[int, Facts]) -> list[tuple[int | bool, ...]]:
    """Write facts by ascending sizes as rows of the sizes from and to which they hold."""
    rows: list[tuple[int | bool, ...]] = []
    for n, one in facts.items():
        if rows and rows[-1][1] == n - 1 and rows[-1][2:] == tuple(one):
            rows[-1] = (rows[-1][0], n, *one)
        else:
            rows.append((n, n, *one))
    return rows


def spans(sizes: list[int]) -> list[tuple[int, int]]:
    """Write ascending sizes as closed intervals."""
    spans: list[tuple[int, int]] = []
    for n in sizes:
        if spans and spans[-1][1] == n - 1:
            spans[-1] = (spans[-1][0], n)
        else:
            spans.append((n, n))
    return spans


def key(algorithm: Algorithm) -> str:
    """Return by what a certificate is found."""
    return f"{algorithm.collective.name}/{algorithm.name}"


def _tasks(
    algorithms: Sequence[Algorithm], sizes: tuple[int, int]
) -> Iterator[tuple[str, str, int, Form]]:
    for a in algorithms:
        for size in range(sizes[0], sizes[1] + 1):
            for form in forms(a):
                yield a.collective.name, a.name, size, form


def _further(
    algorithms: Sequence[Algorithm], sizes: Sequence[int]
) -> Iterator[tuple[str, str, int, bool]]:
    for a in algorithms:
        for size in sizes:
            yield a.collective.name, a.name, size, False
            if a.collective.reduces:
                yield a.collective.name, a.name, size, True


def _quiet() -> None:
    """Proofs make no cycles, and looking for some takes a quarter of the time."""
    gc.disable()


def main() -> None:
    """Write the certificates and say how long it took."""
    parser = argparse.ArgumentParser(prog="python -m pycoll.verify.certify", description=__doc__)
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="prove every built-in, such as after a change of the prover, which no certificate is "
        "tied to, or of the sizes",
    )
    options = parser.parse_args()
    began = time.perf_counter()
    kept = {} if options.all else {key(a): known for a in BUILTIN if (known := entry_of(a))}
    table = certify([a for a in BUILTIN if key(a) not in kept], SIZES, options.workers, BEYOND)
    for name, certificate in table.items():
        sys.stdout.write(f"{name}: {certificate['forms']}\n")
    table |= kept
    rows = (f"{json.dumps(key(a))}: {json.dumps(table[key(a)])}" for a in BUILTIN)
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{FILE.name}: {len(table) - len(kept)} proved, {len(kept)} kept, {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
