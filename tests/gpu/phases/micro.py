"""What the parts of a collective take by themselves: a launch, a fence, a flag's way, a copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from phase import Lacking, Run, main

REPEATS = 5


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import device
    import kernels
    import numpy as np

    from pycoll.runtime.native import load

    count = (1 << 16) if run.stand_in else (16 << 20)  # words of a copy: half of the memory
    rounds = 50 if run.stand_in else 10_000
    pool = device.Pool(run.device, 16 * count + (1 << 20))
    words = pool.empty(2 * count, "int64").fill(0)
    handles = (kernels.played if run.stand_in else kernels.load)(run.device, run.carried)
    start, end = (cuda.event(run.device, timing=True) for _ in range(2))
    new = load.ffi.new

    def launch(name: str, blocks: int, threads: int, words_each: int, rounds: int) -> None:
        arguments = [new("uint64_t *", words.address), new("uint64_t *", words_each)]
        arguments.append(new("uint32_t *", rounds))
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        cuda.launch(run.device, handles[name], grid, block, arguments, pool.stream)

    def seconds(work: Callable[[], Any]) -> float:
        """Return the median of what the GPU's own events say of some work; it has run before."""
        work()
        found = []
        for _ in range(REPEATS):
            cuda.event_record(run.device, start, pool.stream)
            work()
            cuda.event_record(run.device, end, pool.stream)
            cuda.event_wait(run.device, end)
            found.append(cuda.event_seconds(run.device, start, end))
        return statistics.median(found)

    def keep(name: str, value: float, unit: str) -> None:
        run.details[name] = {"value": value, "unit": unit}
        print(f"{name}: {value:.3g} {unit}")
        run.note("; ".join(f"{k} {v['value']:.3g} {v['unit']}" for k, v in run.details.items()))

    def launches() -> None:
        for _ in range(rounds // 10):
            launch("idle", 1, 1, 0, 0)

    keep("launch", seconds(launches) / (rounds // 10) * 1e6, "us")
    keep("fence", seconds(lambda: launch("fences", 1, 1, 1, rounds)) / rounds * 1e9, "ns")

    def pingpong() -> None:
        words.fill(0)  # waited for
        launch("pingpong", 2, 1, 0, rounds)

    pingpong()
    flags = words.get()[:32]
    run.check(flags[0] == flags[16] == rounds, f"two blocks: {flags[0]} and {flags[16]}: {rounds}")
    idle = seconds(lambda: words.fill(0))
    keep("flag there and back", max(0.0, seconds(pingpong) - idle) / rounds * 1e9, "ns")

    multiprocessors = cuda.device(run.device).multiprocessors
    threads = 4 if run.stand_in else kernels.THREADS
    wanted = (1, 4) if run.stand_in else (1, 4, 16, 64, multiprocessors)
    words.put(np.arange(2 * count))
    for blocks in wanted:
        run.check(run.left > 0, "no time for copies")
        took = seconds(lambda blocks=blocks: launch("copy", blocks, threads, count, 1))
        keep(f"copy by {blocks} blocks", 2 * 8 * count / took * 1e-9, "GB/s")
    copied = words.get()
    run.check(np.array_equal(copied[:count], copied[count:]), "what was copied is not there")
    device.close_all()
    return "; ".join(f"{k} {v['value']:.3g} {v['unit']}" for k, v in run.details.items())


if __name__ == "__main__":
    main(phase)
