"""How the ranks of a process group of torch come to a Communicator."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pycoll.bootstrap.store import bootstrap
from pycoll.communicator import Communicator
from pycoll.config import Config
from pycoll.interop.torch_env import seconds
from pycoll.runtime.engine import Engine, failed


class Maker:
    """Makes the communicators of a process group: its own, and those of some of its ranks."""

    def __init__(self, engine: Engine, config: Config, comm: Communicator | None = None) -> None:
        self.engine = engine
        self._config = config
        self._made: defaultdict[tuple[str, *tuple[int, ...]], itertools.count[int]]
        self._made = defaultdict(itertools.count)
        self.comm = Communicator(engine) if comm is None else comm

    @classmethod
    def met(cls, store: Any, rank: int, size: int, timeout: Any) -> Maker:
        """Meet the other ranks through torch's store."""
        config = Config.load(timeout=seconds(timeout))
        met = bootstrap(store, rank, size, config, "torch")
        try:
            return cls(Engine(met, config), config)
        except BaseException as error:
            met.close(reason=failed(error))
            raise

    @classmethod
    def of(cls, comm: Communicator) -> Maker:
        """Take a communicator that is there."""
        engine = comm._engine
        return cls(engine, engine.config, comm)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks, as the job numbers them."""
        return self.engine.bootstrap.control.ranks

    def shrunk(self, timeout: float | None = None) -> Maker:
        """Make the communicator of those who live; each of them calls this.

        Args:
            timeout: Seconds that a rank may take to come; the communicator's by default.
        """
        comm = self.comm.shrink(timeout)
        return Maker(comm._engine, self._config, comm)

    def part(self, ranks: Sequence[int], key: str, timeout: Any = None) -> Maker:
        """Make the communicator of some of the ranks; each of them calls this, and nobody else.

        Args:
            ranks: As this communicator counts them, in the order of the new one.
            key: What it is for, the same on all of them. Not torch's name of a group: that may
                depend on what other groups a rank is in.
            timeout: Of its calls; as here by default.
        """
        config = self._config
        if timeout is not None:
            config = Config.load(timeout=seconds(timeout))
        number = next(self._made[key, *ranks])
        return Maker(self.engine.apart(list(ranks), f"{key} {number}", config), config)
