"""The collectives of torch's process group, by those of a Communicator.

Two names stand for one method where torch 2.13 gave it a new one. Blocking calls (``asyncOp`` is
False: torch's own functions say so) run in the caller; the others beside it, in their order. Each
first tries the shortest way, which serves what has been called before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOptions
from torch.distributed import ReduceScatterOptions as ScatterOptions

from pycoll.collectives import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE, REDUCE_SCATTER
from pycoll.dtypes import ReduceOp
from pycoll.errors import UsageError
from pycoll.interop.torch_calls import Call, Calls, only, torch_errors
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_reduce import NUMBERS, Reduction, folded, reduction, summed
from pycoll.interop.torch_tensor import (
    Staged,
    Tensor,
    both,
    counts,
    incoming,
    outgoing,
    packed,
    spread,
    strided,
)

Tensors = Sequence[Tensor]

_AVG = int(ReduceOp.AVG)


@run_as_it_is
class Collectives(Calls):
    """Every collective of c10d; torch's documentation says what each does."""

    # Each tensor on its own.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Combine a tensor of all ranks; of several tensors each."""
        if opts is not None and not opts.asyncOp and len(tensors) == 1:
            x, op = tensors[0], NUMBERS[hash(opts.reduceOp)]
            served = op >= 0 and (op != _AVG or x.is_floating_point())
            if served and self._at_once(ALLREDUCE, x, x, op):
                return self._over
        return self._allreduce(tensors, AllreduceOptions() if opts is None else opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Combine tensors of all ranks, each on its own; small ones travel together."""
        return self._allreduce(tensors, AllreduceOptions() if opts is None else opts)

    @torch_errors
    def _allreduce(self, tensors: Any, opts: Any) -> Any:
        tensors, op = list(tensors), opts.reduceOp
        if not all(strided(tensor) for tensor in tensors):
            return self._allreduce_sparse(tensors, opts)
        found = [reduction(op, tensor.dtype) for tensor in tensors]
        if any(each.fold for each in found):
            return self._complete(
                tensors, [functools.partial(self._folded, t, op) for t in tensors]
            )
        staged = [each.both(tensor) for each, tensor in zip(found, tensors, strict=True)]
        calls: list[Call] = []
        for name in dict.fromkeys(each.op for each in found):  # of bools another than of numbers
            arrays = [s.array for s, each in zip(staged, found, strict=True) if each.op == name]
            calls.append(self._reducing("allreduce", arrays, None, name))
        return self._begin(opts, tensors, calls, [s.arrive for s in staged])

    def _allreduce_sparse(self, tensors: list[Tensor], opts: Any) -> Any:
        if reduction(opts.reduceOp, tensors[0].dtype) != Reduction("sum"):
            raise UsageError("allreduce: of sparse tensors ReduceOp.SUM alone is served")
        return self._complete(tensors, [functools.partial(summed, self._comm, t) for t in tensors])

    def _folded(self, tensor: Tensor, op: Any) -> None:
        each = reduction(op, tensor.dtype)
        array, arrive = each.both(tensor)
        array.copy_(folded(self._comm, array, each.fold))
        if arrive is not None:
            arrive()

    def _reducing(self, method: str, x: Any, out: Any, op: str, **more: Any) -> Call:
        """Return a call of a method that reduces; a list of one array is that array."""
        if isinstance(x, list) and len(x) == 1:
            (x,) = x
        run = functools.partial(getattr(self._comm, method), x, out=out, op=op, **more)
        return lambda asynchronous, timeout: run(async_op=asynchronous, timeout=timeout)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Give all ranks what a tensor holds on the root; of several tensors each."""
        if opts is not None and not opts.asyncOp and len(tensors) == 1:
            x = tensors[0]
            if self._at_once(BROADCAST, x, x, 0, opts.rootRank):
                return self._over
        return self._broadcast(list(tensors), BroadcastOptions() if opts is None else opts)

    @torch_errors
    def _broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        staged, root = [both(tensor) for tensor in tensors], opts.rootRank
        arrays: Any = [s.array for s in staged]
        run = functools.partial(
            self._comm.broadcast, arrays[0] if len(arrays) == 1 else arrays, root
        )
        arrive = [] if self._comm.rank == root else [s.arrive for s in staged]
        return self._begin(opts, tensors, [_running(run)], arrive)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Combine a tensor of all ranks on the root."""
        if opts is not None and not opts.asyncOp and len(tensors) == 1:
            x, op = tensors[0], NUMBERS[hash(opts.reduceOp)]
            served = op >= 0 and (op != _AVG or x.is_floating_point())
            if served and self._at_once(REDUCE, x, x, op, opts.rootRank):
                return self._over
        return self._reduce(only(tensors, "reduce"), ReduceOptions() if opts is None else opts)

    @torch_errors
    def _reduce(self, tensor: Tensor, opts: Any) -> Any:
        each, root = reduction(opts.reduceOp, tensor.dtype), opts.rootRank
        if each.fold:
            run = functools.partial(self._folded_on, root, tensor, opts.reduceOp)
            return self._complete([tensor], [run])
        array, arrive = each.both(tensor)
        call = self._reducing("reduce", array, None, each.op, root=root)
        return self._begin(opts, [tensor], [call], [arrive] if self._comm.rank == root else [])

    def _folded_on(self, root: int, tensor: Tensor, op: Any) -> None:
        self._folded(tensor if self._comm.rank == root else tensor.clone(), op)

    # All ranks' tensors on all ranks.

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Join the tensors of all ranks in one."""
        if opts is not None and not opts.asyncOp and self._at_once(ALLGATHER, input, output, 0):
            return self._over
        return self._all_gather([output], [input], opts, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Join tensors of all ranks, each on its own."""
        return self._all_gather(outputs, inputs, opts, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @torch_errors
    def _all_gather(self, outputs: Tensors, inputs: Tensors, opts: Any, result: Any) -> Any:
        calls, arrive = [], []
        for output, mine in _pairs(outputs, inputs, "all_gather_into_tensor"):
            _alike([output, mine], "all_gather_into_tensor")
            staged = incoming(output)
            run = functools.partial(self._comm.allgather, outgoing(mine), staged.array)
            calls.append(_running(run))
            arrive.append(staged.arrive)
        return self._begin(opts, result, calls, arrive)

    @torch_errors
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Give every rank the tensors of all in a list; their shapes may differ by rank."""
        calls, arrive = [], []
        for output, mine in _pairs(outputs, inputs, "all_gather"):
            self._one_each(output, "all_gather: tensor_list")
            _alike([*output, mine], "all_gather")
            call, after = self._into(list(output), outgoing(mine))
            calls.append(call)
            arrive.append(after)
        return self._begin(opts, [list(output) for output in outputs], calls, arrive)

    @torch_errors
    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Any:
        """Give every rank the list of tensors of each."""
        self._one_each(outputs, "all_gather_coalesced: output_tensor_lists")
        calls, arrive = [], []
        for i, mine in enumerate(inputs):
            call, after = self._into([output[i] for output in outputs], outgoing(mine))
            calls.append(call)
            arrive.append(after)
        return self._begin(opts, [list(output) for output in outputs], calls, arrive)

    def _into(self, outputs: list[Tensor], mine: Tensor) -> tuple[Call, Any]:
        lengths, staged = counts(outputs), spread(outputs)
        mine = mine.reshape(-1)
        if len(set(lengths)) == 1:
            run = functools.partial(self._comm.allgather, mine, staged.array)
        else:
            run = functools.partial(self._comm.allgatherv, mine, lengths, staged.array)
        return _running(run), staged.arrive

    # Parts of all ranks' tensors, combined.

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Combine a tensor of all ranks and give each rank a part."""
        if opts is not None and not opts.asyncOp:
            op = NUMBERS[hash(opts.reduceOp)]
            served = op >= 0 and (op != _AVG or input.is_floating_point())
            if served and self._at_once(REDUCE_SCATTER, input, output, op):
                return self._over
        return self._reduce_scatter([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Do that with several tensors, each on its own."""
        return self._reduce_scatter(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Any:
        """Combine a list of tensors of all ranks and give each rank one; shapes may differ."""
        return self._reduce_scatter(outputs, inputs, opts)

    @torch_errors
    def _reduce_scatter(self, outputs: Tensors, inputs: Sequence[Any], opts: Any) -> Any:
        opts = ScatterOptions() if opts is None else opts
        calls, arrive, whole = [], [], []
        for output, parts in _pairs(outputs, inputs, "reduce_scatter"):
            each = reduction(opts.reduceOp, output.dtype)
            if isinstance(parts, list | tuple):
                self._one_each(parts, "reduce_scatter: input_list")
                _alike([*parts, output], "reduce_scatter")
                lengths = [part.numel() for part in parts]
                x = packed(parts).view(output.dtype)
            else:
                _alike([parts, output], "reduce_scatter_tensor")
                lengths, x = [output.numel()] * self._comm.size, parts.reshape(-1)
            if each.fold:
                whole.append(functools.partial(self._folded_part, output, x, lengths, opts))
                continue
            staged = each.incoming(output)
            calls.append(self._scattering(each, x, staged, lengths))
            arrive.append(staged.arrive)
        if whole:
            return self._complete(list(outputs), whole)
        return self._begin(opts, list(outputs), calls, arrive)

    def _scattering(self, each: Reduction, x: Tensor, out: Staged, lengths: list[int]) -> Call:
        array, into = each.outgoing(x).reshape(-1), out.array.reshape(-1)
        if len(set(lengths)) == 1:
            return self._reducing("reduce_scatter", array, into, each.op)
        wide = array.numel() // max(1, x.numel())  # a complex number is two
        lengths = [length * wide for length in lengths]
        return self._reducing("reduce_scatterv", array, into, each.op, counts=lengths)

    def _folded_part(self, output: Tensor, x: Tensor, lengths: list[int], opts: Any) -> None:
        each = reduction(opts.reduceOp, output.dtype)
        total = folded(self._comm, each.outgoing(x), each.fold).view(x.dtype)
        mine = total.split(lengths)[self._comm.rank]
        output.detach().copy_(mine.view(output.shape))

    # From one rank to all, and back.

    @torch_errors
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Any:
        """Give the root the tensors of all ranks in a list."""
        mine, root = only(inputs, "gather"), opts.rootRank
        staged: list[Staged] = []
        lists: list[list[Tensor]] = []
        if self._comm.rank == root:
            lists = [list(output) for output in outputs]
            whole = only(lists, "gather: gather_list")
            self._one_each(whole, "gather: gather_list")
            _alike([*whole, mine], "gather")
            staged = [incoming(output) for output in whole]
        recvs = [(s.array, rank) for rank, s in enumerate(staged)]
        call = self._pairwise("gather", [(outgoing(mine), root)], recvs, root)
        return self._begin(opts, lists, [call], [s.arrive for s in staged])

    @torch_errors
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        """Give each rank one of the tensors of a list that the root has."""
        mine, root = only(outputs, "scatter"), opts.rootRank
        sends = []
        if self._comm.rank == root:
            whole = list(only(list(inputs), "scatter: scatter_list"))
            self._one_each(whole, "scatter: scatter_list")
            _alike([*whole, mine], "scatter")
            sends = [(outgoing(tensor), rank) for rank, tensor in enumerate(whole)]
        staged = incoming(mine)
        call = self._pairwise("scatter", sends, [(staged.array, root)], root)
        return self._begin(opts, list(outputs), [call], [staged.arrive])

    # From every rank to every rank.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """Give each rank a part of a tensor; parts are rows, as many as ``*_splits`` say."""
        even = not (output_splits or input_splits) and opts is not None and not opts.asyncOp
        if even and self._at_once(ALLTOALL, input, output, 0):
            return self._over
        return self._all_to_all_single(output, input, output_splits, input_splits, opts)

    alltoall_base = all_to_all_single

    @torch_errors
    def _all_to_all_single(
        self, output: Tensor, input: Tensor, received: Any, sent: Any, opts: Any
    ) -> Any:
        _alike([input, output], "all_to_all_single")
        x, staged = outgoing(input), incoming(output)
        if received or sent:
            run = functools.partial(
                self._comm.alltoallv,
                x,
                self._rows(input, x, sent, "input_split_sizes"),
                staged.array,
                self._rows(output, staged.array, received, "output_split_sizes"),
            )
        else:
            run = functools.partial(self._comm.alltoall, x, staged.array)
        return self._begin(opts, [output], [_running(run)], [staged.arrive])

    def _rows(self, tensor: Tensor, array: Tensor, splits: Any, name: str) -> list[int]:
        """Return the elements of the array that each rank's rows are."""
        rows, size = len(tensor) if tensor.dim() else 1, self._comm.size
        parts = list(splits) or [rows // size] * size
        if len(parts) != size or sum(parts) != rows:
            raise UsageError(
                f"all_to_all_single: {name} is {parts}, and the tensor has {rows} rows for "
                f"{size} ranks"
            )
        each = array.numel() // max(1, rows)
        return [part * each for part in parts]

    @torch_errors
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Give each rank one of the tensors of a list, and get one from each."""
        self._one_each(inputs, "all_to_all: input_tensor_list")
        self._one_each(outputs, "all_to_all: output_tensor_list")
        staged = [incoming(output) for output in outputs]
        sends = [(outgoing(tensor), rank) for rank, tensor in enumerate(inputs)]
        recvs = [(s.array, rank) for rank, s in enumerate(staged)]
        call = self._pairwise("all_to_all", sends, recvs)
        return self._begin(opts, list(outputs), [call], [s.arrive for s in staged])

    def _one_each(self, tensors: Sequence[Any], what: str) -> None:
        if len(tensors) != self._comm.size:
            raise UsageError(f"{what} has {len(tensors)} entries, want {self._comm.size}")


def _running(run: Callable[..., Any]) -> Call:
    return lambda asynchronous, timeout: run(async_op=asynchronous, timeout=timeout)


def _pairs(outputs: Sequence[Any], inputs: Sequence[Any], what: str) -> Any:
    if len(outputs) != len(inputs):
        raise UsageError(f"{what}: got {len(outputs)} outputs and {len(inputs)} inputs")
    return zip(outputs, inputs, strict=True)


def _alike(tensors: Tensors, what: str) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise UsageError(f"{what}: tensors have dtypes {', '.join(sorted(map(str, dtypes)))}")
