"""What a rail carries to itself, against what its link is said to carry."""

from __future__ import annotations

import pytest

from pycoll.doctor import bandwidth
from pycoll.errors import TransportError


@pytest.mark.parametrize(("gigabits", "level"), [(199, "ok"), (161, "ok"), (159, "warning")])
def test_a_rail_against_its_line_rate(healthy, gigabits, level):
    found = list(bandwidth(healthy.machine, lambda port: gigabits * 1e9 / 8))
    assert [f.level for f in found] == [level, level]
    if level == "warning":
        assert (found[0].got, found[0].wanted) == ("159 Gb/s", "at least 160 of 200 Gb/s")


def test_software_has_no_line_rate(healthy):
    healthy.write("4: ACTIVE", "sys/devices/virtual/infiniband/rxe0/ports/1/state")
    healthy.write("10 Gb/sec (1X FDR10)", "sys/devices/virtual/infiniband/rxe0/ports/1/rate")
    healthy.link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0")
    healthy.remove("sys/class/infiniband/mlx5_0", "sys/class/infiniband/mlx5_1")
    (found,) = bandwidth(healthy.machine, lambda port: 1e6)
    assert found.what == "0.008 Gb/s to itself (software, no line rate)"


def test_a_rail_that_cannot_be_measured(healthy):
    def measure(port):
        if port.device == "mlx5_0":
            raise TransportError("ibv_reg_mr: Cannot allocate memory")
        return 25e9

    first, second = bandwidth(healthy.machine, measure)
    assert (first.level, second.level) == ("not known", "ok")
    assert "Cannot allocate memory" in first.what


def test_no_rail(healthy):
    healthy.remove("sys/class/infiniband")
    assert [f.level for f in bandwidth(healthy.machine, lambda port: 0.0)] == ["ok"]
