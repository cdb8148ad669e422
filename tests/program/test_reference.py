import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.algorithms import BUILTIN, algorithm, get
from pycoll.dtypes import BFLOAT16, DTYPES, FLOAT32, INT64, UINT8, DType, ReduceOp
from pycoll.errors import DeadlockError, ScheduleError, UsageError
from pycoll.program.arithmetic import combine, divide, narrow, storage
from pycoll.program.isa import Direction, Op
from pycoll.program.lower import compile_all
from pycoll.program.reference import POISON, bounds, run, tile_count
from pycoll.schedule import Algorithm, ScheduleBuilder, alltoall, reduce, reduce_scatter


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_bounds_cut_everything_into_whole_units(nchunks: int, nbytes: int) -> None:
    cuts = [bounds(c, nchunks, nbytes) for c in range(nchunks)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == nbytes
    assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
    assert all(low % 64 == 0 or low == nbytes for low, _ in cuts)
    sizes = [-(-(high - low) // 64) for low, high in cuts]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), st.integers(0, 10_000), st.sampled_from([64, 128, 4096]))
def test_tiles_cover_every_chunk_and_the_last_is_needed(
    nchunks: int, nbytes: int, tile: int
) -> None:
    n = tile_count(nchunks, nbytes, tile)
    longest = max(high - low for low, high in (bounds(c, nchunks, nbytes) for c in range(nchunks)))
    assert longest <= n * tile
    assert n == 1 or longest > (n - 1) * tile


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("op", ReduceOp, ids=lambda op: op.name.lower())
def test_every_type_and_operator_folds_in_rank_order(dtype: DType, op: ReduceOp) -> None:
    rng = np.random.default_rng(dtype.code * 8 + op)
    size, count = 5, 133
    data = []
    for _ in range(size):
        wide = rng.standard_normal(count).astype(np.float32)
        kind = storage(dtype)
        integral = dtype is not BFLOAT16 and kind.kind in "iu"
        data.append((wide * 50).astype(np.int64).astype(kind) if integral else narrow(wide, dtype))
    want = data[0]
    for x in data[1:]:
        want = combine(want, x, dtype, op)
    average = op is ReduceOp.AVG
    if average:
        want = divide(want, size, dtype)
    for name in ("one_shot", "two_shot"):
        for out in run(compile_all(get(name), size, average=average), data, dtype, op, tile=64):
            assert out.dtype == want.dtype
            np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))


@given(
    st.sampled_from(BUILTIN),
    st.integers(1, 9),
    st.integers(0, 150),
    st.sampled_from([64, 192, 4096]),
    st.integers(2, 4),
    st.booleans(),
)
def test_any_count_tile_and_slots(
    a: Algorithm, size: int, count: int, tile: int, slots: int, in_place: bool
) -> None:
    c = a.collective
    blocks = c.nblocks(size)
    # Blocks of equal bytes, so that all of them differ by rank, place and block.
    held = np.arange(size * blocks * count).reshape(size, blocks, count) % 251
    held = (held * 7 + np.arange(size)[:, None, None]).astype(np.uint8)
    inputs = [held[rank, list(c.in_blocks(rank, size))].ravel() for rank in range(size)]
    out = run(
        compile_all(a, size),
        inputs,
        UINT8,
        tile=tile,
        slots=slots,
        in_place=in_place and c.in_place,
        collective=c,
        counts=[count] * blocks,
    )
    for rank in range(size):
        kept = c.out_blocks(rank, size)
        assert out[rank].shape == (len(kept) * count,)
        for block, got in zip(kept, out[rank].reshape(len(kept), count), strict=True):
            ranks = sorted(c.after(rank, block, size) or ())
            want = held[ranks, c.origin(rank, block, size)].sum(axis=0, dtype=np.uint8)
            np.testing.assert_array_equal(got, want)


def test_inputs_stay_as_they_are_out_of_place() -> None:
    data = [np.arange(100, dtype=np.int64) + r for r in range(3)]
    run(compile_all(get("ring"), 3), data, INT64)
    for r, x in enumerate(data):
        np.testing.assert_array_equal(x, np.arange(100) + r)


def test_a_store_left_out_shows_as_poison() -> None:
    programs = [
        replace(
            p,
            instructions=tuple(
                i._replace(destinations=i.destinations[1:]) if len(i.destinations) == 2 else i
                for i in p.instructions
            ),
        )
        for p in compile_all(get("ring"), 2)
    ]
    data = [np.ones(32, np.float32)] * 2
    out = run(programs, data, FLOAT32)[0].view(np.uint8)
    assert (out == POISON).any()


def test_a_signal_left_out_is_a_deadlock() -> None:
    programs = list(compile_all(get("one_shot"), 2))
    victim = next(
        n
        for n, i in enumerate(programs[0].instructions)
        if i.op is Op.SIGNAL and programs[0].edges[i.edge].direction is Direction.SEND
    )
    code = list(programs[0].instructions)
    code[victim] = code[victim]._replace(op=Op.WAIT)
    programs[0] = replace(programs[0], instructions=tuple(code))
    data = [np.ones(64, np.float32)] * 2
    with pytest.raises(DeadlockError, match=r"rank 1 channel 0 tile 0 at instruction 4 waits for"):
        run(programs, data, FLOAT32, tile=64)


def test_wrong_arguments_are_refused() -> None:
    programs = compile_all(get("one_shot"), 2)
    good = np.ones(4, np.float32)
    with pytest.raises(UsageError, match=r"^tile is 100 bytes, want a positive multiple of 64$"):
        run(programs, [good, good], FLOAT32, tile=100)
    with pytest.raises(UsageError, match=r"^input of rank 1 is float64\[4\], want float32 \[4\]"):
        run(programs, [good, good.astype(np.float64)], FLOAT32)
    with pytest.raises(UsageError, match=r"^input of rank 0 is float32\[4\], want float32 \[5\]"):
        run(programs, [good, good], FLOAT32, counts=[5])
    with pytest.raises(UsageError, match=r"^2 counts, want 1, one for a block$"):
        run(programs, [good, good], FLOAT32, counts=[2, 2])


@algorithm(reduce_scatter)
def halves(b: ScheduleBuilder) -> None:
    b.send(b.input[1 - b.rank], to=1 - b.rank)
    b.recv_reduce(b.output[b.rank], frm=1 - b.rank)


@algorithm(alltoall)
def swap(b: ScheduleBuilder) -> None:
    b.copy(b.input[b.rank], b.output[b.rank])
    b.send(b.input[1 - b.rank], to=1 - b.rank)
    b.recv(b.output[1 - b.rank], frm=1 - b.rank)


def test_blocks_may_be_of_any_length() -> None:
    data = [np.arange(70, dtype=np.int64) + 1000 * rank for rank in range(2)]
    for in_place in (False, True):
        inputs = [x.copy() for x in data]
        out = run(
            compile_all(halves, 2),
            inputs,
            INT64,
            tile=64,
            in_place=in_place,
            collective=reduce_scatter,
            counts=[3, 67],
        )
        np.testing.assert_array_equal(out[0], (data[0] + data[1])[:3])
        np.testing.assert_array_equal(out[1], (data[0] + data[1])[3:])
        assert np.shares_memory(out[1], inputs[1]) == in_place


def test_blocks_that_cannot_be_are_refused() -> None:
    programs, odd = compile_all(swap, 2), [np.ones(3, np.float32)] * 2
    with pytest.raises(UsageError, match=r"^input of rank 0 has 3 elements, want a multiple of 2$"):
        run(programs, odd, FLOAT32, collective=alltoall)
    with pytest.raises(UsageError, match=r"^counts are \[1, 2\], want equal ones for alltoall$"):
        run(programs, odd, FLOAT32, collective=alltoall, counts=[1, 2])
    with pytest.raises(UsageError, match=r"^alltoall cannot be done in place$"):
        run(programs, odd, FLOAT32, collective=alltoall, in_place=True)


def test_memory_that_a_rank_does_not_have_is_not_touched() -> None:
    programs = compile_all(get("one_shot"), 2)  # of another collective
    data = [np.ones(4, np.float32), np.ones(4, np.float32)]
    with pytest.raises(ScheduleError, match=r"^rank 1 touches OUT of rank 1 at chunk 0, which it"):
        run(programs, data, FLOAT32, collective=reduce)
