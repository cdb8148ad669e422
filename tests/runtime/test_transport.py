"""RDMA or TCP: what the ranks tell each other, what follows from it, and what the user hears."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pycoll
from pycoll.bootstrap import job
from pycoll.errors import BootstrapError, TransportError, UnavailableError
from pycoll.fabric import Fabric, Rail, Rails
from pycoll.runtime.native import bindings, codes, libfabric, verbs
from pycoll.runtime.native.libfabric import Provider
from pycoll.runtime.net import providers, rails, transport
from pycoll.runtime.net.providers import Place
from pycoll.runtime.net.rails import LocalRails
from pycoll.runtime.net.transport import (
    LIBFABRIC,
    TCP,
    VERBS,
    Capability,
    NetOptions,
    Reachability,
    decide,
    lacking,
)

READY = Capability("Ethernet", device=True, speeds={"a:1": 8_000})
NONE = Capability(lack="there is no RDMA device")
BROKEN = Capability(lack="libibverbs1 is not installed: apt-get install libibverbs1", device=True)


def name(rank: int) -> str:
    return f"rank {rank} (on node{rank})"


# What follows


def test_rdma_is_used_if_every_rank_with_remote_peers_has_rails() -> None:
    assert decide([READY, READY], False, name) == (VERBS, "", "")
    assert decide([READY, None, READY], True, name) == (VERBS, "", "")


def test_a_cluster_without_rdma_is_silent() -> None:
    assert decide([NONE, NONE, None], False, name) == (TCP, "", "")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([READY, NONE], "rank 1 (on node1): there is no RDMA device"),
        ([BROKEN, READY], f"rank 0 (on node0): {BROKEN.lack}"),
        ([None, NONE, BROKEN, BROKEN, BROKEN], f"{BROKEN.lack} (so on 2 ranks more)"),
        ([BROKEN, BROKEN], f"rank 0 (on node0): {BROKEN.lack} (so on 1 ranks more)"),
    ],
)
def test_where_rdma_was_to_be_expected_its_absence_is_told(
    said: Sequence[Capability | None], told: str
) -> None:
    verdict = decide(said, False, name)
    assert (verdict.transport, verdict.trouble) == (TCP, "")
    assert verdict.warning.startswith("ranks of other hosts are reached by TCP and not by RDMA: ")
    assert told in verdict.warning
    assert verdict.warning.endswith("; PYCOLL_TRANSPORT=tcp says that this is meant")


def test_many_reasons_are_not_all_told() -> None:
    said = [Capability(lack=f"reason {i}", device=True) for i in range(9)]
    warning = decide(said, False, name).warning
    assert "rank 2 (on node2): reason 2; and 6 ranks more;" in warning
    assert "reason 3" not in warning


def test_what_cannot_be_connected_is_not_used() -> None:
    verdict = decide([None, READY, Capability("InfiniBand", device=True)], False, name)
    assert verdict.transport == TCP
    assert (
        "rank 2 (on node2): its RDMA ports are InfiniBand and cannot reach those of rank 1, which "
        "are Ethernet; PYCOLL_RAILS names others"
    ) in verdict.warning


def test_ports_with_addresses_of_two_families_meet_those_of_either() -> None:
    four, six = (Capability(f"v{n}", device=True, kinds=(f"v{n}",)) for n in (4, 6))
    both = Capability("v4 or v6", device=True, kinds=("v4", "v6"))
    assert decide([both, four, both], False, name).transport == VERBS
    assert decide([six, both], False, name).transport == VERBS
    verdict = decide([both, four, six], False, name)
    assert verdict.transport == TCP
    assert "rank 2 (on node2): its RDMA ports are v6 and cannot reach those of rank 1" in (
        verdict.warning
    )


def test_rdma_that_is_asked_for_is_had_or_there_is_no_communicator() -> None:
    for said in ([READY, NONE], [NONE, NONE]):
        verdict = decide(said, True, name)
        assert verdict.trouble.startswith("PYCOLL_TRANSPORT=verbs wants RDMA between hosts: rank ")
        assert "(on node" in verdict.trouble
        assert "there is no RDMA device" in verdict.trouble
        assert not verdict.warning


def test_a_port_that_is_named_and_missing_is_an_error_on_every_rank() -> None:
    asked = Capability(lack="PYCOLL_RAILS names x, which", device=True, asked=True)
    assert decide([READY, asked], False, name).trouble == (
        "rank 1 (on node1): PYCOLL_RAILS names x, which"
    )


def test_the_wire_is_that_of_the_host_with_the_least() -> None:
    a, b = (
        Capability("x", speeds={"a:1": 800, "b:1": 800}),
        Capability("x", speeds={"b:1": 800, "c:1": 800}),
    )
    assert transport.wire([a, b, a], [0, 0, 1]) == 200.0
    assert transport.wire([a, None, b], [0, 0, 0]) == 300.0
    assert transport.wire([a, Capability("x", speeds={"a:1": 0})], [0, 1]) == 0.0


# What ranks say


@given(st.builds(Capability, st.text(), st.text(), st.booleans(), st.booleans(), st.none()))
def test_what_is_said_survives_its_travel(said: Capability) -> None:
    assert Capability.parse(0, said.encode()) == said
    assert Capability.parse(0, READY.encode()) == READY
    kinds = READY._replace(kinds=("v4", "v6"))
    assert Capability.parse(0, kinds.encode()) == kinds
    assert Capability.parse(0, b"") is None


@pytest.mark.parametrize(
    "blob",
    [
        b"\xff",
        b"7",
        b"{}",
        b"[]",
        b'["", "", false, false, null]',
        b'["", "", 0, false, null, ""]',
        b'["", "", false, false, [1], ""]',
        b'["", "", false, false, {"a": "fast"}, ""]',
        b'["", "", false, false, null, null]',
        b'["", "", false, false, null, "", null]',
    ],
)
def test_what_no_rank_says_is_an_error(blob: bytes) -> None:
    with pytest.raises(BootstrapError, match=r"^rank 3 says of its RDMA ports b'.*', want what"):
        Capability.parse(3, blob)


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_are_understood_or_an_error(blob: bytes) -> None:
    with contextlib.suppress(BootstrapError):
        Capability.parse(0, blob)


# Agreeing


class Ranks:
    """A bootstrap whose other ranks have said what they say."""

    def __init__(self, rank: int, *others: Capability | None, whole: bool = True) -> None:
        self.rank, self.whole, self.others = rank, whole, others
        self.asked = 0

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        self.asked += 1
        blobs = [said.encode() if said else b"" for said in self.others]
        return [*blobs[: self.rank], blob, *blobs[self.rank :]]

    def describe(self, rank: int) -> str:
        return name(rank)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a rail, and say what the engine was told to open."""
    calls: list[Any] = []
    found = LocalRails((Rail("a", 1),), (8_000,), "Ethernet", others=("b:1 is down",))
    monkeypatch.setattr(rails, "find", lambda named, memory, gpu: found)
    monkeypatch.setattr(verbs, "comm_rails", lambda comm, fabric, some, *_: calls.append(some))
    monkeypatch.setattr(bindings, "comm_net", lambda comm, name: calls.append(name))
    return calls


def agree(ranks: Ranks, wanted: str = "auto", memory: int | None = 0) -> Reachability:
    hosts = range(1 + len(ranks.others))
    return transport.agree(None, ranks, NetOptions(wanted), hosts, memory, 1)


@pytest.mark.parametrize(
    ("other", "wanted", "said"),
    [
        (READY, "tcp", "by tcp: PYCOLL_TRANSPORT=tcp"),
        (READY, "auto", "by verbs: all of them have opened RDMA ports"),
        (NONE, "auto", r"by TCP and not by RDMA: rank 1 \(on node1\): there is no RDMA device"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_log_says_which_transport_and_why(opened, caplog, other, wanted, said) -> None:
    with caplog.at_level(logging.INFO, "pycoll"):
        agree(Ranks(0, other), wanted)
    assert re.search(said, caplog.messages[-1])
    assert {record.name for record in caplog.records} == {"pycoll.transport"}
    mine = "rank 0: RDMA ports a:1 (8e-06 Gb/s), Ethernet"
    assert (mine in caplog.messages) == (wanted == "auto")
    assert ("rank 0: RDMA ports left out: b:1 is down" in caplog.messages) == (wanted == "auto")


@pytest.mark.parametrize("asks", ["verbs", "rails"])
def test_who_has_no_rail_any_more_says_so_to_itself(opened, monkeypatch, asks) -> None:
    """Its peers can go on without it; where nothing asks for RDMA, all go on without that."""
    down = LocalRails(lack="a:1 is down")
    ranks, hosts = Ranks(0, READY), (0, 1)

    def find(named: str, memory: int, gpu: str) -> LocalRails:
        if asks == "rails":
            raise UnavailableError("PYCOLL_RAILS names a, but a:1 is down")
        return down

    monkeypatch.setattr(rails, "find", find)
    wanted = NetOptions("verbs" if asks == "verbs" else "auto")
    with pytest.raises(UnavailableError, match="a:1 is down"):
        transport.agree(None, ranks, wanted, hosts, 0, 1, again=True)
    assert ranks.asked == 0
    monkeypatch.setattr(rails, "find", lambda *_: down)
    with pytest.warns(RuntimeWarning, match="a:1 is down"):
        found = transport.agree(None, ranks, NetOptions("auto"), hosts, 0, 1, again=True)
    assert (found.transport, ranks.asked) == (TCP, 1)


def test_rails_are_opened_and_kept_if_all_have_some(opened) -> None:
    assert agree(Ranks(1, READY)) == (VERBS, 1_000.0, True, False, ("a:1",))
    assert opened == [(Rail("a", 1),)]


def test_rails_are_let_go_if_another_rank_has_none(opened) -> None:
    with pytest.warns(RuntimeWarning, match=r"rank 1 \(on node1\): there is no RDMA device; PYC"):
        assert agree(Ranks(0, NONE))[:3] == (TCP, 0.0, False)
    assert opened == [(Rail("a", 1),), ""]


def test_only_rank_0_of_the_job_warns(opened) -> None:
    assert agree(Ranks(1, NONE)).transport == TCP
    assert agree(Ranks(0, NONE, whole=False)).transport == TCP


def test_a_rank_without_remote_peers_takes_part(opened) -> None:
    assert agree(Ranks(0, READY, READY), memory=None) == (VERBS, 1_000.0, True, False, ())
    assert opened == []


def test_where_rails_of_one_rank_are_the_kernels_work_all_reckon_with_that(opened) -> None:
    assert agree(Ranks(0, READY._replace(software=True))).software


# libfabric

EFA = Capability(lack="no RDMA device speaks InfiniBand", device=True, provider="efa")


@pytest.fixture
def provider(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have an EFA and no rails."""
    found = Provider("efa", "efa_0", "/opt/libfabric.so.1", "1.22", "122.0", True, 100_000)

    def find(provider: str, place: Place) -> Provider:
        if provider not in ("", "efa"):
            raise UnavailableError(f"no provider {provider}: fi_info lists them")
        return found

    monkeypatch.setattr(rails, "find", lambda named, memory, gpu: LocalRails(lack=EFA.lack))
    monkeypatch.setattr(providers, "possible", lambda: True)
    monkeypatch.setattr(providers, "find", find)
    monkeypatch.setattr(libfabric, "comm_fabric", lambda comm, *how: opened.append(how))
    return opened


class Twice(Ranks):
    """What the others say of their rails and providers, then of their endpoints."""

    endpoint = Capability("efa", device=True, speeds={"efa_0": 80_000}, provider="efa")

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        blobs = super().allgather(blob, timeout)
        self.others = tuple(one and self.endpoint for one in self.others)
        return blobs

    def address(self, iface: str | None) -> str:
        assert iface is None
        return "10.0.0.1"


def test_where_there_are_no_rails_all_have_one_provider_for_rdma_hardware(provider) -> None:
    assert agree(Twice(1, EFA))[:3] == (LIBFABRIC, 10_000.0, True)
    assert provider == [("efa", "10.0.0.1", 0, 1)]


def test_ranks_of_a_host_take_turns_at_its_nics(provider) -> None:
    ranks = Twice(2, EFA, EFA)
    transport.agree(None, ranks, NetOptions("auto"), (0, 0, 0), 0, 1)
    assert provider == [("efa", "10.0.0.1", 2, 1)]


def test_a_provider_that_another_rank_lacks_is_not_used(provider) -> None:
    with pytest.warns(RuntimeWarning, match=r"rank 1 \(on node1\): there is no RDMA device; PYC"):
        assert agree(Twice(0, NONE))[:3] == (TCP, 0.0, False)
    assert provider == []


def test_an_endpoint_that_another_rank_cannot_open_is_let_go(provider) -> None:
    ranks = Twice(0, EFA)
    ranks.endpoint = Capability(lack="fi_enable: Cannot allocate memory", device=True)
    with pytest.warns(RuntimeWarning, match=r"rank 1 \(on node1\): fi_enable: Cannot"):
        assert agree(ranks)[:3] == (TCP, 0.0, False)
    assert provider == [("efa", "10.0.0.1", 0, 1), ""]


def test_libfabric_that_is_asked_for_is_had_or_there_is_no_communicator(provider) -> None:
    assert agree(Twice(0, Twice.endpoint), "libfabric")[:3] == (LIBFABRIC, 10_000.0, True)
    assert agree(Twice(0, Twice.endpoint), "libfabric", memory=None)[:3] == (
        LIBFABRIC,
        10_000.0,
        True,
    )
    ranks = Twice(0, Capability(lack="no libfabric: apt-get install libfabric1"))
    match = (
        r"^PYCOLL_TRANSPORT=libfabric wants one provider on all ranks: rank 1 \(on node1\): no l"
    )
    with pytest.raises(UnavailableError, match=match):
        agree(ranks, "libfabric")
    software = Capability("tcp;ofi_rxm", device=True, speeds={"eth0": 80_000})
    assert agree(Twice(0, software), "libfabric", memory=None)[:3] == (
        LIBFABRIC,
        10_000.0,
        False,
    )  # no RDMA
    wanted = NetOptions("libfabric", provider="cxi")
    with pytest.raises(UnavailableError, match=r"rank 0 \(on node0\): no provider cxi: fi_info"):
        transport.agree(None, Twice(0, Twice.endpoint), wanted, (0, 1), 0, 1)


def test_who_has_no_endpoint_any_more_says_so_to_itself(provider) -> None:
    """Its peers can go on without it."""
    wanted, ranks = NetOptions("libfabric", provider="cxi"), Twice(0, Twice.endpoint)
    with pytest.raises(UnavailableError, match=r"rank 0 \(on node0\): no provider cxi: fi_info"):
        transport.agree(None, ranks, wanted, (0, 1), 0, 1, again=True)
    assert ranks.asked == 0


def test_all_ranks_have_the_same_provider_or_are_told_to() -> None:
    said = [Twice.endpoint, None, Capability("tcp;ofi_rxm", device=True)]
    assert lacking(said[:2], name) == ""
    assert lacking(said, name) == (
        "rank 2 (on node2): its provider is tcp;ofi_rxm, that of rank 0 is efa; PYCOLL_FABRIC "
        "names one for all"
    )


def test_without_rdma_nobody_is_asked(opened) -> None:
    ranks = Ranks(0, NONE)
    assert agree(ranks, "tcp")[:3] == (TCP, 0.0, False)
    assert (ranks.asked, opened) == (0, [])


def test_rails_that_do_not_open_are_told_with_the_reason(opened, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise TransportError(12, "opening RDMA ports: no memory may be locked: ulimit -l unlimited")

    monkeypatch.setattr(verbs, "comm_rails", refuse)
    with pytest.warns(RuntimeWarning, match=r"rank 0 \(on node0\): opening RDMA ports: no memory"):
        assert agree(Ranks(0, READY))[:3] == (TCP, 0.0, False)
    with pytest.raises(UnavailableError, match=r"^PYCOLL_TRANSPORT=verbs .*: ulimit -l unlimited"):
        agree(Ranks(0, READY), "verbs")


def test_a_device_that_cannot_be_asked_is_told(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise TransportError(5, "RDMA ports: no answer")

    monkeypatch.setattr(rails, "find", refuse)
    with pytest.warns(RuntimeWarning, match=r"rank 0 \(on node0\): RDMA ports: no answer; PYC"):
        agree(Ranks(0, READY))


def test_named_rails_that_are_missing_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(verbs, "verbs_missing", lambda: "")
    monkeypatch.setattr(verbs, "verbs_ports", list)
    wanted = NetOptions("auto", Fabric(), Rails.parse("x:1"))
    with pytest.raises(UnavailableError, match=r"^rank 0 \(on node0\): PYCOLL_RAILS names x:1, wh"):
        transport.agree(None, Ranks(0, READY), wanted, (0, 1), 0, 1)


# Ranks that share no memory, on one machine


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks that can map nobody, on a machine without RDMA."""
    unmappable = codes.UNMAPPABLE
    monkeypatch.setattr(bindings, "comm_connect", lambda comm, peer, blob: unmappable)
    monkeypatch.setattr(verbs, "verbs_missing", lambda: "no libibverbs: apt-get install it")
    monkeypatch.setattr(rails, "seen", lambda: False)


@pytest.mark.usefixtures("apart")
def test_without_rdma_ranks_talk_tcp_and_say_nothing() -> None:
    def rank() -> tuple[str, str, list[str]]:
        with warnings.catch_warnings(record=True) as heard, pycoll.init() as comm:
            plan = comm.plan("allreduce", np.ones(3))
            assert plan()[0] == 2
        return comm.transport, plan.transport, [str(one.message) for one in heard]

    assert pycoll.spawn(rank, 2, timeout=60) == [("tcp", "tcp", [])] * 2


def test_where_all_is_shared_there_is_no_other_transport() -> None:
    def rank() -> str:
        with pycoll.init() as comm:
            return comm.transport

    assert pycoll.spawn(rank, 2, timeout=60) == ["shm", "shm"]


def shadow_pages() -> int:
    """Return the bytes of this process's shadows of remote ranks that were ever written."""
    found, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            within = line.endswith("/dev/zero (deleted)")
        elif within and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("algorithm", "least", "most"),
    [
        ("one_shot", 0, 16 << 10),  # each sends its input to all
        ("ring", 20 << 10, 1 << 20),  # every fourth message is a sum that lies in its slot only
    ],
)
def test_tcp_sends_from_where_the_data_lie(algorithm: str, least: int, most: int) -> None:
    def rank() -> int:
        with pycoll.init() as comm:
            for turn in range(8):
                x = np.arange(1 << 14, dtype=np.float32) + comm.rank + turn
                want = 3 * np.arange(1 << 14, dtype=np.float32) + 3 + 3 * turn
                out = np.empty_like(x)
                comm.allreduce(x, out=out, algorithm=algorithm)
                x[:] = -1  # it has been sent, or kept
                assert (out == want).all()
            return shadow_pages()

    pages = pycoll.spawn(rank, 3, timeout=60)
    assert least <= min(pages) <= max(pages) <= most, pages


@pytest.mark.usefixtures("apart")
def test_a_device_of_no_use_is_one_warning_in_the_whole_job(monkeypatch) -> None:
    monkeypatch.setattr(rails, "seen", lambda: True)

    def rank() -> list[tuple[type, str, str]]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with pycoll.init() as comm, comm.split(color=comm.rank % 2) as half, comm.dup():
                assert half.allreduce(np.ones(1))[0] == half.size
        return [(one.category, str(one.message), one.filename) for one in heard]

    (warning,), *others = pycoll.spawn(rank, 4, timeout=60)
    assert others == [[], [], []]
    assert warning[0] is RuntimeWarning
    assert "rank 0 (process " in warning[1]
    assert "no libibverbs: apt-get install it (so on 3 ranks more)" in warning[1]
    assert warning[2] == __file__  # it points at who called init


@pytest.mark.usefixtures("apart")
def test_rdma_that_is_asked_for_and_missing_fails_on_every_rank(monkeypatch) -> None:
    monkeypatch.setenv("PYCOLL_TRANSPORT", "verbs")
    told = (
        r"^PYCOLL_TRANSPORT=verbs wants RDMA between hosts: rank 0 \(process .*\): "
        r"no libibverbs: apt-get install it \(so on 1 ranks more\)$"
    )

    def rank() -> None:
        with pytest.raises(UnavailableError, match=told):
            pycoll.init()

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("first", "second"), [("tcp", "verbs"), ("auto", "verbs")])
def test_the_setting_of_rank_0_holds(first: str, second: str) -> None:
    def rank() -> str:
        mine = job.current()
        assert mine is not None
        os.environ["PYCOLL_TRANSPORT"] = (first, second)[mine.rank]
        with pycoll.init() as comm:
            return comm.transport

    assert pycoll.spawn(rank, 2, timeout=60) == ["tcp", "tcp"]
