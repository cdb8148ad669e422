"""Between pycoll and an RDMA card: the engine, the kernel's driver, libibverbs, device files."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from pycoll.doctor.finding import Finding, bad, ok, problem, unknown
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import devices
from pycoll.sysfs import PCI

VERBS = "sys/class/infiniband_verbs"

#: The driver of a network card → the module that makes an RDMA device of it. Of the others not
#: every card can do RDMA, so nothing is said of them.
_PARTS = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "bnxt_en": "bnxt_re", "ice": "irdma"}
_MELLANOX = "0x15b3"

_BUILD = "apt-get install gcc python3-dev, then pip install --force-reinstall --no-deps ."
_INSTALL = "apt-get install libibverbs1 ibverbs-providers (dnf install libibverbs)"
#: Error of opening a device file → what it means, and the cure.
_CLOSED = {
    "ENOENT": (
        "it is not there, as in a container that was not given it",
        "docker run --device=/dev/infiniband; outside a container: udevadm trigger",
    ),
    "EPERM": (
        "the device cgroup of this container or job keeps it closed",
        "docker run --device=/dev/infiniband (Slurm: ConstrainDevices in cgroup.conf)",
    ),
    "EACCES": (
        "its mode does not let this user",
        """echo 'KERNEL=="uverbs*", MODE="0666"' > /etc/udev/rules.d/90-rdma.rules, then """
        "udevadm trigger",
    ),
}


def engine(machine: Machine) -> Iterator[Finding]:
    """Say whether pycoll's own engine is built."""
    if machine.engine:
        yield problem(
            "pycoll",
            "nothing can run: its native engine is not there",
            got=machine.engine,
            wanted="pycoll built with a C compiler",
            cure=_BUILD,
        )
    else:
        yield ok("pycoll", "its native engine is there")


def driver(machine: Machine) -> Iterator[Finding]:
    """Find cards that could do RDMA and are no RDMA device to the kernel."""
    idle = []
    for address, function in machine.functions.items():
        folder = f"{PCI}/{address}"
        own = (machine.sysfs.target(f"{folder}/driver") or ("",))[-1]
        virtual = (machine.root / folder / "physfn").exists()
        if function.what != "network" or virtual or machine.sysfs.names(f"{folder}/infiniband"):
            continue
        if own in _PARTS:
            idle.append((address, f"{own} without RDMA", f"modprobe {_PARTS[own]}"))
        elif function.vendor == _MELLANOX and not own:
            idle.append((address, "no driver", "modprobe mlx5_core && modprobe mlx5_ib"))
    for address, got, cure in idle:
        severe = not machine.ports and machine.functions[address].vendor == _MELLANOX
        yield bad(
            severe, address, "is a card that may do RDMA, and the kernel's driver for that is not "
            "loaded", got=got, wanted="a device in /sys/class/infiniband", cure=cure,
        )  # fmt: skip
    if machine.ports:
        yield ok("this machine", f"RDMA devices: {', '.join(_devices(machine))}")
    elif not idle:
        others = ", ".join(devices(machine.sysfs)[1])
        if others:
            yield ok("this machine", f"RDMA devices {others}, neither InfiniBand nor RoCE")
        else:
            yield ok("this machine", "no RDMA device: other hosts are reached over TCP")


def library(machine: Machine) -> Iterator[Finding]:
    """Say whether libibverbs is there, and knows every device that the kernel has."""
    mine = _devices(machine)
    if not mine:
        return
    if machine.missing:
        got, _, cure = machine.missing.rpartition(": ")  # which ends with what mends it
        yield problem(
            "libibverbs",
            "pycoll cannot use the RDMA devices of this machine",
            got=got or machine.missing,
            wanted="RDMA verbs",
            cure=cure if got else _INSTALL,
        )
        return
    if machine.attributes is None:
        yield unknown("libibverbs", "pycoll's engine is not there to ask it", cure="ibv_devinfo")
        return
    listed = {attributes.device for attributes in machine.attributes}
    lost = [device for device in mine if device not in listed]
    for device in lost:
        yield problem(
            device,
            "the kernel has this device and libibverbs does not: its provider is missing",
            got=f"libibverbs lists {', '.join(sorted(listed)) or 'nothing'}",
            wanted=device,
            cure=_INSTALL,
        )
    if not lost:
        yield ok("libibverbs", f"lists {', '.join(mine)}")


def access(machine: Machine) -> Iterator[Finding]:
    """Open the device file of every RDMA device, as each rank will."""
    files = {
        machine.sysfs.text(f"{VERBS}/{name}/ibdev"): name
        for name in machine.sysfs.names(VERBS)
        if name.startswith("uverbs")
    }
    opened = []
    for device in _devices(machine):
        if device not in files:
            yield problem(
                device,
                "programs have no way to it: the module ib_uverbs is not loaded",
                got="no device file",
                wanted="/dev/infiniband/uverbs*",
                cure="modprobe ib_uverbs",
            )
            continue
        path = machine.root / "dev/infiniband" / files[device]
        where = f"/dev/infiniband/{files[device]}"
        error = machine.opens(path)
        if not error:
            opened.append(where)
            continue
        what, cure = _CLOSED.get(error, ("its driver refuses", "dmesg | grep -i rdma"))
        got = f"{error}, {_mode(machine, files[device])}" if error == "EACCES" else error
        yield problem(
            where,
            f"the device file of {device} cannot be opened: {what}",
            got=got,
            wanted="opens for reading and writing",
            cure=cure,
        )
    if opened:
        yield ok("/dev/infiniband", f"{', '.join(opened)} can be opened")


def _devices(machine: Machine) -> list[str]:
    return list(dict.fromkeys(port.device for port in machine.ports))


def _mode(machine: Machine, name: str) -> str:
    try:
        found = (machine.root / "dev/infiniband" / name).stat()
    except OSError:
        return "mode unknown"
    return f"{stat.filemode(found.st_mode)} of user {found.st_uid}, group {found.st_gid}"
