"""The collectives of a Communicator whose blocks are of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycoll.errors import UsageError
from pycoll.point_to_point import PointToPoint
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.algorithms import Algorithm


class VectorCollectives(PointToPoint):
    """What ranks do together with blocks that are counted one by one.

    Counts are elements. `allgatherv` and `reduce_scatterv` take those of all ranks, on all ranks,
    and run a verified algorithm. `alltoallv`, `gatherv` and `scatterv` take those that the rank
    itself has to know, and send every block straight to where it belongs.
    """

    def allgatherv(
        self,
        x: Any,
        counts: Sequence[int],
        out: Any = None,
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Do what `allgather` does, with arrays that are not equally long.

        Args:
            x: This rank's array, of ``counts[rank]`` elements.
            counts: Elements of every rank's array, alike on all ranks.
            out: Where they go, ``sum(counts)`` elements; a new flat array by default.
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.
        """
        return self._by_counts("allgather", x, counts, out, "sum", async_op, algorithm, timeout)

    def reduce_scatterv(
        self,
        x: Any,
        counts: Sequence[int],
        out: Any = None,
        op: str = "sum",
        async_op: bool = False,
        algorithm: Algorithm | str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Do what `reduce_scatter` does, with parts that are not equally long.

        Args:
            x: An array of ``sum(counts)`` elements.
            counts: Elements of every rank's part, alike on all ranks.
            out: Where this rank's ``counts[rank]`` elements go; a new flat array by default.
            op: "sum", "prod", "min", "max" or "avg".
            async_op: Return a Work.
            algorithm: What runs.
            timeout: Seconds.
        """
        return self._by_counts("reduce_scatter", x, counts, out, op, async_op, algorithm, timeout)

    def alltoallv(
        self,
        x: Any,
        send_counts: Sequence[int],
        out: Any,
        recv_counts: Sequence[int],
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank a part of ``x``, and get a part from every rank into ``out``.

        Args:
            x: The parts for all ranks, one behind the other in order of rank.
            send_counts: Elements of each.
            out: Where the parts from all ranks go, one behind the other in order of rank.
            recv_counts: Elements of each.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            ``out``.
        """
        with self._engine.order.begins("alltoallv"):
            from pycoll.runtime.p2p import batch

            self._engine.life.require_usable("alltoallv")
            found = batch.alltoallv(self._transfers.place, x, send_counts, out, recv_counts)
            return self._transfers.together("alltoallv", found, None, timeout, async_op)

    def gatherv(
        self,
        x: Any,
        counts: Sequence[int] | None = None,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Do what `gather` does, with arrays that are not equally long.

        Args:
            x: This rank's array.
            counts: On the root, the elements of every rank's array.
            out: On the root, where they go, one behind the other in order of rank; a new flat
                array by default. In place on the root: its own part of ``out`` is ``x``.
            root: The rank that gets them.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            On the root ``out``, or the new array; None elsewhere.
        """
        with self._engine.order.begins("gatherv"):
            return self._gatherv("gatherv", x, counts, out, root, async_op, timeout)

    def scatterv(
        self,
        x: Any = None,
        counts: Sequence[int] | None = None,
        out: Any = None,
        root: int = 0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Do what `scatter` does, with parts that are not equally long.

        Args:
            x: On the root, the parts of all ranks, one behind the other in order of rank; elsewhere
                it is not looked at.
            counts: On the root, the elements of each.
            out: Where this rank's part goes. The root may leave it out: its part stays in ``x``.
            root: The rank that has the array.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            ``out``, or on the root a flat view of its part of ``x``.
        """
        with self._engine.order.begins("scatterv"):
            return self._scatterv("scatterv", x, counts, out, root, async_op, timeout)

    def _gatherv(
        self,
        what: str,
        x: Any,
        counts: Sequence[int] | None,
        out: Any,
        root: int,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        from pycoll.runtime.p2p import batch

        self._engine.life.require_usable(what)
        found = batch.gatherv(self._transfers.place, x, counts, out, root, what)
        return self._transfers.together(what, found, root, timeout, async_op)

    def _scatterv(
        self,
        what: str,
        x: Any,
        counts: Sequence[int] | None,
        out: Any,
        root: int,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        from pycoll.runtime.p2p import batch

        self._engine.life.require_usable(what)
        found = batch.scatterv(self._transfers.place, x, counts, out, root, what)
        return self._transfers.together(what, found, root, timeout, async_op)

    def _by_counts(
        self,
        collective: str,
        x: Any,
        counts: Sequence[int],
        out: Any,
        op: str,
        async_op: bool,
        algorithm: Algorithm | str | None,
        timeout: float | None,
    ) -> Any:
        if counts is None:  # which would be the collective without counts
            raise UsageError(f"{collective}v: counts is None, want {self.size} numbers of elements")
        with self._engine.order.begins(f"{collective}v"):
            asked = CallOptions(op, 0, counts, algorithm, timeout)
            return self._launch.run(collective, x, out, asked, async_op)
