"""``pycoll doctor`` prints what is wrong with a machine, as a table or as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycoll.cli import doctor
from pycoll.doctor import Machine
from pycoll.doctor.finding import ok, problem, unknown, warning
from pycoll.errors import TransportError
from pycoll.interop import pyverbs

WITHOUT_ENGINE = """
import sys
sys.modules["pycoll._native"] = None  # what an import of it finds
from pycoll.cli import main
sys.exit(main(["doctor", "--seconds", "0", "--bandwidth"]))
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with one RoCE port, which the command examines."""
    port = tmp_path / "sys/class/infiniband/rxe0/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("Ethernet\n")
    (port / "gids/0").write_text("fe80:0000:0000:0000:0000:00ff:fe00:0001\n")
    monkeypatch.setattr(doctor, "_machine", lambda config, seconds: Machine(tmp_path))
    return tmp_path


def test_a_table_has_a_line_for_each_thing():
    more = {"got": "64 KiB", "wanted": "unlimited", "cure": "ulimit -l unlimited"}
    assert doctor.table(
        [
            ok("Linux", "6.1"),
            warning("this process", "RDMA pins", **more),
            problem("mlx5_0", "no GID", **more),
            unknown("eth0", "no speed", cure="ethtool eth0"),
        ]
    ) == (
        "ok           Linux: 6.1\n"
        "warning      this process: RDMA pins\n"
        "             got 64 KiB; want unlimited\n"
        "             cure: ulimit -l unlimited\n"
        "problem      mlx5_0: no GID\n"
        "             got 64 KiB; want unlimited\n"
        "             cure: ulimit -l unlimited\n"
        "not known    eth0: no speed\n"
        "             cure: ethtool eth0\n"
        "1 problem, 1 warning, 1 not known, 1 ok"
    )


def test_a_problem_is_exit_code_1(cli, machine):
    done = cli("doctor")
    assert done.code == 1  # no device file
    assert "problem    access    rxe0: programs have no way to it" in done.out
    assert done.out.rstrip().endswith("ok")
    assert done.err == ""


def test_warnings_alone_are_exit_code_0(cli, machine):
    for path, text in (("uverbs0/ibdev", "rxe0\n"), ("uverbs0/dev", "231:192\n")):
        file = machine / "sys/class/infiniband_verbs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    file = machine / "dev/infiniband/uverbs0"
    file.parent.mkdir(parents=True)
    file.touch()
    done = cli("doctor")
    assert "not known" in done.out
    assert done.code == 0


def test_json_on_standard_output(cli, machine):
    done = cli("doctor", "--json")
    rows = json.loads(done.out)
    assert done.code == 1
    assert rows["host"] == os.uname().nodename
    (found,) = (row for row in rows["findings"] if row["check"] == "access")
    assert found["level"] == "problem"
    assert found["cure"] == "modprobe ib_uverbs"


def test_json_in_a_file(cli, machine, tmp_path):
    file = tmp_path / "found.json"
    done = cli("doctor", "--json", str(file))
    assert (done.code, done.out) == (1, "")
    assert json.loads(file.read_text())["findings"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "-1"], "'-1', want seconds from 0 to 3600"),
        (["--seconds", "soon"], "'soon', want seconds from 0 to 3600"),
        (["--json", "/nowhere/f.json"], "--json /nowhere/f.json: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(cli, machine, arguments, message):
    done = cli("doctor", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.native
def test_bandwidth_of_each_port(cli, machine, monkeypatch):
    from pycoll.runtime.native import verbs

    asked = []

    def loopback(rail, fabric, seconds):
        asked.append((str(rail), fabric.timeout))
        return 25e9

    monkeypatch.setattr(verbs, "verbs_loopback", loopback)
    done = cli("doctor", "--bandwidth")
    assert asked == [("rxe0:1", 16)]
    assert "bandwidth  rxe0 port 1: 200 Gb/s to itself" in done.out
    assert "bandwidth" not in cli("doctor").out


@pytest.mark.native
def test_bandwidth_that_cannot_be_measured(cli, machine, monkeypatch):
    from pycoll.runtime.native import verbs

    def loopback(rail, fabric, seconds):
        raise TransportError("rxe0 port 1: ibv_reg_mr: Cannot allocate memory")

    monkeypatch.setattr(verbs, "verbs_loopback", loopback)
    assert "cannot be measured: rxe0 port 1: ibv_reg_mr" in cli("doctor", "--bandwidth").out


@pytest.mark.own_process
def test_this_machine_is_examined(cli):
    done = cli("doctor", "--seconds", "0")
    assert done.code in (0, 1)
    assert " tcp " in done.out


def test_without_the_engine_it_works_too(root):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("problem  engine ")
    assert "nothing can run: its native engine is not there" in done.stdout
    assert " kernel " in done.stdout


def test_without_the_engine_pyverbs_is_asked(monkeypatch):
    port = pyverbs.Port(1, "active", "Ethernet", 1024, 4096, 1 << 30, ())
    device = pyverbs.Device("rxe0", "1", 0, 0, 1, 1, 1, 1, 1, 1, 1, "none", False, (port,))
    monkeypatch.setattr(pyverbs, "devices", lambda: (device,))
    assert doctor._by_pyverbs() == (("rxe0", 1, 1024, 4096),)
