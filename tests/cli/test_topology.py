"""``pycoll topology`` prints a machine, saves it and reads it back."""

from __future__ import annotations

from pycoll.topology import cluster, fabric, load, save


def test_this_machine_is_printed_and_saved(cli, tmp_path):
    file = tmp_path / "here.json"
    done = cli("topology", "--json", str(file))
    assert done.code == 0
    assert done.out.startswith("node ")
    assert "socket0: " in done.out
    assert cli("topology", "--load", str(file)).out == done.out


def test_a_saved_description_is_printed(cli, tmp_path):
    save(cluster(2, 2), tmp_path / "two.json")
    assert load(tmp_path / "two.json").size == 4
    done = cli("topology", "--load", str(tmp_path / "two.json"))
    assert done.out.count("node node") == 2


def test_rails_leaves_and_distances_are_printed(cli, tmp_path):
    save(fabric(4, rails=2, leaves=4, oversubscription=4), tmp_path / "fabric.json")
    lines = cli("topology", "--load", str(tmp_path / "fabric.json")).out.splitlines()
    assert "    nic1: infiniband, 400 Gb/s, up, RDMA by rdma1, rail 1 to leaf3" in lines
    assert "switch leaf0: leaf of 2 ports, 100 GB/s, and 25 GB/s up (4 to 1)" in lines
    assert lines[-2:] == [
        "rank 0 to 1 rank: 1 hop, RDMA by 2 routes, 100 GB/s, 1 us",
        "rank 0 to 2 ranks: 3 hops, RDMA by 2 routes, 50 GB/s, 1.48 us",
    ]


def test_a_wrong_file_is_one_line_and_code_2(cli, tmp_path):
    (tmp_path / "bad.json").write_text("[]")
    done = cli("topology", "--load", str(tmp_path / "bad.json"))
    assert done.code == 2
    assert done.err.startswith("pycoll topology: ")
    assert done.err.count("\n") == 1


def test_an_empty_file_name_is_not_this_machine(cli):
    done = cli("topology", "--load", "")
    assert done.code == 2
    assert "cannot be read" in done.err
