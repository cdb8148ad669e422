"""Ranks as threads of one process: streams, graphs, many calls, failures, and the proxy.

Each rank has streams of its own on the GPU that all share.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from phase import Lacking, Run, main

#: What also runs through the proxy: one of each kind.
PROXIED = ("ring", "binomial", "direct", "pairwise", "double_binary_tree")


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    seen, failed = [], []
    # First what all others rely on: a kernel that waits for nobody ends.
    for part in (late, abort, streams, messages, graphs, iterations, communicators, proxy):
        if not run.time_for(part.__name__):
            continue
        start, name = time.monotonic(), part.__name__
        try:
            text = part(run)
            seen.append(text)
        except Exception as error:  # each part has communicators of its own: the next may go well
            traceback.print_exc()
            text = f"FAILED: {type(error).__name__}: {error}"
            failed.append(f"{name}: {text}")
        run.details[name] = {"seen": text, "seconds": round(time.monotonic() - start, 2)}
        print(f"{name}: {text}")
        run.note("; ".join([*failed, *seen]))
    run.check(not failed, "; ".join(failed))
    return "; ".join(seen)


class Rank:
    """What a rank of every part has."""

    def __init__(self, run: Run, comm: Any, nbytes: int = 16 << 20) -> None:
        from cudriver import Driver
        from device import Pool

        from pycoll.runtime.native import cuda

        self.run, self.comm, self.device = run, comm, run.device
        self.pool = Pool(run.device, nbytes)
        self.driver = Driver(run.device)
        self.gpu = comm.cuda(run.device)
        self.streams = [cuda.stream(run.device) for _ in range(2)]

    def wait(self) -> None:
        """Wait on the host for the streams, and raise what went wrong on them."""
        self.drain()
        # A kernel that gave up has ended, too.
        self.comm._collectives.launch.cuda.streams.open().check()

    def drain(self) -> None:
        """Wait on the host for the streams, whatever went wrong."""
        from cudriver import wait

        wait(self.device, *self.streams, self.gpu.stream)

    def ready(self, seat: Any, *calls: tuple[Any, ...]) -> None:
        """Make plans and load kernels on all ranks, before any kernel waits for a peer."""
        for collective, *arrays, more in calls:
            self.comm.plan(collective, *arrays, **more)
        seat.gather(0.0)

    def check(self, array: Any, want: Any, what: str) -> None:
        """Compare an array bit for bit."""
        import cases
        import numpy as np

        got, want = array.get(), np.asarray(want, array.host_dtype)
        if not cases.same_bits(got, want):
            text = cases.difference(got, want)
            raise AssertionError(f"{what}, rank {self.comm.rank}: {text}")
        if self.comm.rank == 0:
            self.run.checks += 1


def spawn(run: Run, size: int, body: Callable[..., None], timeout: float = 25.0) -> None:
    """Run a body on ranks that have a GPU."""
    import together

    meeting = together.Meeting(size)
    together.spawn(lambda comm: body(Rank(run, comm), meeting.of(comm.rank)), size, timeout=timeout)


def streams(run: Run) -> str:
    """Calls on different streams, and beside them, in the order in which they were made."""
    import numpy as np

    calls = 8 if run.short else 40

    def body(rank: Rank, seat: Any) -> None:
        comm, count = rank.comm, 5000
        x = rank.pool.array(np.full(count, comm.rank + 1.0))
        rank.ready(seat, ("allreduce", x, {}))
        for i in range(calls):
            with comm.on_stream(rank.streams[i % 2]):
                if i % 4 == 3:  # beside the stream, which waits for it
                    comm.allreduce(x, async_op=True).wait()
                else:
                    comm.allreduce(x)
        rank.wait()
        size = comm.size
        rank.check(x, np.full(count, size * (size + 1) / 2 * size ** (calls - 1)), "streams")

    for size in (2, 4):
        spawn(run, size, body)
    return f"{calls} calls on two streams and beside them"


def messages(run: Run) -> str:
    """Messages between two ranks: all with all at once, by counts, and round a ring."""
    import numpy as np

    lengths = (1, 4097) if run.short else (1, 4097, 200_000)

    def body(rank: Rank, seat: Any) -> None:
        comm, pool = rank.comm, rank.pool
        me, everyone = comm.rank, range(comm.size)

        def data(source: int, target: int, count: int) -> Any:
            return np.random.default_rng((source, target, count)).standard_normal(count)

        for count in lengths:
            sent = [pool.array(data(me, peer, count).astype("f4")) for peer in everyone]
            got = [pool.array(np.zeros(count, "f4")) for _ in everyone]
            seat.gather(0.0)  # memory is there before a kernel waits
            with comm.on_stream(rank.streams[0]):
                comm.exchange(
                    [(x, peer) for peer, x in enumerate(sent)],
                    [(x, peer) for peer, x in enumerate(got)],
                )
                right, left = (me + 1) % comm.size, (me - 1) % comm.size
                if me == 0:
                    comm.send(sent[right], right)
                comm.recv(got[left], left)
                if me != 0:
                    comm.send(sent[right], right)
            rank.wait()
            for peer in everyone:
                rank.check(got[peer], data(peer, me, count).astype("f4"), f"{count} from {peer}")
            seat.gather(0.0)

    for size in (2, 4):
        spawn(run, size, body)
    return f"exchanges and a ring of {', '.join(map(str, lengths))} elements"


def graphs(run: Run) -> str:
    """A graph of calls, launched again and again with other data."""
    import numpy as np
    from cudriver import Graph

    replays = 10 if run.short else 100

    def body(rank: Rank, seat: Any) -> None:
        comm, (stream, _) = rank.comm, rank.streams
        counts = (1, 1000, 100_000)
        arrays = [(rank.pool.empty(n, "float32"), rank.pool.empty(n, "float32")) for n in counts]

        for x, out in arrays:
            rank.ready(seat, ("allreduce", x, out, {}), ("broadcast", out, {"root": 1}))

        def enqueue() -> None:
            with comm.on_stream(stream):
                for x, out in arrays:
                    comm.allreduce(x, out)
                    comm.broadcast(out, root=1)

        enqueue()  # plans are made before, not inside
        rank.wait()
        seat.gather(0.0)
        graph = Graph(rank.driver, stream)
        with graph.capture():
            enqueue()
        seat.gather(0.0)
        for replay in range(replays):
            for x, out in arrays:
                x.put(np.full(x.size, comm.rank + replay, np.float32))
                out.fill(0xA5)
            seat.gather(0.0)
            graph.launch()
            rank.wait()
            want = sum(r + replay for r in range(comm.size))
            for _, out in arrays:
                rank.check(out, np.full(out.size, want), f"replay {replay}")
            seat.gather(0.0)
        graph.close()

    for size in (2, 4):
        spawn(run, size, body)
    return f"{replays} replays of a graph"


def iterations(run: Run) -> str:
    """Many calls with nothing between them."""
    import numpy as np

    calls = 200 if run.short or run.stand_in else 2_000 if run.first else 10_000

    def body(rank: Rank, seat: Any) -> None:
        comm = rank.comm
        arrays = [rank.pool.array(np.full(n, comm.rank + 1, np.uint32)) for n in (1, 1024, 70_000)]
        done = [0, 0, 0]
        rank.ready(seat, *(("allreduce", x, {}) for x in arrays))
        with comm.on_stream(rank.streams[0]):
            for i in range(calls):
                which = 0 if i % 10 else 1 if i % 50 else 2
                comm.allreduce(arrays[which])
                done[which] += 1
                if i % 500 == 499:
                    rank.wait()
        rank.wait()
        for x, n in zip(arrays, done, strict=True):
            first = comm.size * (comm.size + 1) // 2
            want = first * pow(comm.size, n - 1, 1 << 32) % (1 << 32) if n else comm.rank + 1
            rank.check(x, np.full(x.size, want, np.uint32), f"{n} calls of {x.nbytes} B")

    spawn(run, 2, body)
    return f"{calls} calls"


def communicators(run: Run) -> str:
    """Two communicators whose calls are in flight at once."""
    import numpy as np

    calls = 10 if run.short else 100

    def body(rank: Rank, seat: Any) -> None:
        comm = rank.comm
        with comm.dup() as other:
            other.cuda(rank.device)
            x, y = (rank.pool.array(np.full(3000, comm.rank + 1.0)) for _ in range(2))
            other.plan("allreduce", y, op="max")
            rank.ready(seat, ("allreduce", x, {}))
            for _ in range(calls):
                with comm.on_stream(rank.streams[0]):
                    comm.allreduce(x)
                with other.on_stream(rank.streams[1]):
                    other.allreduce(y, op="max")
            rank.wait()
            seat.gather(0.0)
        size = comm.size
        rank.check(x, np.full(3000, size * (size + 1) / 2 * size ** (calls - 1)), "one")
        rank.check(y, np.full(3000, float(size)), "the other")

    spawn(run, 2, body)
    return f"two communicators, {calls} calls each"


def late(run: Run) -> str:
    """A rank that never comes: the others' kernels end at their deadline, and say so."""
    import numpy as np
    import together

    import pycoll

    met, taken = together.Meeting(2), [0.0]

    def body(comm: Any) -> None:
        rank, seat = Rank(run, comm), met.of(comm.rank)
        x = rank.pool.array(np.ones(1000))
        rank.ready(seat, ("allreduce", x, {}))
        if comm.rank == 0:
            start = time.monotonic()
            with comm.on_stream(rank.streams[0]):
                comm.allreduce(x, timeout=1.0)
            rank.drain()  # returns: the kernel has given up
            taken[0] = time.monotonic() - start
            try:
                with comm.on_stream(rank.streams[0]):
                    comm.allreduce(x)
            except (pycoll.CollectiveTimeout, pycoll.BrokenError) as error:
                text = str(error)
            else:
                raise AssertionError("a call whose peer never came passed for done")
            run.check("1" in text, text)
            print(f"it said: {text}")
        seat.gather(0.0)
        raise _Over  # the communicator is broken: leave it as one does

    _expect(_Over, lambda: together.spawn(body, 2, timeout=60.0))
    run.check(taken[0] < 30, f"control came back after {taken[0]:.1f} s")
    return f"a peer that never came: control back after {taken[0]:.1f} s of 1 s"


def abort(run: Run) -> str:
    """A rank that fails while another's kernel spins: that ends, long before its deadline."""
    import numpy as np
    import together

    import pycoll

    met, taken = together.Meeting(2), [0.0]

    def body(comm: Any) -> None:
        rank, seat = Rank(run, comm), met.of(comm.rank)
        x = rank.pool.array(np.ones(1000))
        rank.ready(seat, ("allreduce", x, {}))
        if comm.rank == 1:
            seat.gather(0.0)
            raise _Over
        with comm.on_stream(rank.streams[0]):
            comm.allreduce(x)
        start = time.monotonic()
        seat.gather(0.0)
        rank.drain()
        taken[0] = time.monotonic() - start
        try:
            with comm.on_stream(rank.streams[0]):
                comm.allreduce(x)
        except pycoll.PycollError as error:
            print(f"it said: {type(error).__name__}: {error}")
            return
        raise AssertionError("a call whose peer has failed passed for done")

    _expect(_Over, lambda: together.spawn(body, 2, timeout=120.0))
    run.check(taken[0] < 30, f"control came back after {taken[0]:.1f} s")
    return f"a peer that failed: control back after {taken[0]:.2f} s"


def proxy(run: Run) -> str:
    """Ranks that are told that they are on hosts of their own: kernels, proxy, sockets."""
    import cases as c
    import together

    carried = [0]
    counts = (1, 1000, 40_000) if run.short else (1, 17, 1000, 40_000, 1_000_003)

    def body(rank: Rank, seat: Any) -> None:
        comm = rank.comm
        for case in c.cases(counts, ("float32",)):
            if case.algorithm not in PROXIED:
                continue
            given, want = c.expected(comm, case, comm.rank, comm.size)
            seat.gather(0.0)
            rank.pool.reset()
            x = rank.pool.array(given)
            out = x
            if case.collective != "broadcast":
                out = rank.pool.empty(want.size, case.dtype).fill(0xA5)
            with comm.on_stream(rank.streams[0]):
                c.make_ready(comm, case, x, out)
                seat.gather(0.0)
                c.call(comm, case, x, out)
            rank.wait()
            seat.gather(0.0)
            if not c.same_bits(out.get(), want):
                text = c.difference(out.get(), want)
                raise AssertionError(f"by the proxy, rank {comm.rank}: {case}: {text}")
            run.checks += comm.rank == 0
        plane = comm._collectives.launch.cuda.streams.open()
        from pycoll.runtime.native import device_comm

        state = device_comm.device_comm_state(plane.native)
        if comm.rank == 0:
            carried[0] = state.handed_over
        if not (state.remote == comm.size - 1 and state.handed_over):
            raise AssertionError(f"nothing went by the proxy: {state}")

    with together.apart():
        spawn(run, 2, body)
    return f"{carried[0]} messages by the proxy"


class _Over(Exception):
    """How a rank leaves a part on purpose."""


def _expect(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    main(phase)
