"""How long is a training step, and how much of it is communication, by Gloo and by pycoll?

The example's GPT, trained by DDP on 2 ranks of this host. In the same processes a copy of the model
over each backend and one that sends nothing take turns, a block of steps each, from the same
weights on the same text: so the losses must agree. The share of communication is what a step takes
longer than one of the copy that sends nothing, be it that it waits, or that a core is taken.

Run: python bench/torch/gpt.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "examples" / "gpt")]

from launch import RESULTS, environment, write  # noqa: E402

BACKENDS = ("gloo", "pycoll")
ALONE = "alone"
#: What is varied: the width of the model, and with it how much is sent.
MODELS = {"small": {"width": 128, "depth": 4}, "wide": {"width": 384, "depth": 6}}
BATCH = 16  #: pieces of 64 characters, of all ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--ranks", type=int, default=2)
    option("--rounds", type=int, default=12, help="turns of each")
    option("--steps", type=int, default=10, help="of a turn; the first one does not count")
    option("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    option("--output", type=Path, default=RESULTS / "torch-gpt.json", metavar="FILE")
    option("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        options.rank.write_text(json.dumps(rank(options))) if first() else rank(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "rows.json")
        command = ["-m", "pycoll", "run", "-n", str(options.ranks), __file__, "--rank", str(told)]
        for name in ("rounds", "steps"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--models", *options.models]
        subprocess.run([sys.executable, *command], env=environment(), check=True, timeout=3600)
        result = json.loads(told.read_text())
    write(options.output, result["meta"], result["rows"])
    for row in result["rows"]:
        print(line(row))


def first() -> bool:
    return os.environ["RANK"] == "0"


def rank(options: argparse.Namespace) -> dict[str, Any]:
    """Be one rank; returns what all of them saw."""
    import torch
    import torch.distributed as dist

    from pycoll.benchmark import metadata

    dist.init_process_group("gloo")  # which also compares what the ranks saw
    rows = [measure(name, options) for name in options.models]
    meta = metadata.collect("pycoll run", dist.get_world_size(), {"torch": torch.__version__})
    meta["method"] = "median over rounds of a round's median step, the slowest rank's"
    meta["threads"] = torch.get_num_threads()
    dist.destroy_process_group()
    return {"meta": meta, "rows": rows}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model over each backend and over none, by turns."""
    import torch
    import torch.distributed as dist
    from model import GPT, Text
    from torch.nn.parallel import DistributedDataParallel

    text = Text((HERE.parents[1] / "examples" / "gpt" / "sonnets.txt").read_text())
    torch.manual_seed(0)
    model = GPT(len(text.characters), **MODELS[name])
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    models = {b: DistributedDataParallel(deepcopy(model), process_group=groups[b]) for b in groups}
    models[ALONE] = deepcopy(model)
    trained = {who: Training(model, text) for who, model in models.items()}
    medians: dict[str, list[float]] = {who: [] for who in models}
    for turn in range(options.rounds + 1):  # the first to warm up
        for who, training in trained.items():
            dist.barrier()
            took = [training.step() for _ in range(options.steps)][1:]
            if turn:
                medians[who].append(slowest(statistics.median(took)))
    mean = {who: averaged(trained[who].losses) for who in BACKENDS}
    seconds = {who: statistics.median(times) for who, times in medians.items()}
    for group in groups.values():
        dist.destroy_process_group(group)
    return {
        "model": name,
        **MODELS[name],
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": options.rounds * (options.steps - 1),
        "ms": {who: round(1e3 * value, 3) for who, value in seconds.items()},
        "share": {who: round(1 - seconds[ALONE] / seconds[who], 4) for who in BACKENDS},
        "rounds_ms": {who: [round(1e3 * t, 3) for t in times] for who, times in medians.items()},
        "losses": {who: [found[0], found[-1]] for who, found in mean.items()},
        "losses_differ_by": max(abs(a - b) for a, b in zip(*mean.values(), strict=True)),
    }


class Training:
    """A model, what it has learnt, and how it learns."""

    def __init__(self, model: Any, text: Any) -> None:
        import torch

        self.losses: list[Any] = []
        self._model, self._text = model, text
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self) -> float:
        """Take a step; returns its seconds."""
        import torch.distributed as dist

        size = dist.get_world_size()
        x, y = self._text.batch(len(self.losses), BATCH, dist.get_rank(), size)
        begun = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._model(x, y)
        loss.backward()
        self._optimizer.step()
        took = time.perf_counter() - begun
        self.losses.append(loss.detach())
        return took


def slowest(seconds: float) -> float:
    import torch
    import torch.distributed as dist

    dist.all_reduce(x := torch.tensor(seconds, dtype=torch.float64), dist.ReduceOp.MAX)
    return float(x)


def averaged(losses: list[Any]) -> list[float]:
    import torch
    import torch.distributed as dist

    dist.all_reduce(x := torch.stack(losses))
    return (x / dist.get_world_size()).tolist()


def line(row: dict[str, Any]) -> str:
    """Say it in words."""
    who = (f"{b}: {row['ms'][b]} ms a step, {row['share'][b]:.0%} of it" for b in BACKENDS)
    return (
        f"{row['model']} ({row['parameters'] / 1e6:.1f} M parameters): {'; '.join(who)}; "
        f"without: {row['ms'][ALONE]} ms; losses differ by {row['losses_differ_by']:g}"
    )


if __name__ == "__main__":
    main()
