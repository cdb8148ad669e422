"""``pycoll doctor`` on a machine with real RDMA devices, and what pyverbs says of the same ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from debian import PYVERBS, lack
from rack import Rack

ROOT = Path(__file__).parents[2]

COMPARE = """
from pycoll.interop.pyverbs import devices
from pycoll.runtime.native import verbs

told = {(d.name, p.number): (d, p) for d in devices() for p in d.ports}
ports = verbs.verbs_ports()
assert told.keys() == {(port.device, port.port) for port in ports}, told
for port in ports:
    device, other = told[port.device, port.port]
    assert (port.mtu, port.max_mtu) == (other.mtu, other.max_mtu), (port, other)
    assert (port.state == 4) == (other.state == "active"), (port, other)
    assert port.max_queue_pairs == device.max_queue_pairs, (port, device)
    (chosen,) = (gid for gid in other.gids if gid.number == port.gid_index)
    assert chosen.kind == "RoCE v2"
    assert chosen.address.startswith("10."), chosen
print(len(ports), "ports are the same to both")
"""


def doctor(rack: Rack, *arguments: str) -> tuple[int, dict[tuple[str, str], dict[str, str]]]:
    """Return the exit code, and the findings by check and place."""
    argv = [sys.executable, "-m", "pycoll", "doctor", "--seconds", "0", "--json", *arguments]
    done = rack.guest.run(argv, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    rows = json.loads(done.stdout)["findings"]
    return done.returncode or 0, {(row["check"], row["where"]): row for row in rows}


def test_healthy_nics_have_no_finding(rack: Rack) -> None:
    code, found = doctor(rack)
    bad = [row for row in found.values() if row["level"] in ("warning", "problem")]
    assert (code, bad) == (0, [])
    for nic in range(rack.nics.count):
        where = f"{rack.nics.device(nic)} port 1"
        assert found["state", where]["what"].startswith("active, Ethernet")
        assert f"RoCE v2 at {rack.nics.address(nic)}" in found["gids", where]["what"]
        assert "RoCE MTU 4096" in found["mtu", where]["what"]


def test_a_nic_that_is_down_is_found(rack: Rack) -> None:
    rack.nics.disable(1)
    code, found = doctor(rack)
    state = found["state", f"{rack.nics.device(1)} port 1"]
    assert (code, state["level"]) == (0, "warning")  # others are there
    assert state["cure"] == "ip link set dev r1 up"


def test_bandwidth_of_a_port_to_itself(rack: Rack) -> None:
    for nic in range(1, rack.nics.count):
        rack.nics.disable(nic)
    _, found = doctor(rack, "--bandwidth")
    measured = found["bandwidth", f"{rack.nics.device(0)} port 1"]
    assert measured["level"] == "ok"
    assert float(measured["what"].split()[0]) > 0


@pytest.mark.skipif(bool(lack()), reason=lack())
def test_pyverbs_says_the_same_as_the_engine(rack: Rack, tmp_path: Path) -> None:
    (tmp_path / "pyverbs").symlink_to(PYVERBS)
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = rack.guest.run([sys.executable, "-c", COMPARE], cwd=ROOT, env=env)
    assert done.stdout == f"{rack.nics.count} ports are the same to both\n"
