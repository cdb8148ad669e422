"""A topology reads back as itself; a wrong document says where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pycoll.errors import UsageError
from pycoll.topology import Topology, cluster, load, probe, save
from pycoll.topology.document import dumps, loads


def test_round_trip(two_sockets: Path, tmp_path: Path) -> None:
    for t in (cluster(4, [1, 2, 3, 4], sockets=2, racks=2), Topology((probe(two_sockets),))):
        assert loads(dumps(t)) == t
        save(t, tmp_path / "t.json")
        assert load(tmp_path / "t.json") == t


def test_whole_numbers_serve_as_numbers() -> None:
    text = dumps(cluster(1, 2)).replace("30000000000.0", "30000000000")
    assert isinstance(loads(text).path(0, 1)[0].bandwidth, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("pycoll_topology"), r"^no topology: want an object with"),
        (lambda d: d.update(pycoll_topology=2), r"^pycoll_topology is 2, this pycoll reads 1$"),
        (lambda d: d.pop("nodes"), r"^topology lacks 'nodes'$"),
        (lambda d: d.update(nodes=3), r"^nodes is 3, want a list$"),
        (lambda d: d.update(nodes=[3]), r"^nodes\[0\] is 3, want an object$"),
        (lambda d: d.update(color=3), r"^topology has 'color', want only nodes, switches,"),
        (lambda d: d["nodes"][0].pop("name"), r"^nodes\[0\] lacks 'name'$"),
        (lambda d: d["nodes"][0].update(name=1), r"^nodes\[0\]\.name is 1, want text$"),
        (
            lambda d: d["nodes"][0]["sockets"][0].update(cores="two"),
            r"^nodes\[0\]\.sockets\[0\]\.cores is 'two', want a whole number$",
        ),
        (
            lambda d: d["nodes"][0]["sockets"][0].update(cores=True),
            r"^nodes\[0\]\.sockets\[0\]\.cores is True, want a whole number$",
        ),
        (
            lambda d: d["links"][0].update(bandwidth="fast"),
            r"^links\[0\]\.bandwidth is 'fast', want a number$",
        ),
        (
            lambda d: d["links"][0].update(bandwidth=-1),
            r"^links\[0\]: Link 'node0/nic0', .*: bandwidth is -1.0, want a finite",
        ),
        (
            lambda d: d["links"][0].update(latency=float("inf")),
            r"^links\[0\]\.latency is inf, want a finite number$",
        ),
        (lambda d: d["nodes"][0]["nics"][0].update(up=1), r"nics\[0\]\.up is 1, want true or"),
        (lambda d: d["ranks"][0].update(node="x"), r"^rank 0 is on node 'x', want one of node0"),
    ],
)
def test_a_wrong_document(change, message) -> None:
    document = json.loads(dumps(cluster(2, 2)))
    change(document)
    with pytest.raises(UsageError, match=message):
        loads(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, "nothing"])
def test_no_json(text: str) -> None:
    with pytest.raises(UsageError, match=r"^no JSON: "):
        loads(text)


def test_no_object() -> None:
    with pytest.raises(UsageError, match=r"^no topology: want an object"):
        loads("[]")


def test_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.json' cannot be read"):
        load(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json: no topology"):
        load(tmp_path / "bad.json")
    with pytest.raises(UsageError, match=r"cannot be written"):
        save(cluster(1), tmp_path / "absent" / "t.json")
