"""``pycoll doctor``: what keeps this machine from its speed, or from RDMA, and what mends it."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pycoll.config import Config
from pycoll.doctor import Attributes, Finding, Level, Machine, Registration, bandwidth, examine
from pycoll.doctor.dcb import lossless
from pycoll.doctor.port import Port
from pycoll.errors import UnavailableError, UsageError, counted
from pycoll.fabric import Fabric, Rail

#: Seconds of a measurement of bandwidth.
_MEASURED = 1.0


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine's RDMA, network and limits; what is wrong and what mends it",
        description="Check what this process may use: limits, RDMA devices and their ports, "
        "packets and their priorities, PCI links and bridges, GPUs, counters of errors. Run it as "
        "a job runs, as in `srun pycoll doctor`: limits are those of the process. Exit code 1 if "
        "there is a problem.",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="the findings as JSON, or into a file"
    )
    parser.add_argument(
        "--bandwidth", action="store_true", help="measure each RDMA port against its line rate"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=1.0,
        help="in which counters of errors are watched (default 1)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check and print; 1 if there is a problem."""
    machine = _machine(Config.load(), options.seconds)
    findings = list(examine(machine))
    if options.bandwidth:
        found = bandwidth(machine, _measurement(machine.fabric))
        findings += [replace(finding, check="bandwidth") for finding in found]
    if options.json is None:
        print(table(findings))
    else:
        rows = {"host": platform.node(), "findings": [finding.encode() for finding in findings]}
        _write(options.json, json.dumps(rows, indent=2) + "\n")
    return int(any(finding.level is Level.PROBLEM for finding in findings))


def table(findings: Iterable[Finding]) -> str:
    """Return the findings as lines: one each, with what was got and wanted and the cure below."""
    findings = list(findings)
    rows = [(str(f.level), f.check, f.where, f.what) for f in findings]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    indent = " " * (sum(widths) + 4)
    lines = []
    for finding, (level, check, where, what) in zip(findings, rows, strict=True):
        lines.append(f"{level.ljust(widths[0])}  {check.ljust(widths[1])}  {where}: {what}")
        if finding.got:
            lines.append(f"{indent}got {finding.got}; want {finding.wanted}")
        if finding.cure:
            lines.append(f"{indent}cure: {finding.cure}")
    counts = Counter(finding.level for finding in findings)
    named = [(Level.PROBLEM, "problem"), (Level.WARNING, "warning")]
    parts = [counted(counts[level], word) for level, word in named]
    lines.append(
        ", ".join([*parts, f"{counts[Level.UNKNOWN]} not known", f"{counts[Level.OK]} ok"])
    )
    return "\n".join(lines)


def _machine(config: Config, seconds: float) -> Machine:
    machine = Machine(
        fabric=config.verbs,
        iface=config.iface,
        lossless=lossless,
        pause=lambda: time.sleep(seconds),
    )
    try:
        from pycoll.runtime.native import verbs
        from pycoll.runtime.net import providers
    except UnavailableError as error:
        return replace(machine, engine=str(error), attributes=_by_pyverbs())
    ports = verbs.verbs_ports()
    return replace(
        machine,
        missing=verbs.verbs_missing(),
        provider=providers.shown(config.fabric or "") if providers.possible() else None,
        attributes=tuple(Attributes(p.device, p.port, p.mtu, p.max_mtu) for p in ports),
        registers=_registers,
    )


def _registers(gpu: str, card: str) -> Registration:
    """Register a page of a GPU's memory; its process gets a context on that GPU."""
    from pycoll.runtime.native import cuda, gpu_probe
    from pycoll.topology.distance import address

    if why := cuda.missing():
        raise UnavailableError(why)
    buses = [address(cuda.device(number).bus) for number in range(cuda.devices())]
    if gpu not in buses:
        raise UnavailableError(
            f"NVIDIA's driver shows this process {counted(len(buses), 'GPU')}, not this one: "
            "look at CUDA_VISIBLE_DEVICES, and at what the container was given"
        )
    return Registration(*gpu_probe.gpu_probe(buses.index(gpu), card))


def _by_pyverbs() -> tuple[Attributes, ...] | None:
    """Return what the engine would tell, if pyverbs can."""
    from pycoll.interop.pyverbs import devices

    try:
        return tuple(
            Attributes(device.name, port.number, port.mtu, port.max_mtu)
            for device in devices()
            for port in device.ports
        )
    except UnavailableError:
        return None


def _measurement(fabric: Fabric) -> Callable[[Port], float]:
    """Return what measures a port."""

    def measure(port: Port) -> float:
        from pycoll.runtime.native import verbs

        return verbs.verbs_loopback(Rail(port.device, port.number), fabric, _MEASURED)

    return measure


def _write(file: str, text: str) -> None:
    if file == "-":
        print(text, end="")
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {file}: {error.strerror}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}, want seconds from 0 to 3600")
    return seconds
