"""Jobs on four hosts of two ranks whose network is slow, lossy, cut, and full of strangers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts

from pycoll.bootstrap.control_socket import TCP_RTO_MAX_MS

pytestmark = pytest.mark.net

ROOT = Path(__file__).parents[2]
NET = ROOT / "tests" / "net"
HOSTS, EACH = 4, 2
STRANGER = HOSTS  #: the host on which no rank runs
PORT = 29400
SECONDS = 60  #: until a test that waits for something fails


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(HOSTS + 1) as hosts:
        yield hosts


class Rank:
    """A process that runs job.py; whatever is asked of it is answered in time or fails the test."""

    def __init__(self, rank: int, hosts: Hosts, argv: list[str], environ: dict[str, str]) -> None:
        self._rank = rank
        self._process = hosts.run(
            rank // EACH,
            argv,
            environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read) for read in (self._listen, self._note)]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def _note(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def heard(self) -> str:
        """Return the next line that it says."""
        try:
            line = self._lines.get(timeout=SECONDS)
        except queue.Empty:
            line = ""
        if not line:
            errors = "".join(self._errors)
            pytest.fail(f"rank {self._rank} says no more: {errors}", pytrace=False)
        return line

    def tell(self, text: str) -> None:
        """Say something to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def end(self) -> str:
        """Return its last words: it has ended, well, and holds no more than at its start."""
        words = [self.heard()]
        while not words[-1].startswith("left "):
            words.append(self.heard())
        assert words[-1] == "left 0", f"rank {self._rank}: {words}"
        assert self._process.wait(SECONDS) == 0, f"rank {self._rank}: {words}"
        return words[-2]

    def close(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()


class Job:
    """Ranks that run job.py, `EACH` on each host."""

    def __init__(self, hosts: Hosts, *arguments: str, timeout: float, late: int = 0) -> None:
        self.hosts = hosts
        self.size = HOSTS * EACH
        self._command = [sys.executable, str(NET / "job.py"), *arguments]
        self._environment = os.environ | {
            "PYCOLL_SIZE": str(self.size),
            "PYCOLL_ADDRESS": f"{hosts.address(0)}:{PORT}",
            "PYCOLL_SECRET": "5eed" * 16,
            "PYCOLL_TIMEOUT": str(timeout),
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
        }
        self.ranks = [self._start(rank) for rank in range(self.size - late)]

    def _start(self, rank: int) -> Rank:
        environment = self._environment | {"PYCOLL_RANK": str(rank)}
        return Rank(rank, self.hosts, self._command, environment)

    def complete(self) -> None:
        """Start the ranks that are late."""
        self.ranks += [self._start(rank) for rank in range(len(self.ranks), self.size)]

    def meet(self) -> None:
        """Wait until all ranks have met."""
        assert [rank.heard() for rank in self.ranks] == ["ready"] * self.size

    def advance(self, calls: int = 20) -> None:
        """Wait until rank 0 has made `calls` calls more."""
        for _ in range(calls // 10):
            assert self.ranks[0].heard().startswith("calls ")

    def ends(self) -> list[str]:
        """Return the last words of every rank; none may hang, crash or leave anything open."""
        return [rank.end() for rank in self.ranks]

    def stop(self) -> None:
        """Let all ranks end well, after equally many calls."""
        self.ranks[0].tell("stop")
        words = self.ends()
        assert len(set(words)) == 1
        assert words[0].startswith("done "), words

    def kill(self, *ranks: int) -> None:
        """Kill ranks, whose words are then not asked for any more."""
        for rank in sorted(ranks, reverse=True):
            self.ranks.pop(rank).close()

    def close(self) -> None:
        """Kill whoever still runs."""
        for rank in self.ranks:
            rank.close()


@contextlib.contextmanager
def job(hosts: Hosts, *arguments: str, timeout: float = 30, late: int = 0) -> Iterator[Job]:
    running = Job(hosts, *arguments, timeout=timeout, late=late)
    try:
        yield running
    finally:
        running.close()


def pause(seconds: float) -> None:
    """Let time pass, where time is the fault."""
    select.select([], [], [], seconds)


def test_results_are_right_over_bad_wires_and_nothing_is_left(hosts: Hosts) -> None:
    with job(hosts, timeout=60) as running:
        running.meet()
        for bend in ({"delay": 0.002}, {"loss": 0.01}, {"reorder": 0.1}):
            for host in range(HOSTS):
                hosts.shape(host, **bend)
            running.advance()
        running.stop()
    assert listening(hosts) == []
    for host in range(HOSTS):
        assert said(hosts, host, "ls", "/dev/shm") == ""
        processes = said(hosts, host, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "job.py" not in processes


def test_a_link_that_is_down_for_two_seconds_costs_time_only(hosts: Hosts) -> None:
    with job(hosts) as running:
        running.meet()
        running.advance()
        hosts.cut(2)
        pause(2)
        hosts.mend(2)
        running.advance(100)
        running.stop()


def test_a_link_that_comes_back_in_time_costs_time_only(hosts: Hosts) -> None:
    with socket.socket() as probe:
        try:
            probe.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("TCP_RTO_MAX_MS: Linux has it since 6.15")
    # A machine counts as gone after 13 s. TCP tries again after 7 s at the latest, and then after
    # 13, if it waits twice as long each time.
    with job(hosts, timeout=39) as running:
        running.meet()
        running.advance()
        hosts.cut(2)
        pause(7.5)
        hosts.mend(2)
        running.advance(100)
        running.stop()


def lost(word: str, ranks: tuple[int, ...]) -> bool:
    """Tell whether these last words say that one of these ranks, on its host, was lost."""
    names = "|".join(rf"rank {rank} \(process \d+ on host{rank // EACH}\)" for rank in ranks)
    return re.match(rf"PeerLostError .*({names})", word) is not None


@pytest.mark.parametrize("away", [0, 3])
def test_a_link_that_is_down_for_good_names_host_and_rank_to_all(hosts: Hosts, away: int) -> None:
    with job(hosts, timeout=6) as running:
        running.meet()
        running.advance()
        hosts.cut(away)
        words = running.ends()
    there = (EACH * away, EACH * away + 1)
    here = tuple(rank for rank in range(HOSTS * EACH) if rank not in there)
    for rank, word in enumerate(words):
        assert lost(word, here if rank in there else there), f"rank {rank}: {word}"


def test_a_host_that_is_cut_off_before_the_ranks_have_met(hosts: Hosts) -> None:
    hosts.cut(2)
    with job(hosts, timeout=4) as running:
        words = running.ends()
    for rank, word in enumerate(words):
        assert word.startswith("BootstrapError "), f"rank {rank}: {word}"
        if rank // EACH != 2:
            assert "ranks 4, 5 of 8" in word, f"rank {rank}: {word}"


@pytest.mark.parametrize("away", [0, 1])
def test_a_host_that_is_cut_off_before_the_first_call(hosts: Hosts, away: int) -> None:
    with job(hosts, "hold", timeout=6) as running:
        running.meet()
        hosts.cut(away)
        for rank in running.ranks:
            rank.tell("go")
        words = running.ends()
    there = (EACH * away, EACH * away + 1)
    here = tuple(rank for rank in range(HOSTS * EACH) if rank not in there)
    for rank, word in enumerate(words):
        assert lost(word, here if rank in there else there), f"rank {rank}: {word}"


@pytest.mark.parametrize("victim", [0, 5])
def test_a_killed_rank_is_named_to_all_hosts(hosts: Hosts, victim: int) -> None:
    with job(hosts, timeout=30) as running:
        running.meet()
        running.advance()
        running.kill(victim)
        words = running.ends()
    assert all(lost(word, (victim,)) for word in words), words


def test_a_half_open_connection(hosts: Hosts) -> None:
    """The ranks of a host die unheard; what comes back when it is there again is a reset."""
    with job(hosts, timeout=20) as running:
        running.meet()
        running.advance()
        hosts.cut(3)
        running.kill(6, 7)
        hosts.mend(3)
        words = running.ends()
    assert all(lost(word, (6, 7)) for word in words), words


def said(hosts: Hosts, host: int, *argv: str) -> str:
    """Return what a program on a host prints."""
    with hosts.run(host, argv, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    return out


def sockets(hosts: Hosts, host: int, *filters: str) -> list[list[str]]:
    """Return what `ss` says of the TCP sockets of a host: local address, then the other."""
    out = said(hosts, host, "ss", "--tcp", "--numeric", "--no-header", *filters)
    return [[word for word in line.split() if ":" in word][:2] for line in out.splitlines()]


def listening(hosts: Hosts) -> list[str]:
    """Return every address at which a process on the hosts listens for others."""
    found = set()
    for host in range(HOSTS):
        for own, _ in sockets(hosts, host, "--listening"):
            if not own.startswith(("127.", "[::1]")):
                found.add(f"{hosts.address(host)}:{own.rpartition(':')[2]}")
    return sorted(found)


@contextlib.contextmanager
def recorded(hosts: Hosts, host: int, into: Path) -> Iterator[Any]:
    """Record what clients say to and from a host, from here on until the block ends."""
    argv = [sys.executable, str(NET / "recorder.py"), "eth0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with hosts.run(host, argv, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recording\n"
        yield
        out, _ = process.communicate(timeout=SECONDS)
    into.write_text(out)


def strangers(hosts: Hosts, recording: Path, addresses: list[str]) -> None:
    """Let strangers come to the addresses; returns when the ranks have got rid of all of them."""
    argv = [sys.executable, str(NET / "strangers.py"), str(recording), *addresses]
    with hosts.run(STRANGER, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=2 * SECONDS)
    assert process.returncode == 0, err
    assert int(out) >= 15 * len(addresses)


def test_strangers_at_every_port_do_no_harm(hosts: Hosts, tmp_path: Path) -> None:
    recording = tmp_path / "recording.json"
    with job(hosts, timeout=60) as running:
        # From the start: the handshakes are the first thing that is said.
        with recorded(hosts, 0, recording):
            running.meet()
            running.advance()
        assert len(json.loads(recording.read_text())) >= running.size - EACH, "who said anything?"
        addresses = listening(hosts)
        assert len(addresses) >= running.size
        strangers(hosts, recording, addresses)
        running.advance()
        running.stop()


def test_strangers_who_come_before_the_last_rank_do_no_harm(hosts: Hosts, tmp_path: Path) -> None:
    recording = tmp_path / "recording.json"
    with job(hosts, timeout=60, late=1) as running:
        with recorded(hosts, 0, recording):
            deadline = time.monotonic() + SECONDS
            while len(sockets(hosts, 0, "state", "established")) < running.size - 1 - EACH:
                assert time.monotonic() < deadline, "not all ranks but the last have come"
        # Ranks that have come listen too, to take rank 0's place; they look who is there once all
        # have met.
        meeting = [address for address in listening(hosts) if address.endswith(f":{PORT}")]
        assert len(meeting) == 1
        strangers(hosts, recording, meeting)
        running.complete()
        running.meet()
        running.advance()
        running.stop()
