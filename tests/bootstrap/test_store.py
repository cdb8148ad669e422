"""Ranks that meet through a key-value store, which here is a dictionary."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pycoll import BootstrapError, UsageError
from pycoll.bootstrap import store
from pycoll.config import Config


class Dictionary:
    """What torch's HashStore is."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            total = int(self.values.get(key, "0")) + amount
            self.values[key] = str(total)
            return total


def config(timeout: float = 30, **more: Any) -> Config:
    return Config.load({}, timeout=timeout, **more)


def together(size: int, rank: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(rank, r) for r in range(size)]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_meet_and_meet_again(size: int) -> None:
    shared = Dictionary()
    for _ in range(2):

        def rank(r: int) -> list[bytes]:
            met = store.bootstrap(shared, r, size, config(), "a store")
            assert (met.rank, met.size, met.name) == (r, size, "a store")
            said = met.allgather(f"{r} {os.getpid()}".encode())
            met.close()
            return said

        want = [f"{r} {os.getpid()}".encode() for r in range(size)]
        assert together(size, rank) == [want] * size


def test_a_secret_that_was_given_is_not_left_in_the_store() -> None:
    shared, secret = Dictionary(), bytes(range(32))

    def rank(r: int) -> None:
        store.bootstrap(shared, r, 2, config(secret=secret), "a store").close()

    together(2, rank)
    assert shared.values
    assert not any(secret.hex() in value for value in shared.values.values())


def test_who_did_not_come_is_named() -> None:
    with pytest.raises(BootstrapError, match=r"a store: waited .* s for ranks 1, 2 of 3 to come"):
        store.bootstrap(Dictionary(), 0, 3, config(timeout=0.05), "a store")
    with pytest.raises(BootstrapError, match=r"waited .* s for rank 0 of 3 to come to the store"):
        store.bootstrap(Dictionary(), 2, 3, config(timeout=0.05), "a store")


def test_a_rank_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="a store: rank is 2, want 0 to 1, for 2 ranks"):
        store.bootstrap(Dictionary(), 2, 2, config(), "a store")
