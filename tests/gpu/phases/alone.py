"""pycoll alone: how its time goes with blocks and ranks, by algorithms that may be chosen.

In each row stands what the cost model predicts for GPUs that NVLink joins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from phase import ROOT, Lacking, Run, main

# Before this folder, whose nccl.py is another.
sys.path[:0] = [str(ROOT / "bench" / "gpu"), str(ROOT / "bench")]


class Part(NamedTuple):
    """What is measured by ranks of one job."""

    ranks: int
    blocks: int | None  #: of each rank, at most; None: as the message says
    algorithms: tuple[str | None, ...]  #: None: the one that is chosen
    sizes: tuple[int, ...]
    empty: bool = False  #: the arrays are of `empty`: ranks read and write them where they lie
    registered: bool = True  #: so they do with other arrays, once these are registered


LONG = ("one_shot", "two_shot", "double_binary_tree")
ALL = (*LONG, "ring", "halving_doubling", "recursive_doubling", "flat_tree")
#: One hop of many messages against three of one; then how bandwidth goes with blocks.
PARTS = (
    Part(8, None, ("one_shot", "recursive_doubling"), (8, 8 << 10, 64 << 10)),
    Part(2, None, (None,), (64 << 10, 1 << 20, 16 << 20), empty=True),
    Part(2, 32, LONG, (1 << 20, 64 << 10, 16 << 20)),
    Part(2, 4, LONG, (1 << 20, 64 << 10, 16 << 20)),
    Part(2, 16, LONG, (1 << 20, 64 << 10, 16 << 20)),
    Part(2, 32, ALL, (16 << 20, 1 << 20, 64 << 20), registered=False),
    Part(4, None, ALL, (16 << 20, 1 << 20, 64 << 10)),
    Part(8, None, ALL, (16 << 20, 1 << 20, 64 << 10)),
)


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together
    from one_gpu import meta
    from result import Result

    most = max(part.ranks for part in PARTS)
    result = Result(run.output / "gpu-alone.json", meta(most, run.device, run.commit))
    for part in PARTS:
        if run.stand_in:
            few = part.algorithms[:3]
            part = part._replace(ranks=min(part.ranks, 3), sizes=(20_000,), algorithms=few)
        if not run.time_for(f"{part.ranks} ranks, {part.blocks} blocks", 2.0):
            continue
        os.environ["PYCOLL_CUDA_REGISTER"] = "auto" if part.registered else "off"
        os.environ.pop("PYCOLL_CUDA_BLOCKS", None)
        if part.blocks is not None:
            os.environ["PYCOLL_CUDA_BLOCKS"] = str(part.blocks)
        meeting = together.Meeting(part.ranks)
        together.spawn(rank, part.ranks, run, meeting, part, result.add)
        run.note(f"{len(result.rows)} rows")
    run.checks += len(result.rows)
    run.check(not sum(row["wrong"] for row in result.rows), "there are wrong elements")
    short = [row for row in result.rows if row["nbytes"] <= 64 << 10 and "hops" in row]
    hops = [f"{row['hops']:.1f}" for row in short]
    return f"{len(result.rows)} rows; of up to 64 KiB, times a flag's way: {', '.join(hops)}"


def rank(
    comm: Any, run: Run, meeting: Any, part: Part, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Measure as one of the ranks."""
    from contest import Contest
    from libraries import Pycoll
    from rows import COPIED, add_floors, load_floors

    from pycoll.benchmark.operation import OPERATIONS
    from pycoll.benchmark.problem import Problem
    from pycoll.dtypes import ReduceOp

    seat = meeting.of(comm.rank)
    comm.cuda(run.device)
    copied = (1 << 20) if run.stand_in else COPIED
    room = copied if comm.rank == 0 else max(part.sizes)
    here = Contest(run.device, seat, room, comm if part.empty else None)
    floors, rate = None, 0.0
    if comm.rank == 0:  # while the others wait for it
        floors = load_floors(run.device, run.carried, run.stand_in)
        rate = 2 * copied / here.copy_seconds(copied)
    for nbytes in part.sizes:
        given = OPERATIONS["allreduce"], nbytes // 4, "float32", ReduceOp.SUM
        problem = Problem(*given, comm.rank, comm.size)
        predicted = predictions(comm, nbytes) if comm.rank == 0 else {}
        for algorithm in part.algorithms:
            if max(seat.gather(float(comm.rank == 0 and run.left < 0))):
                return
            library = Pycoll(comm, algorithm)
            [row] = here.run(problem, [library], "graph", 2 if run.stand_in else 5)
            if comm.rank == 0:
                add_floors(row, problem, rate, floors)
                model = 1e6 * predicted[row["algorithm"]]
                keep(row | {"asked": part.blocks, "predicted_us": model})
                time, what = row["time_us"]["median"], f"{comm.size} ranks, {nbytes} B"
                shape = f"{row['algorithm']}, blocks: {row['blocks']}, {row['protocol']}"
                shape += ", arrays of empty" * part.empty + ", direct" * (row["direct_calls"] > 0)
                print(f"{what}, {shape}: {time:.2f} us, predicted {model:.1f}", flush=True)


def predictions(comm: Any, nbytes: int) -> dict[str, float]:
    """Return the seconds that the model has for each algorithm of an all-reduce."""
    found = comm.explain("allreduce", nbytes, device="cuda").candidates
    return {each.algorithm: each.predicted for each in found if each.predicted is not None}


if __name__ == "__main__":
    main(phase)
