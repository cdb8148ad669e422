"""Every collective of c10d on random data, by pycoll and by gloo."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import both
import torch
import torch.distributed as dist

OPS = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.uint8, torch.int32, torch.int64)
SHAPES = ((), (1,), (7,), (3, 5), (0,), (4, 0), (1000,))

Case = tuple[str, Callable[[Any], Any], float]
rank = size = 0


def data(shape: Any, dtype: Any, seed: int) -> torch.Tensor:
    """Random elements, other ones on every rank."""
    source = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=source).bool()
    if dtype.is_floating_point or dtype.is_complex:
        parts = torch.randn((*shape, 2), generator=source)
        made = torch.view_as_complex(parts) if dtype.is_complex else parts[..., 0].clone()
        return made.to(dtype)
    return torch.randint(-4, 5, shape, generator=source).to(dtype)


def reducing() -> Iterator[Case]:
    ops = {
        "sum": OPS.SUM,
        "avg": OPS.AVG,
        "prod": OPS.PRODUCT,
        "min": OPS.MIN,
        "max": OPS.MAX,
        "band": OPS.BAND,
        "bor": OPS.BOR,
        "bxor": OPS.BXOR,
    }
    kinds = [(dtype, name) for dtype in FLOATS for name in ("sum", "avg", "prod", "min", "max")]
    kinds += [(d, name) for d in (*WHOLE, torch.bool) for name in ops if name != "avg"]
    kinds += [(torch.complex64, "sum"), (torch.complex64, "avg"), (torch.complex128, "sum")]
    for seed, ((dtype, name), shape) in enumerate(itertools.product(kinds, SHAPES)):
        op = ops[name]
        # With two ranks a sum has one order. With more gloo's is its own; and it divides before
        # it adds where the dtype is a narrow one.
        exact = name in ("min", "max") or not (dtype.is_floating_point or dtype.is_complex)
        rounding = 0.0 if exact or (size == 2 and name in ("sum", "prod")) else 4.0 * size

        def allreduce(pg: Any, dtype: Any = dtype, shape: Any = shape, op: Any = op, s: int = seed):
            x = data(shape, dtype, s)
            dist.all_reduce(x, op, group=pg)
            return x

        yield f"all_reduce {dtype} {name} {shape}", allreduce, rounding
        if shape not in ((7,), (3, 5)):
            continue

        def reduce(pg: Any, dtype: Any = dtype, shape: Any = shape, op: Any = op, s: int = seed):
            x = data(shape, dtype, s)
            dist.reduce(x, s % size, op, group=pg)
            return x if s % size == rank else None

        def scattered(pg: Any, dtype: Any = dtype, shape: Any = shape, op: Any = op, s: int = seed):
            x = data((size * shape[0], *shape[1:]), dtype, s)
            out = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter_tensor(out, x, op, group=pg)
            return out

        def listed(pg: Any, dtype: Any = dtype, shape: Any = shape, op: Any = op, s: int = seed):
            parts = [data(shape, dtype, s + i) for i in range(size)]
            out = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter(out, parts, op, group=pg)
            return out

        yield f"reduce {dtype} {name} {shape}", reduce, rounding
        if dtype.is_complex:  # torch's own reduce_scatter takes no complex averages
            continue
        yield f"reduce_scatter_tensor {dtype} {name} {shape}", scattered, rounding
        yield f"reduce_scatter {dtype} {name} {shape}", listed, rounding


def moving() -> Iterator[Case]:
    dtypes = (*FLOATS, *WHOLE, torch.bool, torch.complex64, torch.complex128)
    for seed, (dtype, shape) in enumerate(itertools.product(dtypes, SHAPES)):
        root = seed % size

        def broadcast(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed, r=root):
            x = data(shape, dtype, s)
            dist.broadcast(x, r, group=pg)
            return x

        def gathered(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed):
            out = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(out, data(shape, dtype, s), group=pg)
            return out

        def on_root(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed, r=root):
            out = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == r else None
            dist.gather(data(shape, dtype, s), out, r, group=pg)
            return out

        def from_root(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed, r=root):
            parts = [data(shape, dtype, s + i) for i in range(size)] if rank == r else None
            out = torch.empty(shape, dtype=dtype)
            dist.scatter(out, parts, r, group=pg)
            return out

        def objects(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed):
            x = data(shape, dtype, s)
            there = [None] * size
            dist.all_gather_object(there, {"x": x, "rank": rank}, group=pg)
            given = [x, rank]
            dist.broadcast_object_list(given, s % size, group=pg)
            return there, given

        yield f"broadcast {dtype} {shape}", broadcast, 0
        yield f"all_gather {dtype} {shape}", gathered, 0
        if 0 in shape:  # gloo refuses these
            continue
        if not dtype.is_complex:
            yield f"gather {dtype} {shape}", on_root, 0
            yield f"scatter {dtype} {shape}", from_root, 0
        if shape == (3, 5):
            yield f"objects {dtype}", objects, 0
        if shape == ():
            continue

        def joined(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed):
            out = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
            dist.all_gather_into_tensor(out, data(shape, dtype, s), group=pg)
            stacked = out.view(size, *shape).clone()  # which gloo does not serve
            if dist.get_backend(pg) == "pycoll":
                stacked.zero_()
                dist.all_gather_into_tensor(stacked, data(shape, dtype, s), group=pg)
            return out, stacked

        def exchanged(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed):
            x = data((size * shape[0], *shape[1:]), dtype, s)
            out = torch.empty_like(x)
            dist.all_to_all_single(out, x, group=pg)
            return out

        def split(pg: Any, dtype: Any = dtype, shape: Any = shape, s: int = seed):
            drawn = random.Random(s)  # the same on all ranks: rows from i to j
            rows = [[drawn.randrange(4) for _ in range(size)] for _ in range(size)]
            sent, received = rows[rank], [theirs[rank] for theirs in rows]
            x = data((sum(sent), *shape[1:]), dtype, s)
            out = torch.empty((sum(received), *shape[1:]), dtype=dtype)
            dist.all_to_all_single(out, x, received, sent, group=pg)
            return out

        yield f"all_gather_into_tensor {dtype} {shape}", joined, 0
        yield f"all_to_all_single {dtype} {shape}", exchanged, 0
        yield f"all_to_all_single with splits {dtype} {shape}", split, 0


def strange() -> Iterator[Case]:
    """Tensors that are not contiguous, that need gradients, whose parts lie in one another."""

    def holes(pg: Any):
        whole = data((6, 8), torch.float32, 1)
        out = [torch.zeros(8, 6).t()[:, ::2] for _ in range(size)]
        dist.all_gather(out, whole[:, ::2], group=pg)
        return out

    def turned(pg: Any):
        whole = data((6, 8), torch.float32, 2)
        dist.all_reduce(whole.t(), group=pg)
        return whole

    def channels(pg: Any):
        x = data((2, 3, 4, 4), torch.float32, 3).to(memory_format=torch.channels_last)
        dist.all_reduce(x, group=pg)
        return x

    def parameter(pg: Any):
        x = torch.nn.Parameter(data((5,), torch.float32, 4))
        dist.broadcast(x, 0, group=pg)
        dist.all_reduce(x, group=pg)
        return x.detach()

    def slices(pg: Any):
        whole = torch.zeros(size, 5)
        dist.all_gather(list(whole.unbind(0)), data((5,), torch.float32, 5), group=pg)
        return whole

    def in_place(pg: Any):
        whole = torch.zeros(size * 4)
        mine = whole[4 * rank : 4 * rank + 4]
        mine.copy_(data((4,), torch.float32, 6))
        dist.all_gather_into_tensor(whole, mine, group=pg)
        return whole

    def lists(pg: Any):
        parts = [data((3, 2), torch.float32, 7 + i) for i in range(size)]
        out = [torch.empty(3, 2) for _ in range(size)]
        dist.all_to_all(out, parts, group=pg)
        return out

    def uneven_parts(pg: Any):
        out = torch.empty(rank + 1)
        dist.reduce_scatter(
            out, [data((i + 1,), torch.float32, 20 + i) for i in range(size)], group=pg
        )
        return out

    def coalesced(pg: Any):
        xs = [data((n,), torch.float32, 30 + n) for n in (1, 300, 2)]
        with dist._coalescing_manager(group=pg):
            for x in xs:
                dist.all_reduce(x, group=pg)
        outs = [torch.empty(size * 3), torch.empty(size)]
        with dist._coalescing_manager(group=pg):
            dist.all_gather_into_tensor(outs[0], data((3,), torch.float32, 40), group=pg)
            dist.all_gather_into_tensor(outs[1], data((1,), torch.float32, 41), group=pg)
        parts = [torch.empty(3), torch.empty(2)]
        with dist._coalescing_manager(group=pg):
            dist.reduce_scatter_tensor(parts[0], data((3 * size,), torch.float32, 42), group=pg)
            dist.reduce_scatter_tensor(parts[1], data((2 * size,), torch.float32, 43), group=pg)
        return xs, outs, parts

    def several(pg: Any):
        xs = [data((3,), torch.float32, 50), data((2,), torch.int64, 51)]
        for x in xs:
            dist.all_reduce_coalesced([x], group=pg)
        lists = [[torch.empty(3), torch.empty(2)] for _ in range(size)]
        mine = [data((3,), torch.float32, 52), data((2,), torch.float32, 53)]
        dist.all_gather_coalesced(lists, mine, group=pg)
        return xs, lists

    def beside(pg: Any):
        xs = [data((100,), torch.float32, 60 + i) for i in range(20)]
        works = [dist.all_reduce(x, group=pg, async_op=True) for x in xs]
        out = torch.empty(size * 100)
        more = data((100,), torch.float32, 59)
        works.append(dist.all_gather_into_tensor(out, more, group=pg, async_op=True))
        for work in reversed(works):
            work.wait()
        assert all(work.is_completed() and work.is_success() for work in works)
        assert works[3].exception() is None
        return xs, out, works[3].get_future().value()

    def sparse(pg: Any):
        x = torch.sparse_coo_tensor(
            [[rank, 3, 7]], data((3, 2), torch.float32, 70), (9, 2)
        ).coalesce()
        dist.all_reduce(x, group=pg)
        return x.to_dense()

    def conjugate(pg: Any):
        out = [torch.empty(4, dtype=torch.complex64) for _ in range(size)]
        dist.all_gather(out, data((4,), torch.complex64, 80).conj().resolve_conj(), group=pg)
        return out

    def messages(pg: Any):
        x, out = data((40,), torch.float32, 90), torch.empty(40)
        ops = [
            dist.P2POp(dist.isend, x, (rank + 1) % size, pg),
            dist.P2POp(dist.irecv, out, (rank - 1) % size, pg),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        narrow = torch.zeros(3, dtype=torch.int16)
        if rank == 0:
            dist.send(torch.tensor([1, 2, 3], dtype=torch.int16), 1, group=pg)
        elif rank == 1:
            assert dist.recv(narrow, 0, group=pg) == 0
        objects = [{"a": rank}, "b" * 1000] if rank == 0 else [None, None]
        if rank == 0:
            dist.send_object_list(objects, 1, group=pg)
        elif rank == 1:
            dist.recv_object_list(objects, 0, group=pg)
            assert objects == [{"a": 0}, "b" * 1000]
        return out, narrow

    def tags(pg: Any):
        got = [torch.zeros(n) for n in (3, 4, 3)]
        if rank == 0:
            works = [
                dist.isend(torch.full((n,), float(tag)), 1, group=pg, tag=tag)
                for n, tag in ((3, 7), (4, 0), (3, 9))
            ]
            for work in works:
                work.wait()
            return got
        if rank == 1:
            wanted = ((got[2], 9), (got[0], 7), (got[1], 0))
            works = [dist.irecv(x, 0, group=pg, tag=tag) for x, tag in wanted]
            for work in works:
                work.wait()
        return got

    def object_lists(pg: Any):
        out = [None]
        dist.scatter_object_list(out, [[i, "x" * i] for i in range(size)], src=0, group=pg)
        every = [None] * size if rank == size - 1 else None
        dist.gather_object({"rank": rank}, every, dst=size - 1, group=pg)
        assert out == [[rank, "x" * rank]]
        assert every is None or every == [{"rank": r} for r in range(size)]

    def barriers(pg: Any):
        dist.barrier(group=pg)
        dist.barrier(group=pg, async_op=True).wait()

    def forms(pg: Any):
        """The group's own methods, without lists and without an object of options."""
        highest, soon = dist.ReduceOp.MAX, datetime.timedelta(seconds=90)
        last, found = size - 1, []

        def x(n: int = 3) -> torch.Tensor:
            return torch.arange(float(n)) + 10 * rank

        def each() -> list[torch.Tensor]:
            return [x() + r for r in range(size)]

        for form in (
            lambda t: pg.allreduce(t),
            lambda t: pg.allreduce(t, highest),
            lambda t: pg.allreduce([t], highest, soon),
            lambda t: pg.allreduce([t], dist.ReduceOp(highest)),
            lambda t: pg.allreduce(tensor=t, op=highest, timeout=soon),
            lambda t: pg.allreduce(tensors=[t], opts=dist.AllreduceOptions()),
            lambda t: pg.broadcast(t, last),
            lambda t: pg.broadcast(t, last, soon),
            lambda t: pg.broadcast(tensor=t, root=last, timeout=soon),
        ):
            found.append(x())
            form(found[-1]).wait()
        for form in (
            lambda t: pg.reduce(t, last),
            lambda t: pg.reduce(t, last, highest, soon),
            lambda t: pg.reduce(tensor=t, root=last, op=highest, timeout=soon),
        ):
            t = x()
            form(t).wait()
            found.append(t if rank == last else None)
        for form in (
            lambda t: pg.scatter(t, each() if rank == last else [], last),
            lambda t: pg.scatter(t, each() if rank == last else [], root=last, timeout=soon),
            lambda t: pg.reduce_scatter(t, each()),
            lambda t: pg.reduce_scatter(t, each(), highest, soon),
            lambda t: pg.reduce_scatter(output=t, input=each(), op=highest, timeout=soon),
            lambda t: pg.reduce_scatter(output_tensors=[t], input_tensors=[each()]),
            lambda t: pg._reduce_scatter_base(outputTensor=t, inputTensor=x(3 * size)),
        ):
            found.append(torch.zeros(3))
            form(found[-1]).wait()
        for form in (
            lambda ts: pg.allgather(ts, x()),
            lambda ts: pg.allgather(output_tensors=ts, input_tensor=x(), timeout=soon),
            lambda ts: pg.allgather(output_tensors=[ts], input_tensors=[x()]),
            lambda ts: pg.alltoall(output_tensors=ts, input_tensors=each()),
        ):
            found.append([torch.zeros(3) for _ in range(size)])
            form(found[-1]).wait()
        for options in ((last, soon), (last,)):
            found.append([torch.zeros(3) for _ in range(size)] if rank == last else [])
            pg.gather(found[-1], x(), *options).wait()
        for form in (
            lambda t: pg.alltoall_base(t, x(size), [], [], soon),
            lambda t: pg.alltoall_base(t, x(size), [1] * size, [1] * size, timeout=soon),
            lambda t: pg.all_to_all_single(
                output=t, input=x(size), output_split_sizes=[], input_split_sizes=[]
            ),
        ):
            found.append(torch.zeros(size))
            form(found[-1]).wait()
        pg.barrier(soon).wait()
        pg.barrier(timeout=soon).wait()
        if rank == 0:
            pg.send([x()], dstRank=1, tag=0).wait()
        elif rank == 1:
            found.append(torch.zeros(3))
            pg.recv([found[-1]], srcRank=0, tag=0).wait()
        return found

    def gradients(pg: Any):
        """Collectives that backward goes through."""
        import torch.distributed._functional_collectives as functional
        from torch.distributed.nn import functional as nn

        def x(n: int) -> torch.Tensor:
            return data((n,), torch.float32, 41 + rank).requires_grad_()

        def back(found: Any, *leaves: torch.Tensor) -> list[Any]:
            parts = found if isinstance(found, list | tuple) else [found]
            sum(((i + 1) * part.square()).sum() for i, part in enumerate(parts)).backward()
            return [[part.detach() for part in parts], [leaf.grad for leaf in leaves]]

        found: list[Any] = []
        for function, n in (
            (lambda t: nn.all_reduce(t, group=pg), 4),
            (lambda t: nn.broadcast(t, size - 1, pg), 4),
            (lambda t: nn.all_gather(t, pg), 4),
            (lambda t: nn.all_to_all_single(torch.zeros(2 * size), t, group=pg), 2 * size),
            (lambda t: functional.all_gather_tensor_autograd(t, 0, pg) * 1, 4),
            (lambda t: functional.reduce_scatter_tensor_autograd(t, "sum", 0, pg) * 1, 3 * size),
            (lambda t: functional.permute_tensor(t, [*range(1, size), 0], pg) * 1, 4),
        ):
            leaf = x(n)
            found.append(back(function(leaf), leaf))
        leaves = [x(2) for _ in range(size)]
        got = [torch.zeros(2) for _ in range(size)]
        found.append(back(nn.all_to_all(got, leaves, pg), *leaves))
        leaves = [x(3) for _ in range(size)]
        found.append(back(nn.reduce_scatter(torch.zeros(3), leaves, group=pg), *leaves))
        return found

    cases = (
        forms,
        gradients,
        holes,
        turned,
        channels,
        parameter,
        slices,
        in_place,
        lists,
        uneven_parts,
    )
    more = (coalesced, several, beside, sparse, conjugate, messages, tags, object_lists, barriers)
    sums = {
        forms,
        gradients,
        turned,
        channels,
        parameter,
        uneven_parts,
        coalesced,
        several,
        beside,
        sparse,
    }
    for case in (*cases, *more):
        yield case.__name__, case, 4.0 * size if case in sums and size > 2 else 0


def main() -> None:
    global rank, size
    pycoll, gloo = both.begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, case, rounding in (*reducing(), *moving(), *strange()):
        try:
            want = case(gloo)
        except BaseException as error:
            raise AssertionError(f"{name} by gloo") from error
        try:
            got = case(pycoll)
        except BaseException as error:
            raise AssertionError(f"{name} by pycoll") from error
        both.compare(name, got, want, rounding)
    both.end()


if __name__ == "__main__":
    main()
