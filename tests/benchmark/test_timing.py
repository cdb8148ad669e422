"""The timing rules, on libraries that take as long as the test says."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case, Rules, Timing, measure
from pycoll.dtypes import ReduceOp


class Fake:
    """Sums over two ranks of which this is rank 0; its clock stands still between blocks."""

    def __init__(self, name, seconds, problem, log, *, wrong=0, in_place=False):
        self.name, self.each, self.problem, self.log = name, seconds, problem, log
        self.wrong = wrong
        self.x = np.empty_like(problem.input)
        self.out = self.x if in_place else np.empty_like(problem.input)

    def run(self):
        if np.array_equal(self.x, self.problem.input):
            self.out[:] = self.problem.expected
            self.out[: self.wrong] += 1

    def block(self, calls):
        self.log.append((self.name, calls, gc.isenabled()))
        self.run()
        return self.each * calls

    def case(self):
        return Case(
            self.name,
            "a",
            "t",
            "numpy",
            "call",
            self.x,
            self.out,
            self.run,
            self.block,
            in_place=self.out is self.x,
        )


@pytest.fixture
def problem():
    return Problem(OPERATIONS["allreduce"], 100, "float32", ReduceOp.SUM, 0, 2)


def alone(value):
    return [value]


def test_time_per_call_is_the_blocks_time_over_its_calls(problem):
    log = []
    timing = measure([Fake("a", 5e-6, problem, log).case()], problem, alone, Rules(3))[0]
    assert timing.samples == pytest.approx([5.0] * 3)
    assert timing.wrong == 0
    assert log[-1][1] * 5e-6 >= 0.002


def test_a_call_longer_than_a_block_is_called_once(problem):
    log = []
    measure([Fake("a", 1.0, problem, log).case()], problem, alone, Rules(2))
    assert {calls for _, calls, _ in log} == {1}


def test_an_accident_does_not_make_a_block_of_one_call(problem):
    log = []

    class Late(Fake):
        def block(self, calls):
            seconds = super().block(calls)
            return 1.0 if len(log) == 2 else seconds  # the very first that is timed

    measure([Late("a", 5e-6, problem, log).case()], problem, alone, Rules(3))
    assert log[-1][1] * 5e-6 >= 0.002


def test_libraries_alternate_and_the_order_rotates(problem):
    log = []
    cases = [Fake(name, 1.0, problem, log).case() for name in "abc"]
    measure(cases, problem, alone, Rules(3))
    order = "".join(name for name, _, _ in log[::2])  # each block is preceded by a warm-up
    assert order == "aabbcc" + "abc" + "bca" + "cab"  # how long a block is, is borne out once


def test_the_slowest_rank_counts(problem):
    fake = Fake("a", 1e-3, problem, [])
    timing = measure([fake.case()], problem, lambda value: [value, 3 * value], Rules(1))[0]
    assert timing.median == pytest.approx(3000.0)


def test_the_garbage_collector_is_off_in_blocks_and_on_again_behind(problem):
    log = []
    measure([Fake("a", 1.0, problem, log).case()], problem, alone, Rules(1))
    assert not any(enabled for _, _, enabled in log)
    assert gc.isenabled()


def test_wrong_elements_of_all_ranks_are_counted(problem):
    fake = Fake("a", 1.0, problem, [], wrong=2)
    timing = measure([fake.case()], problem, lambda value: [value, value], Rules(3))[0]
    assert timing.wrong == 2 * 3 * 2 * 2  # elements, repeats, checked call and block, ranks


def test_a_library_that_does_nothing_is_wrong_everywhere(problem):
    fake = Fake("a", 1.0, problem, [])
    idle = Case("a", "a", "t", "numpy", "call", fake.x, fake.out, lambda: None)
    timing = measure([idle], problem, alone, Rules(1, block_seconds=0))[0]
    assert timing.wrong == 2 * problem.input.size


def test_in_place_starts_every_check_from_the_input(problem):
    fake = Fake("a", 1.0, problem, [], in_place=True)
    assert measure([fake.case()], problem, alone, Rules(4))[0].wrong == 0
    assert not fake.x.any()  # the timed calls sum zeros, which no number of calls overflows


def test_without_a_block_of_its_own_a_case_is_timed_by_the_clock(problem):
    fake = Fake("a", 0, problem, [])
    case = Case("a", "a", "t", "numpy", "call", fake.x, fake.out, fake.run)
    assert case.seconds(10) > 0


def test_percentiles_are_over_single_calls_and_not_over_repeats():
    calls = np.arange(1.0, 201.0)
    np.random.default_rng(1).shuffle(calls)
    timing = Timing(tuple(float(i) for i in range(1, 8)), 0, calls)
    assert (timing.low, timing.median) == (1.0, 4.0)
    assert (timing.percentile(50), timing.percentile(99), timing.slowest) == (100.0, 198.0, 200.0)


def test_so_few_calls_that_none_is_above_it_have_no_percentile():
    assert Timing((1.0,), 0, np.arange(99.0)).percentile(99) is None
    assert Timing((1.0,), 0, np.arange(100.0)).percentile(99) == 98.0
    assert Timing((1.0,), 0).percentile(50) is None
    assert Timing((1.0,), 0).slowest is None


class Clock:
    """A clock that only calls move."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


def plain(problem, run):
    x = np.empty_like(problem.input)
    return Case("a", "a", "t", "numpy", "call", x, np.empty_like(x), run)


@pytest.mark.parametrize("each", [1e-6, 1e-3], ids=["short", "long"])
def test_every_call_is_timed_by_itself(problem, monkeypatch, each):
    clock = Clock(monkeypatch)

    def run():
        run.calls += 1
        clock.now += each * (10 if run.calls % 100 == 0 else 1)

    run.calls = 0
    timing = measure([plain(problem, run)], problem, alone, Rules(3, calls=200, warmup=0))[0]
    assert timing.calls.size == 3 * 200
    assert timing.percentile(50) == pytest.approx(each * 1e6)
    assert timing.percentile(98) == pytest.approx(each * 1e6)
    assert timing.slowest == pytest.approx(10 * each * 1e6)  # one in a hundred
    assert timing.median == pytest.approx(each * 1e6 * 1.09)  # blocks hold the slow ones too


def test_a_calls_time_is_that_of_its_slowest_rank(problem, monkeypatch):
    clock = Clock(monkeypatch)

    def run():
        clock.now += 1e-3

    def other(value):
        """Another rank, whose every second call takes twice as long."""
        theirs = np.array(value)
        theirs[1::2] *= 2
        return [value, theirs] if theirs.ndim else [value, value]

    def gather(value):
        return other(value) if np.ndim(value) else [value, value]

    timing = measure([plain(problem, run)], problem, gather, Rules(1, calls=4, warmup=0))[0]
    assert timing.calls == pytest.approx([1e3, 2e3, 1e3, 2e3])


@pytest.mark.parametrize("warmup", [0, 3])
def test_blocks_and_what_goes_before_them_are_as_long_as_asked(problem, warmup):
    log = []
    rules = Rules(2, calls=5, warmup=warmup)
    measure([Fake("a", 1.0, problem, log).case()], problem, alone, rules)
    once = [5] if warmup == 0 else [3, 5]
    assert [calls for _, calls, _ in log] == once * 3  # the calibration and two repeats


@pytest.mark.parametrize(("name", "between"), [("allreduce", []), ("gather", ["meet"])])
def test_ranks_meet_behind_the_warmup_of_calls_that_not_all_wait_for(name, between):
    log = []

    def meet(value):
        log.append("meet")
        return [value]

    problem = Problem(OPERATIONS[name], 100, "float32", ReduceOp.SUM, 0, 2)
    x = np.empty_like(problem.input)

    def block(calls):
        log.append(calls)
        return 1.0

    case = Case("a", "a", "t", "numpy", "call", x, np.empty(100, "f4"), lambda: None, block)
    measure([case], problem, meet, Rules(1, calls=5, warmup=3))
    at = [i for i, what in enumerate(log) if what == 3]
    assert len(at) == 2  # the calibration and a repeat
    assert [log[i + 1 : log.index(5, i)] for i in at] == [between, between]


def test_what_is_only_moved_is_checked_behind_the_block_in_place_too():
    problem = Problem(OPERATIONS["allgather"], 100, "float32", ReduceOp.SUM, 0, 2)
    memory = np.empty(100, "float32")
    x, out = problem.arrays(memory, memory)

    def forget():
        out[50:] = problem.expected[50:]
        forget.calls += 1
        if forget.calls > 3:
            out[99] += 1

    forget.calls = 0
    case = Case("a", "a", "t", "numpy", "call", x, out, forget, in_place=True)
    assert measure([case], problem, alone, Rules(1, block_seconds=0))[0].wrong > 0
