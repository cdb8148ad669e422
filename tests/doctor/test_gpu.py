"""GPUs: whether RDMA can read their memory, and how far the rails are."""

from __future__ import annotations

GPU = "sys/bus/pci/devices/0000:83:00.0"
FAR = "sys/devices/pci0000:00/0000:00:03.0/0000:02:00.0"


def move(patient, number: int, folder: str, numa: str) -> None:
    """Put a card into another slot."""
    link = patient.root / f"sys/cards/{number}"
    new = patient.root / folder
    new.parent.mkdir(parents=True, exist_ok=True)
    patient.write("0x060400", f"{folder}/../class")
    address = new.parent.name
    patient.link(f"sys/bus/pci/devices/{address}", str(new.parent.relative_to(patient.root)))
    link.resolve().rename(new)
    link.unlink()
    link.symlink_to(new)
    patient.remove(f"sys/bus/pci/devices/0000:8{number + 4}:00.0")
    patient.link(f"sys/bus/pci/devices/{new.name}", folder)
    patient.write(numa, f"{folder}/numa_node")


def test_no_way_to_the_memory(healthy):
    healthy.remove("sys/module/nvidia_peermem")
    found = healthy.ill("memory", "warning")
    assert found.got == "no nvidia_peermem, and a driver that has no dma-buf"
    assert found.cure.startswith("modprobe nvidia-peermem")


def test_either_module_will_do(healthy):
    healthy.remove("sys/module/nvidia_peermem")
    (healthy.root / "sys/module/nv_peer_mem").mkdir()
    assert healthy.examine("memory") == []


def test_dmabuf_will_do(healthy):
    healthy.remove("sys/module/nvidia_peermem")
    healthy.write("NVRM version: NVIDIA UNIX Open Kernel Module", "proc/driver/nvidia/version")
    assert healthy.examine("memory") == []
    healthy.write("5.4.0-100", "proc/sys/kernel/osrelease")
    found = healthy.ill("memory", "warning")
    assert (found.got, found.wanted) == ("Linux 5.4", "Linux 5.12")
    healthy.remove("proc/sys/kernel/osrelease")
    healthy.ill("memory", "not known")


def test_no_driver_of_the_gpu(healthy):
    healthy.remove("sys/module/nvidia_peermem", "sys/module/nvidia")
    assert healthy.ill("memory", "warning").got == "no module nvidia"


def test_other_vendors_have_dmabuf(healthy):
    healthy.remove("sys/module/nvidia_peermem", "sys/module/nvidia")
    healthy.write("0x1002", f"{GPU}/vendor")
    healthy.write("0x120000", f"{GPU}/class")
    assert healthy.all("memory")[0].what == "Linux 6.1 and the driver know dma-buf for RDMA"
    healthy.write("0x030000", f"{GPU}/class")  # the graphics of a CPU
    assert healthy.all("memory") == []


def test_all_rails_are_at_the_other_socket(healthy):
    move(healthy, 0, FAR, "0")
    move(healthy, 1, FAR.replace("03.0", "04.0").replace("02:00", "03:00"), "0")
    found = healthy.ill("distance", "warning")
    assert (found.where, found.got) == ("0000:83:00.0 (GPU)", "mlx5_0: another socket")
    assert found.cure.startswith("move an RDMA card to a slot of socket1")


def test_the_nearest_rail_counts(healthy):
    move(healthy, 0, FAR, "0")
    found = healthy.all("distance")
    assert found[0].what == "nearest rail mlx5_1: the same PCI switch"
    assert [f.level for f in found] == ["ok", "ok"]


def test_distances_within_a_socket(healthy):
    healthy.remove("sys/class/infiniband/mlx5_1")
    move(healthy, 0, FAR.replace("pci0000:00", "pci0000:80"), "1")
    assert healthy.all("distance")[0].what == "nearest rail mlx5_0: the same PCI root"


def test_another_root_of_the_same_socket(healthy):
    healthy.remove("sys/class/infiniband/mlx5_1")
    move(healthy, 0, FAR.replace("pci0000:00", "pci0000:c0"), "1")
    assert healthy.all("distance")[0].what == "nearest rail mlx5_0: the same socket"


def test_a_socket_that_the_firmware_does_not_name(healthy):
    healthy.remove("sys/class/infiniband/mlx5_1")
    move(healthy, 0, FAR, "-1")
    assert healthy.ill("distance", "not known").where == "0000:83:00.0 (GPU)"


def test_a_process_on_the_other_socket(healthy):
    healthy.edit("proc/self/status", "0-7", "0,2-3")
    found = healthy.ill("distance", "warning")
    assert (found.got, found.wanted) == ("cores 0,2-3 of socket0", "cores of socket1")
    assert found.cure.startswith("numactl --cpunodebind=1 --membind=1")
