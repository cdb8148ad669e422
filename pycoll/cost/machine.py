"""Machine: what ranks share and what things cost there; the input of every prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pycoll.cost.kernel import Kernel
from pycoll.cost.question import Question
from pycoll.program.slots import BUDGET_BYTES, SLOT_BYTES, SLOTS, SMALL_BYTES, message_bytes

if TYPE_CHECKING:
    from pycoll.topology import Topology
    from pycoll.topology.routing import Route


class Rates(NamedTuple):
    """Seconds of everything that a call does, but for the bandwidths.

    The defaults are fitted to all-reduces of 2, 4 and 8 ranks on a 2-core AMD EPYC (Zen 5) virtual
    machine, those of RDMA are published figures; `pycoll tune` fits all that its job depends on to
    the machine at hand.
    """

    entry: float = 100e-9  #: a call begins and ends
    message: float = 30e-9  #: the sender's and the receiver's work for each message
    latency: float = 270e-9  #: from a signal until a rank on another core sees it
    switch: float = 1.6e-6  #: a core changes from a rank that waits to another one
    copy: float = 1 / 36e9  #: a byte read and written
    fold: float = 1 / 56e9  #: a byte of each further source
    store: float = 1 / 70e9  #: a byte of each further destination
    #: a byte folded into a slot where messages come from memory: a copy need not fetch the lines
    #: that it overwrites
    fused: float = 1 / 23e9
    memory: float = 1.3  #: times that bytes cost where messages come from memory
    beside: float = 0.4  #: times that a copy costs between ranks of one core, and so of one cache
    spread: float = 0.23  #: what a copy costs more for each edge whose slots evict the others'
    network_message: float = 14e-6  #: the sender's work for each message between hosts
    #: the receiver's, of the sender's: the kernel delivers at the sender's cost where hosts are
    #: namespaces, and one system call receives many messages everywhere
    network_receive: float = 0.5
    network_latency: float = 10e-6
    network_copy: float = 1 / 6e9  #: both ends' work for a byte, besides that in memory
    network_bandwidth: float = 2.0e9  #: bytes per second of a host's interface, each way
    #: what a byte costs more at an interface for each rank, beyond log2(size), that sends to one
    #: rank: their bursts meet, queues overflow, and streams slow down
    incast: float = 0.5
    #: both ends' work for each message by RDMA, without system calls and copies: to post a work
    #: request takes about 175 ns, to poll its completion 62 (LLP_post and LLP_prog with ConnectX-4
    #: in Zambre et al., Breaking Band, ICPP 2019). A message that is cut counts as one
    rdma_message: float = 240e-9
    #: by one switch, besides that work: 1.21 us were measured in all (see topology.clusters.NDR)
    rdma_latency: float = 1.0e-6
    rdma_bandwidth: float = 12.5e9  #: as network_bandwidth: one port of 100 Gb/s

    @classmethod
    def of(cls, fields: Mapping[str, float]) -> Rates:
        """Return the rates with these fields in place of the defaults; unknown ones are left."""
        return cls(**{name: float(fields[name]) for name in cls._fields if name in fields})


DEFAULT = Rates()

#: What differs where RDMA is the kernel's work (Soft-RoCE): so far off hardware that a fit from
#: there does not arrive. In a guest that is emulated it is ten times as much again.
SOFTWARE = {"rdma_message": 10e-6, "rdma_latency": 5e-6, "rdma_bandwidth": 0.5e9}


class Toll(NamedTuple):
    """What ranks work for messages from one to another, besides copies in memory, in seconds."""

    send: float  #: the sender, for each
    receive: float  #: the receiver, for each
    byte: float = 0.0  #: both, for a byte


#: Of GPUs that NVLink joins, coarsely, from published figures: a launch, and a store's way to
#: another GPU's memory. What operations cost there says `kernel`; a message between hosts is the
#: proxy's work. Nothing here was measured. Ranks share no cores.
GPU = Rates(entry=5e-6, latency=1.0e-6, switch=0.0, network_message=12e-6, rdma_message=3e-6)

#: Of so many processes that take turns on a core Linux keeps the translations of addresses. With
#: more of them each has to look its pages up again: for every message, and behind every change.
KEPT_PROCESSES = 6
LOOKUP = 50e-9
CHANGES = 2.5
#: To wake a rank that sleeps costs who wakes it so many times what a core's change to another rank
#: does: a system call, and mostly an interrupt of another core.
WAKE = 3.0

#: Kinds of links that, without RDMA, sockets cross; others are as memory.
NETWORKS = frozenset(("ethernet", "infiniband"))
#: From here on, on one core, the slots of a rank's edges evict each other.
CACHE_BYTES = 1 << 20
#: From here on messages come from memory.
MEMORY_BYTES = 8 << 20
#: From here on the transport cuts a message over all the RDMA routes of its two ranks.
STRIPE_BYTES = 64 << 10


@dataclass(frozen=True)
class Machine:
    """What the ranks of one job share."""

    size: int  #: ranks
    cores: int  #: of a host, that its ranks may run on
    hosts: tuple[int, ...] = ()  #: number of every rank's host; empty: all share one
    rates: Rates = DEFAULT
    slots: int = SLOTS
    slot_bytes: int = SLOT_BYTES
    budget: int = BUDGET_BYTES  #: bytes that all messages to a rank may take
    small_bytes: int = SMALL_BYTES  #: of a message between hosts that has a small slot, at most
    topology: Topology | None = None  #: what is between hosts, where that was described
    rdma: bool = False  #: hosts reach each other by RDMA; a topology says so of each two ranks
    flows: int = 1  #: queue pairs of two ranks for each of their pairs of rails, in a topology
    seats: tuple[int, ...] = ()  #: ranks of the topology that these are; empty: all
    kernel: Kernel | None = None  #: calls are kernels on GPUs; None: the CPU's engine runs them

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Of many ranks it takes long, and is asked for again and again.
        return hash((self.size, self.cores, self.hosts, self.rates, self.slots, self.slot_bytes))

    def message_bytes(self, edges: int, widest: int) -> int:
        """Return the longest message of an algorithm.

        Args:
            edges: The most into one rank.
            widest: Chunks of its widest message.
        """
        return message_bytes(edges, self.slots, self.budget, self.slot_bytes, widest)

    @classmethod
    def of(cls, question: Question, rates: Rates | None = None) -> Machine:
        """Return the machine that a question is about.

        All rails of a host are one link here, and there is nothing between hosts but these links.
        """
        on_gpus = question.device != "cpu"
        if rates is None:
            rates = GPU if on_gpus else DEFAULT
            wire = question.wire or rates.rdma_bandwidth
            rates = rates._replace(rdma_bandwidth=wire) if question.rdma else rates
            # Its port claims the speed of some adapter.
            rates = rates._replace(**SOFTWARE) if question.software else rates
        return cls(
            question.size,
            question.size if on_gpus else question.cores,
            hosts_of(question),
            rates,
            question.slots,
            question.slot_bytes,
            question.budget,
            question.small_bytes,
            rdma=question.rdma,
            kernel=Kernel() if on_gpus else None,
        )

    @classmethod
    def described(cls, topology: Topology, rates: Rates | None = None, flows: int = 1) -> Machine:
        """Return the machine that a topology describes, with its ranks.

        Args:
            topology: Nodes, links and ranks.
            rates: What things cost a rank; latencies and bandwidths are the topology's.
            flows: Queue pairs of two ranks for each of their pairs of rails.
        """
        nodes = [place.node for place in topology.ranks]
        number = {name: i for i, name in enumerate(dict.fromkeys(nodes))}
        cores = [
            sum(part.cores or topology.size for part in node.sockets) or topology.size
            for node in topology.nodes
            if node.name in number
        ]
        return cls(
            topology.size,
            min(cores, default=1),
            tuple(number[name] for name in nodes) if len(number) > 1 else (),
            rates or DEFAULT,
            topology=topology,
            flows=flows,
        )

    @property
    def crowded(self) -> bool:
        """More ranks take turns on a core than whose addresses it knows."""
        return self.turns > KEPT_PROCESSES

    @property
    def switch(self) -> float:
        """Seconds of a core that changes to another rank."""
        return self.rates.switch * (CHANGES if self.crowded else 1.0)

    def toll(self, source: int, destination: int) -> Toll:
        """Return what both ends work for a message from one rank to another."""
        rates, hosts, topology = self.rates, self.hosts, self.topology
        near = rates.message + (LOOKUP if self.crowded else 0.0)
        if not hosts or hosts[source] == hosts[destination]:
            return Toll(near, near)
        rdma = self.rdma
        if topology is not None:
            route = self.like_routes(source, destination)[0]
            rdma = route.rdma
            if not rdma and NETWORKS.isdisjoint(link.kind for link in route.links):
                return Toll(near, near)
        if rdma:
            return Toll(rates.rdma_message, rates.rdma_message)
        send = rates.network_message
        return Toll(send, send * rates.network_receive, rates.network_copy)

    def routes(self, source: int, destination: int) -> tuple[Route, ...]:
        """Return the ways between two ranks of a described cluster."""
        assert self.topology is not None
        if self.seats:
            source, destination = self.seats[source], self.seats[destination]
        return self.topology.routes(source, destination, self.flows)

    def like_routes(self, source: int, destination: int) -> tuple[Route, ...]:
        """Return such ways, but maybe of other ranks that are alike."""
        if self.topology is None or self.flows > 1:
            # Of several queue pairs the hash says how many go by the same links, and count once.
            return self.routes(source, destination)
        if self.seats:
            source, destination = self.seats[source], self.seats[destination]
        return self.topology.likeness.routes(source, destination)

    def outlook(self, rank: int) -> int:
        """Return a number that is the same of ranks at one seat of nodes at the same leaves."""
        assert self.topology is not None
        return self.topology.likeness.outlook(self.seats[rank] if self.seats else rank)

    def among(self, ranks: Sequence[int], cores: int) -> Machine:
        """Return the machine as some of the ranks see it, numbered as they are listed."""
        numbers: dict[int, int] = {}
        hosts = tuple(numbers.setdefault(self.hosts[r], len(numbers)) for r in ranks if self.hosts)
        return replace(
            self,
            size=len(ranks),
            cores=cores,
            hosts=hosts if len(numbers) > 1 else (),
            seats=tuple(self.seats[r] for r in ranks) if self.seats else tuple(ranks),
        )

    @cached_property
    def crew(self) -> int:
        """Ranks of the fullest host."""
        return max(Counter(self.hosts).values()) if self.hosts else self.size

    @property
    def turns(self) -> float:
        """How many ranks share a core; 1 when each has its own."""
        return max(1.0, self.crew / max(1, self.cores))


def hosts_of(question: Question) -> tuple[int, ...]:
    """Return the number of every rank's host; empty when all share one."""
    placement = question.placement
    if placement is not None:
        for level in placement.levels:
            if level.name == "node":
                return tuple(level.groups)
    # No level of that name: one host, or one for each rank.
    return tuple(range(question.size)) if question.remote else ()
