"""pyverbs, as far as a machine without RDMA can show it; tests/rdma does the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pycoll.errors import UnavailableError
from pycoll.interop import pyverbs
from pycoll.sysfs import RDMA, Sysfs


def test_what_is_missing_comes_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    monkeypatch.setattr(pyverbs, "_DEBIAN", Path("/nowhere"))
    assert "pyverbs cannot be imported" in pyverbs.missing()
    with pytest.raises(UnavailableError, match=r"pyverbs cannot be imported .*install"):
        pyverbs.devices()


def test_nothing_is_missing_where_it_can_be_imported(monkeypatch):
    device, errors = SimpleNamespace(), SimpleNamespace()
    parent = SimpleNamespace(device=device, pyverbs_error=errors, __path__=[])
    for name, module in (
        ("pyverbs", parent),
        ("pyverbs.device", device),
        ("pyverbs.pyverbs_error", errors),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    assert pyverbs.missing() == ""


def test_the_systems_pyverbs_serves_another_python_of_its_version(tmp_path):
    (tmp_path / "device.cpython-311-x86_64-linux-gnu.so").touch()
    assert f"ln -s {tmp_path} ~/pyverbs/" in pyverbs._cure(tmp_path, (3, 11))
    assert "apt-get install python3-pyverbs" in pyverbs._cure(tmp_path, (3, 12))
    assert "apt-get install python3-pyverbs" in pyverbs._cure(Path("/nowhere"), (3, 11))


class Failed(Exception):
    """What pyverbs raises."""


class Context:
    """A device as pyverbs gives it."""

    def __init__(self, name: str) -> None:
        if name == "broken":
            raise Failed("Failed to open device")
        self.name, self.num_comp_vectors, self.closed = name, 2, False

    def close(self) -> None:
        self.closed = True

    def query_device(self) -> SimpleNamespace:
        return SimpleNamespace(
            fw_version=b"1.2",
            vendor_id=1,
            vendor_part_id=2,
            max_qp=3,
            max_qp_wr=4,
            max_mr=5,
            max_mr_size=6,
            max_qp_rd_atom=7,
            max_cqe=8,
            atomic_caps=1,
            phys_port_cnt=1,
        )

    def query_device_ex(self) -> SimpleNamespace:
        return SimpleNamespace(odp_caps=SimpleNamespace(general_caps=1))

    def query_port(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(state=4, link_layer=2, active_mtu=3, max_mtu=5, max_msg_sz=9)

    def query_gid_table(self, most: int) -> list[SimpleNamespace]:
        texts = [
            "fe80:0000:0000:0000:0000:00ff:fe00:0001",
            "0000:0000:0000:0000:0000:ffff:0a00:0001",
        ]
        return [
            SimpleNamespace(gid_index=i, gid_type=2, port_num=1, gid_str=lambda text=text: text)
            for i, text in enumerate(texts)
        ]


def library(*names: str) -> tuple[SimpleNamespace, SimpleNamespace]:
    """The two modules that are imported."""
    listed = [SimpleNamespace(name=name.encode()) for name in names]
    device = SimpleNamespace(get_device_list=lambda: listed, Context=Context)
    return device, SimpleNamespace(PyverbsError=Failed)


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """A kernel that has RDMA devices."""
    (tmp_path / RDMA / "rxe0").mkdir(parents=True)
    monkeypatch.setattr(pyverbs, "HOST", Sysfs(tmp_path))


def test_a_device_and_its_port(monkeypatch, seen):
    monkeypatch.setattr(pyverbs, "_import", lambda: library("rxe0"))
    (device,) = pyverbs.devices()
    assert device[:5] == ("rxe0", "1.2", 1, 2, 3)
    assert (device.atomics, device.on_demand) == ("within the device", True)
    (port,) = device.ports
    assert port[:6] == (1, "active", "Ethernet", 1024, 4096, 9)
    assert [tuple(gid) for gid in port.gids] == [
        (0, "fe80::ff:fe00:1", "RoCE v2"),
        (1, "10.0.0.1", "RoCE v2"),
    ]


def test_a_device_that_cannot_be_opened(monkeypatch, seen):
    monkeypatch.setattr(pyverbs, "_import", lambda: library("broken"))
    with pytest.raises(UnavailableError, match="pyverbs: Failed to open device; pycoll doctor"):
        pyverbs.devices()


def test_no_device_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(pyverbs, "_import", lambda: library())
    monkeypatch.setattr(pyverbs, "HOST", Sysfs(tmp_path))
    assert pyverbs.devices() == ()
