"""A plugin of pytest that says what runs and how it ends, and runs some tests in a given order.

``OBSERVE`` is a folder: what happens is written there, a line of JSON each, and if there is a file
``only`` with a node id in each line, those tests run, in its order. With ``REACH`` it counts the
tests, so that what is reached is noted for the test that runs then, whatever process reaches it.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest


class Observer:
    """What pytest calls."""

    def __init__(self, folder: Path, reach: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.events = (folder / "events").open("a", buffering=1)
        self.epoch: memoryview | None = None
        if reach:
            with Path(reach, "epoch").open("r+b") as file:
                self.epoch = memoryview(mmap.mmap(file.fileno(), 4)).cast("I")

    def say(self, **event: Any) -> None:
        """Write down what happened."""
        if os.getpid() == self.pid:  # not in a test's own process
            self.events.write(json.dumps({**event, "time": time.monotonic()}) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that are wanted, in the order that is wanted."""
        wanted = self.folder / "only"
        if wanted.exists():
            order = {name: at for at, name in enumerate(wanted.read_text().splitlines())}
            items[:] = sorted(
                (item for item in items if item.nodeid in order),
                key=lambda item: order[item.nodeid],
            )
        self.say(event="collected", count=len(items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Count a test; what is reached from now on is its."""
        number = 0
        if self.epoch is not None:
            number = self.epoch[0] + 1
            self.epoch[0] = number
        self.say(event="start", test=nodeid, epoch=number)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down how a phase of a test ended."""
        self.say(
            event="phase",
            test=report.nodeid,
            phase=report.when,
            outcome=report.outcome,
            seconds=report.duration,
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write down that all is over."""
        self.say(event="finish", status=int(exitstatus))


def pytest_configure(config: pytest.Config) -> None:
    """Observe, if that is asked for."""
    if folder := os.environ.get("OBSERVE"):
        config.pluginmanager.register(Observer(Path(folder), os.environ.get("REACH", "")))
