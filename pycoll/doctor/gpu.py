"""GPUs and RDMA cards: what a card may read a GPU's memory by, and how far it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.gpudirect import NVIDIA
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port
from pycoll.sysfs import NUMA
from pycoll.topology import Pci
from pycoll.topology.distance import Distance, between

#: First kernel whose RDMA drivers take memory of a GPU by dma-buf.
_DMABUF = (5, 12)


def memory(machine: Machine) -> Iterator[Finding]:
    """Say what kernel and driver have for RDMA to GPUs' memory; whether it works is tried apart."""
    nvidia = [gpu for gpu in machine.gpus if gpu.vendor == NVIDIA]
    if not machine.gpus or not machine.cards:
        return
    if not nvidia:
        yield _by_kernel(machine, "GPU memory")
    elif loaded := machine.module("nvidia_peermem", "nv_peer_mem"):
        yield ok("NVIDIA GPUs", f"{loaded} is loaded")
    elif not machine.module("nvidia"):
        yield warning(
            "NVIDIA GPUs",
            "their driver is not loaded",
            got="no module nvidia",
            wanted="nvidia, and nvidia_peermem or dma-buf",
            cure="modprobe nvidia && modprobe nvidia-peermem",
        )
    elif "Open Kernel Module" in (machine.sysfs.text("proc/driver/nvidia/version") or ""):
        yield _by_kernel(machine, "NVIDIA GPUs")
    else:
        yield warning(
            "NVIDIA GPUs",
            "RDMA cannot read their memory, so it is copied through the host's",
            got="no nvidia_peermem, and a driver that has no dma-buf",
            wanted="nvidia_peermem, or NVIDIA's open kernel module",
            cure="modprobe nvidia-peermem; for every boot: echo nvidia-peermem > "
            "/etc/modules-load.d/nvidia-peermem.conf",
        )


def _by_kernel(machine: Machine, where: str) -> Finding:
    version = machine.kernel()
    if version is None:
        return unknown(where, "the kernel's version cannot be read", cure="uname -r")
    if version < _DMABUF:
        return warning(
            where,
            "RDMA cannot read it: this kernel has no dma-buf for RDMA",
            got=f"Linux {version[0]}.{version[1]}",
            wanted=f"Linux {_DMABUF[0]}.{_DMABUF[1]}",
            cure="a newer kernel; with NVIDIA's driver: modprobe nvidia-peermem",
        )
    return ok(where, f"Linux {version[0]}.{version[1]} and the driver know dma-buf for RDMA")


def distance(machine: Machine) -> Iterator[Finding]:
    """Say how far each GPU is from the nearest rail, and the process from its rails."""
    cards = {port.pci: port for port in machine.rails if port.pci in machine.functions}
    rails = list(cards.values())
    if not rails:
        return
    for gpu in machine.gpus:
        yield _gpu(machine, gpu, rails)
    yield from _process(machine, rails)


def _gpu(machine: Machine, gpu: Pci, rails: list[Port]) -> Finding:
    where = f"{gpu.name} (GPU)"
    steps = {port.device: between(gpu.name, port.pci or "", machine.sysfs) for port in rails}
    known = {device: far for device, far in steps.items() if far is not Distance.UNKNOWN}
    if not known:
        return unknown(
            where,
            "the firmware does not say which socket it hangs on",
            cure=f"lspci -tv; cat /sys/bus/pci/devices/{gpu.name}/numa_node",
        )
    nearest, far = min(known.items(), key=lambda row: row[1])
    if far is Distance.ACROSS:
        return warning(
            where,
            "its data crosses the link between the sockets on the way to every rail",
            got=f"{nearest}: {far.text}",
            wanted=f"a rail at {Distance.SOCKET.text}, better at {Distance.SWITCH.text}",
            cure=f"move an RDMA card to a slot of {gpu.socket}, below the switch of this GPU",
        )
    return ok(where, f"nearest rail {nearest}: {far.text}")


def _process(machine: Machine, rails: list[Port]) -> Iterator[Finding]:
    """Find a process that was bound to cores of a socket that has no rail."""
    text = machine.sysfs.text("proc/self/status") or ""
    allowed = re.search(r"^Cpus_allowed_list:\s+([\d,-]+)$", text, re.M)
    sockets = {machine.functions[port.pci or ""].socket for port in rails}
    if allowed is None or None in sockets:
        return
    mine = _sockets(machine, allowed[1])
    if mine and not mine & sockets:
        node = next(iter(sorted(filter(None, sockets)))).removeprefix("socket")
        yield warning(
            "this process",
            "runs on a socket that has no RDMA card: all data crosses the link between sockets",
            got=f"cores {allowed[1]} of {', '.join(sorted(mine))}",
            wanted=f"cores of {', '.join(sorted(filter(None, sockets)))}",
            cure=f"numactl --cpunodebind={node} --membind={node}, or the launcher's binding",
        )
    elif mine:
        yield ok("this process", "may run next to an RDMA card")


def _sockets(machine: Machine, cpus: str) -> set[str]:
    found = set()
    for near in machine.node.sockets:
        ids = machine.sysfs.ids(f"{NUMA}/node{near.name.removeprefix('socket')}/cpulist")
        if ids and ids & _numbers(cpus):
            found.add(near.name)
    return found


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(first + last) < 12:
            found.update(range(int(first), min(int(last or first), int(first) + (1 << 16)) + 1))
    return found
