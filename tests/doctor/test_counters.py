"""Counters of errors that grow while they are watched."""

from __future__ import annotations

import pytest

from pycoll.doctor.counters import KINDS


def growing(patient, *files: str):
    """Return what lets the counters grow by 5."""

    def pause() -> None:
        for file in files:
            path = patient.root / patient.port(1) / file
            path.write_text(str(int(path.read_text()) + 5))

    return pause


@pytest.mark.parametrize(
    ("file", "level", "cure"),
    [
        ("counters/symbol_error", "problem", "ethtool -m eth2"),
        ("counters/link_downed", "problem", "replace cable"),
        ("hw_counters/out_of_sequence", "warning", "pfc and ecn"),
        ("hw_counters/local_ack_timeout_err", "warning", "pfc and ecn"),
        ("hw_counters/duplicate_request", "warning", "a larger timeout in PYCOLL_VERBS"),
        ("hw_counters/out_of_buffer", "warning", "ethtool -G eth2 rx 8192"),
    ],
)
def test_a_counter_that_grows(healthy, file, level, cure):
    found = healthy.ill("counters", level, pause=growing(healthy, file))
    assert found.where == "mlx5_1 port 1"
    assert found.got == f"{file.split('/')[1]} grew by 5"
    assert cure in found.cure


def test_counters_of_one_cause_are_one_finding(healthy):
    files = ("hw_counters/out_of_sequence", "hw_counters/local_ack_timeout_err")
    found = healthy.ill("counters", "warning", pause=growing(healthy, *files))
    assert found.got == "local_ack_timeout_err grew by 5, out_of_sequence grew by 5"


def test_infiniband_cables_are_looked_at_by_mlxlink(healthy):
    healthy.infiniband()
    found = healthy.ill("counters", "problem", pause=growing(healthy, "counters/symbol_error"))
    assert "mlxlink -d mlx5_1 -m" in found.cure


def test_what_does_not_grow_is_only_named(healthy):
    assert [f.what for f in healthy.all("counters")] == [
        "no counter of errors grows (link_downed 2 so far)"
    ] * 2


def test_data_is_no_error(healthy):
    assert (
        healthy.all("counters", pause=growing(healthy, "counters/port_rcv_data"))[1].level == "ok"
    )


def test_no_counter_has_two_causes():
    names = [name for kind in KINDS for name in kind.names]
    assert len(names) == len(set(names))
