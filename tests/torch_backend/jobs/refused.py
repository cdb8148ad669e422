"""Calls that pycoll's side of torch refuses, on rank 0 or on all; what follows is right or raises.

    refused.py [NAME]

Every case makes one collective again and again on a group of its own, each time with other data.
The second time it is called wrongly. Ranks that go on must never be given the data of another call;
ranks that were all refused alike must go on as if nothing had happened.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import both
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from pycoll.errors import BrokenError, CollectiveTimeout, MismatchError, PeerLostError

FAILURES = (BrokenError, CollectiveTimeout, MismatchError, PeerLostError)
OPS = dist.ReduceOp
STEPS = 4
META, FLOATS = torch.empty(3, device="meta"), torch.ones(3)
SPARSE = torch.sparse_coo_tensor([[1]], [1.0], (3,))
rank = size = 0


class Case(NamedTuple):
    """A collective.

    `make` takes a group, the number of the step and whether to return at once; it returns the work,
    what came and what should have come. Each of `wrong` is refused. `counted` is whether it is one
    of the calls that all ranks make and count, `ends` whether a failure ends the group.
    """

    name: str
    make: Callable[[Any, int, bool], tuple[Any, Any, Any]]
    wrong: list[Callable[[Any], Any]]
    counted: bool = True
    ends: bool = True


def data(step: int, of: int, n: int = 3) -> torch.Tensor:
    """What a rank brings to a step: of no other rank and step."""
    return torch.arange(float(n)) + 100 * (step + 1) + 1000 * of


def every(step: int, n: int = 3) -> list[torch.Tensor]:
    return [data(step, r, n) for r in range(size)]


def room(n: int = 1) -> list[torch.Tensor]:
    return [torch.zeros(3) for _ in range(size * n)]


def all_reduce(g: Any, s: int, beside: bool) -> Any:
    x = data(s, rank)
    return dist.all_reduce(x, group=g, async_op=beside), x, sum(every(s))


def several(g: Any, s: int, beside: bool) -> Any:
    xs = [data(s, rank), data(s, rank, 5).int()]
    opts = dist.AllreduceOptions()
    opts.asyncOp = beside
    return g.allreduce(xs, opts), xs, [sum(every(s)), sum(every(s, 5)).int()]


def bits(g: Any, s: int, beside: bool) -> Any:
    x = torch.tensor([1 << rank, s << 8])
    work = dist.all_reduce(x, OPS.BOR, group=g, async_op=beside)
    return work, x, torch.tensor([(1 << size) - 1, s << 8])


def sparse(g: Any, s: int, beside: bool) -> Any:
    x = data(s, rank).to_sparse()
    work = dist.all_reduce(x, group=g, async_op=beside)
    return work, [x.to_dense()], sum(every(s))


def broadcast(g: Any, s: int, beside: bool) -> Any:
    x = data(s, rank)
    return dist.broadcast(x, 1, group=g, async_op=beside), x, data(s, 1)


def reduce(g: Any, s: int, beside: bool) -> Any:
    x = data(s, rank)
    work = dist.reduce(x, 1, group=g, async_op=beside)
    return work, x if rank == 1 else None, sum(every(s)) if rank == 1 else None


def all_gather(g: Any, s: int, beside: bool) -> Any:
    out = room()
    return dist.all_gather(out, data(s, rank), group=g, async_op=beside), out, every(s)


def all_gather_single(g: Any, s: int, beside: bool) -> Any:
    out = torch.zeros(3 * size)
    work = dist.all_gather_into_tensor(out, data(s, rank), group=g, async_op=beside)
    return work, out, torch.cat(every(s))


def all_gather_coalesced(g: Any, s: int, beside: bool) -> Any:
    out = [[torch.zeros(3)] for _ in range(size)]
    work = dist.all_gather_coalesced(out, [data(s, rank)], group=g, async_op=beside)
    return work, out, every(s)


def reduce_scatter(g: Any, s: int, beside: bool) -> Any:
    out, parts = torch.zeros(3), list(data(s, rank, 3 * size).split(3))
    work = dist.reduce_scatter(out, parts, group=g, async_op=beside)
    return work, out, sum(every(s, 3 * size)).split(3)[rank]


def reduce_scatter_single(g: Any, s: int, beside: bool) -> Any:
    out = torch.zeros(3)
    work = dist.reduce_scatter_tensor(out, data(s, rank, 3 * size), group=g, async_op=beside)
    return work, out, sum(every(s, 3 * size)).split(3)[rank]


def gather(g: Any, s: int, beside: bool) -> Any:
    out = room() if rank == 1 else None
    work = dist.gather(data(s, rank), out, 1, group=g, async_op=beside)
    return work, out, every(s) if rank == 1 else None


def scatter(g: Any, s: int, beside: bool) -> Any:
    out, parts = torch.zeros(3), list(data(s, 1, 3 * size).split(3))
    work = dist.scatter(out, parts if rank == 1 else None, 1, group=g, async_op=beside)
    return work, out, parts[rank]


def all_to_all(g: Any, s: int, beside: bool) -> Any:
    out, parts = room(), list(data(s, rank, 3 * size).split(3))
    work = dist.all_to_all(out, parts, group=g, async_op=beside)
    return work, out, [x.split(3)[rank] for x in every(s, 3 * size)]


def all_to_all_single(g: Any, s: int, beside: bool) -> Any:
    out = torch.zeros(3 * size)
    work = dist.all_to_all_single(out, data(s, rank, 3 * size), group=g, async_op=beside)
    return work, out, torch.cat([x.split(3)[rank] for x in every(s, 3 * size)])


def all_to_all_by_rows(g: Any, s: int, beside: bool) -> Any:
    out, rows = torch.zeros(3 * size), [3] * size
    x = data(s, rank, 3 * size)
    work = dist.all_to_all_single(out, x, rows, rows, group=g, async_op=beside)
    return work, out, torch.cat([x.split(3)[rank] for x in every(s, 3 * size)])


def barrier(g: Any, s: int, beside: bool) -> Any:
    return dist.barrier(group=g, async_op=beside), None, None


def around(tag: int) -> Callable[[Any, int, bool], Any]:
    """Messages to the next rank and from the one before."""

    def make(g: Any, s: int, beside: bool) -> Any:
        out = torch.zeros(3)
        sending = dist.isend(data(s, rank), (rank + 1) % size, group=g, tag=tag)
        work = dist.irecv(out, (rank - 1) % size, group=g, tag=tag)
        if not beside:
            work.wait()
            sending.wait()
        return work, out, data(s, (rank - 1) % size)

    return make


def refused_both_ways(g: Any, tag: int) -> None:
    """A message to the next rank and one from the rank before, of which both are refused."""
    both.refused(lambda: dist.isend(META, (rank + 1) % size, group=g, tag=tag))
    dist.irecv(META, (rank - 1) % size, group=g, tag=tag)


def cases() -> Iterator[Case]:
    bad_timeout: Any = 3  # neither a timeout nor anything else that a barrier is told
    out, whole = torch.zeros(3), torch.zeros(3 * size)
    yield Case(
        "all_reduce",
        all_reduce,
        [
            lambda g: dist.all_reduce(META, group=g),
            lambda g: dist.all_reduce(FLOATS.short(), group=g),
            lambda g: dist.all_reduce(FLOATS, OPS.BXOR, group=g),
            lambda g: g.allreduce(FLOATS, "sum"),
            lambda g: g.allreduce(None),
            lambda g: g.allreduce("x", dist.AllreduceOptions()),
            lambda g: g.allreduce(["x"], dist.AllreduceOptions()),
            lambda g: g.allreduce([], dist.AllreduceOptions()),
        ],
    )
    yield Case("all_reduce of several", several, [lambda g: g.allreduce([FLOATS, META])])
    yield Case("all_reduce of bits", bits, [lambda g: dist.all_reduce(FLOATS, OPS.BOR, group=g)])
    yield Case(
        "all_reduce of sparse tensors",
        sparse,
        [
            lambda g: dist.all_reduce(SPARSE, OPS.MAX, group=g),
            lambda g: g.allreduce([SPARSE, FLOATS]),
        ],
    )
    yield Case(
        "broadcast",
        broadcast,
        [
            lambda g: dist.broadcast(META, 1, group=g),
            lambda g: dist.broadcast(SPARSE, 1, group=g),
            lambda g: g.broadcast(FLOATS, OPS.MAX),
            lambda g: g.broadcast(FLOATS, size),
        ],
    )
    yield Case(
        "reduce",
        reduce,
        [
            lambda g: dist.reduce(META, 1, group=g),
            lambda g: dist.reduce(FLOATS, 1, OPS.BAND, group=g),
            lambda g: g.reduce([FLOATS, FLOATS]),
        ],
    )
    yield Case(
        "all_gather",
        all_gather,
        [
            lambda g: dist.all_gather(room(2), FLOATS, group=g),
            lambda g: dist.all_gather(room(), META, group=g),
            lambda g: g.allgather([room()], [FLOATS.int()]),
            lambda g: g.allgather([room()], [FLOATS, FLOATS]),
            lambda g: g.allgather(None, None),
            lambda g: g.allgather([], []),
        ],
    )
    yield Case(
        "all_gather_into_tensor",
        all_gather_single,
        [
            lambda g: dist.all_gather_into_tensor(whole, META, group=g),
            lambda g: dist.all_gather_into_tensor(whole, FLOATS.int(), group=g),
            lambda g: g.all_gather_single(None, FLOATS, AllgatherOptions()),
            lambda g: g.all_gather_single(whole, FLOATS, "no options"),
        ],
    )
    yield Case(
        "all_gather_coalesced",
        all_gather_coalesced,
        [
            lambda g: g.allgather_coalesced([[out]], [FLOATS]),
            lambda g: g.allgather_coalesced([[out]] * size, [FLOATS, FLOATS]),
            lambda g: g.allgather_into_tensor_coalesced([whole], [FLOATS, FLOATS]),
        ],
    )
    yield Case(
        "reduce_scatter",
        reduce_scatter,
        [
            lambda g: dist.reduce_scatter(out, room(2), group=g),
            lambda g: dist.reduce_scatter(out, room(), OPS.BOR, group=g),
            lambda g: g.reduce_scatter([out], [room(), room()]),
            lambda g: g.reduce_scatter(out.int(), room()),
        ],
    )
    yield Case(
        "reduce_scatter_tensor",
        reduce_scatter_single,
        [
            lambda g: dist.reduce_scatter_tensor(out, whole, OPS.BAND, group=g),
            lambda g: dist.reduce_scatter_tensor(META, whole, group=g),
            lambda g: dist.reduce_scatter_tensor(out.int(), whole, group=g),
            lambda g: g.reduce_scatter_single(out, whole, "no options"),
        ],
    )
    yield Case(
        "gather",
        gather,
        [
            lambda g: dist.gather(META, room() if rank == 1 else None, 1, group=g),
            lambda g: g.gather([], [FLOATS, FLOATS], 1),
            lambda g: g.gather([], [FLOATS], size),
        ],
    )
    yield Case(
        "scatter",
        scatter,
        [
            lambda g: dist.scatter(META, room() if rank == 1 else None, 1, group=g),
            lambda g: g.scatter([out, out], [room()] if rank == 1 else [], 1),
            lambda g: g.scatter([out], [], size),
        ],
    )
    yield Case(
        "all_to_all",
        all_to_all,
        [
            lambda g: g.alltoall(room(2), room()),
            lambda g: g.alltoall(room(), room(2)),
            lambda g: g.alltoall(room(), [META] * size),
            lambda g: g.alltoall([out] * size, room()),
        ],
    )
    yield Case(
        "all_to_all_single",
        all_to_all_single,
        [
            lambda g: g.all_to_all_single(whole, whole.int()),
            lambda g: dist.all_to_all_single(whole, whole, [9] * size, [3] * size, group=g),
            lambda g: g.all_to_all_single(whole, whole, FLOATS, FLOATS, dist.AllToAllOptions()),
        ],
    )
    yield Case(
        "all_to_all_single by rows",
        all_to_all_by_rows,
        [
            lambda g: dist.all_to_all_single(whole, whole, [9] * size, [3] * size, group=g),
            lambda g: dist.all_to_all_single(whole, META, [3] * size, [1] * size, group=g),
        ],
    )
    yield Case(
        "barrier",
        barrier,
        [
            lambda g: g.barrier(bad_timeout),
            lambda g: g.monitored_barrier(bad_timeout),
        ],
    )
    yield Case("messages", around(0), [lambda g: refused_both_ways(g, 0)], False)
    yield Case("messages with a tag", around(5), [lambda g: refused_both_ways(g, 5)], False, False)


def called(case: Case, wrong: Callable[[Any], Any], where: set[int], beside: bool) -> list[str]:
    """Make the steps of a case; return how each rank failed, in a word."""
    group: Any = dist.new_group(timeout=datetime.timedelta(seconds=60))
    late: list[Callable[[], None]] = []
    failure = ""

    def begin(step: int) -> None:
        work, got, want = case.make(group, step, beside)
        late.append(lambda: settle(case, work, got, want))

    def steps() -> Iterator[Callable[[], None]]:
        for step in range(STEPS):
            if step == 1 and rank in where:
                yield lambda: refuse(case, wrong, group)
                continue
            yield lambda step=step: begin(step)
            if not beside:
                yield from late
                late.clear()
        yield from late
        if case.counted:
            yield lambda: dist.barrier(group=group)  # who could go on alone waits for the others

    for step in steps():
        try:
            step()
        except FAILURES as error:
            failure = cause(error)
            if case.ends:
                break
    found: list[Any] = [None] * size
    dist.all_gather_object(found, failure)
    dist.destroy_process_group(group)
    return found


def cause(error: BaseException) -> str:
    """Name what broke the group: a call may only hear that it is broken, and by what."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def settle(case: Case, work: Any, got: Any, want: Any) -> None:
    if work is not None:
        work.wait()
    both.compare(case.name, got, want)


def refuse(case: Case, wrong: Callable[[Any], Any], group: Any) -> None:
    engine = group.communicator._engine
    before = engine.calls()
    try:
        wrong(group)
    except FAILURES:
        raise
    except Exception:
        # Behind calls that are queued it is counted later.
        if case.counted and not engine.waits.pending() and engine.calls() == before:
            raise AssertionError("it has no place among the calls") from None
        return
    raise AssertionError("it was served")


def main() -> None:
    global rank, size
    dist.init_process_group("pycoll", timeout=datetime.timedelta(seconds=100))
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in cases():
        if sys.argv[1:] not in ([], [case.name]):
            continue
        for number, wrong in enumerate(case.wrong):
            for beside in (False, True):
                what = f"{case.name}, {number}, {'beside' if beside else 'blocking'}"
                try:
                    alike = called(case, wrong, set(range(size)), beside)
                    alone = called(case, wrong, {0}, beside)
                except BaseException as error:
                    raise AssertionError(what) from error
                assert not any(alike), f"{what}: all were refused alike, and {alike}"
                assert "MismatchError" in alone, f"{what}: rank 0 was refused, and {alone}"
                assert "CollectiveTimeout" not in alone, f"{what}: {alone}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
