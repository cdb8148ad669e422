"""The engine registers a page of a GPU's memory, over both stand-ins, for who asks."""

from __future__ import annotations

import pytest

from pycoll.cli import doctor
from pycoll.doctor import Registration
from pycoll.errors import TransportError, UnavailableError
from pycoll.runtime.native.gpu_probe import Tried, gpu_probe

#: Whether the kernel has the module is the machine's affair.
UNLOADED = "nvidia_peermem is not loaded: modprobe nvidia_peermem"


def regions() -> int:
    import stand_in

    assert stand_in.network is not None
    return stand_in.network.objects()["mrs"]


@pytest.mark.stand_in
@pytest.mark.fake_cuda(devices=2)
def test_by_dmabuf() -> None:
    for device in range(2):
        for card in ("fake0", "fake1"):
            assert gpu_probe(device, card) == Tried("", UNLOADED, "none")
    assert regions() == 0


@pytest.mark.stand_in
@pytest.mark.fake_cuda(capability=80, flush=1)
def test_the_driver_flushes() -> None:
    assert gpu_probe(0, "fake0").flush == "by the driver"


@pytest.mark.stand_in
@pytest.mark.fake_cuda(capability=80, flush=0)
def test_a_read_flushes() -> None:
    assert gpu_probe(0, "fake0").flush == "by an RDMA READ"


@pytest.mark.stand_in
@pytest.mark.fake_cuda(dmabuf=0)
def test_a_driver_that_exports_nothing() -> None:
    said = gpu_probe(0, "fake0").dmabuf
    assert said.startswith("the GPU's driver exports no dma-buf: install NVIDIA's open kernel")


@pytest.mark.stand_in(dmabuf=0)
@pytest.mark.fake_cuda
def test_a_card_that_takes_no_dmabuf() -> None:
    said = gpu_probe(0, "fake0").dmabuf
    assert said.startswith("ibv_reg_dmabuf_mr: Operation not supported: the card's driver takes no")


@pytest.mark.stand_in(fail="reg_dmabuf_mr:1")
@pytest.mark.fake_cuda
def test_a_registration_that_fails() -> None:
    assert gpu_probe(0, "fake0").dmabuf.startswith("ibv_reg_dmabuf_mr: Cannot allocate memory: ")


@pytest.mark.stand_in
@pytest.mark.fake_cuda
def test_what_cannot_be_tried() -> None:
    with pytest.raises(TransportError, match=r"no_such cannot be opened beside GPU 0: No such dev"):
        gpu_probe(0, "no_such")
    with pytest.raises(TransportError, match=r"GPU 3: there are 1"):
        gpu_probe(3, "fake0")


@pytest.mark.stand_in
@pytest.mark.fake_cuda(devices=2)
def test_the_doctor_finds_the_gpu_by_its_address() -> None:
    assert doctor._registers("0000:11:00.0", "fake1") == Registration("", UNLOADED, "none")
    with pytest.raises(UnavailableError, match=r"shows this process 2 GPUs, not this one: look at"):
        doctor._registers("0000:12:00.0", "fake0")
