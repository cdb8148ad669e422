"""Turns: as many at a time as there are, given back at every end of who has one."""

from __future__ import annotations

import os
import signal
import threading

from pycoll.runtime.plan.turns import Turns


def test_there_are_no_more_than_were_said() -> None:
    turns = Turns(os.urandom(16), 2)
    with turns.take() as one, turns.take() as two:
        assert one
        assert two
        with turns.take(patience=0.0) as three:
            assert not three  # it goes on all the same
        with Turns(b"another job's", 1).take() as other:
            assert other
    with turns.take(patience=0.0) as again:
        assert again


def test_who_waits_has_the_next() -> None:
    turns, waiting, took = Turns(os.urandom(16), 1), threading.Event(), []

    def wait() -> None:
        waiting.set()
        with turns.take() as got:
            took.append(got)

    with turns.take():
        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        assert not took
    thread.join()
    assert took == [True]


def test_a_process_that_is_killed_gives_its_turn_back() -> None:
    turns = Turns(os.urandom(16), 1)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with turns.take():
            os.write(writing, b"1")
            signal.pause()
    assert os.read(reading, 1) == b"1"
    with turns.take(patience=0.0) as got:
        assert not got
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with turns.take() as got:
        assert got
    os.close(reading)
    os.close(writing)
