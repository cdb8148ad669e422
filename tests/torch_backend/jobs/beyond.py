"""What gloo does not serve or serves otherwise: groups, tags, refusals, futures, threads, names."""

from __future__ import annotations

import copy
import datetime
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

import both
import torch
import torch.distributed as dist

import pycoll
from pycoll.runtime.native import bindings

rank = size = 0


def dtypes_that_only_move() -> None:
    kinds = (torch.int16, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.complex64)
    for dtype in kinds:
        mine = torch.full((2, 3), rank + 1).to(dtype)
        every = [torch.full((2, 3), r + 1).to(dtype) for r in range(size)]
        got = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(got, mine)
        both.compare(f"all_gather {dtype}", got, every)
        out = torch.empty((2 * size, 3), dtype=dtype)
        dist.all_gather_into_tensor(out, mine)
        both.compare(f"all_gather_into_tensor {dtype}", list(out.split(2)), every)
        x = torch.arange(size).to(dtype)
        got = torch.empty_like(x)
        dist.all_to_all_single(got, x)
        both.compare(f"all_to_all {dtype}", got, torch.full((size,), rank).to(dtype))
        dist.all_to_all_single(got, x, [1] * size, [1] * size)
        both.compare(f"all_to_all {dtype}", got, torch.full((size,), rank).to(dtype))
        lists = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else None
        dist.gather(mine, lists, 0)
        both.compare(f"gather {dtype}", lists, every if rank == 0 else None)
        dist.scatter(mine, every if rank == 0 else None, 0)
        both.compare(f"scatter {dtype}", mine, every[rank])
        dist.broadcast(mine, 1)
        both.compare(f"broadcast {dtype}", mine, every[1])


def lists_of_any_lengths() -> None:
    mine = torch.full((rank + 1, 2), float(rank))
    every = [torch.full((r + 1, 2), float(r)) for r in range(size)]
    got = [torch.empty_like(x) for x in every]
    dist.all_gather(got, mine)
    both.compare("all_gather", got, every)
    bools = [torch.zeros(r + 1, dtype=torch.bool) for r in range(size)]
    dist.all_gather(bools, torch.ones(rank + 1, dtype=torch.bool))
    assert all(x.all() for x in bools)
    got = [torch.empty_like(x) for x in every] if rank == 1 else None
    dist.gather(mine, got, 1)
    both.compare("gather", got, every if rank == 1 else None)
    out = torch.empty_like(mine)
    dist.scatter(out, every if rank == 0 else None, 0)
    both.compare("scatter", out, mine)
    sent = [torch.full((rank + 2 * to,), float(rank)) for to in range(size)]
    got = [torch.empty(frm + 2 * rank) for frm in range(size)]
    dist.all_to_all(got, sent)
    want = [torch.full((frm + 2 * rank,), float(frm)) for frm in range(size)]
    both.compare("all_to_all", got, want)
    parts = [torch.full((r + 1,), 1 << rank) for r in range(size)]
    out = torch.empty(rank + 1, dtype=torch.int64)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BOR):
        dist.reduce_scatter(out, parts, op)
        assert out.eq((1 << size) - 1).all()


def memory_with_holes() -> None:
    whole = torch.zeros(4, 6)
    part = whole[:, ::2]
    part += rank + 1
    total = size * (size + 1) / 2
    dist.all_reduce(part)
    want = torch.zeros(4, 6)
    want[:, ::2] = total
    both.compare("all_reduce", whole, want)
    part.fill_(rank)
    dist.all_reduce(part, async_op=True).wait()
    want[:, ::2] = size * (size - 1) / 2
    both.compare("all_reduce", whole, want)
    part.fill_(rank)
    if rank == 0:
        dist.send(whole[:, 1::2] + 5, 1)
    elif rank == 1:
        dist.recv(part, 0)
        assert part.eq(5).all()
        assert whole[:, 1::2].eq(0).all()


def views_that_negate() -> None:
    """Memory that holds the opposite of what is in the tensor, at the first call and later."""
    for _ in range(3):
        x = torch.full((5,), 1.0 + rank)
        for view in (torch._neg_view(x.clone()), -x):
            got = torch.empty(5 * size)
            dist.all_gather_into_tensor(got, view)
            want = -torch.arange(1.0, size + 1).repeat_interleave(5)
            both.compare("all_gather_into_tensor", got, want)
            dist.all_reduce(view, dist.ReduceOp.MAX)
            both.compare("all_reduce", view.resolve_neg(), -torch.ones(5))


def factors() -> None:
    x = torch.ones(3) * (rank + 1)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    both.compare("premul_sum", x, torch.full((3,), size * (size + 1) / 4))


def averages_of_integers() -> None:
    """As NCCL: the sum wraps, the quotient is truncated towards zero; blocking or not."""
    total = -(size * (size - 1) // 2) - 1  # of -1 and -rank each but for rank 0, which brings -1
    for dtype in (torch.int8, torch.int32, torch.int64):
        for asynchronous in (False, True, False):
            x = torch.full((3,), -rank if rank else -1, dtype=dtype)
            work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=asynchronous)
            if asynchronous:
                work.wait()
            both.compare("avg", x, torch.full((3,), int(total / size), dtype=dtype))
    x = torch.full((2,), 100, dtype=torch.int8)
    dist.reduce(x, 0, dist.ReduceOp.AVG)
    wrapped = (100 * size + 128) % 256 - 128
    if rank == 0:
        assert x.tolist() == [int(wrapped / size)] * 2
    part = torch.empty(1, dtype=torch.uint8)
    whole = torch.full((size,), 200 + rank, dtype=torch.uint8)
    dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG)
    assert part.item() == (200 * size + size * (size - 1) // 2) % 256 // size


def tensors_without_memory() -> None:
    meta, each = torch.empty(2, 3, device="meta"), [torch.empty(2, 3) for _ in range(size)]
    for function in (
        lambda: dist.all_reduce(meta),
        lambda: dist.broadcast(meta, 0),
        lambda: dist.gather(meta, each if rank == 0 else None),
        lambda: dist.scatter(meta, each if rank == 0 else None),
        lambda: dist.all_gather(each, meta),
        lambda: dist.all_gather([meta] * size, each[0]),
        lambda: dist.all_to_all_single(meta, meta),
        lambda: dist.send(meta, (rank + 1) % size),
        lambda: dist.recv(meta, (rank - 1) % size),
    ):
        text = both.refused(function)
        assert "a tensor of shape [2, 3] is on the device meta, which has no memory" in text
    dist.barrier()


def refusals() -> None:
    ints, floats = torch.ones(2, dtype=torch.int32), torch.ones(2)
    for function in (
        lambda: dist.all_reduce(ints, dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(ints.bool(), dist.ReduceOp.AVG),
        lambda: dist.all_reduce(floats, dist.ReduceOp.BXOR),
        lambda: dist.all_reduce(ints.to(torch.int16)),
        lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)),
    ):
        assert "is not served; convert the tensor" in both.refused(function)
    nobody = root(size)
    text = both.refused(lambda: dist.group.WORLD.broadcast([floats], nobody))
    assert "want a rank, 0 to" in text
    assert "entries, want" in both.refused(lambda: dist.all_gather([floats], floats))
    each = torch.ones(size)
    text = both.refused(lambda: dist.all_to_all_single(each, each, [5] + [0] * (size - 1)))
    assert "output_split_sizes is [5" in text
    # What nobody receives takes its place among the messages, so this is a group of its own.
    group, other = dist.new_group(), (rank + 1) % size
    text = both.refused(lambda: dist.recv(floats, group=group))
    assert "a rank that is named: pass src=" in text
    text = both.refused(lambda: dist.send(floats, other, group=group, tag=-1))
    assert "tag is -1, want at least 0" in text
    caught: Any = None
    try:
        dist.all_reduce(ints.bool(), dist.ReduceOp.AVG)
    except pycoll.UsageError as error:
        caught = error  # its class is pycoll's, too
    assert isinstance(caught, dist.DistBackendError)
    assert type(caught.__cause__) is pycoll.UsageError
    assert dist.get_backend() == "pycoll"
    assert dist.group.WORLD.name() == "pycoll"
    dist.barrier()


def root(rank: int) -> Any:
    opts = dist.BroadcastOptions()
    opts.rootRank = rank
    return opts


def groups() -> None:
    first = dist.new_group([0, 1])
    turned = dist.new_group(list(reversed(range(size))))
    single = dist.new_group([1])
    local = None
    if rank > 0:
        local = dist.new_group(list(range(1, size)), use_local_synchronization=True)
    if rank in (0, 1):
        x = torch.ones(2) * (rank + 1)
        dist.all_reduce(x, group=first)
        assert x.eq(3).all()
        assert dist.get_rank(first) == rank
    x = torch.tensor([float(rank)])
    out = torch.empty(size)
    dist.all_gather_into_tensor(out, x, group=turned)
    order = [float(r) for r in dist.get_process_group_ranks(turned)]
    both.compare("order", out, torch.tensor(order))
    dist.broadcast(x, size - 1, group=turned)  # torch names it as the job does
    assert x.item() == size - 1
    if rank == 1:
        dist.all_reduce(x, group=single)
        assert x.item() == size - 1
    if local is not None:
        x = torch.ones(1)
        dist.all_reduce(x, group=local)
        assert x.item() == size - 1
    again = dist.new_group([0, 1])
    if rank in (0, 1):
        dist.barrier(group=again)
        dist.destroy_process_group(first)
    half, rest = list(range(size // 2)), list(range(size // 2, size))
    for mine in (half, rest):
        split = dist.group.WORLD.split_group(mine, group_name=f"part {mine}")
        assert (split is None) == (rank not in mine)
        if split is not None:
            x = torch.ones(3)
            split.allreduce([x]).wait()
            assert x.eq(len(mine)).all()
            assert split.size() == len(mine)
            split.shutdown()


def barriers() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait(datetime.timedelta(seconds=60))
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=60))


def tags() -> None:
    """Messages with tags come in the order in which they are wanted, whoever waits for which."""
    if rank == 0:
        works = [dist.isend(torch.full((4,), float(tag)), 1, tag=tag) for tag in (5, 6, 5, 7)]
        answer = torch.zeros(1)
        dist.recv(answer, 1, tag=1)
        dist.send(torch.full((4,), 8.0), 1, tag=8)
        for work in works:
            work.wait()
    if rank == 1:
        got = {tag: torch.zeros(4) for tag in (8, 7, 6)}
        works = {tag: dist.irecv(x, 0, tag=tag) for tag, x in got.items()}
        works[6].wait()  # while the one of 8 is asked for before, and sent after our answer
        works[7].wait()
        assert not works[8].is_completed()
        dist.send(torch.zeros(1), 0, tag=1)
        works[8].wait()
        both.compare("tags", list(got.values()), [torch.full((4,), float(t)) for t in got])
        again = [torch.zeros(4), torch.zeros(4)]
        for x in again:
            dist.recv(x, 0, tag=5)
        both.compare("one tag twice", again, [torch.full((4,), 5.0)] * 2)
        wrong = dist.irecv(torch.zeros(3), 0, tag=9)
        assert "the message has 8 bytes, the tensor 12" in both.refused(wrong.wait)
    if rank == 0:
        dist.send(torch.zeros(2), 1, tag=9)
    dist.barrier()


def futures() -> None:
    x = torch.ones(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert doubled.wait().eq(2 * size).all()
    assert future.wait()[0].data_ptr() == x.data_ptr()

    # A hook that calls again, and waits there.
    def call_again(f: Any) -> Any:
        y = f.value()[0].clone()
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]

    chained = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(call_again)
    assert chained.wait().eq(size * size).all()
    assert dist.barrier(async_op=True).get_future().wait() == []

    # Of all_gather a value is a list for each tensor brought, as NCCL's is; torch's hooks that
    # quantize take its first entry for what all ranks brought. Gloo's is one list of all tensors.
    got = [torch.empty(1) for _ in range(size)]
    value = dist.all_gather(got, torch.ones(1), async_op=True).get_future().wait()
    assert [[y.data_ptr() for y in ys] for ys in value] == [[y.data_ptr() for y in got]]


def waits() -> None:
    """A wait that is given up leaves the message on its way."""
    x = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(x, 1)
        text = both.refused(lambda: work.wait(datetime.timedelta(milliseconds=20)))
        assert "it goes on, wait again" in text
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1)
        work.wait()
        assert x.eq(4).all()
        assert work._source_rank() == 1
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(x + 4, 0)


def works_that_nobody_waits_for() -> None:
    """They take no memory but for the latest, whose C++ halves may still be waited for."""
    from pycoll.interop.torch_work import forgotten

    xs = [torch.ones(4) for _ in range(20)]
    looks = [weakref.ref(x) for x in xs]
    for _ in range(100):
        for x in xs:
            dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
    peer = (rank + 1) % size
    dist.isend(torch.ones(4), peer)
    dist.irecv(torch.ones(4), (rank - 1) % size)
    dist.barrier()
    assert all(x.eq(1).all() for x in xs)
    del x, xs
    deadline = time.monotonic() + 60
    while forgotten.begun and time.monotonic() < deadline:
        forgotten.sort()
    assert not forgotten.begun
    assert [look for look in looks if look() is not None] == []
    assert 0 < len(forgotten._over) <= 1000


def what_torch_asks_a_group() -> None:
    group: Any = dist.group.WORLD
    assert set(group._device_types) == {torch.device("cpu"), torch.device("cuda")}
    assert dist.distributed_c10d._device_capability(group) == ["cpu", "cuda"]
    assert dist.distributed_c10d._get_object_coll_device(group) == "cpu"
    for name, each in (("all", group), ("two", dist.new_group([0, 1]))):
        if isinstance(each, dist.ProcessGroup):
            store = each.get_group_store()
            if each.rank() == 0:
                store.set(f"said to {name}", "hello")
            assert store.get(f"said to {name}") == b"hello"
    before = group._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    assert group._get_sequence_number_for_group() == before + 2
    assert group.supports_tensor_alloc(torch.device("cpu")) is False
    text = both.refused(lambda: group.merge_remote_group(group.get_group_store(), 2 * size))
    assert "its communicator grows" in text


def options_of_a_group() -> None:
    """What scripts look up in a backend's options; torch copies those of a group that it splits."""
    soon = datetime.timedelta(seconds=70)
    ranks = [1, 0]
    for group, timeout, want in (
        (dist.group.WORLD, datetime.timedelta(seconds=100), list(range(size))),
        (dist.new_group(ranks, timeout=soon, sort_ranks=False), soon, ranks),
    ):
        if not isinstance(group, dist.ProcessGroup):
            continue
        found = group._get_backend(torch.device("cpu")).options
        for each in (found, copy.deepcopy(found)):
            assert each._timeout == timeout
            assert each.backend == "pycoll"
            assert each.group_name == group.group_name
            assert list(each.global_ranks_in_group) == want
        group.set_timeout(datetime.timedelta(seconds=80))
        assert found._timeout == datetime.timedelta(seconds=80)
        if group is not dist.group.WORLD:
            part = group.split_group([0])
            if part is not None:
                assert list(part.options.global_ranks_in_group) == want[:1]
                part.shutdown()
        group.set_timeout(timeout)


def forms_that_no_call_has() -> None:
    """A wrong argument is told, and no call is made: the ranks stay in step."""
    group: Any = dist.group.WORLD
    x = torch.ones(2)
    for function, said in (
        (lambda: group.allreduce(x, 3), "got 3, want AllreduceOptions"),
        (lambda: group.broadcast(x, dist.ReduceOp.MAX), "want BroadcastOptions"),
        (lambda: group.broadcast(x, "0"), "got '0', want BroadcastOptions"),
    ):
        text = both.refused(function, TypeError)
        assert said in text, text
    dist.barrier()


def sharded_tensors() -> None:
    """The older kind, which gathers on the device that it takes for the backend's own."""
    from torch.distributed import _shard
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    placements: list[Any] = [f"rank:{r}/cpu" for r in range(size)]
    made = _shard.sharded_tensor.full(ChunkShardingSpec(0, placements), (2 * size, 3), 7.0)
    whole = torch.zeros(2 * size, 3) if rank == 0 else None
    made.gather(0, whole)
    assert whole is None or whole.eq(7).all()


def late_ranks() -> None:
    """What scripts for torch look for in the text of a timeout."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=60))  # to meet in, too
    if rank == 0:
        group.set_timeout(datetime.timedelta(seconds=1))
        text = both.refused(lambda: dist.barrier(group=group))
        assert "Timed out (the timeout passed): " in text, text
        assert "did not finish within 1 s" in text, text
    dist.barrier()


def threads() -> None:
    """A thread sends while another is inside a receive that depends on it."""
    if rank > 1:
        return
    got, peer = torch.zeros(2), 1 - rank
    failures: list[BaseException] = []

    def receive() -> None:
        try:
            dist.recv(got, peer)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    dist.send(torch.full((2,), float(rank)), peer)
    thread.join()
    assert not failures
    assert got.eq(peer).all()


def the_communicator_itself() -> None:
    comm = dist.group.WORLD.communicator
    assert (comm.rank, comm.size, comm.launcher) == (rank, size, "torch")
    x = torch.ones(5)
    comm.allreduce(x)
    assert x.eq(size).all()


def coalesced() -> None:
    """With a device torch has the group itself coalesce: one work for all."""
    xs = [torch.full((n,), float(rank)) for n in (2, 3)]
    got = torch.zeros(4)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for x in xs:
            dist.group.WORLD.allreduce([x])
        dist.isend(torch.full((4,), float(rank)), (rank + 1) % size)
        dist.irecv(got, (rank - 1) % size)
    manager.wait()
    assert all(x.eq(size * (size - 1) / 2).all() for x in xs)
    assert got.eq((rank - 1) % size).all()


def forks() -> None:
    """A child has no process group; the parent's is as good as before."""
    assert refused_in_a_child()
    dist.barrier()
    # The same while a thread is inside a call, which the others make only when the child is gone.
    store: Any = dist.distributed_c10d._get_default_store()
    if rank > 0:
        assert store.get("the child was refused") == b"True"
        dist.barrier()
        return
    group: Any = dist.group.WORLD
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    while group._entered.acquire(blocking=False):
        group._entered.release()
        time.sleep(0)
    store.set("the child was refused", str(refused_in_a_child()))
    thread.join()
    assert store.get("the child was refused") == b"True"


def refused_in_a_child() -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(20)  # a child that hangs is ended
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            code = 0 if "this communicator belongs to process" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def signal_handlers() -> None:
    """What a handler calls amid another call is refused, and the other call ends well."""
    store: Any = dist.distributed_c10d._get_default_store()
    group: Any = dist.new_group()  # with the timeout of its communicator, so that calls are short
    meta = torch.empty(4, device="meta")
    told: list[str] = []
    calls = (
        (
            "knows",
            lambda: dist.all_reduce(torch.ones(4), group=group),
            "this thread is inside a call",
        ),
        (
            "begins",
            lambda: dist.all_reduce(torch.ones(4), group=group, async_op=True),
            "inside a call",
        ),
        ("refuses", lambda: dist.all_reduce(meta, group=group), "has no memory"),
    )
    dist.all_reduce(torch.ones(4), group=group)
    for name, call, said in calls:
        x = torch.ones(4)
        if rank > 0:
            assert store.get(f"handled: {name}") == b"yes"
            dist.all_reduce(x, group=group)
        else:

            def handle(*_: Any, name: str = name, call: Any = call) -> None:
                told.append(both.refused(call))
                store.set(f"handled: {name}", "yes")

            signal.signal(signal.SIGUSR1, handle)
            threading.Thread(target=strike, args=(group.communicator,)).start()
            dist.all_reduce(x, group=group)
            assert said in told[-1], told
        assert x.eq(size).all()
    dist.barrier(group=group)


def strike(comm: Any) -> None:
    """Send this process a signal once a thread is inside a call."""
    while not bindings.comm_entered(comm._engine.comm):
        time.sleep(0)
    os.kill(os.getpid(), signal.SIGUSR1)


def autograd() -> None:
    """torch.distributed.nn's functions, which have gradients."""
    import torch.distributed.nn.functional as F

    x = torch.full((3,), float(rank + 1), requires_grad=True)
    F.all_reduce(x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(2 * size).all()


def main() -> None:
    global rank, size
    dist.init_process_group("pycoll", timeout=datetime.timedelta(seconds=100))
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in CASES:
        try:
            case()
        except BaseException as error:
            raise AssertionError(case.__name__) from error
    dist.destroy_process_group()
    again_by_one_store()
    nothing_is_left()


def again_by_one_store() -> None:
    """A file that all see is a store too; it serves one process group after another."""
    store = dist.FileStore(sys.argv[1], size)
    for _ in range(2):
        dist.init_process_group("pycoll", store=store, rank=rank, world_size=size)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == size
        dist.destroy_process_group()
    with_one = dist.HashStore()
    dist.init_process_group("pycoll", store=with_one, rank=0, world_size=1)
    dist.all_reduce(x)
    assert x.item() == size
    dist.destroy_process_group()


def nothing_is_left() -> None:
    def others() -> list[str]:
        return [t.name for t in threading.enumerate() if t is not threading.main_thread()]

    until = time.monotonic() + 20
    while others() and time.monotonic() < until:
        time.sleep(0)
    assert not others(), others()


CASES = (
    dtypes_that_only_move,
    lists_of_any_lengths,
    memory_with_holes,
    views_that_negate,
    factors,
    averages_of_integers,
    tensors_without_memory,
    sharded_tensors,
    refusals,
    groups,
    barriers,
    tags,
    futures,
    waits,
    works_that_nobody_waits_for,
    what_torch_asks_a_group,
    options_of_a_group,
    forms_that_no_call_has,
    threads,
    the_communicator_itself,
    coalesced,
    autograd,
    late_ranks,
    signal_handlers,
    forks,
)

if __name__ == "__main__":
    main()
