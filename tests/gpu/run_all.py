"""Everything that is to be shown on a GPU, in phases, within 30 minutes on one.

    python tests/gpu/run_all.py prepare             without a GPU: builds, compiles all kernels
    python tests/gpu/run_all.py                     all phases; again: goes on where it stopped
    python tests/gpu/run_all.py --first             ten minutes: the most telling of all of them
    python tests/gpu/run_all.py --minutes 9 probe fused
    python tests/gpu/run_all.py --stand-in --short  without a GPU, over the stand-in for the driver

Writes gpu.json and gpu.log into the folder --output, with --first gpu-first.json and .log. Exit
status 1 if a phase failed, hung or had no time. It stops at the first phase that hangs, unless
--keep-going or --first is given.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

import carry
from runner import ROOT, Phase, Runner, State, table

from pycoll.benchmark import metadata

PREPARE = Phase("prepare", "build, and compile every kernel for a GPU", 900, gpu=False)
PHASES = (
    Phase("machine", "what is there, asked of the system alone", 20),
    Phase("probe", "driver, libraries, IPC between two processes, what the GPU can", 60),
    Phase("memory", "GPU memory registered for RDMA, where there is RDMA", 30),
    Phase("micro", "a launch, a fence, a flag between two blocks, copies by 1 to all blocks", 60),
    Phase("fused", "all ranks in one launch: every algorithm, dtype and size, bit for bit", 300),
    Phase("threads", "ranks as threads: aborts, streams, messages, graphs, the proxy", 300),
    Phase("processes", "ranks as processes over CUDA IPC, up to 64 KiB", 120),
    Phase("nccl", "times beside NCCL's, 2 and 4 ranks on the GPU", 420),
    Phase("alone", "times of our own, by blocks and algorithm", 60),
    Phase("sanitizer", "compute-sanitizer over the fused form", 150, stand_in=False),
    Phase("overlap", "a computation beside a collective in every way", 300),
    Phase("tiles", "a product by tiles beside its collective, against one after the other", 120),
    Phase("pool", "cupy's arrays at offsets in its pool's memory", 90, stand_in=False),
    Phase("tensors", "torch's CUDA tensors", 120, stand_in=False),
)
#: The ten minutes of --first, in the order of PHASES: the seconds of each.
FIRST = {
    "machine": 20,
    "probe": 15,
    "memory": 10,
    "micro": 30,
    "fused": 110,
    "threads": 70,
    "processes": 30,
    "nccl": 135,
    "alone": 50,
    "sanitizer": 40,
    "overlap": 50,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {phase.name: phase for phase in (PREPARE, *PHASES)}
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(known))
    parser.add_argument("--minutes", type=float, help="for all of them; 30, with --first 10")
    parser.add_argument("--first", action="store_true", help="ten minutes, the most telling first")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu", metavar="DIR")
    parser.add_argument(
        "--carried", type=Path, default=carry.FOLDER, metavar="DIR", help="what `prepare` fills"
    )
    parser.add_argument("--stand-in", action="store_true", help="over the stand-in for the driver")
    parser.add_argument("--short", action="store_true", help="a few cases of each kind")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--keep-going", action="store_true", help="also behind a phase that hangs")
    parser.add_argument("--device", type=int, default=0, help="which GPU; 0")
    parser.add_argument("--list", action="store_true", help="say what the phases are, run none")
    options = parser.parse_args()
    if unknown := [name for name in options.phases if name not in known]:
        parser.error(f"no phase is called {unknown[0]}; there are {', '.join(known)}")
    if options.first:
        known |= {name: replace(known[name], seconds=seconds) for name, seconds in FIRST.items()}
    whole = list(FIRST) if options.first else [phase.name for phase in PHASES]
    phases = [known[name] for name in options.phases or whole]
    if options.list:
        for phase in phases if options.first else known.values():
            print(f"{phase.name:<12} {phase.seconds:>5.0f} s  {phase.about}")
        return 0
    commit = carry.commit(options.carried)
    form = " ".join(word for word in ("first", "short") if getattr(options, word)) or "all"
    name = "gpu-first" if options.first else "gpu"
    file = options.output / f"{name}.json"
    # As a result that is kept has it: bench/summary.py reads all of them.
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    meta = {"machine": metadata.machine(), "commit": commit, "date": date}
    state = State(file, commit, options.stand_in, meta, form)
    state.load()
    options.carried, options.output = options.carried.resolve(), options.output.resolve()
    arguments = ["--device", str(options.device), "--commit", commit]
    arguments += ["--carried", str(options.carried), "--output", str(options.output)]
    arguments += ["--stand-in"] if options.stand_in else []
    arguments += ["--short"] if options.short else []
    arguments += ["--first"] if options.first else []
    options.output.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".log").open("a") as log:
        runner = Runner(
            state,
            log,
            60 * (options.minutes or (10 if options.first else 30)),
            arguments,
            environment(options.stand_in, options.carried),
            options.keep_going or options.first,
            options.again,
        )
        good = runner.run(phases)
    print(f"\n{table(phases, state.outcomes)}")
    print(f"commit {commit}; {file}, {file.with_suffix('.log')}")
    return 0 if good else 1


def environment(stand_in: bool, carried: Path) -> dict[str, str]:
    """Return what phases need in their environment."""
    # Kernels are loaded before the first one spins: loading waits for those that run. And streams
    # beyond the device's connections, 8 unless asked, share one and wait for each other's kernels.
    found = {
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *carry.paths(carried), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    if carried.is_dir():  # compiled kernels, as `prepare` left them
        found["PYCOLL_CACHE"] = str(carried / "pycoll")
    if stand_in:
        sys.path.append(str(ROOT / "tests" / "fakecuda"))
        import fakecuda

        if lack := fakecuda.lack():
            sys.exit(f"no stand-in: {lack}")
        found |= fakecuda.environment()
    return found


if __name__ == "__main__":
    sys.exit(main())
