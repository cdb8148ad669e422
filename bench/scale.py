"""What do 64 to 100,000 ranks cost: to plan, to prove, to choose, and, up to 1,024, to run?

Every cell is a process of its own: its CPU seconds, the most memory that it held, and whether it
came to its end in time. Sizes are ranks; hosts have 8 each.

Run: python bench/scale.py [--sizes 64,1024] [--only plan,prove]
Real jobs, see bench/many_ranks.py: python bench/scale.py --real 1024 [--hosts 4]

Another checkout, in which every rank traced and proved all ranks, beside this one:
python bench/scale.py --before CHECKOUT --sizes 64,128,256,512
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from before_after import commit
from launch import RESULTS, ROOT, environment, write

SIZES = (64, 1024, 16384, 100_000)
CREW = 8  #: ranks of a host
WIDE = 1 << 24  #: bytes of a slot that any message fits: what is too wide is planned all the same
NBYTES = (1 << 16, 1 << 30)  #: of the explained call
PROVED = (
    "ring",
    "double_binary_tree",
    "recursive_doubling",
    "halving_doubling",
    "bruck",
    "hierarchical",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--only", default="plan,prove,disk,explain")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of a cell")
    parser.add_argument("--real", type=int, metavar="N", help="run N ranks instead")
    parser.add_argument("--hosts", type=int, metavar="H", help="of --real: spread over so many")
    parser.add_argument("--calls", default="", help="of --real: these collectives only")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="plan and prove there, too")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cell", nargs=3, metavar=("WHAT", "NAME", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        what, name, size = options.cell
        print(json.dumps(measured(CELLS[what], name, int(size))))
        return
    from pycoll.benchmark import metadata

    if options.real:
        from many_ranks import real, spread

        name = f"scale-real-{options.real}" + (f"-{options.hosts}-hosts" if options.hosts else "")
        meta = metadata.collect("spawn", options.real, {}, "shm+tcp" if options.hosts else "shm")
        if options.hosts:
            rows = spread(options.real, options.hosts, options.timeout, options.calls)
        else:
            rows = real(options.real, options.timeout, options.calls)
        write(options.output or RESULTS / f"{name}.json", meta, rows)
        return
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.before:
        meta = metadata.collect("none", max(sizes), {}) | {"before": commit(options.before)}
        rows = compared(options.before.resolve(), sizes, options.timeout)
        write(options.output or RESULTS / "scale-before.json", meta, rows, growth=growth(rows))
        return
    rows = []
    for what in options.only.split(","):
        for name in names_of(what):
            for size in sizes:
                row = cell(what, name, size, options.timeout)
                rows.append(row)
                print(row, flush=True)
    meta = metadata.collect("none", max(sizes), {})
    write(options.output or RESULTS / "scale.json", meta, rows, growth=growth(rows))


def compared(before: Path, sizes: list[int], timeout: float) -> list[dict[str, Any]]:
    """Plan and prove in another checkout and in this one, in turns."""
    rows = []
    for old, new in (("plan-of-all", "plan"), ("prove-whole", "prove")):
        for name in PROVED[:-1]:  # hosts came to hierarchical algorithms in other words
            pairs = [
                (cell(old, name, size, timeout, before), cell(new, name, size, timeout))
                for size in sizes
            ]
            found = [{**a, "checkout": "before"} for a, _ in pairs]
            found += [{**b, "checkout": "this"} for _, b in pairs]
            for row in found:
                print(row, flush=True)
            rows += found
    return rows


def names_of(what: str) -> tuple[str, ...]:
    """Return the cells' names."""
    from pycoll.algorithms import names

    known = {
        "plan": names("allreduce"),
        "prove": PROVED,
        "disk": PROVED,
        "explain": tuple(map(str, NBYTES)),
    }
    return known[what]


def cell(what: str, name: str, size: int, timeout: float, checkout: Path = ROOT) -> dict[str, Any]:
    """Measure one cell in a process of its own."""
    row: dict[str, Any] = {"what": what, "name": name, "ranks": size}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--cell", what, name, str(size)]
        where = environment(checkout) | {"PYCOLL_CACHE": folder}
        try:
            if what == "disk":  # which holds what the first one proved
                run(["prove-and-keep", name, str(size)], where, timeout)
            done = subprocess.run(
                command, env=where, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return row | {"failed": f"no end within {timeout:g} s"}
    if done.returncode:
        return row | {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return row | json.loads(done.stdout)


def run(arguments: list[str], where: dict[str, str], timeout: float) -> None:
    """Run a cell for what it leaves behind; what fails will fail again when it is measured."""
    command = [sys.executable, __file__, "--cell", *arguments]
    subprocess.run(command, env=where, capture_output=True, timeout=timeout, check=False)


def measured(work: Callable[[str, int], dict[str, Any]], name: str, size: int) -> dict[str, Any]:
    """Return the CPU seconds and the peak memory of one cell."""
    began = time.process_time()
    more = work(name, size)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_s": round(seconds, 3), "peak_mib": round(peak / 1024, 1), **more}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a part of a cell returns, and its CPU seconds."""
    began = time.process_time()
    result = work()
    return result, round(time.process_time() - began, 4)


def plan(name: str, size: int) -> dict[str, Any]:
    """Plan in one rank in the middle: lower its steps, and find them in the record of the proof.

    So does the first of its class; the others of a built-in algorithm take that one's Program.
    """
    from pycoll.algorithms import get
    from pycoll.cost import Machine
    from pycoll.cost.offer import refused
    from pycoll.program.lower import compile_own
    from pycoll.program.program import Program

    algorithm, where = get(name), placement(name, size)
    hosts = tuple(rank // CREW for rank in range(size))
    machine = Machine(size, CREW, hosts, slot_bytes=WIDE)
    if reason := refused(algorithm, machine, where):
        sys.exit(f"not offered: {name} {reason}")
    record = recorded(name, size)

    def lower(rank: int) -> Program:
        return compile_own(algorithm, size, rank, record.facts, placement=where)

    program, lowering = timed(lambda: lower(size // 2))
    may, checking = timed(lambda: record.admits(program, algorithm.collective, lower))
    assert may, "its program is not what was proved"
    return {
        "cpu_s": round(lowering + checking, 4),
        "of_which_the_check_s": checking,
        "instructions": len(program.instructions),
        "record": record.verdict.origin,
    }


def plan_of_all(name: str, size: int) -> dict[str, Any]:
    """Plan in one rank as all ranks once did: trace them all, and lower one's own steps."""
    from pycoll.algorithms import get
    from pycoll.program.lower import compile_program

    return {"instructions": len(compile_program(get(name), size, size // 2).instructions)}


def prove_whole(name: str, size: int) -> dict[str, Any]:
    """Prove all ranks, one by one."""
    from pycoll.algorithms import get
    from pycoll.verify import verify

    return {"instructions": verify(get(name), size, slots=4).instructions}


def recorded(name: str, size: int) -> Any:
    """Return the record of a certificate or of the disk, and make it if there is none."""
    from pycoll.algorithms import get
    from pycoll.config import Config
    from pycoll.program.slots import SLOTS
    from pycoll.verify import gate

    cache = Config.load().cache
    return gate(get(name), size, slots=SLOTS, placement=placement(name, size), cache=cache)


def prove(name: str, size: int) -> dict[str, Any]:
    """Prove all ranks, whatever certificate there is."""
    from pycoll import collector
    from pycoll.algorithms import get
    from pycoll.program.slots import SLOTS
    from pycoll.verify.certificates import Form
    from pycoll.verify.gate import prove as proved

    form, where = Form(direct=False, average=False), placement(name, size)
    with collector.paused():
        record = proved(get(name), size, SLOTS, form, where)
    return {"instructions": record.verdict.instructions, "by": record.verdict.by}


def keep(name: str, size: int) -> dict[str, Any]:
    """Leave the record on the disk; or find it there."""
    from pycoll.verify import cache, certificates

    certificates.certificates = dict  # as at sizes that have none
    cache.source_digest(cache.SOURCES)  # once a process
    record, seconds = timed(lambda: recorded(name, size))
    return {"cpu_s": seconds, "origin": record.verdict.origin}


def explain(nbytes: str, size: int) -> dict[str, Any]:
    """Explain an all-reduce on leaves and spines with 8 rails a host; modules are loaded."""
    from pycoll import topology
    from pycoll.cost import Machine, Question
    from pycoll.cost import explain as told

    nodes = size // CREW
    pods = max(p for p in range(1, max(2, nodes // 32) + 1) if nodes % p == 0)
    told(Question("allreduce", 8, 2, 2))  # loads the rest
    fabric, built = timed(
        lambda: topology.fabric(nodes, CREW, rails=CREW, leaves=CREW * pods, spines=8, sockets=2)
    )
    machine = Machine.described(fabric)
    question = Question(
        "allreduce", int(nbytes), size, machine.cores, fabric.placement(), remote=True
    )
    found, telling = timed(lambda: told(question, machine=machine))
    return {
        "cpu_s": round(built + telling, 3),
        "of_which_topology_s": built,
        "choice": found.choice.algorithm,
        "candidates": {c.algorithm: c.note or c.how for c in found.candidates},
    }


CELLS = {
    "plan": plan,
    "plan-of-all": plan_of_all,
    "prove-whole": prove_whole,
    "prove": prove,
    "prove-and-keep": keep,
    "disk": keep,
    "explain": explain,
}


def placement(name: str, size: int) -> Any:
    """Return hosts of 8 for what asks for them."""
    from pycoll.schedule import FLAT, Level, Placement

    if not name.startswith("hierarchical"):
        return FLAT
    return Placement.of(Level("node", tuple(rank // CREW for rank in range(size))))


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the exponents of CPU seconds and memory between neighbouring sizes of each cell."""
    found = []
    for before, now in itertools.pairwise(rows):
        same = (before["what"], before["name"]) == (now["what"], now["name"])
        if not same or "failed" in before or "failed" in now:
            continue
        ratio = math.log(now["ranks"] / before["ranks"])
        exponents = {
            key: round(math.log(max(now[key], 1e-3) / max(before[key], 1e-3)) / ratio, 2)
            for key in ("cpu_s", "peak_mib")
        }
        more = {key: now[key] for key in ("what", "name")}
        found.append(more | {"from": before["ranks"], "to": now["ranks"], **exponents})
    return found


if __name__ == "__main__":
    main()
