"""The collectives of torch's process group, by those of a Communicator.

Two names stand for one method where torch 2.13 gave it a new one. Blocking calls (``asyncOp`` is
False: torch's own functions say so) run in the caller; the others beside it, in their order. Each
first tries the shortest way, which serves what has been called before.

Arguments have torch's names, so that they can be given by name. Of the methods that have a shortest
way none is for names only: looking such a default up would cost each call 20 ns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from pycoll.collectives import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE, REDUCE_SCATTER
from pycoll.errors import UsageError
from pycoll.interop.torch_calls import Call, Calls, Prepared, only
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_entry import call
from pycoll.interop.torch_overloads import listed, nested, options
from pycoll.interop.torch_reduce import NUMBERS, Reduction, folding, reduction, summing
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


@run_as_it_is
class Collectives(Calls):
    """Every collective of c10d; torch's documentation says what each does."""

    # Each tensor on its own.

    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        op: Any = None,
        tensor: Any = None,
    ) -> Any:
        """Combine a tensor of all ranks; of several tensors each."""
        try:
            short = not opts.asyncOp and len(tensors) == 1
            x, number = tensors[0], NUMBERS[hash(opts.reduceOp)]
        except Exception:  # another form, no options, or what is no call
            short = False
        if short and number >= 0 and self._at_once(ALLREDUCE, x, x, number):
            return self._over
        return self._allreduce(tensors if tensor is None else tensor, opts, op, timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Combine tensors of all ranks, each on its own; small ones travel together."""
        return self._allreduce(tensors, opts)

    @call("all_reduce")
    def _allreduce(self, tensors: Any, *given: Any) -> Any:
        tensors, opts = listed(tensors), options(AllreduceOptions, *given)
        op = opts.reduceOp
        if not all(strided(tensor) for tensor in tensors):
            return self._allreduce_sparse(tensors, opts)
        found = [reduction(op, tensor.dtype) for tensor in tensors]
        if any(each.fold for each in found):
            return self._completes(tensors, [self._folding(t, op) for t in tensors])
        staged = [each.both(tensor) for each, tensor in zip(found, tensors, strict=True)]
        calls: list[Call] = []
        for name in dict.fromkeys(each.op for each in found):  # of bools another than of numbers
            arrays = [s.array for s, each in zip(staged, found, strict=True) if each.op == name]
            calls.append(self._reducing("allreduce", arrays, None, name))
        return self._begins(opts, tensors, calls, [s.arrive for s in staged])

    def _allreduce_sparse(self, tensors: list[Tensor], opts: Any) -> Prepared:
        if reduction(opts.reduceOp, tensors[0].dtype) != Reduction("sum"):
            raise UsageError("allreduce: of sparse tensors ReduceOp.SUM alone is served")
        return self._completes(tensors, [summing(self._comm, t) for t in tensors])

    def _folding(self, tensor: Tensor, op: Any) -> Callable[[], None]:
        each = reduction(op, tensor.dtype)
        array, arrive = each.both(tensor)
        fold = folding(self._comm, array, each.fold)

        def run() -> None:
            array.copy_(fold())
            if arrive is not None:
                arrive()

        return run

    def _reducing(self, method: str, x: Any, out: Any, op: str, **more: Any) -> Call:
        """Return a call of a method that reduces; a list of one array is that array."""
        if isinstance(x, list) and len(x) == 1:
            (x,) = x
        run = functools.partial(getattr(self._comm, method), x, out=out, op=op, **more)
        return lambda asynchronous, timeout: run(async_op=asynchronous, timeout=timeout)

    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        root: Any = None,
        tensor: Any = None,
    ) -> Any:
        """Give all ranks what a tensor holds on the root; of several tensors each."""
        try:
            short = not opts.asyncOp and len(tensors) == 1
            x, number = tensors[0], opts.rootRank
        except Exception:  # another form, no options, or what is no call
            short = False
        if short and self._at_once(BROADCAST, x, x, 0, number):
            return self._over
        return self._broadcast(tensors if tensor is None else tensor, opts, root, timeout)

    @call("broadcast")
    def _broadcast(self, tensors: Any, *given: Any) -> Any:
        tensors, opts = listed(tensors), options(BroadcastOptions, *given)
        staged, root = [both(tensor) for tensor in tensors], opts.rootRank
        arrays: Any = [s.array for s in staged]
        run = functools.partial(
            self._comm.broadcast, arrays[0] if len(arrays) == 1 else arrays, root
        )
        arrive = [] if self._comm.rank == root else [s.arrive for s in staged]
        return self._begins(opts, tensors, [_running(run)], arrive)

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        root: Any = None,
        tensor: Any = None,
    ) -> Any:
        """Combine a tensor of all ranks on the root."""
        try:
            short = not opts.asyncOp and len(tensors) == 1
            x, number, to = tensors[0], NUMBERS[hash(opts.reduceOp)], opts.rootRank
        except Exception:  # another form, no options, or what is no call
            short = False
        if short and number >= 0 and self._at_once(REDUCE, x, x, number, to):
            return self._over
        return self._reduce(tensors if tensor is None else tensor, opts, root, op, timeout)

    @call("reduce")
    def _reduce(self, tensors: Any, *given: Any) -> Any:
        tensor, opts = only(tensors, "reduce"), options(ReduceOptions, *given)
        each, root = reduction(opts.reduceOp, tensor.dtype), opts.rootRank
        if each.fold:
            held = tensor if self._comm.rank == root else tensor.clone()
            return self._completes([tensor], [self._folding(held, opts.reduceOp)])
        array, arrive = each.both(tensor)
        one = self._reducing("reduce", array, None, each.op, root=root)
        return self._begins(opts, [tensor], [one], [arrive] if self._comm.rank == root else [])

    # All ranks' tensors on all ranks.

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Join the tensors of all ranks in one."""
        try:
            short = not opts.asyncOp
        except AttributeError:  # no options
            short = False
        if short and self._at_once(ALLGATHER, input, output, 0):
            return self._over
        return self._all_gather([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Join tensors of all ranks, each on its own."""
        return self._all_gather(outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @call("all_gather", 1)
    def _all_gather(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Any:
        calls, arrive = [], []
        for output, mine in _pairs(outputs, inputs, "all_gather_into_tensor"):
            _alike([output, mine], "all_gather_into_tensor")
            staged = incoming(output)
            run = functools.partial(self._comm.allgather, outgoing(mine), staged.array)
            calls.append(_running(run))
            arrive.append(staged.arrive)
        return self._begins(opts, list(outputs), calls, arrive)

    @call("all_gather", 1)
    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Give every rank the tensors of all in a list; their shapes may differ by rank."""
        outputs, inputs = nested(
            output_tensors, input_tensors if input_tensor is None else input_tensor
        )
        opts = options(AllgatherOptions, opts, timeout)
        calls, arrive = [], []
        for output, mine in _pairs(outputs, inputs, "all_gather"):
            self._one_each(output, "all_gather: tensor_list")
            _alike([*output, mine], "all_gather")
            one, after = self._into(list(output), outgoing(mine))
            calls.append(one)
            arrive.append(after)
        return self._begins(opts, [list(output) for output in outputs], calls, arrive)

    @call("all_gather", 1)
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> Any:
        """Give every rank the list of tensors of each."""
        outputs, inputs = output_lists, input_list
        self._one_each(outputs, "all_gather_coalesced: output_tensor_lists")
        calls, arrive = [], []
        for i, mine in enumerate(inputs):
            one, after = self._into([output[i] for output in outputs], outgoing(mine))
            calls.append(one)
            arrive.append(after)
        return self._begins(opts, [list(output) for output in outputs], calls, arrive)

    def _into(self, outputs: list[Tensor], mine: Tensor) -> tuple[Call, Any]:
        lengths, staged = counts(outputs), spread(outputs)
        mine = mine.reshape(-1)
        if len(set(lengths)) == 1:
            run = functools.partial(self._comm.allgather, mine, staged.array)
        else:
            run = functools.partial(self._comm.allgatherv, mine, lengths, staged.array)
        return _running(run), staged.arrive

    # Parts of all ranks' tensors, combined.

    def reduce_scatter_single(
        self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None
    ) -> Any:
        """Combine a tensor of all ranks and give each rank a part."""
        try:
            short, op = not opts.asyncOp, NUMBERS[hash(opts.reduceOp)]
        except AttributeError:  # no options
            short = False
        if short and op >= 0 and self._at_once(REDUCE_SCATTER, inputTensor, outputTensor, op):
            return self._over
        return self._reduce_scatter([outputTensor], [inputTensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """Do that with several tensors, each on its own."""
        return self._reduce_scatter(outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        op: Any = None,
        output: Any = None,
        input: Any = None,
    ) -> Any:
        """Combine a list of tensors of all ranks and give each rank one; shapes may differ."""
        inputs, outputs = nested(
            input_tensors if input is None else input,
            output_tensors if output is None else output,
        )
        return self._reduce_scatter(outputs, inputs, opts, op, timeout)

    @call("reduce_scatter", 1)
    def _reduce_scatter(self, outputs: Tensors, inputs: Sequence[Any], *given: Any) -> Any:
        opts = options(ReduceScatterOptions, *given)
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
                whole.append(self._folding_part(each, x, output, lengths))
                continue
            staged = each.incoming(output)
            calls.append(self._scattering(each, x, staged, lengths))
            arrive.append(staged.arrive)
        if whole:
            return self._completes(list(outputs), whole)
        return self._begins(opts, list(outputs), calls, arrive)

    def _scattering(self, each: Reduction, x: Tensor, out: Staged, lengths: list[int]) -> Call:
        array, into = each.outgoing(x).reshape(-1), out.array.reshape(-1)
        if len(set(lengths)) == 1:
            return self._reducing("reduce_scatter", array, into, each.op)
        wide = array.numel() // max(1, x.numel())  # a complex number is two
        lengths = [length * wide for length in lengths]
        return self._reducing("reduce_scatterv", array, into, each.op, counts=lengths)

    def _folding_part(
        self, each: Reduction, x: Tensor, output: Tensor, lengths: list[int]
    ) -> Callable[[], None]:
        fold = folding(self._comm, each.outgoing(x), each.fold)

        def run() -> None:
            mine = fold().view(x.dtype).split(lengths)[self._comm.rank]
            output.detach().copy_(mine.view(output.shape))

        return run

    # From one rank to all, and back.

    @call("gather", 1)
    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        root: Any = None,
        input_tensor: Any = None,
    ) -> Any:
        """Give the root the tensors of all ranks in a list."""
        outputs, inputs = nested(
            output_tensors, input_tensors if input_tensor is None else input_tensor
        )
        opts = options(GatherOptions, opts, root, timeout)
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
        one = self._pairwise("gather", [(outgoing(mine), root)], recvs, root)
        return self._begins(opts, lists, [one], [s.arrive for s in staged])

    @call("scatter", 1)
    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = (),
        opts: Any = None,
        timeout: Any = None,
        *,
        root: Any = None,
        output_tensor: Any = None,
    ) -> Any:
        """Give each rank one of the tensors of a list that the root has."""
        inputs, outputs = nested(
            input_tensors, output_tensors if output_tensor is None else output_tensor
        )
        opts = options(ScatterOptions, opts, root, timeout)
        mine, root = only(outputs, "scatter"), opts.rootRank
        sends = []
        if self._comm.rank == root:
            whole = list(only(list(inputs), "scatter: scatter_list"))
            self._one_each(whole, "scatter: scatter_list")
            _alike([*whole, mine], "scatter")
            sends = [(outgoing(tensor), rank) for rank, tensor in enumerate(whole)]
        staged = incoming(mine)
        one = self._pairwise("scatter", sends, [(staged.array, root)], root)
        return self._begins(opts, list(outputs), [one], [staged.arrive])

    # From every rank to every rank.

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Give each rank a part of a tensor; parts are rows, as many as ``*_split_sizes`` say."""
        try:
            even = not (output_split_sizes or input_split_sizes) and not opts.asyncOp
        except Exception:  # another form, no options, or what is no call
            even = False
        if even and self._at_once(ALLTOALL, input, output, 0):
            return self._over
        return self._all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, opts, timeout
        )

    alltoall_base = all_to_all_single

    @call("all_to_all", 1)
    def _all_to_all_single(
        self, output: Tensor, input: Tensor, received: Any, sent: Any, *given: Any
    ) -> Any:
        opts = options(AllToAllOptions, *given)
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
        return self._begins(opts, [output], [_running(run)], [staged.arrive])

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

    @call("all_to_all", 1)
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Any:
        """Give each rank one of the tensors of a list, and get one from each."""
        outputs, inputs = output_tensors, input_tensors
        self._one_each(inputs, "all_to_all: input_tensor_list")
        self._one_each(outputs, "all_to_all: output_tensor_list")
        staged = [incoming(output) for output in outputs]
        sends = [(outgoing(tensor), rank) for rank, tensor in enumerate(inputs)]
        recvs = [(s.array, rank) for rank, s in enumerate(staged)]
        one = self._pairwise("all_to_all", sends, recvs)
        return self._begins(opts, list(outputs), [one], [s.arrive for s in staged])

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
