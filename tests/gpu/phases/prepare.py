"""What is done before a GPU is at hand: the engine is built, every kernel is compiled.

The folder that it fills, and the engine in pycoll/, are all that the other phases need besides the
source: they are to be carried along.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phase import ROOT, Lacking, Run, main

CAPABILITY = (9, 0)


def phase(run: Run) -> str:
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=ROOT, check=True
    )
    from pycoll.dtypes import DTYPES, ReduceOp
    from pycoll.runtime.cuda import compile

    if run.carried is None:
        raise Lacking("--carried names no folder to fill")
    import carry
    import one_arch

    arch = 10 * CAPABILITY[0] + CAPABILITY[1]
    libraries = f"{carry.fill(run.carried)}; {one_arch.carry(run.carried, run.output, arch)}"
    run.note(libraries)
    if lack := compile.missing():
        raise Lacking(lack)
    folder: Path = run.carried / "pycoll"  # as PYCOLL_CACHE will name it
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(kind, op) for kind in DTYPES for op in ReduceOp]
    if run.short:
        wanted = wanted[:1]
    done = 0

    def make(pair: tuple) -> int:  # type: ignore[type-arg]
        return len(compile.cubin(*pair, CAPABILITY, folder)) if run.time_for(str(pair)) else 0

    with ThreadPoolExecutor(2) as pool:
        sizes = []
        for size in pool.map(make, wanted):
            sizes.append(size)
            done += size > 0
            run.note(f"{done} of {len(wanted)} kernels")
    run.check(done == len(wanted), f"{done} of {len(wanted)} kernels are compiled")
    sizes.append(len(compile.transfer_cubin(CAPABILITY, folder)))
    import kernels

    text = kernels.compile_all(run.carried, CAPABILITY)
    run.details["bytes"] = sum(sizes)
    made = f"{done + 1} kernels for sm_{CAPABILITY[0]}{CAPABILITY[1]}, {sum(sizes) >> 10} KiB"
    return f"{made}; {text}; {libraries}"


if __name__ == "__main__":
    main(phase)
