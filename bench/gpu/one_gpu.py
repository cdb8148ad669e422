"""How do pycoll's collectives compare with NCCL's where 2 and 4 ranks share one GPU?

Ranks are threads of one process, each with a stream: they share the GPU's memory and caches, and no
link lies between them. It compares the kernels, their protocols and how well they copy, not links.
NCCL can do so from 2.30.7 on, if asked to. All ranks' blocks must be resident at once, so both
libraries have the same bound of blocks; what ran is in each row.

Run: python bench/gpu/one_gpu.py [--nccl libnccl.so.2] [--ranks 2,4] [--min 8 --max 256M]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).resolve().parents[depth]) for depth in (1, 2)]
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

import arguments
import kernels
from figures import summary
from launch import RESULTS
from result import Result

from pycoll.benchmark import metadata
from pycoll.errors import UnavailableError

NAME = "gpu-one.json"
#: Seconds beyond those of measuring, in which a process begins and ends.
GRACE = 60.0


class Plan(NamedTuple):
    """What is run in one process."""

    ranks: int
    blocks: int  #: of each rank, at most, of both libraries
    sizes: tuple[int, ...]  #: bytes


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments.parser(__doc__, RESULTS / NAME)
    parser.add_argument("--ranks", type=arguments.numbers, default=[2, 4], metavar="2,4")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--commit", help="of the source, where git does not say it")
    parser.add_argument("--carried", type=Path, help="where compiled kernels may lie")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # a Plan
    options = arguments.parse(parser, given)
    if any(ranks < 2 for ranks in options.ranks):
        parser.error("--ranks: one rank sends nothing, want at least 2")
    return options


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    """Yield one plan for each number of ranks."""
    for ranks in options.ranks:
        # All ranks' blocks must be resident at once: what lacks room hangs.
        blocks = options.blocks or (32 if ranks <= 2 else 16)
        yield Plan(ranks, blocks, arguments.sizes(options))


def environment(plan: Plan) -> dict[str, str]:
    """Return the variables of a plan: one bound of blocks for both, ranks that share a GPU."""
    return {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": str(plan.blocks),
        "NCCL_MIN_CTAS": str(plan.blocks),
        "PYCOLL_CUDA_BLOCKS": str(plan.blocks),
        "CUDA_MODULE_LOADING": "EAGER",  # loading waits for kernels that spin
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # streams that share one wait for each other's kernels
    }


def main() -> None:
    options = parse(sys.argv[1:])
    if options.worker:
        worker(options)
        return
    options.output.unlink(missing_ok=True)
    failed = next(filter(None, (run(plan, options) for plan in plans(options))), "")
    rows = Result.read(options.output).rows
    print(*summary(rows), sep="\n")
    if rows:
        print(f"# wrote {options.output}: {len(rows)} rows")
    if failed:
        sys.exit(failed)
    sys.exit(any(row["wrong"] for row in rows))


def run(plan: Plan, options: argparse.Namespace) -> str:
    """Run a plan in a process of its own, as NCCL reads its variables once; says what failed.

    Its rows are in the file of the results, each since it was measured.
    """
    command = [sys.executable, __file__, *sys.argv[1:]]
    command += ["--worker", json.dumps([plan.ranks, plan.blocks, plan.sizes])]
    limit = options.seconds + GRACE
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment(plan)}, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{plan.ranks} ranks: ended after {limit:.0f} s; what was measured is kept"
    return f"{plan.ranks} ranks: exit status {done.returncode}" if done.returncode else ""


def worker(options: argparse.Namespace) -> None:
    """Run one plan; all ranks are threads of this process."""
    ranks, blocks, sizes = json.loads(options.worker)
    os.environ["PYCOLL_CUDA_HEAP"] = arguments.heap(max(sizes) if options.empty else 0)
    try:
        contest(Plan(ranks, blocks, tuple(sizes)), options)
    except UnavailableError as error:
        sys.exit(f"not measured: {error}")


def contest(plan: Plan, options: argparse.Namespace) -> None:
    """Measure one plan, and add its rows to the results.

    Raises:
        UnavailableError: There is no GPU, or no NCCL in which ranks can share it.
    """
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise UnavailableError(lack)
    if options.stand_in:
        kernels.take_any()
    import together
    from nccl import Nccl
    from rows import measure

    nccl = None if options.alone else Nccl(options.nccl)
    comms: list[Any] = [None] * plan.ranks
    if nccl is not None:
        nccl.require_sharing()
        comms = list(nccl.all([options.device] * plan.ranks))
    meeting = together.Meeting(plan.ranks)
    result = Result.read(options.output)
    result.meta = result.meta or meta(plan.ranks, options.device, options.commit, nccl)

    def rank(comm: Any) -> None:
        own = meeting.of(comm.rank), options.device, comms[comm.rank]
        measure(comm, *own, plan.sizes, plan.blocks, True, options, result.add)

    try:
        together.spawn(rank, plan.ranks)
    finally:
        for comm in filter(None, comms):
            comm.close()


def meta(ranks: int, device: int, commit: str | None, nccl: Any = None) -> dict[str, Any]:
    """Return who measured what on which GPU."""
    from contest import METHOD

    import pycoll
    from pycoll.runtime.native import cuda

    gpu = cuda.device(device)
    versions = {"pycoll": pycoll.__version__, "cuda driver": str(gpu.driver)}
    versions |= {"nccl": nccl.version} if nccl else {}
    found = metadata.collect("threads of one process", ranks, versions, "one GPU, shared")
    found["machine"] |= {"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
    found["commit"] = found["commit"] or commit
    form = "ranks share one GPU's memory and caches; there is no link between them"
    return found | {"method": METHOD, "form": form}


if __name__ == "__main__":
    main()
