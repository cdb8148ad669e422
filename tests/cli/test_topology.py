"""``pycoll topology`` prints a machine, saves it and reads it back."""

from __future__ import annotations

from pycoll.topology import cluster, load, save


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
