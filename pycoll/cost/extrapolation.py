"""Extrapolation: the seconds of a call of many ranks, from a simulation of few turns or few ranks.

Where ranks are alike, as `outline` finds out, those are simulated that stand for all. What they do
again and again, they do `TURNS` times and twice as often: the difference is what each further turn
costs.

Where ranks differ, as in a tree, the same algorithm is simulated among fewer ranks, at two sizes of
which the second is about twice the first. Where the longest chain of messages that wait for each
other doubles with the ranks, time grows with them; where the chain grows by some messages, with
their logarithm.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pycoll.cost.machine import Machine
from pycoll.cost.outline import Outline, outline
from pycoll.cost.simulate import EdgeRoutes, Scene, Stalled, simulate
from pycoll.cost.timing import seconds_of, whole_ranks
from pycoll.cost.work import Work, period_of, whole_work_of
from pycoll.errors import ScheduleError, counted
from pycoll.schedule import Algorithm
from pycoll.schedule.placement import Placement

#: Of what repeats: more than there are slots, so that it has come to its pace.
TURNS = 12
#: Different numbers of turns, for each of which there is a simulation.
MOST_COUNTS = 6
#: Operations of all ranks that are simulated; ten take 0.1 ms and more, for each of some ten tiles.
MOST_OPERATIONS = 4000
#: Hosts of the larger of the two sizes, however many ranks are on each: at least the ranks that may
#: all be simulated over this number.
RANKS_PER_HOST = 4
#: Times the chain of twice the ranks is longer, from which on it counts as growing with the ranks.
STEEP = 1.5


class Estimate(NamedTuple):
    """Seconds by the model, and by how much of a simulation."""

    seconds: float
    how: str  #: such as "simulated for 8 of 1024 ranks"


def extrapolate(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement, limit: float
) -> Estimate | None:
    """Return the seconds of a call; None where only a simulation of all ranks will do.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
    """
    found = outline(algorithm, machine.size, placement, machine.hosts)
    if found.ranks and (machine.topology is None or machine.topology.uniform):
        estimate = _by_turns(found, nbytes, machine, limit)
        if estimate is not None:
            return estimate
    return _by_sizes(algorithm, found, nbytes, machine, placement)


def _by_turns(found: Outline, nbytes: int, machine: Machine, limit: float) -> Estimate | None:
    """Simulate the ranks that stand for all, and few of their turns."""
    many = [n for n in found.counts() if n > 2 * TURNS]
    few = dict.fromkeys(many, TURNS) if len(many) <= MOST_COUNTS else {}
    work = found.work(few)
    total = sum(len(turn) * n for runs in found.runs[0] for turn, n in runs)
    if sum(map(len, (o for channels in work.streams for o in channels))) > MOST_OPERATIONS:
        return None
    try:
        seconds = first = seconds_of(work, nbytes, machine, limit=math.inf if few else limit)
        for n in few:
            more = seconds_of(found.work(few | {n: 2 * TURNS}), nbytes, machine)
            seconds += (n - TURNS) * (more - first) / TURNS
    except Stalled:  # those few ranks looked like all, but are not
        return None
    how = f"simulated for {found.ranks} of {machine.size} ranks"
    if few:
        of = sum(map(len, found.work(dict.fromkeys(few, 2 * TURNS)).streams[0]))
        how += f", extrapolated from {of} of {total} steps"
    return Estimate(seconds, how)


def _by_sizes(
    algorithm: Algorithm, found: Outline, nbytes: int, machine: Machine, placement: Placement
) -> Estimate | None:
    """Simulate two smaller numbers of ranks."""
    parts = smaller(machine)
    if parts is None:
        return None
    try:  # it may not serve every number of ranks
        works = [whole_work_of(algorithm, p.size, placement.among(p.seats)) for p in parts]
        steep = longest_chain(works[1]) >= STEEP * longest_chain(works[0])
        # Where a rank's chunk goes round all ranks, it is as long as it is among all of them.
        same = steep and works[0].nchunks != works[1].nchunks
        seconds = [
            seconds_of(w, nbytes, p, chunk=nbytes / (found if same else w).nchunks)
            for w, p in zip(works, parts, strict=True)
        ]
    except (ScheduleError, Stalled):
        return None
    less, more = (part.size for part in parts)
    growth = max(0.0, seconds[1] - seconds[0])
    if steep or machine.turns > parts[1].turns:
        further = (machine.size - more) / (more - less)
    else:
        further = math.log(machine.size / more) / math.log(more / less)
    how = f"extrapolated from {more} of {counted(machine.size, 'rank')}"
    return Estimate(seconds[1] + growth * further, how)


def longest_chain(work: Work) -> float:
    """Return how many messages wait for each other, one behind the other, at most."""
    none = [0.0] * len(work.operations)
    ways = [EdgeRoutes(1.0)] * len(work.edges)
    hosts = (0,) * work.ranks
    depths = [len(work.operations)] * len(work.edges)
    scene = Scene(work, none, none, ways, depths, 1, hosts, work.ranks, 0.0, 0.0)
    return simulate(scene)


def smaller(machine: Machine) -> tuple[Machine, Machine] | None:
    """Return two machines with some of the ranks, the smaller first; None of so few ranks."""
    size, most = machine.size, whole_ranks(machine)
    hosts, crew = 1, size
    if machine.hosts:  # where they are not alike, ranks are left out and not hosts
        crew = machine.crew if period_of(size, machine.hosts) == machine.crew else 1
        hosts = size // crew
    if hosts >= most // RANKS_PER_HOST:
        more = _halved(hosts, most // min(crew, RANKS_PER_HOST))
        if more == hosts:
            return None
        less = more // 2
        first, second = (machine.among(range(n * crew), machine.cores) for n in (less, more))
        return first, second
    more = _halved(crew, most // hosts)
    if more == crew:
        return None
    # The first ranks of each host: as many share a core as before, or else they have all cores.
    less, found = more // 2, []
    for n in (less, more):
        ranks = [host * crew + seat for host in range(hosts) for seat in range(n)]
        fewer = machine.cores * less // crew > 0
        found.append(machine.among(ranks, machine.cores * n // crew if fewer else machine.cores))
    return found[0], found[1]


def _halved(n: int, most: int) -> int:
    """Return a number halved until it is no more than ``most``, which is at least 1."""
    while n > most:
        n //= 2
    return n
