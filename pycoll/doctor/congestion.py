"""RoCE on a busy network: lossless priorities (PFC), congestion marks (ECN), and the DSCP."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port
from pycoll.sysfs import NET, RDMA

CONFIG = "sys/kernel/config/rdma_cm"


def pfc(machine: Machine) -> Iterator[Finding]:
    """Say whether the priority of pycoll's packets is one that the card does not drop."""
    for port, interface in _rails(machine):
        bits, own = machine.lossless(interface), _priority(machine)
        turn_on = ",".join("1" if i == own else "0" for i in range(8))
        if bits is None:
            yield unknown(
                port.name,
                f"the driver of {interface} does not say which priorities are lossless",
                cure=f"mlnx_qos -i {interface}, or dcb pfc show dev {interface}; and the switch",
            )
        elif not bits:
            yield warning(
                port.name,
                "no priority is lossless: a busy switch drops packets, which RoCE sends all again",
                got="PFC of no priority",
                wanted=f"PFC of priority {own}, here and on the switch",
                cure=f"dcb pfc set dev {interface} prio-pfc {own}:on (mlnx_qos -i {interface} "
                f"--trust dscp --pfc {turn_on}), and the same on the switch",
            )
        elif not bits >> own & 1:
            lossless = next(i for i in range(8) if bits >> i & 1)
            yield warning(
                port.name,
                "pycoll's packets have another priority than the lossless one",
                got=f"PFC of priority {lossless}; traffic class {machine.fabric.tc} is priority "
                f"{own}",
                wanted=f"priority {lossless}",
                cure=f"PYCOLL_VERBS=tc={lossless << 5 | 2}",
            )
        else:
            yield ok(port.name, f"priority {own} is lossless")


def ecn(machine: Machine) -> Iterator[Finding]:
    """Say whether a card slows down when switches mark its packets."""
    for port, interface in _rails(machine):
        own = _priority(machine)
        files = [f"{NET}/{interface}/ecn/{end}/enable/{own}" for end in ("roce_np", "roce_rp")]
        values = [machine.sysfs.count(file) for file in files]
        off = [f"/{file}" for file, value in zip(files, values, strict=True) if value == 0]
        if off:
            yield warning(
                port.name,
                f"does not slow down when switches mark packets of priority {own}",
                got=f"0 in {' and '.join(off)}",
                wanted="1",
                cure="; ".join(f"echo 1 > {file}" for file in off),
            )
        elif None in values:
            yield unknown(
                port.name,
                f"the driver of {interface} does not say whether it answers congestion marks",
                cure=f"the tool of the card's vendor; NVIDIA: mlxconfig -d {port.pci} query "
                "ROCE_CC_PRIO_MASK_P1",
            )
        elif not machine.fabric.tc & 3:
            yield warning(
                port.name,
                "answers congestion marks, which switches set only where the packet allows it",
                got=f"traffic class {machine.fabric.tc}, whose two lowest bits are 0",
                wanted="the lowest bits 1 or 2",
                cure=f"PYCOLL_VERBS=tc={machine.fabric.tc | 2}",
            )
        else:
            yield ok(port.name, f"answers congestion marks of priority {own}")


def mark(machine: Machine) -> Iterator[Finding]:
    """Compare the traffic class of pycoll with the one that this site gives other RDMA programs."""
    for port, _ in _rails(machine):
        files = (
            f"{RDMA}/{port.device}/tc/{port.number}/traffic_class",
            f"{CONFIG}/{port.device}/ports/{port.number}/default_roce_tos",
        )
        forced, usual = (_class(machine, file) for file in files)
        site = forced or usual
        if not site or site >> 2 == machine.fabric.tc >> 2:
            yield ok(port.name, f"traffic class {machine.fabric.tc}")
        else:
            yield warning(
                port.name,
                "other RDMA programs of this machine mark their packets differently",
                got=f"traffic class {machine.fabric.tc}",
                wanted=f"{site}, as in /{files[0] if forced else files[1]}",
                cure=f"PYCOLL_VERBS=tc={site}",
            )


def _rails(machine: Machine) -> list[tuple[Port, str]]:
    """Return the RoCE ports of cards, each with its interface."""
    return [
        (port, port.interface)
        for port in machine.rails
        if port.ethernet and not port.software and port.interface
    ]


def _priority(machine: Machine) -> int:
    """Return the priority that cards make of the DSCP unless they are told otherwise."""
    return machine.fabric.tc >> 5


def _class(machine: Machine, file: str) -> int | None:
    """Return a traffic class from a file that has it alone or behind ``tclass=``."""
    text = machine.sysfs.text(file) or ""
    word = text.rpartition("tclass=")[2].split()
    number = int(word[0]) if word and word[0].isdecimal() and len(word[0]) < 4 else None
    return number if number is not None and number < 256 else None
