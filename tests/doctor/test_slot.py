"""PCI links of cards."""

from __future__ import annotations

import pytest

CARD, SLOT = "sys/cards/1", "sys/bus/pci/devices/0000:82:02.0"


@pytest.mark.parametrize(
    ("file", "text", "got"),
    [
        ("current_link_width", "8", "x8 at 16 GT/s, 126 Gb/s"),
        ("current_link_speed", "8.0 GT/s PCIe", "x16 at 8 GT/s, 126 Gb/s"),
    ],
)
def test_a_link_that_starves_the_port(healthy, file, text, got):
    healthy.write(text, f"{CARD}/{file}")
    found = healthy.ill("slot", "problem")
    assert found.where == "0000:85:00.0 (mlx5_1)"
    assert (found.got, found.wanted) == (got, "x16 at 16 GT/s")
    assert "its ports send 200 Gb/s" in found.what
    assert "lspci -vv -s 0000:85:00.0" in found.cure


def test_a_link_below_its_best_that_suffices(healthy):
    healthy.write("8", f"{CARD}/current_link_width")
    healthy.write("100 Gb/sec (2X HDR)", f"{healthy.port(1)}/rate")
    found = healthy.ill("slot", "warning")
    assert "ports send" not in found.what


def test_a_slot_that_is_too_narrow(healthy):
    healthy.write("8", f"{CARD}/current_link_width", f"{SLOT}/max_link_width")
    found = healthy.ill("slot", "problem")
    assert (found.got, found.wanted) == ("x8 at 16 GT/s, 126 Gb/s", "x16 at 16 GT/s")
    assert found.cure == "move the card to a slot with x16 at 16 GT/s"
    healthy.write("100 Gb/sec (2X HDR)", f"{healthy.port(1)}/rate")
    assert healthy.examine("slot") == []


def test_a_card_that_is_too_narrow_for_its_ports_cannot_be_helped(healthy):
    healthy.write("8", *(f"{CARD}/{end}_link_width" for end in ("current", "max")))
    assert healthy.examine("slot") == []


def test_both_ports_of_a_card_count(healthy):
    twin = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:02.0/0000:85:00.1"
    healthy.write("0x020000", f"{twin}/class")
    healthy.write("4: ACTIVE", f"{twin}/infiniband/mlx5_2/ports/1/state")
    healthy.write("200 Gb/sec (4X HDR)", f"{twin}/infiniband/mlx5_2/ports/1/rate")
    healthy.link(f"{twin}/infiniband/mlx5_2/device", twin)
    healthy.link("sys/class/infiniband/mlx5_2", f"{twin}/infiniband/mlx5_2")
    healthy.link("sys/bus/pci/devices/0000:85:00.1", twin)
    healthy.write("8", f"{CARD}/current_link_width")
    assert "its ports send 400 Gb/s" in healthy.ill("slot", "problem").what


def test_a_link_that_cannot_be_read(healthy):
    healthy.write("Unknown", f"{CARD}/current_link_speed")
    assert healthy.ill("slot", "not known").where == "0000:85:00.0 (mlx5_1)"
    healthy.link(f"{CARD}/physfn", "sys/cards/0")  # nobody expects it of a virtual function
    assert healthy.examine("slot") == []


def test_a_gpu_with_fewer_lanes(healthy):
    healthy.write("8", "sys/bus/pci/devices/0000:83:00.0/current_link_width")
    found = healthy.ill("slot", "warning")
    assert (found.where, found.got, found.wanted) == ("0000:83:00.0 (GPU)", "x8", "x16")
    healthy.write("8", "sys/bus/pci/devices/0000:82:00.0/max_link_width")  # the slot has no more
    assert healthy.examine("slot") == []


def test_a_gpu_that_does_not_say(healthy):
    healthy.write("255", "sys/bus/pci/devices/0000:83:00.0/current_link_width")
    assert healthy.ill("slot", "not known").where == "0000:83:00.0 (GPU)"
