"""A Communicator over a communicator of mpi4py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycoll.bootstrap import Bootstrap, mpi
from pycoll.communicator import Communicator, init
from pycoll.config import Config

if TYPE_CHECKING:
    from pycoll.runtime.plan.agreement import Selector


def from_mpi(
    comm: Any, timeout: float | None = None, selector: Selector | str | None = None
) -> Communicator:
    """Return a communicator of the ranks of an mpi4py communicator, with the same numbers.

    Every rank of ``comm`` calls it. MPI is used to meet, and then no more: ``comm`` may be freed,
    used and even finalized while the new communicator lives, and neither sees the other's calls.

    Args:
        comm: Any intra-communicator: COMM_WORLD, what Split, Dup, Create or a topology made.
        timeout: As in `pycoll.init`.
        selector: As in `pycoll.init`.

    Returns:
        The communicator, whose `Communicator.launcher` is "mpi4py".

    Raises:
        UsageError: ``comm`` is not one: an inter-communicator, one that was freed, or no
            communicator of mpi4py.
        BootstrapError: MPI is not running, or not every rank came before the timeout.

    Example:
        >>> from mpi4py import MPI  # doctest: +SKIP
        >>> comm = pycoll.from_mpi(MPI.COMM_WORLD)  # doctest: +SKIP
    """
    config = Config.load(timeout=timeout)
    return init(Bootstrap("mpi4py", mpi.meet_over(comm, config), config.timeout), timeout, selector)
