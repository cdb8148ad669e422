"""``pycoll info``: what this build and machine can do, what is missing and why, every setting."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from typing import Any, NamedTuple

import pycoll
from pycoll.algorithms import names
from pycoll.benchmark import metadata
from pycoll.bootstrap import route
from pycoll.config import Config
from pycoll.errors import PycollError, UnavailableError, UsageError
from pycoll.schedule import COLLECTIVES


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "info", help="version, build, CPU features, transports, settings and their origin"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="RDMA devices in full, by pyverbs if it is there"
    )
    parser.set_defaults(run=run)


class _Native(NamedTuple):
    """What the engine says about itself, or why it is not there."""

    version: str = ""
    compiler: str = ""
    features: str = ""
    missing: str = ""


def _native() -> _Native:
    try:
        from pycoll.runtime.native import load
    except UnavailableError as error:
        return _Native(missing=str(error))
    return _Native(load.version(), load.compiler(), load.cpu_features())


def _between_hosts(config: Config) -> str:
    """Say by which networks ranks of other hosts can be reached, or why by none."""
    try:
        if config.iface is not None:
            return f"ranks of several hosts, at {route.named(config.iface)} (PYCOLL_IFACE)"
    except UsageError as error:
        return f"missing: {error}"
    found = route.addresses().items()
    shown = [f"{name} ({at})" for name, at in found if not route.is_loopback(at)]
    if not shown:
        return "missing: no interface but loopback has an IPv4 address; ip addr add gives it one"
    return f"ranks of several hosts, by {', '.join(shown)}"


def _rdma(config: Config) -> list[str]:
    """Say by which RDMA ports ranks of other hosts can be reached, or why by none; then of each."""
    from pycoll.runtime.host.locality import Locality
    from pycoll.runtime.native import verbs
    from pycoll.runtime.net import rails

    if lack := verbs.verbs_missing():
        return [f"missing: {lack}"]
    ports = verbs.verbs_ports()
    try:
        found = rails.find(config.rails, Locality.mine().memory)
    except PycollError as error:
        first = f"missing: {error}"
    else:
        used = ", ".join(map(str, found.rails))
        first = f"ranks of several hosts, by {used}" if used else f"missing: {found.lack}"
    if config.transport == "tcp":
        first += "; not used, as PYCOLL_TRANSPORT is tcp"
    return [first, *(f"{rails.name(port)}: {rails.describe(port)}" for port in ports)]


def _libfabric(config: Config) -> str:
    """Say by which provider of libfabric ranks of other hosts are reached, or could be."""
    from pycoll.runtime.native import libfabric
    from pycoll.runtime.net import providers

    if config.transport != "libfabric":
        return providers.shown(config.fabric or "")
    try:
        found = libfabric.fabric_find(config.fabric or "")
    except PycollError as error:
        return f"missing: {error}"
    library = f"libfabric {found.library_version}, {found.library}"
    return f"ranks of several hosts, by {found.name} {found.version} ({library})"


def _to_hosts(config: Config, number: int, bus: str) -> str:
    """Say how a GPU's data goes to ranks of other hosts, as far as it can be tried here."""
    from pycoll.runtime.host.locality import Locality
    from pycoll.runtime.native.gpu_probe import gpu_probe
    from pycoll.runtime.net import rails
    from pycoll.topology.distance import between, card

    staged = "data for other hosts is staged in the host's memory"
    try:
        found = rails.find(config.rails, Locality.mine().memory, bus)
        if config.gpu_rdma == "off" or config.transport == "tcp" or not found.rails:
            off = f"PYCOLL_GPU_RDMA is {config.gpu_rdma}, PYCOLL_TRANSPORT {config.transport}"
            return f"{staged}: {off if found.rails else found.lack}"
        device = found.rails[0].device
        tried = gpu_probe(number, device)
    except PycollError as error:
        return f"{staged}: {error}"
    ways = {"dmabuf": ("dma-buf", tried.dmabuf), "peermem": ("nvidia_peermem", tried.peermem)}
    if config.gpu_rdma != "auto":
        ways = {config.gpu_rdma: ways[config.gpu_rdma]}
    if name := next((name for name, lack in ways.values() if not lack), ""):
        where = between(bus, card(device)).text
        return f"data for other hosts by {device} at {where}: {name}, flush: {tried.flush}"
    return f"{staged}: {'; '.join(lack for _, lack in ways.values())}"


def _gpus(config: Config) -> Iterator[tuple[str, str]]:
    """Say which GPUs there are, and what runs kernels on them, or why nothing does."""
    from pycoll.runtime.cuda import compile
    from pycoll.runtime.native import cuda as bindings_cuda

    if lack := bindings_cuda.missing():
        yield "driver", f"missing: {lack}"
    for number in range(bindings_cuda.devices()):
        device = bindings_cuda.device(number)
        if number == 0:
            yield "driver", f"for CUDA {device.driver // 1000}.{device.driver % 1000 // 10}"
        yield (
            f"cuda:{number}",
            f"{device.name} at {device.bus}, {device.nbytes / (1 << 30):.4g} GiB, "
            f"{device.multiprocessors} multiprocessors, compute capability "
            f"{device.major}.{device.minor}, GPUDirect RDMA: {'yes' if device.rdma else 'no'}, "
            f"NVLink SHARP: {'no' if bindings_cuda.multicast(number) else 'yes'}",
        )
        yield "", _to_hosts(config, number, device.bus)
    if lack := compile.missing():
        yield "compiler", f"missing: {lack}"
    else:
        major, minor = compile.version()
        yield "compiler", f"NVRTC {major}.{minor}"
    yield "arrays", "cupy, torch, the CUDA array interface, DLPack"


def _devices() -> Iterator[str]:
    """Say what pyverbs tells of each RDMA device and its ports."""
    from pycoll.interop.pyverbs import devices

    try:
        found = devices()
    except UnavailableError as error:
        yield f"missing: {error}"
        return
    for device in found:
        yield (
            f"{device.name}: firmware {device.firmware}, vendor {device.vendor:#x}, part "
            f"{device.part}, {device.vectors} completion vectors"
        )
        yield (
            f"  at most {device.max_queue_pairs} queue pairs of {device.max_requests} requests and "
            f"{device.max_reads} reads, {device.max_regions} regions of {device.max_region} bytes, "
            f"{device.max_completions} completions"
        )
        paging = "with" if device.on_demand else "without"
        yield f"  atomics: {device.atomics}; {paging} on-demand paging"
        for port in device.ports:
            gids = ", ".join(f"{gid.number} {gid.address} ({gid.kind})" for gid in port.gids)
            yield (
                f"  port {port.number}: {port.state}, {port.layer}, MTU {port.mtu} of "
                f"{port.max_mtu}, messages of {port.max_message} bytes, GIDs {gids or 'none'}"
            )
    if not found:
        yield "none"


def run(options: argparse.Namespace) -> int:
    """Print everything; needs neither the engine nor a second rank."""
    native, machine = _native(), metadata.machine()
    commit = metadata.commit()
    lines = [
        ("pycoll", pycoll.__version__ + (f" (commit {commit})" if commit else "")),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"),
    ]
    if native.missing:
        lines.append(("engine", f"missing: {native.missing}"))
    else:
        lines += [
            ("engine", f"version {native.version}, built by {native.compiler}"),
            ("CPU features", native.features),
        ]
    for title, text in lines:
        print(f"{title + ':':<14}{text}")
    config = Config.load()
    print("transports:")
    shm, tcp = "ranks of one host, by memfd", _between_hosts(config)
    if native.missing:
        shm = tcp = "missing: it is part of the engine"
    verbs = [tcp] if native.missing else _rdma(config)
    fabric = tcp if native.missing else _libfabric(config)
    transports = [("shm", shm), ("verbs", verbs[0]), *(("", port) for port in verbs[1:])]
    transports.append(("libfabric", fabric))
    for title, text in [*transports, ("tcp", tcp)]:
        print(f"  {title:<16}{text}")
    print("GPUs:")
    gpus = [("driver", "missing: it is part of the engine")] if native.missing else _gpus(config)
    for title, text in gpus:
        print(f"  {title:<16}{text}")
    if options.verbose:
        print("RDMA devices:")
        print("\n".join(f"  {line}" for line in _devices()))
    print("algorithms:")
    for collective in COLLECTIVES:
        print(f"  {collective:<16}{', '.join(names(collective))}")
    print("settings:")
    rows = config.rows()
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for variable, value, origin, why in rows:
        columns = zip((variable, value, origin), widths, strict=True)
        print(f"  {'  '.join(text.ljust(width) for text, width in columns)}  {why}")
    return 0
