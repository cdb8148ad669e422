"""Programs drawn at random in which a rank is refused a call, catches that and goes on.

    python tests/faults/out_of_step.py --programs 2000 --seed 0 --sizes 2,3,4
    mpirun -n 4 python tests/faults/out_of_step.py --rank --programs 100

Every program is some steps that all ranks make alike; at one of them one rank, or every rank,
passes a bad argument. What must hold: each result that any rank gets is right, element for
element, or a rank raises; nothing outlasts the timeout; ranks that were all refused alike go on
as if nothing had happened.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, MismatchError, PeerLostError

TIMEOUT = 20.0  #: seconds of a call; nothing is to last so long
FAILURES = (BrokenError, CollectiveTimeout, MismatchError, PeerLostError)
DTYPES = ("float64", "int64")
COUNTS = (1, 5, 700, 40_000)


@dataclass
class Step:
    """One call of all ranks."""

    kind: str
    number: int
    count: int
    dtype: str
    root: int
    async_op: bool
    late: bool  #: a Work is waited for behind the next steps
    bad: str = ""  #: which argument is bad, on the ranks `where`
    where: frozenset[int] = frozenset()
    retried: bool = False  #: whoever was refused makes the call again, rightly


@dataclass
class Outcome:
    """What one rank saw of a program."""

    wrong: list[str] = field(default_factory=list)
    error: str = ""
    refused: int = 0
    seconds: float = 0.0


def data(step: Step, rank: int, count: int | None = None) -> Any:
    """Return what a rank brings to a step: of no other rank and step."""
    n = step.count if count is None else count
    return (np.arange(n) % 13 + 100 * (step.number + 1) + 10_000 * (rank + 1)).astype(step.dtype)


def _spoil(step: Step, rank: int, given: dict[str, Any], arrays: Sequence[str]) -> dict[str, Any]:
    """Return the arguments, with a bad one where the step says so."""
    if rank not in step.where:
        return given
    found = dict(given)
    name = next((n for n in arrays if found.get(n) is not None), None)
    if step.bad == "array" and name is not None:
        found[name] = "no array"
    elif step.bad == "strided" and name is not None and isinstance(found[name], np.ndarray):
        found[name] = np.zeros((max(2, found[name].size), 2), found[name].dtype)[:, 0]
    elif step.bad == "root" and "root" in found:
        found["root"] = 99
    elif step.bad == "counts" and any(n.endswith("counts") and found[n] for n in found):
        key = next(n for n in found if n.endswith("counts") and found[n])
        found[key] = [found[key][0] + 1, *found[key][1:]]
    elif step.bad == "op" and "op" in found:
        found["op"] = "median"
    else:
        found["timeout"] = -1
    return found


BAD = ("array", "strided", "root", "counts", "op", "timeout")


class Rank:
    """One rank of one program."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.late: list[tuple[Step, Any, Callable[[Any], Any], Any]] = []
        self.outcome = Outcome()

    def run(self, steps: Sequence[Step]) -> Outcome:
        """Make the steps, up to the first failure."""
        began = time.monotonic()
        try:
            for step in steps:
                self._step(step)
                if not step.late:
                    self._settle()
            self._settle()
            self.comm.close()
        except FAILURES as error:
            self.outcome.error = f"{type(error).__name__}: {error}"
            with contextlib.suppress(FAILURES):
                self.comm.close()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _step(self, step: Step) -> None:
        try:
            self._make(step, bad=True)
        except FAILURES:
            raise
        except (pycoll.UsageError, TypeError, ValueError) as error:
            if self.rank not in step.where:
                raise AssertionError(f"{step}: refused on rank {self.rank}: {error}") from error
            self.outcome.refused += 1
            if step.retried:
                self._make(step, bad=False)

    def _make(self, step: Step, bad: bool) -> None:
        call, given, arrays, want = getattr(self, step.kind)(step)
        if bad:
            given = _spoil(step, self.rank, given, arrays)
        if step.async_op:
            work = call(**given, async_op=True)
            self.late.append((step, work, lambda value: value, want))
            return
        self._check(step, call(**given), want)

    def _settle(self) -> None:
        for step, work, read, want in self.late:
            self._check(step, read(work.wait()), want)
        self.late = []

    def _check(self, step: Step, got: Any, want: Any) -> None:
        if isinstance(want, np.ndarray):
            fine = isinstance(got, np.ndarray) and got.size == want.size
            fine = fine and np.array_equal(got.reshape(-1), want.reshape(-1))
        elif isinstance(want, list) and want and isinstance(want[0], np.ndarray):
            fine = all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))
        else:
            fine = want is None or got == want
        if not fine:
            self.outcome.wrong.append(f"rank {self.rank}: {step}: got {got!r}, want {want!r}")

    # The kinds of steps: the method, its arguments, the names of its arrays, and the result.

    def _all(self, step: Step) -> list[Any]:
        return [data(step, rank) for rank in range(self.size)]

    def _mine(self, step: Step) -> Any:
        return data(step, self.rank)

    def allreduce(self, step: Step) -> Any:
        given = {"x": self._mine(step), "op": "sum"}
        return self.comm.allreduce, given, ["x"], sum(self._all(step))

    def broadcast(self, step: Step) -> Any:
        given = {"x": self._mine(step), "root": step.root}
        return self.comm.broadcast, given, ["x"], data(step, step.root)

    def reduce(self, step: Step) -> Any:
        want = sum(self._all(step)) if self.rank == step.root else None
        given = {"x": self._mine(step), "op": "max", "root": step.root}
        if want is not None:
            want = np.max(self._all(step), axis=0)
        return self.comm.reduce, given, ["x"], want

    def allgather(self, step: Step) -> Any:
        return self.comm.allgather, {"x": self._mine(step)}, ["x"], np.concatenate(self._all(step))

    def reduce_scatter(self, step: Step) -> Any:
        total = sum(data(step, rank, step.count * self.size) for rank in range(self.size))
        given = {"x": data(step, self.rank, step.count * self.size), "op": "sum"}
        want = total[self.rank * step.count : (self.rank + 1) * step.count]
        return self.comm.reduce_scatter, given, ["x"], want

    def alltoall(self, step: Step) -> Any:
        n, r = step.count, self.rank
        parts = [data(step, q, n * self.size)[r * n : (r + 1) * n] for q in range(self.size)]
        given = {"x": data(step, r, n * self.size)}
        return self.comm.alltoall, given, ["x"], np.concatenate(parts)

    def gather(self, step: Step) -> Any:
        want = np.concatenate(self._all(step)) if self.rank == step.root else None
        given = {"x": self._mine(step), "root": step.root}
        return self.comm.gather, given, ["x"], want

    def scatter(self, step: Step) -> Any:
        n, r = step.count, self.rank
        whole = data(step, step.root, n * self.size)
        given: dict[str, Any] = {"x": whole, "out": np.zeros(n, step.dtype), "root": step.root}
        if r != step.root:
            given["x"] = None
        return self.comm.scatter, given, ["x", "out"], whole[r * n : (r + 1) * n]

    def barrier(self, step: Step) -> Any:
        return self.comm.barrier, {}, [], None

    def _counts(self, step: Step) -> list[int]:
        return [step.count + rank % 2 for rank in range(self.size)]

    def allgatherv(self, step: Step) -> Any:
        counts = self._counts(step)
        want = np.concatenate([data(step, r, n) for r, n in enumerate(counts)])
        given = {"x": data(step, self.rank, counts[self.rank]), "counts": counts}
        return self.comm.allgatherv, given, ["x"], want

    def reduce_scatterv(self, step: Step) -> Any:
        counts = self._counts(step)
        total = sum(data(step, rank, sum(counts)) for rank in range(self.size))
        begin = sum(counts[: self.rank])
        given = {"x": data(step, self.rank, sum(counts)), "counts": counts, "op": "sum"}
        return self.comm.reduce_scatterv, given, ["x"], total[begin : begin + counts[self.rank]]

    def alltoallv(self, step: Step) -> Any:
        n, r = step.count, self.rank
        parts = [data(step, q, n * self.size)[r * n : (r + 1) * n] for q in range(self.size)]
        given = {
            "x": data(step, r, n * self.size),
            "send_counts": [n] * self.size,
            "out": np.zeros(n * self.size, step.dtype),
            "recv_counts": [n] * self.size,
        }
        return self.comm.alltoallv, given, ["x", "out"], np.concatenate(parts)

    def gatherv(self, step: Step) -> Any:
        is_root = self.rank == step.root
        want = np.concatenate(self._all(step)) if is_root else None
        counts = [step.count] * self.size if is_root else None
        given = {"x": self._mine(step), "counts": counts, "root": step.root}
        return self.comm.gatherv, given, ["x"], want

    def scatterv(self, step: Step) -> Any:
        n, r, is_root = step.count, self.rank, self.rank == step.root
        whole = data(step, step.root, n * self.size)
        given = {
            "x": whole if is_root else None,
            "counts": [n] * self.size if is_root else None,
            "out": np.zeros(n, step.dtype),
            "root": step.root,
        }
        return self.comm.scatterv, given, ["x", "out"], whole[r * n : (r + 1) * n]

    def exchange(self, step: Step) -> Any:
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        room = np.zeros(step.count, step.dtype)

        def call(timeout: float | None = None, async_op: bool = False, **given: Any) -> Any:
            sent: Any = given["x"]
            to = 99 if given["root"] == 99 else right
            return self.comm.exchange([(sent, to)], [(room, left)], async_op, timeout)

        return call, {"x": self._mine(step), "root": 0}, ["x"], [data(step, left)]

    def message(self, step: Step) -> Any:
        to, frm = step.root, (step.root + 1) % self.size

        def call(timeout: float | None = None, async_op: bool = False, **given: Any) -> Any:
            if self.rank == frm:
                peer = 99 if given["root"] == 99 else to
                return self.comm.send(given["x"], peer, async_op=async_op, timeout=timeout)
            if self.rank == to:
                peer = 99 if given["root"] == 99 else frm
                return self.comm.recv(given["x"], peer, async_op=async_op, timeout=timeout)
            if async_op:
                return self.comm.exchange(async_op=True)
            return None

        x = self._mine(step) if self.rank == frm else np.zeros(step.count, step.dtype)
        want = data(step, frm) if self.rank == to else None
        return call, {"x": x, "root": 0}, ["x"], want

    def listed(self, step: Step) -> Any:
        def call(x: Any, **given: Any) -> Any:
            xs = [x, data(step, self.rank, 200_000)]
            return self.comm.allreduce(xs, **given)

        want = [sum(self._all(step)), sum(data(step, r, 200_000) for r in range(self.size))]
        return call, {"x": self._mine(step), "op": "sum"}, ["x"], want

    def planned(self, step: Step) -> Any:
        def call(**given: Any) -> Any:
            asynchronous = given.pop("async_op", False)
            plan = self.comm.plan("allreduce", **given)
            result = plan()
            return self.comm.barrier(async_op=True) if asynchronous else result

        want = None if step.async_op else sum(self._all(step))
        return call, {"x": self._mine(step), "op": "sum"}, ["x"], want

    def _object(self, name: str, given: dict[str, Any], want: Any, step: Step) -> Any:
        step.async_op = False  # there is no such form
        return getattr(self.comm, name), given, [], want

    def broadcast_object(self, step: Step) -> Any:
        given = {"obj": ("it", step.number, self.rank), "root": step.root}
        return self._object("broadcast_object", given, ("it", step.number, step.root), step)

    def allgather_object(self, step: Step) -> Any:
        want = [(step.number, rank) for rank in range(self.size)]
        return self._object("allgather_object", {"obj": (step.number, self.rank)}, want, step)

    def gather_object(self, step: Step) -> Any:
        want = [(step.number, rank) for rank in range(self.size)]
        given = {"obj": (step.number, self.rank), "root": step.root}
        return self._object("gather_object", given, want if self.rank == step.root else None, step)

    def scatter_object(self, step: Step) -> Any:
        objs = [(step.number, rank) for rank in range(self.size)]
        given = {"objs": objs if self.rank == step.root else None, "root": step.root}
        return self._object("scatter_object", given, (step.number, self.rank), step)

    def split(self, step: Step) -> Any:
        step.async_op = False

        def call(x: Any, **given: Any) -> Any:
            if x == "no array":
                given["color"] = "red"
            part = self.comm.split(**given)
            assert part is not None
            try:
                return part.allreduce(data(step, self.rank))
            finally:
                part.close()

        return call, {"x": [0], "color": 0, "key": 0}, ["x"], sum(self._all(step))


KINDS = (
    *("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall", "gather"),
    *("scatter", "barrier", "allgatherv", "reduce_scatterv", "alltoallv", "gatherv", "scatterv"),
    *("exchange", "message", "listed", "planned"),
    *("broadcast_object", "allgather_object", "gather_object", "scatter_object", "split"),
)


def program(seed: int, size: int) -> list[Step]:
    """Draw a program."""
    draw = random.Random(f"{seed} {size}")
    # Few kinds, counts and dtypes in one program: calls that look alike are what gets confused.
    kinds = draw.sample(KINDS, draw.choice((1, 1, 2, 3)))
    counts, dtype = draw.sample(COUNTS, draw.choice((1, 1, 2))), draw.choice(DTYPES)
    root = draw.randrange(size)
    steps = []
    for number in range(draw.randrange(3, 9)):
        asynchronous = draw.random() < 0.25
        step = Step(
            kind=draw.choice(kinds),
            number=number,
            count=draw.choice(counts),
            dtype=dtype,
            root=root if draw.random() < 0.8 else draw.randrange(size),
            async_op=asynchronous,
            late=asynchronous and draw.random() < 0.6,
        )
        steps.append(step)
    alike = draw.random() < 0.2
    for step in draw.sample(steps, draw.choice((1, 1, 1, 2))):
        step.bad = draw.choice(BAD[3:] if alike and step.kind == "message" else BAD)
        if alike:
            # On the root alone some arguments are looked at: those that every rank looks at.
            step.bad = "timeout"
        step.where = frozenset(range(size) if alike else [draw.randrange(size)])
        step.retried = draw.random() < 0.3
    return steps


def alike(steps: Sequence[Step], size: int) -> bool:
    """Tell whether every rank was refused the same."""
    return all(len(step.where) in (0, size) for step in steps)


def serve(seeds: Sequence[int]) -> list[tuple[int, Outcome]]:
    """Run programs on one rank of a job, each on a communicator of its own."""
    with pycoll.init(timeout=120) as job:
        return run(job, seeds)


def run(job: Communicator, seeds: Sequence[int]) -> list[tuple[int, Outcome]]:
    """Run programs on one rank, each on a communicator of its own."""
    found = []
    for seed in seeds:
        steps = program(seed, job.size)
        comm = job.dup()
        comm._engine.timeout = TIMEOUT
        found.append((seed, Rank(comm).run(steps)))
        job.barrier()
    return found


def judge(seeds: Sequence[int], size: int) -> tuple[list[str], collections.Counter[str], float]:
    """Run programs on ``size`` ranks; what is wrong, how many of each kind, and the slowest."""
    return weigh(pycoll.spawn(lambda: serve(seeds), size, timeout=60 + 30 * len(seeds)))


def weigh(
    every: Sequence[list[tuple[int, Outcome]]],
) -> tuple[list[str], collections.Counter[str], float]:
    """Return what is wrong with what the ranks saw, how many of each kind, and the slowest."""
    size = len(every)
    wrong, counted, slowest = [], collections.Counter[str](), 0.0
    for outcomes in zip(*every, strict=True):
        seed = outcomes[0][0]
        steps, ranks = program(seed, size), [outcome for _, outcome in outcomes]
        counted["programs"] += 1
        counted["refused"] += any(rank.refused for rank in ranks)
        slowest = max(slowest, *(rank.seconds for rank in ranks))
        silent = [text for rank in ranks for text in rank.wrong]
        errors = [rank.error for rank in ranks if rank.error]
        for name in {error.partition(":")[0] for error in errors}:
            counted[name] += 1
        counted["silent"] += bool(silent)
        wrong += [f"size {size}, seed {seed}: {text}" for text in silent]
        if any(error.startswith("CollectiveTimeout") for error in errors):
            wrong.append(f"size {size}, seed {seed}: {errors}")
        if errors and alike(steps, size):
            counted["out of step though alike"] += 1
            wrong.append(f"size {size}, seed {seed}: all refused alike, and {errors}")
    return wrong, counted, slowest


def rank_of_job(seeds: Sequence[int]) -> int:
    """Be one rank of a job that some launcher has started."""
    with pycoll.init(timeout=120) as job:
        every = job.allgather_object(run(job, seeds))
        wrong, counted, slowest = weigh(every)
        if job.rank == 0:
            print(*(text[:700] for text in wrong), sep="\n")
            print(f"{dict(counted)}, slowest rank of a program {slowest:.2f} s", flush=True)
    return 1 if wrong else 0


def main() -> int:
    """Run as many programs as asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--sizes", default="2,3,4", help="numbers of ranks, in turn")
    parser.add_argument("--rank", action="store_true", help="be one rank of a job")
    given = parser.parse_args()
    if given.rank:
        return rank_of_job(range(given.seed, given.seed + given.programs))
    sizes, bunch = [int(size) for size in given.sizes.split(",")], 25
    total, slowest, bad = collections.Counter[str](), 0.0, 0
    for turn, first in enumerate(range(0, given.programs, bunch)):
        size = sizes[turn % len(sizes)]
        seeds = range(given.seed + first, given.seed + min(first + bunch, given.programs))
        wrong, counted, slow = judge(seeds, size)
        total += counted
        slowest = max(slowest, slow)
        bad += len(wrong)
        print(*(text[:700] for text in wrong), sep="\n", end="\n" if wrong else "", flush=True)
    print(f"{dict(total)}, slowest rank of a program {slowest:.2f} s, {bad} findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
