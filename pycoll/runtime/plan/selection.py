"""Selection: which algorithm runs a call, as `cost` answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll import log
from pycoll.algorithms import get, names
from pycoll.cost import Choice, Switch, Tuning, choose, explain
from pycoll.cost.explanation import folds
from pycoll.dtypes import FLOAT32, DType, ReduceOp
from pycoll.errors import UsageError, counted, quoted
from pycoll.order import FIXED, FREE
from pycoll.runtime import room
from pycoll.runtime.plan.call import BARRIER, Call, Wanted
from pycoll.runtime.plan.earlier import Choices, Subject
from pycoll.runtime.plan.once import Once, found_once
from pycoll.runtime.plan.question import question
from pycoll.schedule import COLLECTIVES, Algorithm

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycoll.cost import Explanation, Question
    from pycoll.runtime.join import World
    from pycoll.runtime.plan.agreement import Agreement, Selector


RANKS_PER_CORE = 2  #: up to which each rank of a few chooses for itself


class Selection:
    """How the ranks of one communicator choose, by what they agreed: one of them for all.

    Where they are few, and not many to a core, each chooses for itself: the same function of the
    same question takes less time on all cores at once than a message each way does besides. What a
    user gave to choose by need not be such a function.

    Args:
        world: The ranks.
        agreement: What they have agreed on.
        once: Finds what one rank finds for all.
        device: What memory arrays lie in.
        direct: Whether all arrays of `empty` are reached by all ranks.
        switch: Says what NVLink's switch does for such arrays, by their dtype and the operator.
        choices: What these ranks have inherited from a communicator that they have survived.
    """

    def __init__(
        self,
        world: World,
        agreement: Agreement,
        once: Once,
        device: str = "cpu",
        direct: bool = True,
        switch: Callable[[DType, ReduceOp], Switch] | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.choices = choices or Choices()
        self._world = world
        self._once = once
        self._device = device
        self._switch = switch or (lambda *_: Switch.NONE)
        self._direct = (
            direct and world.direct
        )  #: whether all arrays of `empty` are reached by all ranks
        self._tuning = None if agreement.tuning is None else Tuning.from_json(agreement.tuning)
        self._selector = agreement.selector
        near = max(Counter(world.hosts).values())
        few = world.size <= room.EAGER and near <= RANKS_PER_CORE * world.cores
        self._each_chooses = few and agreement.selector is None
        self._unproved = agreement.unproved
        self._order = agreement.order

    def choose(
        self,
        call: Call,
        wanted: Wanted,
        timeout: float | None = None,
        without: tuple[str, ...] = (),
        first: bool = False,
    ) -> tuple[Choice, Algorithm, bool]:
        """Return how a call is to run, after at most ``timeout`` seconds, and whether for good.

        Args:
            call: What all ranks ask for alike.
            wanted: The algorithm; None: the fastest.
            timeout: Seconds to wait for the rank that chooses; None: the communicator's.
            without: Algorithms that have turned out to take too long to prove; who chooses one all
                the same gets it.
            first: What ran before will do, where these ranks were more.

        Raises:
            UsageError: There is no such algorithm, or it is for another collective.
        """
        preset = self._preset(call) if wanted is None and not call.purpose else None
        wanted = wanted if preset is None else preset
        named = wanted.name if isinstance(wanted, Algorithm) else wanted
        name = "barrier" if call == BARRIER else call.collective
        asked = question(
            *(self._world, name, call.nbytes, named, call.dtype.name),
            device=self._device,
            unproved=self._unproved,
            without=without,
            switch=Switch.NONE if call.fixed else self._switch(call.dtype, call.op),
            order=FIXED if call.fixed else FREE,
        )
        own = self._selector if named is None else None  # an explicit wish needs no advice
        final, choice = self._found(call, asked, own, first, timeout)
        if call.fixed and self._switch(call.dtype, call.op) is Switch.FOLDS:
            choice = choice._replace(direct=None)  # a switch folds in an order of its own
        algorithm = wanted
        if not isinstance(algorithm, Algorithm):
            algorithm = get(choice.algorithm, call.collective)
        if algorithm.collective.name != call.collective:
            raise UsageError(
                f"{call.collective}: algorithm {algorithm.name!r} is for "
                f"{algorithm.collective.name}, want one for {call.collective}"
            )
        if self._world.rank == 0:
            log.info(
                "selection",
                "%s of %d bytes on %s: %s, %s",
                *(name, call.nbytes, counted(self._world.size, "rank"), algorithm.name),
                "as PYCOLL_ALGORITHM says"
                if preset is not None
                else choice.reason or "by the selector",
            )
        return choice, algorithm, final

    def _found(
        self,
        call: Call,
        asked: Question,
        selector: Selector | None,
        first: bool,
        timeout: float | None,
    ) -> tuple[bool, Choice]:
        """Return whether a choice is for good, and the choice; see `choose`."""
        subject = Subject.of(asked, self._direct)
        # What folded in the fixed order among more ranks need not among these.
        inherits = self.choices.inherits and self._selector is None and not call.fixed
        average = call.op is ReduceOp.AVG

        def earlier() -> Choice | None:
            return self.choices.find(subject, self._world, call.collective, average)

        def find(final: bool) -> list[Any]:
            c = None if final else earlier()
            if c is None:
                c, final = self._served(choose(asked, tuning=self._tuning, selector=selector)), True
            return [final, c.algorithm, int(c.tile), bool(c.stream), c.direct, str(c.reason)]

        def shared(final: bool) -> Any:
            # The placement is the communicator's, and long.
            key = "choice", asked._replace(placement=None), self._direct, final
            return found_once(self._once, key, lambda: find(final), timeout)

        final = not (first and inherits)
        if not final and self.choices.alike and (choice := earlier()):
            self.choices.note(subject, choice)
            return False, choice
        # What not all ranks know, one finds for all.
        each = self._each_chooses and (final or self.choices.alike)
        final, *found = find(True) if each else shared(final)
        self.choices.note(subject, choice := Choice(*found))
        return final, choice

    def explain(self, collective: str, nbytes: int, order: str | None) -> Explanation:
        """Return what `choose` chooses for a call of this length, and why.

        Args:
            collective: Its name.
            nbytes: Of the message.
            order: In which it folds; None: the communicator's, if it does.
        """
        if order is None:
            order = self._order if folds(collective) else FREE
        fixed = order == FIXED
        asked = question(
            *(self._world, collective, nbytes),
            device=self._device,
            unproved=self._unproved,
            switch=Switch.NONE if fixed else self._switch(FLOAT32, ReduceOp.SUM),
            order=order,
        )
        found = explain(asked, self._tuning, self._selector)
        where = found.where
        if self._unproved:
            where += ("What takes too long to prove runs unproved, as init was told.",)
        return replace(found, choice=self._served(found.choice), where=where)

    def _served(self, choice: Choice) -> Choice:
        return choice if self._direct else choice._replace(direct=None)

    def _preset(self, call: Call) -> str | None:
        """Return PYCOLL_ALGORITHM where this collective has such an algorithm.

        Raises:
            UsageError: None has.
        """
        name = self._world.algorithm
        if name is None:
            return None
        having = [c for c in COLLECTIVES if name in names(c)]
        if not having:
            known = ", ".join(names(call.collective))
            raise UsageError(
                f"{call.collective}: PYCOLL_ALGORITHM is {quoted(name)} on rank 0, want the name "
                f"of an algorithm, such as {known}"
            )
        return name if call.collective in having else None
