"""A made-up machine on which all is well, and ways to make it ill."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from pycoll.doctor import CHECKS, Attributes, Finding, Level, Machine, Registration, examine

MACHINES = Path(__file__).parents[1] / "data" / "machines"
BRIDGES = ("0000:80:01.0", "0000:81:00.0", "0000:82:00.0", "0000:82:01.0", "0000:82:02.0")


def config(*capabilities: tuple[int, bytes]) -> bytes:
    """A PCI function's configuration with these extended capabilities, by number."""
    space, at = bytearray(4096), 0x100
    for i, (number, body) in enumerate(capabilities):
        after = at + 0x40 if i + 1 < len(capabilities) else 0
        space[at : at + 4] = (number | 1 << 16 | after << 20).to_bytes(4, "little")
        space[at + 4 : at + 4 + len(body)] = body
        at = after
    return bytes(space)


def acs(control: int) -> tuple[int, bytes]:
    """The capability ACS: what the bridge can do, and what it does."""
    return 0x000D, (0x5F).to_bytes(2, "little") + control.to_bytes(2, "little")


class Patient:
    """A machine whose files can be changed; each check reads them anew."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(
            root,
            attributes=tuple(Attributes(f"mlx5_{i}", 1, 4096, 4096) for i in range(2)),
            lossless=lambda interface: 1 << 3,
            registers=lambda gpu, device: Registration("", "", "none"),
        )

    def write(self, text: str, *paths: str) -> None:
        """Give files a text."""
        for path in paths:
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    def edit(self, path: str, old: str, new: str) -> None:
        """Change a file's text."""
        file = self.root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def remove(self, *paths: str) -> None:
        """Take files, links or whole folders away."""
        for path in paths:
            found = self.root / path
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink()

    def link(self, path: str, target: str) -> None:
        """Make a link to something below the root."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)

    def port(self, number: int) -> str:
        """The folder of a rail's port."""
        return f"sys/class/infiniband/mlx5_{number}/ports/1"

    def infiniband(self) -> None:
        """Make the rails InfiniBand of 200 Gb/s."""
        for i in range(2):
            self.write("InfiniBand", f"{self.port(i)}/link_layer")

    def examine(self, check: str = "", **more: object) -> list[Finding]:
        """Return what the checks find but that all is well."""
        return [f for f in self.all(check, **more) if f.level is not Level.OK]

    def all(self, check: str = "", **more: object) -> list[Finding]:
        """Return what the checks find."""
        machine = replace(self.machine, **more)  # without what was read before
        return list(examine(machine, [c for c in CHECKS if check in ("", c.name)]))

    def ill(self, check: str, level: str, **more: object) -> Finding:
        """Return the only thing that a check finds, which is so bad."""
        found = self.examine(check, **more)
        assert [finding.level for finding in found] == [level]
        return found[0]


def healthy(root: Path) -> Patient:
    """Make the machine in tests/data/machines/healthy.txt."""
    patient = Patient(root)
    for line in (MACHINES / "healthy.txt").read_text().splitlines():
        for i in range(2 if line.startswith("@ ") else 1):
            build(patient, line.removeprefix("@ "), i if line.startswith("@ ") else None)
    for bridge in BRIDGES:
        folder = patient.root / "sys/bus/pci/devices" / bridge
        (folder / "config").write_bytes(config((0x0001, b""), acs(0x0001)))
    return patient


def build(patient: Patient, line: str, number: int | None) -> None:
    """Make the file, link or folder that a line names."""
    if number is not None:
        for sign, text in (("@", number), ("+", number + 1), ("%", number + 4)):
            line = line.replace(sign, str(text))
    path, is_file, text = line.partition(" =")
    source, is_link, target = line.partition(" -> ")
    if line.startswith("#") or not line:
        return
    if is_file:
        patient.write(text.removeprefix(" ").replace("\\n", "\n"), path)
    elif is_link:
        (patient.root / target).mkdir(parents=True, exist_ok=True)
        patient.link(source, target)
    else:
        (patient.root / line).mkdir(parents=True, exist_ok=True)
