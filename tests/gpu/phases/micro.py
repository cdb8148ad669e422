"""What the parts of a collective take by themselves: a launch, a fence, a flag's way, a copy."""

from __future__ import annotations

from phase import Lacking, Run, main

#: Blocks of a copy; the last are all multiprocessors.
BLOCKS = (1, 2, 4, 8, 16, 32, 64)


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import device
    from floors import Floors

    floors = Floors(run.device, run.carried, run.stand_in)

    def keep(name: str, value: float, unit: str) -> None:
        run.checks += 1
        run.details[name] = {"value": value, "unit": unit}
        print(f"{name}: {value:.3g} {unit}")
        run.note(said())

    def said() -> str:
        return "; ".join(f"{k} {v['value']:.3g} {v['unit']}" for k, v in run.details.items())

    keep("launch", floors.launch_seconds() * 1e6, "us")
    keep("fence", floors.fence_seconds() * 1e9, "ns")
    keep("flag from block to block", floors.hop_seconds() * 1e9, "ns")
    every = cuda.device(run.device).multiprocessors
    for blocks in (1, 4) if run.stand_in else (*(n for n in BLOCKS if n < every), every):
        run.check(run.left > 0, "no time for copies")
        keep(f"copy by {blocks} blocks", floors.copy(blocks) * 1e-9, "GB/s")
    device.close_all()
    return said()


if __name__ == "__main__":
    main(phase)
