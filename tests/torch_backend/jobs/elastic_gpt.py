"""The elastic GPT of the examples: a rank is killed amid the backward of a step.

Arguments: "ddp" or "fsdp2"; the rank that is killed; a file, which gets the state that the others
began again with; seconds for a replacement. If the file is there, training begins with that, and
nobody is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import pycoll

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "gpt"))

import elastic

KILLED, STEPS = 3, 7
take_step, train = elastic.take_step, elastic.train


def dying(model: Any, *given: Any, calls: list[None] = []) -> Any:  # noqa: B006
    """Take a step; in one of them die when the gradient comes to the first block's output."""
    calls.append(None)
    if len(calls) == KILLED + 1:
        block = getattr(model, "module", model).blocks[0]
        kill = lambda grad: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        block.register_forward_hook(lambda module, x, y: y.register_hook(kill) and None)
    return take_step(model, *given)


def main() -> None:
    how, victim, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    comm = pycoll.init(timeout=60)
    size = comm.size
    if file.exists() and not pycoll.joining():
        for _ in train(comm, how, STEPS, torch.load(file)):
            pass
        return

    def noted(comm: Any, *given: Any) -> Iterator[Any]:
        for number, kept in enumerate(train(comm, *given)):
            if number == comm.rank == 0 and comm.size < size:
                torch.save(kept, file)
            yield kept

    elastic.train = noted
    if comm.rank == victim and not pycoll.joining():
        elastic.take_step = dying
    elastic.outlive(comm, how, STEPS, wait=float(sys.argv[4]))


if __name__ == "__main__":
    main()
