"""How the ranks of a process group of torch come to a Communicator."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.store import bootstrap
from pycoll.communicator import Communicator
from pycoll.config import Config
from pycoll.interop.torch_launch import seconds
from pycoll.runtime.engine import Engine


class Maker:
    """Makes the communicators of a process group: its own, and those of some of its ranks."""

    def __init__(self, met: Bootstrap, config: Config, parent: Engine | None = None) -> None:
        self._config = config
        self._made: defaultdict[tuple[str, *tuple[int, ...]], itertools.count[int]]
        self._made = defaultdict(itertools.count)
        settled = None if parent is None else parent._settled
        try:
            self.engine = Engine(met, config, settled=settled)
        except BaseException:
            met.close()
            raise
        self.comm = Communicator(self.engine)

    @classmethod
    def met(cls, store: Any, rank: int, size: int, timeout: Any) -> Maker:
        """Meet the other ranks through torch's store."""
        config = Config.load(timeout=seconds(timeout))
        return cls(bootstrap(store, rank, size, config, "torch"), config)

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
        met = self.engine.bootstrap.group(ranks, f"{key} {number}")
        return Maker(met, config, self.engine)
