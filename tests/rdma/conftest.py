"""One guest for all tests here; what a test did to its commands and cables is undone after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import Guest, GuestError
from rack import Rack

HOSTS, NICS = 4, 8


class Machine:
    """Boots the guest when it is wanted, and again should it have died."""

    def __init__(self, share: Path) -> None:
        self.share = share
        self.guest: Guest | None = None
        self.rack: Rack | None = None
        self.broken = ""  #: why there is none, and will be none

    def running(self) -> Guest:
        """Return the guest."""
        if self.broken:
            raise GuestError(self.broken)
        if self.guest is None or not self.guest.alive:
            self.close()
            try:
                self.guest = Guest(share=[self.share]).__enter__()
            except GuestError as error:
                self.broken = str(error)
                raise
        return self.guest

    def furnished(self) -> Rack:
        """Return the guest's hosts and NICs."""
        guest = self.running()
        if self.rack is None or self.rack.guest is not guest:
            self.rack = Rack(guest, HOSTS, NICS)
        return self.rack

    def close(self) -> None:
        """End the guest."""
        if self.guest is not None:
            self.guest.close()
            self.guest = None


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """What boots the guest. Temporary folders of tests are the same there and here."""
    machine = Machine(tmp_path_factory.getbasetemp())
    _machines.append(machine)
    yield machine
    machine.close()


_machines: list[Machine] = []


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the guest behind the last test here: it takes a part of a core also when it idles."""
    here = Path(__file__).parent
    if nextitem is None or here not in nextitem.path.parents:
        for machine in _machines:
            machine.close()


@pytest.fixture
def guest(machine: Machine) -> Iterator[Guest]:
    """A guest in which no command runs."""
    guest = machine.running()
    yield guest
    if guest.alive:
        guest.clear()


@pytest.fixture
def rack(guest: Guest, machine: Machine) -> Iterator[Rack]:
    """The guest's hosts and NICs, all healthy."""
    rack = machine.furnished()
    yield rack
    if guest.alive:
        guest.clear()
        rack.heal()
