"""File descriptors that ranks hand to each other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import pycoll
from pycoll.bootstrap import passing


def together(size: int, rank: Callable[[int, Callable[[str], Sequence[bytes]]], Any]) -> list[Any]:
    """Run ranks as threads, which can all-gather texts; return what each returned or raised."""
    said: list[list[bytes]] = [[b""] * size]
    meet = threading.Barrier(size, timeout=60)
    results: list[Any] = [None] * size

    def run(mine: int) -> None:
        def gather(text: str) -> list[bytes]:
            said[0][mine] = text.encode()
            meet.wait()
            return list(said[0])

        try:
            results[mine] = rank(mine, gather)
        except Exception as error:
            results[mine] = error

    threads = [threading.Thread(target=run, args=(mine,)) for mine in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def file_with(text: str) -> int:
    fd = os.memfd_create("passed")
    os.write(fd, text.encode())
    return fd


def read(fd: int) -> str:
    return os.pread(fd, 100, 0).decode()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_rank_gets_those_of_all_others(size: int) -> None:
    def rank(mine: int, gather: Any) -> dict[int, list[str]]:
        own = [file_with(f"{mine}.{k}") for k in range(1 + mine % 2)]
        peers = [peer for peer in range(size) if peer != mine]
        got = passing.exchange(mine, peers, own, gather, 60.0)
        assert not any(os.get_inheritable(fd) for fds in got.values() for fd in fds)
        texts = {peer: [read(fd) for fd in fds] for peer, fds in got.items()}
        passing.close([*own, *(fd for fds in got.values() for fd in fds)])
        return texts

    before = len(os.listdir("/proc/self/fd"))
    for mine, texts in enumerate(together(size, rank)):
        assert texts == {
            peer: [f"{peer}.{k}" for k in range(1 + peer % 2)]
            for peer in range(size)
            if peer != mine
        }
    assert len(os.listdir("/proc/self/fd")) == before


def test_between_processes() -> None:
    def rank() -> str:
        with pycoll.init() as comm:
            own = file_with(f"of {comm.rank}")
            bootstrap = comm._engine.bootstrap
            got = passing.exchange(
                comm.rank,
                [1 - comm.rank],
                [own],
                lambda text: bootstrap.allgather(text.encode(), 60.0),
                60.0,
            )
            return read(got[1 - comm.rank][0])

    assert pycoll.spawn(rank, 2, timeout=60) == ["of 1", "of 0"]


def test_a_stranger_gets_nothing(monkeypatch) -> None:
    """Names of sockets are no secret; who comes without the secret is sent away."""
    came = threading.Event()

    def rank(mine: int, gather: Any) -> dict[int, list[int]]:
        def visited(text: str) -> Sequence[bytes]:
            said = gather(text)
            if mine == 0:
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect("\0" + json.loads(said[1])[0])
                    stranger.sendall(bytes(20))
                    came.set()
                    stranger.settimeout(60)
                    assert socket.recv_fds(stranger, 1, 4)[:2] == (b"", [])
            else:
                assert came.wait(60)
            return said

        own = [file_with("secret")]
        try:
            return passing.exchange(mine, [1 - mine], own, visited, 60.0)
        finally:
            passing.close(own)

    got = together(2, rank)
    assert [read(got[mine][1 - mine][0]) for mine in (0, 1)] == ["secret"] * 2
    passing.close(fd for taken in got for fds in taken.values() for fd in fds)


#: Comes to every name before any rank does, says something, and stays until it is sent away.
STRANGER = """
import socket, sys
ways, got = [], 0
for k, (name, hello) in enumerate(zip(sys.argv[1::2], sys.argv[2::2])):
    if k == 20:
        print("came", flush=True)
    ways.append(socket.socket(socket.AF_UNIX))
    try:
        ways[-1].connect("\\0" + name)
        ways[-1].sendall(bytes.fromhex(hello))
    except OSError:
        break  # the ranks are done
if len(ways) <= 20:
    print("came", flush=True)
sys.stdin.read()
for way in ways:
    try:
        got += len(socket.recv_fds(way, 1, 4)[1])
    except OSError:
        pass
print("got", got)
"""


@pytest.mark.parametrize("hello", ["nothing", "a piece", "rubbish", "all"])
@pytest.mark.parametrize("times", [1, 3 * passing._MOST_STRANGERS // 2])
def test_processes_that_are_no_ranks_delay_nobody(hello: str, times: int) -> None:
    """Also one that has been told everything is given nothing: it is another process."""
    came = threading.Event()
    strangers: list[subprocess.Popen[str]] = []

    def rank(mine: int, gather: Any) -> dict[int, list[int]]:
        def visited(text: str) -> Sequence[bytes]:
            said = gather(text)
            if mine == 0:
                argv = []
                for peer, blob in enumerate(said):
                    name, secret, *_ = json.loads(blob)
                    whole = secret + (1 - peer).to_bytes(4, "little").hex()
                    says = {"nothing": "", "a piece": whole[:12], "rubbish": "5a" * 40}
                    argv += [name, says.get(hello, whole)] * times
                command = [sys.executable, "-c", STRANGER, *argv]
                pipe = subprocess.PIPE
                strangers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
                assert strangers[0].stdout is not None
                assert strangers[0].stdout.readline() == "came\n"
                came.set()
            assert came.wait(60)
            return said

        own = [file_with("secret")]
        try:
            return passing.exchange(mine, [1 - mine], own, visited, 60.0)
        finally:
            passing.close(own)

    got = together(2, rank)
    said, _ = strangers[0].communicate("", timeout=60)
    assert not any(isinstance(taken, Exception) for taken in got), got
    assert [read(got[mine][1 - mine][0]) for mine in (0, 1)] == ["secret"] * 2
    passing.close(fd for taken in got for fds in taken.values() for fd in fds)
    assert said.endswith("got 0\n")


def test_a_rank_that_was_sent_away_as_a_stranger_comes_again(monkeypatch) -> None:
    """It had connected, and before it could say who it is, many came who say nothing."""
    look, crowd, names = passing._is_process, list[socket.socket](), dict[int, str]()

    def slow(connection: socket.socket, pid: int | None) -> bool:
        if threading.current_thread().name == "1" and pid is not None and not crowd:
            for _ in range(passing._MOST_STRANGERS + 8):
                crowd.append(socket.socket(socket.AF_UNIX))
                crowd[-1].connect("\0" + names[0])
            connection.settimeout(60)
            assert connection.recv(1, socket.MSG_PEEK) == b""  # it has been sent away
        return look(connection, pid)

    monkeypatch.setattr(passing, "_is_process", slow)

    def rank(mine: int, gather: Any) -> dict[int, list[int]]:
        threading.current_thread().name = str(mine)

        def listed(text: str) -> Sequence[bytes]:
            said = gather(text)
            names[0] = json.loads(said[0])[0]
            return said

        own = [file_with(f"rank {mine}")]
        try:
            return passing.exchange(mine, [1 - mine], own, listed, 60.0)
        finally:
            passing.close(own)

    got = together(2, rank)
    for one in crowd:
        one.close()
    assert not any(isinstance(taken, Exception) for taken in got), got
    assert [read(got[mine][1 - mine][0]) for mine in (0, 1)] == ["rank 1", "rank 0"]
    passing.close(fd for taken in got for fds in taken.values() for fd in fds)


def test_who_does_not_come_is_named() -> None:
    def rank(mine: int, gather: Any) -> Any:
        if mine == 1:  # it listens, and never connects
            with socket.socket(socket.AF_UNIX) as way:
                way.bind("\0" + (name := f"pycoll-test-{os.getpid()}-late"))
                way.listen(1)
                gather(json.dumps([name, "00" * 16, "", os.getpid(), ""]))
                ended.wait(60)
            return None
        try:
            return passing.exchange(mine, [1], [], gather, 0.1)
        finally:
            ended.set()

    ended = threading.Event()
    error, _ = together(2, rank)
    assert isinstance(error, pycoll.UnavailableError)
    assert "ranks [1] did not come in 0.1 s" in str(error)


def test_a_rank_that_cannot_listen_is_named_by_all(monkeypatch) -> None:
    listen = passing._socket

    def rank(mine: int, gather: Any) -> Any:
        return passing.exchange(mine, [1 - mine], [], gather, 60.0)

    def refused(timeout: float) -> socket.socket:
        if threading.current_thread() is first[0]:
            raise OSError(24, "Too many open files")
        return listen(timeout)

    first: list[threading.Thread] = []

    def marked(mine: int, gather: Any) -> Any:
        if mine == 0:
            first.append(threading.current_thread())
        while not first:
            os.sched_yield()
        return rank(mine, gather)

    monkeypatch.setattr(passing, "_socket", refused)
    for error in together(2, marked):
        assert isinstance(error, pycoll.UnavailableError)
        assert "rank 0 cannot listen for file descriptors" in str(error)


def test_a_peer_that_goes_is_an_error() -> None:
    def rank(mine: int, gather: Any) -> Any:
        if mine == 1:
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind("\0" + (name := f"pycoll-test-{os.getpid()}"))
            gather(json.dumps([name, "00" * 16, "", os.getpid(), ""]))
            return None
        return passing.exchange(mine, [1], [], gather, 60.0)

    error, _ = together(2, rank)
    assert isinstance(error, pycoll.UnavailableError)
    assert "cannot pass file descriptors to its peers: " in str(error)
