"""pycoll alone: how its time goes with blocks, by algorithms that may be chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from phase import ROOT, Lacking, Run, main

# Before this folder, whose nccl.py is another.
sys.path[:0] = [str(ROOT / "bench" / "gpu"), str(ROOT / "bench")]

ALGORITHMS = ("one_shot", "two_shot", "double_binary_tree")
BLOCKS = (16, 4, 8)
SIZES = (1 << 20, 64 << 10, 16 << 20)


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together
    from result import Result

    result = Result(run.output / "gpu-alone.json", {"commit": run.commit})
    for blocks in BLOCKS:
        if not run.time_for(f"{blocks} blocks", 2.0):
            continue
        os.environ["PYCOLL_CUDA_BLOCKS"] = str(blocks)
        meeting = together.Meeting(2)
        together.spawn(rank, 2, run, meeting, blocks, result.add)
        run.note(f"{len(result.rows)} rows")
    run.checks += len(result.rows)
    run.check(not sum(row["wrong"] for row in result.rows), "there are wrong elements")
    return f"{len(result.rows)} rows"


def rank(
    comm: Any, run: Run, meeting: Any, blocks: int, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Measure as one of two ranks."""
    from contest import Contest
    from libraries import Pycoll

    from pycoll.benchmark.operation import OPERATIONS
    from pycoll.benchmark.problem import Problem
    from pycoll.dtypes import ReduceOp

    seat = meeting.of(comm.rank)
    sizes = (4096,) if run.stand_in else SIZES
    here = Contest(run.device, seat, max(sizes))
    for nbytes in sizes:
        given = OPERATIONS["allreduce"], nbytes // 4, "float32", ReduceOp.SUM
        problem = Problem(*given, comm.rank, comm.size)
        for algorithm in ALGORITHMS:
            if max(seat.gather(float(comm.rank == 0 and run.left < 0))):
                return
            library = Pycoll(comm, algorithm)
            [row] = here.run(problem, [library], "graph", 2 if run.stand_in else 5)
            if comm.rank == 0:
                row |= {"algorithm": algorithm, "asked": blocks, "blocks": library.ran}
                keep(row)
                time = row["time_us"]["median"]
                print(f"{nbytes} B, {algorithm}, {library.ran} blocks: {time:.2f} us", flush=True)


if __name__ == "__main__":
    main(phase)
