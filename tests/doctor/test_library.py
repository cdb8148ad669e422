"""From the card to the program: the kernel's driver, libibverbs, the device file."""

from __future__ import annotations

import pytest

from pycoll.doctor import Attributes

ALONE = "sys/bus/pci/devices/0000:01:00.0"


def unload(patient) -> None:
    patient.remove("sys/class/infiniband", "sys/cards/0/infiniband", "sys/cards/1/infiniband")


def test_the_module_of_rdma_is_not_loaded(healthy):
    unload(healthy)
    found = healthy.examine("driver")
    assert [(f.level, f.where, f.cure) for f in found] == [
        ("problem", "0000:84:00.0", "modprobe mlx5_ib"),
        ("problem", "0000:85:00.0", "modprobe mlx5_ib"),
    ]
    assert found[0].got == "mlx5_core without RDMA"


def test_one_card_of_two_is_no_rdma_device(healthy):
    healthy.remove("sys/class/infiniband/mlx5_1", "sys/cards/1/infiniband")
    assert healthy.ill("driver", "warning").where == "0000:85:00.0"


def test_a_card_without_a_driver(healthy):
    healthy.remove("sys/cards/1/driver", "sys/cards/1/infiniband", "sys/class/infiniband/mlx5_1")
    found = healthy.ill("driver", "warning")
    assert (found.got, found.cure) == ("no driver", "modprobe mlx5_core && modprobe mlx5_ib")


def test_another_vendors_module(healthy):
    healthy.remove(f"{ALONE}/driver")
    (healthy.root / "sys/bus/pci/drivers/ice").mkdir()
    healthy.link(f"{ALONE}/driver", "sys/bus/pci/drivers/ice")
    unload(healthy)
    first = healthy.examine("driver")[0]
    assert (first.level, first.cure) == ("warning", "modprobe irdma")


def test_a_virtual_function_is_left_alone(healthy):
    healthy.remove("sys/cards/1/driver", "sys/cards/1/infiniband", "sys/class/infiniband/mlx5_1")
    healthy.link("sys/cards/1/physfn", "sys/cards/0")
    assert healthy.examine("driver") == []


def test_other_kinds_of_devices_are_named(healthy):
    healthy.write("4: RNIC", "sys/class/infiniband/mlx5_0/node_type")
    healthy.write("4: RNIC", "sys/class/infiniband/mlx5_1/node_type")
    assert "mlx5_0, mlx5_1, neither InfiniBand nor RoCE" in healthy.all("driver")[0].what


def others(healthy) -> None:
    healthy.write("4: RNIC", "sys/class/infiniband/mlx5_0/node_type")
    healthy.write("4: RNIC", "sys/class/infiniband/mlx5_1/node_type")


def test_devices_that_want_libfabric_and_have_it(healthy):
    assert healthy.all("libfabric") == []
    others(healthy)
    [found] = healthy.all("libfabric", provider="efa 1.22 of libfabric 1.22 (/opt/x)")
    assert (found.level, found.where) == ("ok", "libfabric")
    assert found.what == "other hosts are reached by efa 1.22 of libfabric 1.22 (/opt/x)"
    assert healthy.all("libfabric")[0].level == "not known"


def test_devices_that_want_libfabric_and_lack_it(healthy):
    others(healthy)
    found = healthy.ill("libfabric", "warning", provider="missing: it is not there: apt-get it")
    assert (found.where, found.got) == ("mlx5_0, mlx5_1", "it is not there")
    assert found.cure == "apt-get it"


def test_a_slingshot_card_wants_libfabric(healthy):
    unload(healthy)
    healthy.write("0", "sys/class/cxi/cxi0/device/numa_node")
    assert healthy.ill("libfabric", "warning", provider="missing: no provider: x").where == "cxi0"


def test_no_library(healthy):
    found = healthy.ill("library", "problem", missing="no libibverbs.so.1", attributes=())
    assert found.got == "no libibverbs.so.1"
    assert "apt-get install libibverbs1 ibverbs-providers" in found.cure


def test_the_engine_says_what_is_missing_and_what_mends_it(healthy):
    text = "this process may lock 64 KiB: of memory: ulimit -l unlimited"
    found = healthy.ill("library", "problem", missing=text, attributes=())
    assert found.got == "this process may lock 64 KiB: of memory"
    assert found.cure == "ulimit -l unlimited"


def test_no_provider_of_one_device(healthy):
    found = healthy.ill("library", "problem", attributes=(Attributes("mlx5_0", 1, 4096, 4096),))
    assert (found.where, found.got) == ("mlx5_1", "libibverbs lists mlx5_0")
    assert "ibverbs-providers" in found.cure


def test_no_engine_to_ask(healthy):
    assert healthy.ill("library", "not known", attributes=None).cure == "ibv_devinfo"


def test_no_device_file_in_the_kernel(healthy):
    healthy.remove("sys/class/infiniband_verbs/uverbs1")
    found = healthy.ill("access", "problem")
    assert (found.where, found.cure) == ("mlx5_1", "modprobe ib_uverbs")


def test_no_device_file_here(healthy):
    healthy.remove("dev/infiniband/uverbs1")
    found = healthy.ill("access", "problem")
    assert (found.where, found.got) == ("/dev/infiniband/uverbs1", "ENOENT")
    assert "docker run --device=/dev/infiniband" in found.cure


@pytest.mark.parametrize(
    ("error", "got", "cure"),
    [
        ("EACCES", "EACCES, -rw------- of user ", "/etc/udev/rules.d/90-rdma.rules"),
        ("EPERM", "EPERM", "ConstrainDevices in cgroup.conf"),
        ("EIO", "EIO", "dmesg"),
    ],
)
def test_a_device_file_that_cannot_be_opened(healthy, error, got, cure):
    (healthy.root / "dev/infiniband/uverbs1").chmod(0o600)
    found = healthy.ill(
        "access", "problem", opens=lambda path: error if path.name == "uverbs1" else ""
    )
    assert found.where == "/dev/infiniband/uverbs1"
    assert found.got.startswith(got)
    assert cure in found.cure


def test_no_engine(healthy):
    found = healthy.ill("engine", "problem", engine="no C compiler was found")
    assert found.got == "no C compiler was found"
    assert found.cure.startswith("apt-get install gcc python3-dev")
