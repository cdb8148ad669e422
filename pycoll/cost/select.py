"""Which algorithm runs a collective: a pure function, so that all ranks choose alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pycoll.algorithms import names
from pycoll.cost.candidate import Candidate, candidates, with_prediction
from pycoll.cost.machine import Machine
from pycoll.cost.question import Choice, Question, Switch
from pycoll.cost.tuning import Tuning
from pycoll.errors import UsageError
from pycoll.program.isa import CHUNK_UNIT
from pycoll.program.slots import LONG_SLOT_BYTES, power_of_two
from pycoll.schedule import COLLECTIVES

#: From here the direct form, where a call has it, beats staging, and asking for it costs little:
#: READY is one round among all ranks, even where it then turns out that arrays are not registered.
DIRECT_BYTES = 16 << 10
#: The same where ranks share cores, and a round is many context switches.
DIRECT_BYTES_SHARED = 256 << 10
#: In a direct form all ranks tell all where their arrays are, and reach each other's memory.
MOST_DIRECT_RANKS = 64
#: Results of so many bytes will not be read from a cache, so they are written past it. Two ranks,
#: 16 MiB, 32 MiB of third-level cache: a gather took 1.10 ms through it and takes 0.85, an
#: all-gather 2.0 and 1.7; an all-reduce and a broadcast do not change, nor do 8 MiB.
STREAM_BYTES = 16 << 20
#: Bytes of a chunk per turn of the loop: as large as a slot allows, for a signal wakes a rank.
TILE_BYTES = 256 << 10
#: The same of collectives that reduce nothing, of blocks from so many bytes on, where slots are so
#: long: between cores that share a cache a broadcast of 16 MiB took 1.9 ms, and with the shorter
#: tile 3.1 (medians of five launches; 64 MiB: 8.1 and 14.5).
LONG_TILE_BYTES = LONG_SLOT_BYTES
LONG_FROM_BYTES = 4 << 20
#: But so many tiles of a block at least, as a reader waits for the first: a broadcast of 4 MiB took
#: 0.27 ms in four, and takes 0.22 in eight.
LONG_TILES = 8
#: Predictions that differ by less than this are not told apart: the simpler algorithm runs. Nor are
#: measurements over RDMA, see `best_of`.
DOUBT = 1.1
#: The simplest, in this order: few rounds and one channel. After them, the fewest operations.
PLAIN = ("direct", "one_shot", "two_shot", "flat_tree", "ring")

#: A user's own choice; None leaves it to `choose`.
Selector = Callable[[Question], Choice | None]


def choose(
    question: Question,
    tuning: Tuning | None = None,
    selector: Selector | None = None,
    machine: Machine | None = None,
) -> Choice:
    """Choose how to run a call; all ranks must ask with the same arguments.

    Args:
        question: The call.
        tuning: What rank 0 has measured on this machine; None: the model decides alone.
        selector: Is asked first.
        machine: Where the call would run, such as one that a topology describes, if that is not
            the job's own machine.

    Returns:
        The Choice.

    Raises:
        UsageError: There is no such collective, no algorithm for so many ranks, or the selector
            returned something else than a Choice.

    Example:
        >>> cost.choose(cost.Question("allreduce", nbytes=8, size=4, cores=4)).algorithm
        'one_shot'
    """
    if selector is not None and (own := selector(question)) is not None:
        return _checked(own, question)
    if question.wanted is not None:
        direct = question.wanted if _wide(question) else None
        return Choice(question.wanted, _tile(question), _stream(question), direct, "asked for")
    best = best_of(candidates(question, tuning, machine=machine), question, tuning, machine)
    if best is None:
        raise UsageError(f"{question.collective}: no algorithm serves {question.size} ranks")
    return choice_of(question, best)


def winner(found: Iterable[Candidate]) -> Candidate | None:
    """Return the fastest candidate; None where none can run.

    Where some were measured, the model's word on the others does not count: it is not worth that
    much, and `pycoll tune` left them out because they were far behind.
    """
    able = [(c.seconds, c) for c in found if c.seconds is not None]
    if not able:
        return None
    measured = [(seconds, c) for seconds, c in able if c.measured is not None]
    least, best = min(measured or able, key=lambda pair: pair[0])
    if measured:
        return best
    close = [c for seconds, c in able if seconds <= DOUBT * least]
    return min(close, key=lambda c: (plainness(c.algorithm), c.operations))


def best_of(
    found: Iterable[Candidate],
    question: Question,
    tuning: Tuning | None = None,
    machine: Machine | None = None,
) -> Candidate | None:
    """Return the candidate that runs; None where none can.

    Over RDMA, of what was measured to be about as fast it is the one that the model finds fastest.
    The rows of one algorithm and size are a few samples, which scatter by more than that; a model
    that was fitted to many rows of that network knows what another message costs there. One that
    was not fitted has no say.
    """
    found = list(found)
    best = winner(found)
    if best is None or best.measured is None or not question.rdma or tuning is None:
        return best
    close = [c for c in found if c.measured is not None and c.measured <= DOUBT * best.measured]
    if len(close) == 1 or tuning.rates == Machine.of(question).rates:
        return best

    def by_model(one: Candidate) -> tuple[float, float]:
        predicted = with_prediction(one, question, tuning, machine).predicted
        assert one.measured is not None
        return math.inf if predicted is None else predicted, one.measured

    return min(close, key=by_model)


def plainness(algorithm: str) -> int:
    """Return a number that is lower for what stands first among equals."""
    return PLAIN.index(algorithm) if algorithm in PLAIN else len(PLAIN)


def choice_of(question: Question, best: Candidate) -> Choice:
    """Return how the winner is to run."""
    assert best.seconds is not None
    reason = f"{best.seconds * 1e6:.1f} us {best.basis.value}"
    direct = None
    if _wide(question):
        name = "two_shot" if question.collective == "allreduce" else "direct"
        direct = name if name in names(question.collective) else None
        if question.switch is not Switch.NONE:
            direct = _by_switch(question, best.seconds, direct)
    return Choice(best.algorithm, _tile(question), _stream(question), direct, reason)


def _by_switch(question: Question, staged: float, otherwise: str | None) -> str | None:
    """Return whose direct form runs where a switch serves some; None: messages are faster."""
    from pycoll.cost.switch import served  # few have one

    forms = served(question)
    if not forms:
        return otherwise
    close = [form for form in forms if form.seconds <= DOUBT * min(staged, forms[0].seconds)]
    return min((form.algorithm for form in close), key=plainness, default=None)


def _wide(question: Question) -> bool:
    """Tell whether it is worth asking whether all arrays can be reached by all ranks."""
    if question.remote or question.size == 1 or question.collective == "barrier":
        return False
    if question.size > MOST_DIRECT_RANKS:
        return False
    shared = Machine.of(question).turns > 1
    return question.nbytes >= (DIRECT_BYTES_SHARED if shared else DIRECT_BYTES)


def _tile(question: Question) -> int:
    if question.collective == "barrier" or COLLECTIVES[question.collective].reduces:
        return TILE_BYTES
    block = question.nbytes // COLLECTIVES[question.collective].nblocks(question.size)
    if block < LONG_FROM_BYTES:
        return TILE_BYTES
    return min(LONG_TILE_BYTES, power_of_two(block // LONG_TILES))


def _stream(question: Question) -> bool:
    nbytes = question.nbytes
    if question.collective in ("reduce_scatter", "scatter"):
        nbytes //= question.size  # what one rank receives
    return nbytes >= STREAM_BYTES


def _checked(own: object, question: Question) -> Choice:
    if not isinstance(own, Choice):
        raise UsageError(f"the selector returned {own!r}, want a pycoll.cost.Choice or None")
    if own.tile < CHUNK_UNIT or own.tile % CHUNK_UNIT:
        raise UsageError(f"the selector's tile is {own.tile}, want a multiple of {CHUNK_UNIT}")
    return own._replace(direct=None) if question.remote else own
