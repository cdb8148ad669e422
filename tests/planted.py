"""Faults that are planted into the engine to see that tests find them: GPUDirect RDMA's.

A test compiles the engine with one of them, and does what it does with the engine as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import compiled


class Fault(NamedTuple):
    """What could be wrong."""

    source: str  #: below native/, without suffix
    there: str  #: once in it
    planted: str  #: in its place
    by: str = "read"  #: what flushes where it shows: "read" or "driver"


GPUDIRECT = {
    "no flush": Fault(
        "verbs/events",
        "else if (peer->base.gpu_in == 0 || !pc__gpu_flushes(w))",
        "else if (true)",
    ),
    "no flush by the driver": Fault(
        "verbs/gpu",
        "rc = pc__mem_flush_by_driver(w->base.gpu.device, &error);",
        "rc = PC_OK;",
        "driver",
    ),
    "a read that began too early": Fault(
        "verbs/gpu",
        "return release(w, g, covered);",
        "return release(w, g, covered < g->narrived ? g->narrived : covered);",
    ),
    "another card reads": Fault("verbs/gpu", "begin_read(w, i);", "begin_read(w, 0);"),
    "only the first card reads": Fault(
        "verbs/gpu",
        "            begin_read(w, i);",
        """        {
            if (i != 0) {
                w->base.state.gpu_flushes++;
                return release(w, &w->gpu[i], w->gpu[i].narrived);
            }
            begin_read(w, i);
        }""",
    ),
    "inline from the GPU": Fault(
        "verbs/wr",
        "bool inlined = gpu == 0 && nbytes",
        "bool inlined = nbytes",
    ),
    "staged by the host": Fault(
        "verbs/wr",
        "    request.wr.rdma.remote_addr = peer->hello.slots + at;",
        """    if (gpu != 0 && nbytes <= w->rails[conn->rail].max_inline) {
        memcpy((void *)(uintptr_t)op->data, (void *)(uintptr_t)(gpu + at), nbytes);
        span->addr = (uintptr_t)op->data;
        request.send_flags |= IBV_SEND_INLINE;
    }
    request.wr.rdma.remote_addr = peer->hello.slots + at;""",
    ),
    "the card raises the count": Fault(
        "verbs/wr",
        """    make_header(op, line);
    struct ibv_send_wr last = write_line(conn, line, sizeof(struct pc_message_header),
                                         immediate_of_frag(op, place), &spans[1]);
""",
        """    make_header(op, line);
    struct ibv_send_wr last = write_line(conn, line, PC_LINE_BYTES,
                                         immediate_of_credit(op->edge, PC_IMM_LINE), &spans[1]);
""",
    ),
    "freed before the queue pairs are gone": Fault(
        "net/net",
        "    net->ops->close(net);\n    if (net->gpu.at",
        "    net->gpu.free(net->gpu.device, net->gpu.at);\n    net->gpu.keep = true;\n"
        "    net->ops->close(net);\n    if (net->gpu.at",
    ),
}


def planted(fault: Fault, units: Iterable[compiled.Unit], folder: Path) -> list[compiled.Unit]:
    """Return units with a fault in one of them, whose source is written to a folder."""
    original = compiled.NATIVE / f"{fault.source}.c"
    text = original.read_text()
    assert text.count(fault.there) == 1, fault
    source = folder / original.name
    source.write_text(text.replace(fault.there, fault.planted))
    return [replace(unit, source=source) if unit.source == original else unit for unit in units]
