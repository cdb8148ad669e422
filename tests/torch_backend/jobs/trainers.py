"""A small training by a library over torch; prints what it ends with.

Arguments: "lightning", "accelerate" or "transformers"; "gloo" or "pycoll"; a folder.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def layers() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batches() -> Any:
    source = torch.Generator().manual_seed(4)
    x, y = torch.randn(64, 8, generator=source), torch.randn(64, 1, generator=source)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def by_lightning(backend: str, folder: str) -> list[Any]:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers()

        def training_step(self, pair: Any, number: int) -> Any:
            x, y = pair
            loss = (self.net(x) - y).square().mean()
            self.log("loss", loss, sync_dist=True)
            self.log("rows", len(x), sync_dist=True)  # an average of integers
            return loss

        def validation_step(self, pair: Any, number: int) -> None:
            self.log("wrong", (self.net(pair[0]) - pair[1]).abs().mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, batches(), batches())
    return [*module.parameters(), *trainer.callback_metrics.values()]


def by_accelerate(backend: str, folder: str) -> list[Any]:
    from accelerate import Accelerator

    if backend == "pycoll":
        dist.init_process_group("pycoll")
    accelerator = Accelerator(cpu=True)
    model = layers()
    found = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), batches())
    wrapped, optimizer, data = found
    for x, y in data:
        optimizer.zero_grad()
        accelerator.backward((wrapped(x) - y).square().mean())
        optimizer.step()
    mine = torch.arange(3.0) + accelerator.process_index
    return [*model.parameters(), accelerator.gather(mine), accelerator.reduce(mine, "mean")]


def by_transformers(backend: str, folder: str) -> list[Any]:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    if backend == "pycoll":
        dist.init_process_group("pycoll")
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, num_attention_heads=2, **sizes))
    rows = [{"input_ids": (torch.arange(6) * i) % 50, "labels": i % 2} for i in range(32)]
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        **({} if backend == "pycoll" else {"ddp_backend": backend}),
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return [*model.parameters(), torch.tensor(trainer.evaluate()["eval_loss"])]


def main() -> None:
    library, backend, folder = sys.argv[1:]
    found = globals()[f"by_{library}"](backend, folder)
    assert dist.get_backend() == backend
    bits = hashlib.sha256()
    for x in found:
        bits.update(x.detach().contiguous().numpy().tobytes())
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"\nends with {bits.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
