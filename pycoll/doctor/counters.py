"""Counters of errors: what they say matters while they grow, not what they have come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pycoll.doctor.finding import Finding, bad, ok
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port


class CounterKind(NamedTuple):
    """Counters with one cause."""

    what: str
    severe: bool
    cure: str
    names: frozenset[str]


KINDS = (
    CounterKind(
        "the cable or a transceiver is failing",
        True,
        "clean or replace cable and transceivers; {show} shows their light levels",
        frozenset(
            {
                "symbol_error",
                "link_error_recovery",
                "link_downed",
                "port_rcv_errors",
                "port_rcv_remote_physical_errors",
                "local_link_integrity_errors",
                "rx_icrc_encapsulated",
            }
        ),
    ),
    CounterKind(
        "packets are lost on the way and sent again",
        False,
        "see the checks pfc and ecn, and the drops of the switches' ports",
        frozenset(
            {
                "out_of_sequence",
                "packet_seq_err",
                "local_ack_timeout_err",
                "implied_nak_seq_err",
                "port_xmit_discards",
                "excessive_buffer_overrun_errors",
                "roce_adp_retrans",
                "roce_adp_retrans_to",
                "out_of_seq_request",
                "rcvd_seq_err",
                "completer_retry_err",
                "retry_exceeded_err",
                "send_err",
            }
        ),
    ),
    CounterKind(
        "the other end sent again what had arrived",
        False,
        "there, a larger timeout in PYCOLL_VERBS; see the checks pfc and ecn: acknowledgements are "
        "lost, or late",
        frozenset({"duplicate_request"}),
    ),
    CounterKind(
        "this host takes packets in too slowly",
        False,
        "see the checks slot, iommu and distance; ethtool -G {interface} rx 8192",
        frozenset(
            {
                "out_of_buffer",
                "rnr_nak_retry_err",
                "rx_discards_phy",
                "retry_rnr_exceeded_err",
                "rcvd_rnr_err",
            }
        ),
    ),
)

Counts = dict[tuple[str, str], int]


def read(machine: Machine) -> Counts:
    """Return the counters of errors of every port that carries data."""
    known = {name for kind in KINDS for name in kind.names}
    return {
        (port.name, name): value
        for port in machine.rails
        for folder in ("counters", "hw_counters")
        for name in machine.sysfs.names(f"{port.folder}/{folder}")
        if name in known
        and (value := machine.sysfs.count(f"{port.folder}/{folder}/{name}")) is not None
    }


def counters(machine: Machine) -> Iterator[Finding]:
    """Read the counters twice and say which ones grow."""
    if not machine.rails:
        return
    before = read(machine)
    machine.pause()
    after = read(machine)
    for port in machine.rails:
        grown = {
            name: value - before.get((at, name), value)
            for (at, name), value in after.items()
            if at == port.name and value > before.get((at, name), value)
        }
        for kind in KINDS:
            if mine := {name: grown[name] for name in sorted(kind.names & grown.keys())}:
                yield bad(
                    kind.severe,
                    port.name,
                    kind.what,
                    got=", ".join(f"{name} grew by {by}" for name, by in mine.items()),
                    wanted="no growth",
                    cure=kind.cure.format(
                        show=_show(port), interface=port.interface or "INTERFACE"
                    ),
                )
        if not grown:
            past = {name: value for (at, name), value in after.items() if at == port.name and value}
            shown = ", ".join(f"{name} {value}" for name, value in sorted(past.items()))
            yield ok(port.name, f"no counter of errors grows{f' ({shown} so far)' if past else ''}")


def _show(port: Port) -> str:
    return f"ethtool -m {port.interface}" if port.ethernet else f"mlxlink -d {port.device} -m"
