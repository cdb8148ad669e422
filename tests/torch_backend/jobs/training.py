"""Training as it is written for torch, by pycoll and by gloo: the same weights in the end."""

from __future__ import annotations

import copy
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import both
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

rank = size = 0
STEPS = 4

#: In epsilons, with more than two ranks: a sum of two has one order, and the same bits; of more,
#: gloo's and pycoll's differ in the last bits of a gradient. In hooks gradients travel as halves.
ROUNDING = 16.0
ROUNDING_OF_HALVES = 4096.0


class Branches(nn.Module):
    """A model of which a step may leave a part unused, another one on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.branches = nn.ModuleList(nn.Linear(64, 32) for _ in range(3))
        self.norm = nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Any, branch: int = 0) -> Any:
        return self.last(torch.relu(self.norm(self.branches[branch](torch.relu(self.first(x))))))


def layers() -> nn.Module:
    inner = (nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
    return nn.Sequential(*inner, nn.Linear(32, 4))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return make()


def batch(step: int, whole: bool = False) -> Any:
    """A batch: this rank's own, or the same on all ranks."""
    source = torch.Generator().manual_seed(100 * step + (0 if whole else rank))
    return torch.randn(6, 8, generator=source)


def weights(model: nn.Module) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


def train(model: nn.Module, steps: int = STEPS, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, **options)).square().mean().backward()
        optimizer.step()


def ddp_buckets(pg: Any) -> Any:
    model = seeded(layers)
    wrapped = DistributedDataParallel(model, process_group=pg, bucket_cap_mb=0.001)
    train(wrapped)
    return weights(model)


def ddp_unused(pg: Any) -> Any:
    model = seeded(Branches)
    wrapped = DistributedDataParallel(model, process_group=pg, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(batch(step), (step + rank) % 3).square().mean().backward()
        optimizer.step()
    return weights(model), model.norm.running_mean


def ddp_no_sync(pg: Any) -> Any:
    model = seeded(layers)
    wrapped = DistributedDataParallel(model, process_group=pg, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with wrapped.no_sync():
            wrapped(batch(2 * step)).square().mean().backward()
        wrapped(batch(2 * step + 1)).square().mean().backward()
        optimizer.step()
    return weights(model)


def ddp_hooks(pg: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def halved(group, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
        """Travel as bfloat16; torch's own hook of that kind asks for a GPU."""
        small = bucket.buffer().to(torch.bfloat16) / size
        future = dist.all_reduce(small, group=group, async_op=True).get_future()
        return future.then(lambda f: bucket.buffer().copy_(f.value()[0]))

    found = []
    for hook in (default_hooks.fp16_compress_hook, halved):
        model = seeded(layers)
        wrapped = DistributedDataParallel(model, process_group=pg, bucket_cap_mb=0.001)
        wrapped.register_comm_hook(pg, hook)
        train(wrapped)
        found.append(weights(model))
    return found


def ddp_sparse(pg: Any) -> Any:
    torch.manual_seed(5)
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 2))
    wrapped = DistributedDataParallel(model, process_group=pg)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        places = torch.arange(6).view(2, 3) * (rank + 1 + step) % 20
        wrapped(places).square().mean().backward()
        optimizer.step()
    return weights(model)


def sync_batch_norm(pg: Any) -> Any:
    # Of torch it wants a GPU: what it sends, it sends by these, which are tried here.
    from torch.distributed.nn.functional import all_gather

    x = batch(0).requires_grad_()
    torch.cat(all_gather(x * (rank + 1), group=pg)).square().sum().backward()
    return x.grad


def ddp_uneven(pg: Any) -> Any:
    """Ranks with more batches than others: who has none left shadows the others' calls."""
    found = []
    for by_all in (False, True):
        model = seeded(layers)
        wrapped = DistributedDataParallel(model, process_group=pg, bucket_cap_mb=0.001)
        with wrapped.join(divide_by_initial_world_size=by_all):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(STEPS + 2 * rank):
                optimizer.zero_grad()
                wrapped(batch(step)).square().mean().backward()
                optimizer.step()
        found.append(weights(model))
    return found


def ddp_uneven_ends_early(pg: Any) -> Any:
    """The first rank without a batch ends the loop of all, by an exception that is caught."""
    model = seeded(layers)
    wrapped = DistributedDataParallel(model, process_group=pg)
    steps, said = 0, ""
    try:
        with wrapped.join(throw_on_early_termination=True):
            for step in range(STEPS + 2 * rank):
                wrapped(batch(step)).square().mean().backward()
                steps += 1
    except RuntimeError as error:
        said = str(error)
    assert "exhausted" in said, said
    both.compare("steps", steps, STEPS)
    model.zero_grad()
    wrapped(batch(0)).square().mean().backward()
    return [p.grad for p in model.parameters()]


def zero_uneven(pg: Any) -> Any:
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = seeded(layers)
    wrapped = DistributedDataParallel(model, process_group=pg)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, pg, lr=0.1)
    with Join([wrapped, optimizer]):
        for step in range(STEPS + rank):
            optimizer.zero_grad()
            wrapped(batch(step)).square().mean().backward()
            optimizer.step()
    return weights(model)


def zero(pg: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = seeded(layers)
    wrapped = DistributedDataParallel(model, process_group=pg)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=pg, lr=1e-2
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(batch(step)).square().mean().backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    return weights(model)


def fsdp(pg: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(pg, "cpu")
    model = seeded(layers)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model)
    return [p.full_tensor().detach() for p in model.parameters()]


def tensor_parallel(pg: Any) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = DeviceMesh.from_group(pg, "cpu")
    model = seeded(layers)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, whole=True)
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in model.parameters()
    ]


def dtensor(pg: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(pg, "cpu")
    x, w = batch(0, whole=True), batch(1, whole=True)
    a = distribute_tensor(x, mesh, [Shard(0)])
    b = a.redistribute(mesh, [Shard(1)])  # all-to-all
    y = b @ distribute_tensor(w.t().contiguous(), mesh, [Shard(0)])  # a sum to be made
    return (
        b.full_tensor(),
        y.redistribute(mesh, [Shard(0)]).full_tensor(),
        y.redistribute(mesh, [Replicate()]).to_local(),
    )


def pipeline(pg: Any) -> Any:
    """A layer on each rank; activations go down by send, gradients come back."""
    layer = seeded(lambda: nn.Linear(8, 8))
    with torch.no_grad():
        layer.weight.add_(0.01 * rank)
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step, whole=True)
        if rank > 0:
            x = torch.empty(6, 8)
            dist.recv(x, rank - 1, group=pg)
            x.requires_grad_()
        y = torch.tanh(layer(x))
        if rank < size - 1:
            dist.send(y.detach(), rank + 1, group=pg)
            back = torch.empty(6, 8)
            dist.recv(back, rank + 1, group=pg)
            y.backward(back)
        else:
            y.square().mean().backward()
        if rank > 0:
            dist.isend(x.grad, rank - 1, group=pg).wait()
        optimizer.step()
    return weights(layer)


def schedule(pg: Any) -> Any:
    """torch's own pipeline: a stage on each rank, microbatches in the order of GPipe."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    layer = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    example = torch.zeros(2, 8)
    stage = PipelineStage(layer, rank, size, torch.device("cpu"), input_args=(example,), group=pg)
    plan = ScheduleGPipe(stage, 3, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    losses: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step, whole=True)
        if rank == 0:
            plan.step(x)
        elif rank == size - 1:
            plan.step(target=x, losses=losses)
        else:
            plan.step()
        optimizer.step()
    return weights(layer), losses


def compiled(pg: Any) -> Any:
    import torch.distributed._functional_collectives as functional

    def step(x: Any, w: Any) -> Any:
        y = functional.all_reduce(x @ w, "sum", pg)
        z = functional.all_gather_tensor(y * 2, 0, pg)
        return functional.reduce_scatter_tensor(z, "avg", 0, pg) + 1

    x, w = batch(3), batch(4, whole=True).t().contiguous()
    found = [step(x, w)]
    for backend in ("aot_eager", *sys.argv[1:]):
        torch._dynamo.reset()
        found.append(torch.compile(step, backend=backend, fullgraph=True)(x, w))
    model = seeded(layers)
    wrapped = torch.compile(DistributedDataParallel(model, process_group=pg), backend="aot_eager")
    train(wrapped)
    return found, weights(model)


def checkpoint(pg: Any) -> Any:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    there = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(there, 0, group=pg)
    mesh = DeviceMesh.from_group(pg, "cpu")
    model = fully_shard(seeded(layers), mesh=mesh)
    train(model)
    # Without saving in a group of its own: torch's default is the job's, whatever the mesh.
    dcp.save({"model": model.state_dict()}, checkpoint_id=there[0], process_group=pg)
    fresh = fully_shard(layers(), mesh=mesh)
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=there[0], process_group=pg)
    fresh.load_state_dict(state["model"])
    dist.barrier(group=pg)
    if rank == 0:
        for path in Path(there[0]).iterdir():
            path.unlink()
        Path(there[0]).rmdir()
    mine = [p.full_tensor().detach() for p in fresh.parameters()]
    both.compare("what was saved", mine, [p.full_tensor().detach() for p in model.parameters()])
    return mine


def state_from_rank_0(pg: Any) -> Any:
    """Whole states of model and optimizer that rank 0 has, given to all: plain and sharded.

    torch does so by the job's own group, which is pycoll's, whatever `pg` is.
    """
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(pg, "cpu")
    whole = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    found = []
    for sharded in (False, True):
        torch.manual_seed(7 + rank)  # the ranks begin with weights of their own
        model, trained = layers(), seeded(layers)
        if sharded:
            fully_shard(trained, mesh=mesh)
            fully_shard(model, mesh=mesh)
        other = torch.optim.Adam(trained.parameters(), 0.1)
        trained(batch(0, whole=True)).square().mean().backward()
        other.step()
        its_model = states.get_model_state_dict(trained, options=whole)
        its_optimizer = states.get_optimizer_state_dict(trained, other, options=whole)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        # What is loaded must not be the memory of what it came from, which is trained on.
        its_model, its_optimizer = copy.deepcopy((its_model, its_optimizer))
        if rank:
            its_model, its_optimizer = {}, {}
        states.set_model_state_dict(model, its_model, options=options)
        states.set_optimizer_state_dict(model, optimizer, its_optimizer, options=options)
        for each, its in ((model, optimizer), (trained, other)):
            its.zero_grad()
            each(batch(1, whole=True)).square().mean().backward()
            its.step()
        got, want = weights(model), weights(trained)
        both.compare("what rank 0 had", local(got), local(want))
        found += local(got)
    return found


def local(found: list[Any]) -> list[Any]:
    return [x.to_local() if hasattr(x, "to_local") else x for x in found]


def asynchronous_checkpoint(pg: Any) -> Any:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(pg, "cpu")
    found = []
    for kind in AsyncCheckpointerType:
        there = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(there, 0, group=pg)
        model = fully_shard(seeded(layers), mesh=mesh)
        train(model)
        saved = dcp.async_save(
            {"model": model.state_dict()},
            checkpoint_id=there[0],
            process_group=pg,
            async_checkpointer_type=kind,
        )
        saved.result()
        fresh = fully_shard(layers(), mesh=mesh)
        state = {"model": fresh.state_dict()}
        dcp.load(state, checkpoint_id=there[0], process_group=pg)
        fresh.load_state_dict(state["model"])
        dist.barrier(group=pg)
        if rank == 0:
            shutil.rmtree(str(there[0]))
        found += [p.full_tensor().detach() for p in fresh.parameters()]
    return found


CASES = (
    ddp_buckets,
    ddp_unused,
    ddp_no_sync,
    ddp_hooks,
    ddp_sparse,
    ddp_uneven,
    ddp_uneven_ends_early,
    zero_uneven,
    sync_batch_norm,
    zero,
    fsdp,
    tensor_parallel,
    dtensor,
    pipeline,
    schedule,
    compiled,
    checkpoint,
    asynchronous_checkpoint,
    state_from_rank_0,
)


def main() -> None:
    global rank, size
    pycoll, gloo = both.begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in CASES:
        try:
            want = case(gloo)
        except BaseException as error:
            raise AssertionError(f"{case.__name__} by gloo") from error
        try:
            got = case(pycoll)
        except BaseException as error:
            raise AssertionError(f"{case.__name__} by pycoll") from error
        rounding = ROUNDING_OF_HALVES if case is ddp_hooks else ROUNDING
        both.compare(case.__name__, got, want, rounding if size > 2 else 0)
    both.end()


if __name__ == "__main__":
    main()
