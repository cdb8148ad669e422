"""Silent corruption: every flipped bit is found, its rank or hop named, and nothing else is."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flips
import numpy as np
import pytest
from flips import Story
from test_survivors import apart

import pycoll
from pycoll import algorithms
from pycoll.runtime.check.exchange import Exchange
from pycoll.runtime.check.memory import Message, Room
from pycoll.runtime.check.reduction import Reduction

pytestmark = pytest.mark.native

COLLECTIVES = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "alltoall"),
    *("gather", "scatter"),
)
#: What is planted in slots in every run of the tests; the rest is for the whole run.
FEW = (
    *(("allreduce", name) for name in ("ring", "two_shot", "one_shot", "double_binary_tree")),
    *(("allreduce", name) for name in ("recursive_doubling", "halving_doubling")),
    *(("allgather", "ring"), ("broadcast", "binomial"), ("reduce_scatter", "ring")),
    *(("reduce", "binomial"), ("alltoall", "pairwise"), ("alltoall", "bruck")),
)
EVERY = (
    *((c, name) for c in COLLECTIVES for name in algorithms.names(c) if "hierarchical" not in name),
    ("alltoallv", None),
)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_CHECK", "1")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Any:
    return monkeypatch


def tell(place: str, size: int, what: Any, seed: int = 1) -> None:
    """Plant a flip in a call of each kind; all are found, and named."""
    rng = random.Random(seed)
    stories = [Story.of(rng, place, *one, size) for one in what]
    for story, ends in zip(stories, flips.run(stories, size, seed), strict=True):
        assert any(end.flip for end in ends), f"{story}: nothing was planted"
        assert all(end.found for end in ends), story
        assert flips.named(story, ends), f"{story}: {ends}"
        assert len({end.text for end in ends}) == 1, ends


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_bit_of_a_result(size: int) -> None:
    tell("result", size, EVERY)


def test_a_bit_in_a_slot() -> None:
    tell("slot", 3, FEW)


def test_a_bit_on_the_wire() -> None:
    tell("wire", 3, EVERY)


#: In which late ranks are sent nothing: a root that folds by itself sends first; no slots at all.
NO_SLOT = {("reduce", "two_shot"), ("reduce", "ordered_chain"), ("alltoallv", None)}


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_algorithm_with_a_bit_in_a_slot(size: int, seed: int) -> None:
    tell("slot", size, [one for one in EVERY if one not in NO_SLOT], seed)


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_every_algorithm_with_a_bit_on_the_wire(size: int, seed: int) -> None:
    tell("wire", size, EVERY, seed)


# Nothing is found where nothing is.


def anything(dtype: str, count: int, seed: int) -> Any:
    """Random bits: NaNs of all kinds, infinities, denormals, -0."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, count * np.dtype(dtype).itemsize, "u1").view(dtype)
    if x.dtype.kind == "f":
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, 1.0], dtype)
        x[: 8 * (count // 16)] = rng.choice(special, 8 * (count // 16))
    return x


def make_every_call(comm: Any, dtype: str) -> None:
    """Make calls of all kinds, on arrays of all kinds of memory."""
    r, size = comm.rank, comm.size
    for count in (1, 33, 5000):
        for op in ("sum", "prod", "min", "max", "avg"):
            x = anything(dtype, count * size + 3, 10 * r + count)[3:]  # off by some elements
            for name in algorithms.names("allreduce"):
                comm.allreduce(x.copy(), op=op, algorithm=name)
            heap = comm.empty(x.shape, dtype)
            heap[:] = x
            comm.allreduce(heap, op=op)
            comm.allreduce(x, np.empty_like(x), op=op)
            comm.allreduce(heap, comm.empty(x.shape, dtype), op=op)
            comm.allreduce([x.copy(), x[:count].copy(), heap], op=op)
            comm.reduce(x.copy(), op=op, root=size - 1)
            comm.reduce_scatter(x, op=op)
            comm.reduce_scatter(x, x[r * count : (r + 1) * count], op=op)
            counts = [count * size, *[0] * (size - 1)]
            comm.reduce_scatterv(x, counts, op=op)
        heap[:] = x
        plan = comm.plan("allreduce", heap, op="avg")
        plan()
        plan()


def move_everything(comm: Any, dtype: str) -> None:
    r, size = comm.rank, comm.size
    for count in (0, 1, 1000):
        x = anything(dtype, count * size, r)
        comm.broadcast(x, root=size - 1)
        comm.broadcast([x, x.copy()])
        comm.allgather(x)
        out = np.empty(count * size * size, dtype)
        mine = out[r * count * size : (r + 1) * count * size]
        comm.allgather(mine, out)
        comm.alltoall(x)
        comm.alltoall(x, x)
        comm.gather(x, root=size - 1)
        comm.scatter(x if r == 0 else None, None if r == 0 else np.empty(count, dtype))
        counts = [count] * size
        comm.allgatherv(x[:count], counts)
        comm.alltoallv(x, counts, np.empty_like(x), counts)
        comm.gatherv(x[:count], counts)
        comm.gatherv(x[:count], counts if r == 1 else None, root=1)
        comm.scatterv(x if r == 0 else None, counts, None if r == 0 else np.empty(count, dtype))
        comm.barrier()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint64"])
def test_right_results_are_not_found_wrong(dtype: str) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            make_every_call(comm, dtype)
            move_everything(comm, dtype)

    for size in (2, 3):
        pycoll.spawn(rank, size, timeout=200)


def test_right_results_over_tcp_are_not_found_wrong() -> None:
    def rank() -> None:
        apart("aab")
        with pycoll.init() as comm:
            make_every_call(comm, "float32")
            move_everything(comm, "complex128")

    pycoll.spawn(rank, 3, timeout=200)


@pytest.mark.stand_in
def test_right_results_over_verbs_are_not_found_wrong(plant: Any) -> None:
    plant.setenv("PYCOLL_TRANSPORT", "verbs")

    def rank() -> Any:
        apart("aab")
        with pycoll.init() as comm:
            make_every_call(comm, "float64")
            move_everything(comm, "float64")
            return comm.transport

    assert pycoll.spawn(rank, 3, timeout=200) == ["verbs"] * 3


def test_bfloat16_of_torch_is_not_found_wrong() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            bits = torch.from_numpy(anything("uint16", 5000, comm.rank).view(np.int16))
            x = bits.view(torch.bfloat16)
            for op in ("sum", "avg", "max"):
                for name in algorithms.names("allreduce"):
                    comm.allreduce(x.clone(), op=op, algorithm=name)
                comm.reduce_scatter(x[:4998], op=op)

    pycoll.spawn(rank, 3, timeout=200, start="fork")


def test_the_input_is_what_the_calls_before_have_left() -> None:
    """Those with async_op may be under way as a checked call begins."""

    def rank() -> Any:
        with pycoll.init() as comm:
            if comm.rank == 1:
                time.sleep(0.1)  # so that they are
            x = np.full(1000, comm.rank + 1.0)
            works = [comm.allreduce(x, async_op=True), comm.broadcast(x, async_op=True)]
            comm.allreduce(x)
            for work in works:
                work.wait()
            return x[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these are not checked
        assert pycoll.spawn(rank, 2, timeout=60) == [6.0, 6.0]


def test_a_heap_without_room() -> None:
    """The second run takes the user's arrays, and gives them back as they were."""

    def rank() -> Any:
        with pycoll.init() as comm:
            x = comm.empty(1000)
            x[:] = comm.rank + np.arange(1000)
            Room.like = lambda *_: None if comm.rank == 0 else like(*_)  # type: ignore[method-assign]
            comm.allreduce(x)
            return x.tolist() == (2 * np.arange(1000) + 1).tolist()

    like = Room.like
    assert pycoll.spawn(rank, 2, timeout=60) == [True, True]


# What is said.


@contextmanager
def flipped(victims: Any, rank: int, first: bool = True, second: bool = False) -> Iterator[None]:
    """Flip bit 3 of element 5 of these ranks' results of reductions."""
    real = Reduction._again

    def again(self: Any) -> None:
        real(self)
        for wanted, message in ((first, self._first), (second, self._second)):
            if wanted and rank in victims:
                message.pieces[0].view("u8")[5] ^= np.uint64(8)

    Reduction._again = again  # type: ignore[method-assign]
    try:
        yield
    finally:
        Reduction._again = real  # type: ignore[method-assign]


def caught(comm: Any, make: Any) -> pycoll.CorruptionError:
    with pytest.raises(pycoll.CorruptionError) as found:
        make()
    return found.value


def test_what_the_error_says_and_that_the_communicator_goes_on() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            x = np.arange(10) + comm.rank
            comm.barrier()
            with flipped({1}, comm.rank):
                error = caught(comm, lambda: comm.allreduce(x.copy(), algorithm="ring"))
            assert comm.allreduce(x)[0] == 3
            assert isinstance(error, pycoll.PycollError)
            assert (error.call, error.communicator) == (
                "allreduce(sum, int64, 10 elements, ring)",
                "job",
            )
            assert (error.first, error.last, error.offset, error.ranks) == (5, 5, 40, (1,))
            return str(error)

    texts = pycoll.spawn(rank, 3, timeout=60)
    assert set(texts) == {
        "allreduce(sum, int64, 10 elements, ring), call 2 of communicator 'job': a wrong result: "
        "element 5 (from byte 40 on), not alike on all ranks and in a second run; the call went "
        "wrong on rank 1; one flipped bit explains it: bit 3 of rank 1's result in its memory"
    }


def test_a_fault_that_stays_is_found_by_the_others_results() -> None:
    """One rank's arithmetic gives the same wrong bits twice."""

    def rank() -> Any:
        with pycoll.init() as comm, flipped({2}, comm.rank, second=True):
            return caught(comm, lambda: comm.allreduce(np.arange(9.0))).ranks

    assert pycoll.spawn(rank, 3, timeout=60) == [(2,)] * 3


def test_a_flip_in_the_second_run_is_one_of_this_machine_too() -> None:
    def rank() -> Any:
        with pycoll.init() as comm, flipped({0}, comm.rank, False, True):
            error = caught(comm, lambda: comm.reduce(np.arange(9), root=0))
            assert "its second run went wrong on rank 0" in str(error)
            return error.ranks

    assert pycoll.spawn(rank, 2, timeout=60) == [(0,)] * 2


def test_a_wrong_result_that_no_single_bit_explains() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            real = Reduction._again

            def again(self: Any) -> None:
                real(self)
                if comm.rank == 1:
                    self._first.pieces[0].view("u8")[5] ^= np.uint64(0b1010101)

            Reduction._again = again  # type: ignore[method-assign]
            return str(caught(comm, lambda: comm.allreduce(np.arange(9.0) + comm.rank)))

    for text in pycoll.spawn(rank, 3, timeout=60):
        assert "wrong on rank 1" in text
        assert text.endswith("; no single flipped bit explains it")


def test_of_two_that_moved_data_nobody_knows_which_is_right() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            x = np.arange(100.0)
            with flips.in_result(comm.rank == 1, 41, random.Random(3)):
                error = caught(comm, lambda: comm.broadcast(x))
            assert error.ranks == (0, 1)
            assert error.hops == ((0, 1, 41),)
            return str(error)

    for text in pycoll.spawn(rank, 2, timeout=60):
        assert "it is not known which of 2 ranks (0, 1) is wrong" in text


def test_lists_and_plans_and_arrays_of_the_heap() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            r = comm.rank

            def wrong(make: Any) -> Any:
                with flipped({1}, r):
                    return caught(comm, make).ranks

            heap = comm.empty(50)
            heap[:] = 1
            parts = [np.ones(20), np.ones(30, "f4"), np.ones(1 << 18), np.ones(7)]
            plan = comm.plan("allreduce", np.ones(9), op="max")
            listed = comm.plan("allreduce", [np.ones(9), np.ones(3)])
            found = [
                wrong(lambda: comm.allreduce(parts)),
                wrong(lambda: comm.allreduce(heap)),
                wrong(plan),
                wrong(listed),
                wrong(lambda: comm.reduce_scatterv(np.ones(60), [20, 20, 20])),
            ]
            assert (plan(), listed())[0][0] == 1
            return found

    assert pycoll.spawn(rank, 3, timeout=60) == [[(1,)] * 5] * 3


def test_every_so_many_calls_one_is_checked(plant: Any) -> None:
    plant.setenv("PYCOLL_CHECK", "3")

    def rank() -> Any:
        with pycoll.init() as comm, flipped({0, 1}, comm.rank):
            found = []
            plan = comm.plan("allreduce", np.ones(9))
            for call in range(1, 13):
                try:
                    plan() if call % 2 else comm.allreduce(np.ones(9))
                except pycoll.CorruptionError as error:
                    found.append((call, f"call {call} of" in str(error)))
            return found

    assert pycoll.spawn(rank, 2, timeout=60) == [[(call, True) for call in (3, 6, 9, 12)]] * 2


def test_calls_that_are_refused_count() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            with pytest.raises(pycoll.UsageError, match="want an array"):
                comm.allreduce(5)
            with pytest.raises(pycoll.UsageError, match="is 'mean'"):
                comm.allreduce(np.ones(9), op="mean")
            with flipped({0}, comm.rank):
                return str(caught(comm, lambda: comm.allreduce(np.ones(9))))

    assert all("call 3 of" in text for text in pycoll.spawn(rank, 2, timeout=60))


def test_ranks_with_different_settings(plant: Any) -> None:
    plant.delenv("PYCOLL_CHECK")

    def rank() -> None:
        import os

        from pycoll.bootstrap import job

        current = job.current()
        assert current is not None
        if current.rank == 1:
            os.environ["PYCOLL_CHECK"] = "7"
        with pytest.raises(
            pycoll.UsageError, match=r"^PYCOLL_CHECK is 7 on rank 1 and 0 on rank 0; give all"
        ):
            pycoll.init()

    pycoll.spawn(rank, 2, timeout=60)


def test_communicators_that_are_made_of_others_check_too() -> None:
    def rank() -> Any:
        comm = pycoll.init()
        half, twin = comm.split(comm.rank % 2), comm.dup()
        found = []
        for one, victim in ((half, 0), (twin, 2)):
            with flipped({victim}, one.rank):
                found.append(caught(one, lambda one=one: one.allreduce(np.ones(9))).ranks)
            one.close()
        comm.revoke() if comm.rank == 3 else None
        with comm.shrink() as left, flipped({1}, left.rank):
            found.append(caught(left, lambda: left.allreduce(np.ones(9))).ranks)
        return found

    assert pycoll.spawn(rank, 4, timeout=60) == [[(0,), (2,), (1,)]] * 4


def test_what_is_not_checked_is_said_once() -> None:
    def rank() -> Any:
        with pycoll.init() as comm, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x = np.ones(9)
            for _ in range(2):
                comm.allreduce(x, async_op=True).wait()
                comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
                comm.broadcast_object("text")
                comm.barrier()
            return [(str(one.message), one.filename == __file__) for one in said]

    tail = "are not checked for silent corruption"
    assert (
        pycoll.spawn(rank, 2, timeout=60)
        == [
            [
                (f"PYCOLL_CHECK=1: calls with async_op=True {tail}", True),
                (f"PYCOLL_CHECK=1: messages between two ranks (send, recv, exchange) {tail}", True),
                (f"PYCOLL_CHECK=1: objects (broadcast_object, ...) {tail}", True),
            ]
        ]
        * 2
    )


def test_profilers_see_a_checked_call_as_one() -> None:
    def rank() -> Any:
        seen: list[pycoll.CallEvent] = []
        with pycoll.init() as comm:
            x = np.ones(9)
            plain = comm._allreduce
            with comm.register_profiler(seen.append), flipped({1}, comm.rank):
                caught(comm, lambda: comm.allreduce(x.copy()))
            with comm.register_profiler(seen.append):
                comm.allreduce(x, algorithm="ring")
                comm.allreduce(x)
            assert comm._allreduce is plain
            by = comm.plan("allreduce", x).algorithm
        ends = [event for event in seen if event.phase == "end"]
        assert len(seen) == 6
        assert [event.algorithm for event in ends[1:]] == ["ring", by]
        return [type(event.error).__name__ for event in ends]

    assert pycoll.spawn(rank, 2, timeout=60) == [["CorruptionError", "NoneType", "NoneType"]] * 2


def test_without_the_setting_nothing_is_in_front(plant: Any) -> None:
    plant.delenv("PYCOLL_CHECK")
    with pycoll.init() as comm:
        assert comm._checks is None
        assert type(comm._allreduce).__name__ == "builtin_function_or_method"


@contextmanager
def garbled(copies: int, rank: int) -> Iterator[None]:
    """Flip a bit of what rank 0 is told by rank 1, in so many of the two copies."""
    from pycoll.runtime.dispatch import Dispatcher

    real = Dispatcher.run

    def run(self: Any, name: str, x: Any, out: Any, options: Any, async_op: bool = False) -> Any:
        found = real(self, name, x, out, options, async_op)
        if rank == 0 and options.purpose.startswith("check"):
            half = found.size // 4
            found[2 * half] ^= 1
            if copies == 2:
                found[3 * half] ^= 1
        return found

    Dispatcher.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        Dispatcher.run = real  # type: ignore[method-assign]


def test_a_flip_in_the_checks_own_messages() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            with garbled(1, comm.rank), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                comm.allreduce(np.ones(9))
            assert [str(one.message) for one in said] == [
                "PYCOLL_CHECK: what rank 1 told of its results came with wrong bytes, once of twice"
            ] * (comm.rank == 0)
            with garbled(2, comm.rank):
                if comm.rank == 0:
                    error = caught(comm, lambda: comm.allreduce(np.ones(9)))
                    assert "what rank 1 told of its results came with wrong bytes; " in str(error)
                else:
                    comm.allreduce(np.ones(9))
            comm.allreduce(np.ones(9))

    pycoll.spawn(rank, 2, timeout=60)


def test_places_of_messages_that_differ() -> None:
    x = np.arange(1 << 20, dtype="u1")
    for at in (0, 1, 77_777, (1 << 20) - 1):
        y = x.copy()
        y[at] ^= 1
        y[-1] ^= 2
        pieces = [y[:100], y[100:77_777], y[77_777:]]
        assert Message([x]).differing(Message(pieces)) == (at, (1 << 20) - 1)
        assert Message(pieces).checksum() == Message([y]).checksum()
    assert Message([x]).differing(Message([x.copy()])) is None
    assert Message([x]).part(5, 9).to_bytes() == bytes([5, 6, 7, 8])


def test_bytes_that_differ_between_ranks_are_narrowed_down() -> None:
    def rank() -> Any:
        with pycoll.init() as comm:
            exchange = Exchange(comm._collectives.launch, None)
            x = np.zeros(1_000_003, "u1")
            if comm.rank == 1:
                x[[123_456, 999_999]] = 1
            nothing = exchange.extent([Message([x[:100]]), None])
            return exchange.extent([Message([x]), None]), nothing

    assert pycoll.spawn(rank, 3, timeout=60) == [((123_456, 999_999), None)] * 3


@pytest.mark.fake_cuda
def test_that_arrays_on_a_gpu_are_not_checked_is_said() -> None:
    import fakecuda

    with pycoll.init() as comm:
        x = fakecuda.Array.of(np.ones(9))
        with pytest.warns(UserWarning, match=r"^PYCOLL_CHECK=1: arrays on a GPU are not checked"):
            comm.allreduce(x)
        with pytest.warns(UserWarning, match=r"^PYCOLL_CHECK=1: calls with async_op=True are not"):
            comm.allreduce(x, async_op=True).wait()
        comm.allreduce([x, fakecuda.Array.of(np.ones(3))])
