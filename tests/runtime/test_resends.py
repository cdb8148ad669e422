"""What RDMA ports sent again, by counters that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycoll.runtime.net import resends
from pycoll.runtime.net.resends import Resends
from pycoll.sysfs import RDMA, Sysfs


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Set counters of a device's port 1."""
    monkeypatch.setattr(resends, "HOST", Sysfs(tmp_path))

    def to(device: str, **counters: int) -> None:
        folder = tmp_path / RDMA / device / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in counters.items():
            (folder / name).write_text(f"{value}\n")

    return to


def test_what_has_grown_is_told_by_port(count) -> None:
    count("mlx5_0", local_ack_timeout_err=5, packet_seq_err=1, duplicate_request=7)
    count("rxe0", completer_retry_err=2, out_of_seq_request=0)
    seen = Resends(("mlx5_0:1", "rxe0:1"))
    assert seen.told() == ""
    count("mlx5_0", local_ack_timeout_err=6, packet_seq_err=3)
    assert seen.told() == "mlx5_0:1: 3 times that it began to send again"
    count("rxe0", out_of_seq_request=4, duplicate_request=1)  # one that was not there before
    assert seen.told().endswith("; rxe0:1: 4 requests that came before others")


def test_ports_without_counters_tell_nothing(count) -> None:
    count("mlx5_0", rx_write_requests=1)
    seen = Resends(("mlx5_0:1", "nosuch0:1"))
    count("mlx5_0", rx_write_requests=2)
    assert seen.told() == Resends(()).told() == ""
