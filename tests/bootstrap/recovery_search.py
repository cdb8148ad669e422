"""Visits every moment that the model of a recovery can come to, by a search in C.

The model is `recovery_model`. What one rank or one router does is asked of it, once for each; which
events there are, and which moments were visited, is `recovery_search.c`. That it does what the
model says is tested: both find as many moments, and the same after any one.

    recovery_search.py 4 2 kill split    # ranks, faults, and the kinds of them; all, if none
    recovery_search.py walk 5 3 1 60     # ranks, faults, seed, seconds: walks by chance

It visits 150,000 to 400,000 moments a second, and needs some 45 bytes for each. Moments are
compared as a whole, so that none is taken for another.

**What need not be tried.** Most moments are those after the last fault, and most of them differ
only in the order of things that have nothing to do with each other. So, unless told otherwise, the
search goes on from a moment without faults by a *persistent* set of events only: one of which none
can be enabled, disabled or changed by what is not in the set, whatever of that happens first. Every
end that can be reached then still is: the first of the set's events on the way there might as well
have come at once. As nobody dies any more, two ranks that return different views have them to the
end; and a rank that waits for ever does so at an end. So all that is checked is found. An end is
also where nothing but healing is left; to heal is never the event that makes a set suffice.

1. *A rank hears its living router*, and no cut is between them. It takes the head of one queue and
   adds to the tail of the other, of which the router takes the head and adds to the tail. It cannot
   die any more, nor turn away before it has heard all.
2. *A rank leaves a router that is dead*, and no cut is between them. That router loses and says
   nothing more, so that the rank will do the same whenever it goes. No router holds it against a
   rank that it still waits there. But somebody may wait for this rank to be a router, and be told
   now, by what the dead router knew, that it is lost; so this must not hold for anybody.
3. *All that some routers do*: they hear ranks and lose ranks, their ranks hear them and leave them.
   The set begins with any router R, and grows until none of these is left:

   - The network is cut between R and a rank that is R's, or that R has not lost, or of which it has
     still to learn that it is dead: healing makes a difference. The set does not suffice.
   - A rank of a router below R has not been lost by R. It may come and be heard; or R may hold it
     against it that it does not come. That router's events belong to the set. So they do if R has
     lost the rank, which may come, be turned away, and tell the next router whom R has lost: unless
     R can lose nobody whom the rank does not know of.
   - A rank I of R may leave. A router above R may hold it against I until then that it does not
     come, unless it has lost it: that router is of the set, or, of a rank that may become a router,
     the one where that rank is. And a rank that waits for I to be a router, or may come to wait,
     may be told that it is lost: where it is now belongs to the set.
   - What any of this leads to is not the router of a living rank. The set does not suffice.

   Other routers, their ranks and healing neither read nor write what these events do: a rank that
   comes to another router adds to the end of what it hears; and a router that has lost a rank never
   speaks to it again.

Where one event is all that suffices, its moment is checked and not kept.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import time
from collections.abc import Iterable
from ctypes import POINTER, byref, c_int, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has it already
    sys.path.insert(0, str(Path(__file__).parents[1]))

import compiled
from bootstrap.recovery_model import (
    CLOSED,
    FAULTS,
    OUT,
    WAITS,
    Kept,
    Model,
    Moment,
    check,
    check_end,
    spare,
    walk,
)

from pycoll.bootstrap.recovery import Ballot, View, Word

MOST = 5  #: ranks
_ROOM = 256
_KINDS = ("kill", "split", "cut", "late", "deaf", "close")
_ALL, _MORE, _WRONG, _RAISED = range(4)
_NEVER = (1 << 64) - 1


class _Rank(ctypes.Structure):
    _fields_ = [
        *((name, c_uint8) for name in ("alive", "chief", "gone", "closed", "joined", "told")),
        *((name, c_uint8) for name in ("spare", "head", "all", "proved")),
        *((name, c_int32) for name in ("result", "what")),
    ]


class _Router(ctypes.Structure):
    _fields_ = [
        *((name, c_uint8) for name in ("recovery", "gone", "dead", "settled", "waits")),
        *((name, c_int32) for name in ("known", "ballot")),
    ]


class _Words(ctypes.Structure):
    _fields_ = [("count", c_int32), ("ranks", c_int32 * MOST), ("words", c_int32 * MOST)]


class _Answer(ctypes.Structure):
    _fields_ = [("first", c_int32), ("second", c_int32)]


class _Moment(ctypes.Structure):
    _fields_ = [
        *(("ranks", c_uint32 * MOST), ("routers", c_uint32 * MOST)),
        *(("cut", c_uint32), ("faults", c_uint32)),
    ]


class _List(ctypes.Structure):
    _fields_ = [("count", c_int), ("all", _Moment * _ROOM)]


_Ask = ctypes.CFUNCTYPE(c_int, c_int, c_int, c_int, c_int, POINTER(_Answer))


@functools.cache
def _library() -> ctypes.CDLL:
    flags = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")
    unit = compiled.Unit(Path(__file__).with_suffix(".c"), flags)
    library = ctypes.CDLL(str(compiled.linked("recovery_search.so", [unit], "-shared")))
    for name, result, *arguments in (
        ("new", c_void_p, c_int, c_int, c_int, c_int, c_int, _Ask),
        ("free", None),
        ("begin", None, POINTER(_Moment), c_uint32),
        ("run", c_int, c_uint64),
        ("after", c_int, POINTER(_Moment), POINTER(_List)),
        ("way", None, c_uint64, c_uint64, POINTER(_List)),
        ("moment", None, c_uint64, POINTER(_Moment)),
        ("parent", c_uint32, c_uint64),
        ("count", c_uint64),
        ("wrong", c_uint64),
        ("end", c_int, c_uint64, POINTER(c_uint32)),
        ("add_rank", None, POINTER(_Rank)),
        ("add_router", None, POINTER(_Router)),
        ("add_words", None, POINTER(_Words)),
        ("add_view", None, c_int),
    ):
        function = getattr(library, f"search_{name}")
        function.restype = result
        function.argtypes = arguments if name == "new" else [c_void_p, *arguments]
    return library


class Numbers(dict[Any, int]):
    """Numbers things as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []

    def add(self, it: Any) -> int:
        """Number a new thing."""
        self[it] = len(self)
        self.all.append(it)
        return self[it]


class Search:
    """A search; `with` ends it.

    Args:
        model: Of at most five ranks.
        begin: Where to begin.
        reduce: Leave out what need not be tried.
        heedless: Go on behind what is wrong.
    """

    def __init__(
        self, model: Model, begin: Moment, reduce: bool = True, heedless: bool = False
    ) -> None:
        if model.size > MOST or begin[3] > 15:
            raise ValueError(f"{model.size} ranks, {begin[3]} faults: want at most {MOST}, and 15")
        self.model = model
        self._ranks, self._routers, self._words, self._views, self._things = (
            Numbers() for _ in range(5)
        )
        self._error: BaseException | None = None
        self._do = self._doings()
        self._c = _library()
        self._ask = _Ask(self._asked)
        deaths_only = {"kill", "close"}.issuperset(model.kinds)
        kinds = _bits(map(_KINDS.index, model.kinds))
        self._it = self._c.search_new(model.size, kinds, deaths_only, reduce, heedless, self._ask)
        self._thing(frozenset())  # is number 0
        self._c.search_begin(self._it, byref(self._to_c(begin)), self._router(model.none))

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self._c.search_free(self._it)

    def run(self, most: int = 1 << 28) -> int:
        """Visit all moments; return how many they are.

        Raises:
            WrongError: One is wrong; the text has a way to it, the shortest unless reduced.
            MemoryError: There are more than `most`.
        """
        outcome = self._c.search_run(self._it, most)
        if self._error:
            raise self._error
        if outcome == _RAISED:
            raise MemoryError("too many states of ranks or routers")
        if outcome == _MORE:
            raise MemoryError(f"more than {most} moments")
        if outcome == _WRONG:
            self._tell(self._c.search_wrong(self._it))
        return int(self._c.search_count(self._it))

    def ends(self) -> set[tuple[Any, ...]]:
        """Return the results of ranks at all ends that were found, None of the dead."""
        found, at, results = set(), 0, (c_uint32 * MOST)()
        names = [None, WAITS, OUT, *self._views.all]
        while self._c.search_end(self._it, at, results):
            found.add(tuple(names[number] for number in results[: self.model.size]))
            at += 1
        return found

    def moment(self, at: int) -> Moment:
        """Return one that was visited."""
        now = _Moment()
        self._c.search_moment(self._it, at, byref(now))
        return self._from_c(now)

    def after(self, now: Moment) -> list[Moment]:
        """Return all that may come after a moment."""
        found = _List()
        self._c.search_after(self._it, byref(self._to_c(now)), byref(found))
        if self._error:
            raise self._error
        return [self._from_c(then) for then in found.all[: found.count]]

    def _tell(self, at: int) -> None:
        """Go the way to a wrong moment in the model, which says what is wrong."""
        ways, passed = [at], _List()
        while ways[-1]:
            ways.append(self._c.search_parent(self._it, ways[-1]))
        ways.reverse()
        now, past = self.moment(0), None
        for before, behind in itertools.pairwise(ways):
            self._c.search_way(self._it, before, behind, byref(passed))
            for it in passed.all[: passed.count]:
                then = self._from_c(it)
                past = next(event for event, one in self.model.after(now) if one == then), past
                now = then
                check(now, past)
        check_end(self.model, now, past)
        raise AssertionError("the search finds wrong what the model does not")

    # Numbers, for what the model has.

    def _thing(self, it: Any) -> int:
        key = type(it), it  # tuples of different types may be equal
        return self._things[key] if key in self._things else self._things.add(key)

    def _rank(self, kept: Kept) -> int:
        if kept in self._ranks:
            return self._ranks[kept]
        me = kept.it
        rank = _Rank(me.alive, me.chief, _bits(kept.gone), me.closed, me.joined is not None)
        rank.told, rank.spare = bool(me.told), spare(me)
        if me.sent:
            what = me.sent[0]
            rank.what = self._thing(what)
            if isinstance(what, frozenset):
                rank.head, rank.all = 4, _bits(one for one, _ in what)
                rank.proved = _bits(one for one, proved in what if proved)
            else:
                rank.head = 3 if what == CLOSED else 2 if isinstance(what, Ballot) else 1
        rank.result = 2 + self._view(me.result) if isinstance(me.result, View) else me.result == OUT
        self._c.search_add_rank(self._it, byref(rank))
        return self._ranks.add(kept)

    def _view(self, view: View) -> int:
        if view not in self._views:
            self._c.search_add_view(self._it, _bits(view.ranks))
            self._views.add(view)
        return self._views[view]

    def _router(self, kept: Kept) -> int:
        if kept in self._routers:
            return self._routers[kept]
        recovery = kept.it.recovery
        router = _Router(recovery is not None, _bits(kept.gone), ballot=-1)
        router.known = self._thing(kept.it.gone)
        if recovery:
            router.dead, router.waits = _bits(recovery.dead), bool(recovery.waiting())
            router.settled = recovery.chosen or recovery.over
            router.ballot = self._thing(kept.ballot) if kept.ballot else -1
        self._c.search_add_router(self._it, byref(router))
        return self._routers.add(kept)

    def _said(self, words: list[Word]) -> int:
        key = tuple(words)
        if key in self._words:
            return self._words[key]
        said = _Words(len(key))
        for k, word in enumerate(key):
            said.ranks[k], said.words[k] = word.rank, self._thing(word)
        self._c.search_add_words(self._it, byref(said))
        return self._words.add(key)

    def _to_c(self, now: Moment) -> _Moment:
        ranks, routers, cut, faults = now
        size = self.model.size
        it = _Moment(cut=_bits(a * size + b for a, b in cut), faults=faults)
        it.ranks[:size] = list(map(self._rank, ranks))
        it.routers[:size] = list(map(self._router, routers))
        return it

    def _from_c(self, now: _Moment) -> Moment:
        size, every = self.model.size, self.model.all
        return (
            tuple(self._ranks.all[number] for number in now.ranks[:size]),
            tuple(self._routers.all[number] for number in now.routers[:size]),
            frozenset((a, b) for a in every for b in every if now.cut >> (a * size + b) & 1),
            now.faults,
        )

    # Questions of the search, in the order of its acts.

    def _doings(self) -> list[Any]:
        m, ranks, routers, things = (
            *(self.model, self._ranks.all, self._routers.all),
            self._things.all,
        )

        def leaves(a: int, b: int, c: int) -> tuple[int, int]:
            rank, router = m.leaves(c >> 2, ranks[a], things[b][1], bool(c & 1))
            return self._rank(rank), -1 if router is None else self._router(router)

        def led(it: tuple[Kept, list[Word]]) -> tuple[int, int]:
            return self._router(it[0]), self._said(it[1])

        own = (m.pop, m.mute, m.returned, m.home, m.ends, m.down, m.dies, m.closes)
        return [
            *(lambda a, b, c, act=act: (self._rank(act(ranks[a])), 0) for act in own),
            lambda a, b, c: (self._rank(m.told(ranks[a], things[b][1])), 0),
            leaves,
            lambda a, b, c: led(m.hears(routers[a], c, things[b][1])),
            lambda a, b, c: led(m.loses(routers[a], b, bool(c))),
            lambda a, b, c: led(m.expires(routers[a])),
            lambda a, b, c: (self._router(m.stops(routers[a])), 0),
        ]

    def _asked(self, act: int, a: int, b: int, c: int, answer: Any) -> int:
        try:
            answer[0].first, answer[0].second = self._do[act](a, b, c)
        except BaseException as error:  # C would go on
            self._error = error
            return 1
        return 0


def explore(model: Model, faults: int, reduce: bool = True) -> int:
    """Visit every moment, see `Search.run`; return how many were kept."""
    with Search(model, model.begin(faults), reduce) as search:
        return search.run()


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def main(args: list[str]) -> None:
    """Explore, or walk, as the command line says."""
    begun = time.monotonic()
    if args[0] == "walk":
        size, faults, seed, seconds = map(int, args[1:])
        model, found = Model(size), 0
        while time.monotonic() < begun + seconds:
            found += walk(model, faults, seed, 100)
            seed += 1
        print(f"seeds below {seed}: ", end="")
    else:
        found = explore(Model(int(args[0]), tuple(args[2:]) or FAULTS), int(args[1]))
    print(f"{found} moments in {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
