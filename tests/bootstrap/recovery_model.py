"""A model of what can happen while the ranks of a broken communicator recover.

A few ranks, each with one router at a time, and a queue each way between the two. Whatever may
happen next is one *event*: the head of a queue arrives, a rank notices that another is gone, or a
*fault*. `Model.after` names all of them and says what comes of each; `explore` visits every moment
that any order of them leads to, and `walk` some of them, by chance. `recovery_search` visits them
all too, a hundred times as fast.

The routers are `Recovery` itself. A rank here joins a view, and accepts it, as soon as it hears of
it; how long anything takes is open. What is said between routers and ranks is lost from its end
on when a router dies, or a rank leaves; else it arrives in its order.

Beyond `Recovery`, the model has what surrounds it: a rank that comes to a router says whom it has
heard to be gone, and is believed; a router begins with what its own rank has heard; who is lost to
a router is turned away there; whoever is out says so to every router.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pycoll.bootstrap.recovery import Ballot, Proposal, Recovery, Report, Verdict, View, Word

Event = tuple[Any, ...]
#: Which faults there are. `split`: two parts that hear nothing of each other; `cut`: one rank is
#: not heard by another, both until `heal`, which is no fault. `late`: a router waits no longer, for
#: all that it waits for, or for one that is to come from another router. `deaf`: a rank turns away
#: from a router that lives. `close`: a rank closes the communicator, or raises out of its recovery.
FAULTS = ("kill", "split", "cut", "late", "deaf", "close")
MAY_NOT = (*FAULTS, "absent", "heal")  #: events that need never come
WAITS, OUT = "waits", "out"  #: results beside a view
CLOSED = "closed"  #: what a rank says that has closed the communicator


class Rank(NamedTuple):
    """One rank: what it knows, and the queues between it and its router."""

    alive: bool = True
    chief: int = 0  #: the rank whose router it turns to
    gone: frozenset[tuple[int, bool]] = frozenset()  #: who is gone, and whether that is proved
    accepted: tuple[Proposal, ...] = ()
    joined: Ballot | None = None  #: name of the view that it joined last
    chosen: Proposal | None = None
    result: View | str = WAITS
    closed: bool = False
    sent: tuple[Any, ...] = (Report(),)  #: reports, ballots, who is gone: not heard yet
    told: tuple[Word, ...] = ()  #: by its router, and not heard yet

    def report(self) -> Report:
        """Return what it tells a router."""
        return Report(self.accepted, self.chosen, self.result == OUT)


class Router(NamedTuple):
    """What a rank's process knows as a router; the recovery is None where it is none."""

    recovery: Recovery | None = None
    gone: frozenset[tuple[int, bool]] = frozenset()  #: whom it has lost, and whether that is proved


class Kept:
    """A rank's or a router's state, once: equal ones are one object, with what comes of each."""

    __slots__ = ("ballot", "gone", "it", "next")

    def __init__(self, it: Any) -> None:
        self.it = it
        self.gone = frozenset(rank for rank, _ in it.gone)
        self.next: dict[Any, Any] = {}  #: event → what comes of it
        recovery = it.recovery if isinstance(it, Router) else None
        self.ballot = recovery.proposal.ballot if recovery and recovery.proposal else None


#: The ranks, the routers in their processes, pairs of which the second does not hear the first,
#: and the faults that may still come.
Moment = tuple[tuple[Kept, ...], tuple[Kept, ...], frozenset[tuple[int, int]], int]


def frozen(recovery: Recovery) -> Any:
    """Return what tells the state of a router from others."""
    return tuple(
        frozenset(value.items() if isinstance(value, dict) else value)
        if isinstance(value, dict | set)
        else value
        for value in vars(recovery).values()
    )


class Model:
    """All that ranks can do.

    Args:
        size: Number of ranks.
        kinds: Of faults.
        make: Makes what a router runs, from its rank and the ranks.
    """

    def __init__(
        self,
        size: int,
        kinds: tuple[str, ...] = FAULTS,
        make: Callable[[int, tuple[int, ...]], Recovery] = Recovery,
    ) -> None:
        self.size, self.kinds, self.make = size, kinds, make
        self.all = tuple(range(size))
        self._kept: dict[Any, Kept] = {}
        self.none = self._router(Router())
        self.dead = self._rank(Rank(alive=False, sent=()))

    def begin(self, faults: int) -> Moment:
        """Return the first moment: every rank is about to report to rank 0."""
        first = self._router(Router(self.make(0, self.all)))
        ranks = (self._rank(Rank()),) * self.size
        return ranks, (first, *[self.none] * (self.size - 1)), frozenset(), faults

    def _rank(self, rank: Rank) -> Kept:
        return self._kept.get(rank) or self._kept.setdefault(rank, Kept(rank))

    def _router(self, router: Router) -> Kept:
        recovery = router.recovery
        if recovery and recovery.over:  # it says the same to everybody, for ever
            recovery.reports, recovery.accepted = {}, set()
            recovery.dead, recovery.known, recovery.silent = set(), set(), set()
            recovery.turn = 0
        elif recovery and recovery.chosen:
            recovery.reports, recovery.accepted, recovery.known = {}, set(), set()
            recovery.turn = 0
        key = (frozen(recovery) if recovery else None, router.gone)
        return self._kept.get(key) or self._kept.setdefault(key, Kept(router))

    # What one rank or one router does. It depends on nothing else, and is found once.

    def _changed(self, kept: Kept, key: Any, **fields: Any) -> Kept:
        found = kept.next.get(key)
        if found is None:
            found = kept.next[key] = self._rank(kept.it._replace(**fields))
        return found

    def pop(self, kept: Kept) -> Kept:
        """Take what a rank has said first off its queue."""
        return self._changed(kept, "pop", sent=kept.it.sent[1:])

    def mute(self, kept: Kept) -> Kept:
        """Forget what a rank has said."""
        return self._changed(kept, "mute", sent=())

    def returned(self, kept: Kept) -> Kept:
        """Forget what a rank with a result needed until then."""
        return self._changed(kept, "returned", told=(), joined=None)

    def home(self, kept: Kept) -> Kept:
        """Forget what a rank would say elsewhere that never leaves its router."""
        if "home" not in kept.next:
            me = kept.it._replace(gone=frozenset())
            if me.result != WAITS and not me.sent:
                me = me._replace(accepted=(), chosen=None)
            kept.next["home"] = self._rank(me)
        return kept.next["home"]

    def ends(self, kept: Kept) -> Kept:
        """Forget all of a rank but its result."""
        if "ends" not in kept.next:
            me = kept.it
            me = Rank(alive=me.alive, result=me.result, closed=me.closed, sent=())
            kept.next["ends"] = self._rank(me)
        return kept.next["ends"]

    def told(self, kept: Kept, word: Word) -> Kept:
        """Put what a router says to a rank into its queue."""
        return self._changed(kept, word, told=(*kept.it.told, word))

    def down(self, kept: Kept) -> Kept:
        """Have a rank hear its router."""
        if "down" not in kept.next:
            kept.next["down"] = self._rank(heard(kept.it))
        return kept.next["down"]

    def dies(self, kept: Kept) -> Kept:
        """Kill a rank."""
        return self._rank(Rank(alive=False, chief=kept.it.chief, sent=kept.it.sent))

    def stops(self, kept: Kept) -> Kept:
        """Kill a router."""
        return self._router(Router(None, kept.it.gone))

    def closes(self, kept: Kept) -> Kept:
        """Have a rank close the communicator, or raise."""
        me = kept.it._replace(closed=True)
        return self._rank(out(me) if me.result == WAITS else me._replace(sent=(*me.sent, CLOSED)))

    def leaves(
        self, i: int, kept: Kept, told: frozenset[tuple[int, bool]], proved: bool
    ) -> tuple[Kept, Kept | None]:
        """Have a rank turn to the next router; return it, and its router where that is its own.

        Args:
            i: Which rank.
            kept: The rank.
            told: Whom its router has lost, as far as it has heard that.
            proved: Whether it knows that its router is dead.
        """
        me: Rank = kept.it
        known = {rank for rank, _ in me.gone} | {me.chief, i}
        more = frozenset(one for one in told if one[0] not in known)
        gone = me.gone | more | {(me.chief, proved)}
        passed = {rank for rank, _ in gone}
        first = next((rank for rank in range(i) if rank not in passed), i)
        closed = (CLOSED,) if me.closed else ()
        sent = (me.report(), *closed, gone) if first != i else (me.report(), *closed)
        router = None
        if first == i:
            recovery = self.make(i, self.all)
            for rank, proof in sorted(gone):
                recovery.lose(rank, proof)
            router = self._router(Router(recovery, gone))
        return self._rank(me._replace(chief=first, gone=gone, sent=sent, told=())), router

    def hears(self, kept: Kept, i: int, what: Any) -> tuple[Kept, list[Word]]:
        """Have a router hear a rank; return it, and what it says."""
        if isinstance(what, Report):
            return self._acts(kept, "report", i, what)
        if isinstance(what, Ballot):
            return self._acts(kept, "accept", i, what)
        if what == CLOSED:
            return self._acts(kept, "leave", i)
        return self._acts(kept, "hear_of", what)

    def loses(self, kept: Kept, i: int, proved: bool) -> tuple[Kept, list[Word]]:
        """Have a router notice that a rank is gone; return it, and what it says."""
        return self._acts(kept, "lose", i, proved)

    def expires(self, kept: Kept) -> tuple[Kept, list[Word]]:
        """Have a router wait no longer; return it, and what it says."""
        return self._acts(kept, "expire")

    def _acts(self, kept: Kept, act: str, *args: Any) -> tuple[Kept, list[Word]]:
        key = act, args
        if key not in kept.next:
            known = kept.it.recovery
            recovery = copy.copy(known)
            recovery.reports = dict(known.reports)
            for name in ("dead", "known", "silent", "accepted"):
                setattr(recovery, name, set(getattr(known, name)))
            gone = kept.it.gone
            if act == "lose":
                words = recovery.lose(*args)
                gone |= {args} if args[0] not in kept.gone else set()
            elif act == "hear_of":
                words = []
                for other, proved in sorted(args[0]):
                    if other != recovery.router:
                        words += recovery.lose(other, proved)
                        gone |= {(other, proved)} if other not in kept.gone else set()
            else:
                words = getattr(recovery, act)(*args)
            kept.next[key] = self._router(Router(recovery, gone)), words
        return kept.next[key]

    # What may happen. Each event is done to lists of a moment's parts.

    def after(self, now: Moment) -> Iterator[tuple[Event, Moment]]:
        """Return all that may happen next, each with the moment after it."""
        ranks, routers, cut, faults = now
        if not self.waits(ranks):
            return
        for i, kept in enumerate(ranks):
            me = kept.it
            chief = me.chief
            if me.sent and (i, chief) not in cut and routers[chief].it.recovery:
                yield self._up(now, i)
            if not me.alive:
                continue
            if me.told and (chief, i) not in cut:
                yield self._down(now, i)
            if chief != i and self._may_leave(now, i):
                yield from self._leave(now, i)
        for router, kept in enumerate(routers):
            if kept.it.recovery:
                for i in self.all:
                    if self._may_lose(now, router, i):
                        yield self._lose(now, router, i, "lose")
        if faults:
            yield from self._faults(now)
        if cut:
            yield ("heal",), (ranks, routers, frozenset(), faults)

    @staticmethod
    def waits(ranks: Sequence[Kept]) -> bool:
        """Tell whether any rank that lives has no result yet."""
        return any(kept.it.alive and kept.it.result == WAITS for kept in ranks)

    def _may_leave(self, now: Moment, i: int) -> bool:
        ranks, routers, cut, _ = now
        me: Rank = ranks[i].it
        chief = me.chief
        if (i, chief) in cut or (chief, i) in cut or not ranks[chief].it.alive:
            return True
        if routers[chief].it.recovery:
            return i in routers[chief].gone and not me.told
        # It waits there, and the other has a router, and has heard there that this one is lost.
        return i in ranks[chief].gone or i in routers[ranks[chief].it.chief].gone

    def _may_lose(self, now: Moment, router: int, i: int) -> bool:
        ranks, routers, cut, _ = now
        kept, them = routers[router], ranks[i].it
        apart = (i, router) in cut or (router, i) in cut
        if i == router:
            return False
        if i in kept.gone:  # it may find out now that it is dead, and not only silent
            recovery = kept.it.recovery
            settled = recovery.chosen or recovery.over or i in recovery.dead
            return not (them.alive or apart or settled)
        if apart or not them.alive or them.chief > router:
            return True
        # It has another router, and does not come.
        first = them.chief
        apart = (i, first) in cut or (first, i) in cut
        return first < router and ranks[first].it.alive and not apart

    def _faults(self, now: Moment) -> Iterator[tuple[Event, Moment]]:
        ranks, routers, cut, faults = now
        less = ranks, routers, cut, faults - 1
        alive = [i for i in self.all if ranks[i].it.alive]
        for kind in self.kinds:
            if kind == "kill":
                yield from (self._kill(less, i) for i in alive)
            elif kind == "deaf":
                for i in alive:
                    if ranks[i].it.chief != i and not self._may_leave(now, i):
                        for event, then in self._leave(less, i):
                            yield ("deaf", *event[1:]), then
            elif kind == "late":
                yield from self._lates(now, less)
            elif kind == "close":
                yield from (self._close(less, i) for i in alive if not self._over(ranks[i].it))
            elif kind == "split":
                for side in range(1, 1 << (self.size - 1)):
                    far = {i for i in self.all if side << 1 >> i & 1}
                    apart = {(a, b) for a in self.all for b in self.all if (a in far) != (b in far)}
                    yield ("split", side), (ranks, routers, cut | apart, faults - 1)
            elif kind == "cut":
                pairs = ((a, b) for a in self.all for b in self.all if a != b)
                for pair in pairs:
                    if pair not in cut:
                        yield ("cut", *pair), (ranks, routers, cut | {pair}, faults - 1)

    def _lates(self, now: Moment, less: Moment) -> Iterator[tuple[Event, Moment]]:
        ranks, routers, _, _ = now
        for router, kept in enumerate(routers):
            recovery = kept.it.recovery
            if not recovery:
                continue
            if recovery.waiting():
                yield self._lead(less, router, ("late", router), *self.expires(kept))
            for i in self.all:
                comes = ranks[i].it.chief < router and i not in kept.gone
                if comes and not self._may_lose(now, router, i):
                    yield self._lose(less, router, i, "absent")

    @staticmethod
    def _over(rank: Rank) -> bool:
        return rank.closed or rank.result == OUT

    def _up(self, now: Moment, i: int) -> tuple[Event, Moment]:
        """A router hears a rank."""
        ranks, routers, cut, faults = now
        mine = list(ranks)
        chief = ranks[i].it.chief
        changed, words = self.hears(routers[chief], i, ranks[i].it.sent[0])
        mine[i] = self.pop(ranks[i])
        return self._lead((tuple(mine), routers, cut, faults), chief, ("up", i), changed, words)

    def _lead(
        self, now: Moment, router: int, event: Event, changed: Kept, words: list[Word]
    ) -> tuple[Event, Moment]:
        """Change a router, and queue what it says."""
        ranks, routers, cut, faults = now
        mine, theirs = list(ranks), list(routers)
        theirs[router] = changed
        for word in words:
            other = mine[word.rank]
            if other.it.alive and other.it.chief == router and other.it.result == WAITS:
                mine[word.rank] = self.told(other, word)
        return event, self._settled(mine, theirs, cut, faults)

    def _down(self, now: Moment, i: int) -> tuple[Event, Moment]:
        """A rank hears its router."""
        ranks, routers, cut, faults = now
        mine = list(ranks)
        mine[i] = self.down(ranks[i])
        return ("down", i), self._settled(mine, list(routers), cut, faults)

    def _lose(self, now: Moment, router: int, i: int, name: str) -> tuple[Event, Moment]:
        """A router notices that a rank is gone."""
        ranks, routers, cut, _ = now
        apart = (i, router) in cut or (router, i) in cut
        proved = not ranks[i].it.alive and not apart
        return self._lead(now, router, (name, router, i), *self.loses(routers[router], i, proved))

    def _leave(self, now: Moment, i: int) -> Iterator[tuple[Event, Moment]]:
        """A rank turns to the next router.

        It may have heard whom its router has lost, or not; that it hears so only when it goes is
        the same as if it did at any time before.
        """
        ranks, routers, cut, faults = now
        chief = ranks[i].it.chief
        apart = (i, chief) in cut or (chief, i) in cut
        proved = not ranks[chief].it.alive and not apart
        known = ranks[i].gone | {chief, i}
        told = routers[chief].it.gone
        for heard in (frozenset(), told) if routers[chief].gone - known else (frozenset(),):
            mine, theirs = list(ranks), list(routers)
            mine[i], router = self.leaves(i, ranks[i], heard, proved)
            theirs[i] = router or theirs[i]
            yield ("leave", i, *sorted(heard)), self._settled(mine, theirs, cut, faults)

    def _kill(self, now: Moment, i: int) -> tuple[Event, Moment]:
        """A rank dies."""
        ranks, routers, cut, faults = now
        mine, theirs = list(ranks), list(routers)
        mine[i], theirs[i] = self.dies(ranks[i]), self.stops(routers[i])
        return ("kill", i), self._settled(mine, theirs, cut, faults)

    def _close(self, now: Moment, i: int) -> tuple[Event, Moment]:
        """A rank closes the communicator, once it has another, or raises before that."""
        ranks, routers, cut, faults = now
        mine = list(ranks)
        mine[i] = self.closes(ranks[i])
        return ("close", i), self._settled(mine, list(routers), cut, faults)

    def _settled(
        self, ranks: list[Kept], routers: list[Kept], cut: frozenset[tuple[int, int]], faults: int
    ) -> Moment:
        """Forget what can make no difference any more, so that equal moments are found equal.

        - What is said to a router that is dead, or has lost who says it; what is said to a rank
          that has returned.
        - That a rank has accepted what its router does not propose any more, or knows somebody to
          be gone whom the router has lost, or reports to a router that would say the same for ever
          and has nobody here who listens: the router would do nothing.
        - Whom a rank knows to be gone that has come to its own router: it never leaves that. With a
          result, and nothing to say any more, it will never say either what it had accepted.
        - All of a dead rank, but what its router has still to hear, and whom that rank's router
          had lost, for as long as there are ranks that may have heard it.
        - Everything but the results once every rank that lives has one. They are checked here; none
          of them ever changes, and whoever dies or closes after that makes nothing wrong.
        """
        for i, kept in enumerate(ranks):
            me = kept.it
            if me.sent:
                chief = me.chief
                router = routers[chief]
                if not ranks[chief].it.alive or i in router.gone:
                    kept = self.mute(kept)
                elif router.it.recovery:
                    while kept.it.sent and _idle(kept, router):
                        kept = self.pop(kept)
            if not kept.it.sent and not kept.it.alive:
                kept = self.dead
            elif me.alive and me.result != WAITS and (me.told or me.joined):
                kept = self.returned(kept)
            if me.chief == i and spare(kept.it):
                kept = self.home(kept)
            ranks[i] = kept
        for i, kept in enumerate(routers):
            needed = any(other.it.alive and other.it.chief == i for other in ranks)
            if kept is not self.none and not needed and not ranks[i].it.alive:
                routers[i] = self.none
        if not self.waits(ranks):
            return tuple(map(self.ends, ranks)), (self.none,) * self.size, frozenset(), 0
        return tuple(ranks), tuple(routers), cut, faults


def spare(me: Rank) -> bool:
    """Tell whether a rank at its own router knows what it will never say."""
    done = me.result != WAITS and not me.sent
    return me.alive and bool(me.gone or (done and (me.accepted or me.chosen)))


def _idle(kept: Kept, router: Kept) -> bool:
    """Tell whether a router does nothing that changes anything when it hears this rank."""
    me: Rank = kept.it
    what, recovery = me.sent[0], router.it.recovery
    settled = recovery.chosen or recovery.over
    if isinstance(what, Report):
        return settled and (not me.alive or me.result != WAITS)
    if isinstance(what, Ballot):
        return settled or what != router.ballot
    if isinstance(what, frozenset):
        dead = recovery.dead
        return all(
            one in router.gone and (settled or one in dead or not proof) for one, proof in what
        )
    return False


def out(rank: Rank) -> Rank:
    """Return what becomes of a rank that raises."""
    rank = rank._replace(result=OUT)
    return rank._replace(sent=(*rank.sent, rank.report()))


def heard(rank: Rank) -> Rank:
    """Return what becomes of a rank that waits and hears what its router said first."""
    word, *rest = rank.told
    rank, proposal = rank._replace(told=tuple(rest)), word.proposal
    if word.verdict is Verdict.OUT:
        return out(rank)
    assert proposal
    if word.verdict is Verdict.CHOSEN:
        rank = rank._replace(chosen=proposal)
        if proposal.view.name != rank.joined:
            return out(rank)
        return rank._replace(result=proposal.view)
    if proposal.ballot == proposal.view.name:  # not one that others have joined before
        rank = rank._replace(joined=proposal.view.name)
    accepted = (*rank.accepted, proposal)
    return rank._replace(accepted=accepted, sent=(*rank.sent, proposal.ballot))


class WrongError(AssertionError):
    """What must not happen can."""


def explore(model: Model, faults: int) -> int:
    """Visit every moment that can come about, and check each; return how many they are.

    Raises:
        WrongError: One is wrong; the text has the shortest way to it.
    """
    moments: list[Moment] = [model.begin(faults)]
    pasts: dict[Moment, Any] = {moments[0]: None}
    for now in moments:  # which grow
        ended = True
        for event, then in model.after(now):
            ended = ended and event[0] in MAY_NOT
            if then not in pasts:
                pasts[then] = event, pasts[now]
                check(then, pasts[then])
                moments.append(then)
        if ended:
            check_end(model, now, pasts[now])
    return len(moments)


def walk(model: Model, faults: int, seed: int, count: int) -> int:
    """Go ways by chance, from the first moment to an end each; return how many moments they had.

    Of the events a fault is taken with probability 1/8, so that faults come early and late.
    """
    chance, moments = random.Random(seed), 0
    for _ in range(count):
        now, past = model.begin(faults), None
        while True:
            events = list(model.after(now))
            free = [one for one in events if one[0][0] not in MAY_NOT]
            if not free:
                check_end(model, now, past)
            others = [one for one in events if one not in free]
            if not events or not (free or others):
                break
            pick = free if free and (not others or chance.random() < 0.875) else others
            if pick is others:  # a kind, and one of it: there are more cuts than anything
                kind = chance.choice(sorted({event[0] for event, _ in others}))
                pick = [one for one in others if one[0][0] == kind]
            event, now = chance.choice(pick)
            past = event, past
            moments += 1
            check(now, past)
    return moments


def events_of(past: Any) -> list[Event]:
    """Return the events of a history, the first first."""
    events = []
    while past:
        event, past = past
        events.append(event)
    return events[::-1]


def check(now: Moment, past: Any) -> None:
    """Check that no two living ranks have returned different views, and that each is in its own."""
    results = {i: kept.it.result for i, kept in enumerate(now[0]) if kept.it.alive}
    views = {result for result in results.values() if isinstance(result, View)}
    if len(views) > 1:
        raise WrongError(f"two views {views}: {story(past)}")
    for rank, result in results.items():
        if isinstance(result, View) and rank not in result.ranks:
            raise WrongError(f"rank {rank} is in {result}: {story(past)}")


def check_end(model: Model, now: Moment, past: Any) -> None:
    """Check that nobody waits for ever, and that deaths alone leave nobody out."""
    ranks = [kept.it for kept in now[0]]
    waits = [i for i, me in enumerate(ranks) if me.alive and me.result == WAITS]
    if waits:
        raise WrongError(f"ranks {waits} wait for ever: {story(past)}")
    if {"kill", "close"}.issuperset(model.kinds):
        left = [i for i, me in enumerate(ranks) if me.alive and me.result == OUT and not me.closed]
        if left:
            raise WrongError(f"ranks {left} are left out: {story(past)}")


def story(past: Any) -> str:
    """Return a history as text."""
    return ", ".join(" ".join(map(str, event)) for event in events_of(past))
