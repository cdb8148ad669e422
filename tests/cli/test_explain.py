"""``pycoll explain``: the choice as text, without ranks."""

from __future__ import annotations

import pytest

import pycoll
from pycoll.cli.explain import edges_here
from pycoll.cost import Question, Tuning
from pycoll.cost.store import store
from pycoll.topology import INFINIBAND, ROCE, cluster, fabric, save

NAMES = ("ring", "one_shot", "two_shot", "recursive_doubling")


def test_every_algorithm_with_its_prediction(cli):
    done = cli("explain", "allreduce", "--nbytes", "64K", "--size", "8", "--cores", "8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("allreduce, 64 KiB, 8 ranks: ")
    assert lines[1].startswith("Predicted ")
    for name in NAMES:
        assert any(line[2:].startswith(f"{name} ") for line in lines)
    assert "nothing was measured for such ranks here: run pycoll tune" in lines[-1]


def test_what_was_measured_here_counts(cli, cache):
    edges = edges_here(4, 1)
    question = Question("allreduce", 8, 4, 4, slots=edges.slots, slot_bytes=edges.slot_bytes)
    rows = {("allreduce", "ring"): ((8, 1e-6), (1 << 20, 9e-6))}
    store(cache, pycoll.__version__, question, Tuning(4, rows=rows), {})
    arguments = ("explain", "allreduce", "--nbytes", "1M", "--cores", "4", "--size")
    done = cli(*arguments, "4")
    assert "4 ranks: ring" in done.out
    assert "Measured 9.00 us at 1 MiB" in done.out
    assert "nothing was measured" not in done.out
    assert "nothing was measured" in cli(*arguments, "2").out


def test_more_hosts(cli):
    done = cli("explain", "broadcast", "--nbytes", "1M", "--size", "8", "--nodes", "2")
    assert done.code == 0
    assert "without copies" not in done.out


def test_arrays_on_gpus(cli):
    done = cli("explain", "allreduce", "--nbytes", "8", "--size", "8", "--device", "cuda")
    assert done.code == 0
    assert done.out.startswith("allreduce, 8 B, 8 ranks: one_shot\n")
    assert "not measured here" in done.out
    assert "pycoll tune" not in done.out


def test_a_described_cluster_has_arrays_of_the_host(cli, tmp_path):
    path = tmp_path / "cluster.json"
    save(cluster(2, 4, network=INFINIBAND), str(path))
    arguments = ("explain", "allreduce", "--nbytes", "8", "--device", "cuda")
    done = cli(*arguments, "--topology", str(path))
    assert done.code == 2
    assert "--device cuda with --topology" in done.err


def test_a_described_topology(cli, tmp_path):
    path = tmp_path / "cluster.json"
    save(cluster(2, 4, network=INFINIBAND), str(path))
    done = cli("explain", "allreduce", "--nbytes", "1M", "--topology", str(path))
    assert done.code == 0
    assert "8 ranks" in done.out
    assert "nothing was measured" not in done.out


def test_rails_and_a_narrow_spine_are_part_of_the_reason(cli, tmp_path):
    path = tmp_path / "fabric.json"
    pods = fabric(16, rails=2, leaves=8, spines=4, oversubscription=8, network=ROCE)
    save(pods, str(path))
    done = cli("explain", "allreduce", "--nbytes", "16M", "--topology", str(path))
    lines = done.out.splitlines()
    assert lines[0] == "allreduce, 16 MiB, 16 ranks: hierarchical"
    assert " Its busiest link is leaf" in lines[1]
    assert lines[2:4] == [
        "rank 0 to 3 ranks: 1 hop, RDMA by 2 routes, 25 GB/s, 1 us",
        "rank 0 to 12 ranks: 3 hops, RDMA by 2 routes, 3.125 GB/s, 1.48 us",
    ]
    assert any(line.startswith("* hierarchical ") and "busiest is" in line for line in lines)


def test_a_barrier_has_no_size_of_its_own(cli):
    done = cli("explain", "barrier", "--size", "4")
    assert done.out.startswith("barrier, 1 B, 4 ranks: ")


def test_an_algorithm_asked_for(cli):
    done = cli("explain", "allreduce", "--nbytes", "1M", "--algorithm", "ring")
    assert "The call asks for ring" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("allreduce", "--nbytes", "0"), "is not a size"),
        (("allreduce",), "--nbytes of the allreduce is missing"),
        (
            ("allreduce", "--nbytes", "8", "--algorithm", "binomial"),
            "algorithm is 'binomial', want",
        ),
        (("allreduce", "--nbytes", "8", "--dtype", "float31"), "invalid choice: 'float31'"),
        (("sum", "--nbytes", "8"), "invalid choice: 'sum'"),
        (("allreduce", "--nbytes", "8", "--size", "8", "--nodes", "3"), "want a divisor"),
        (("allreduce", "--nbytes", "8", "--topology", "t", "--nodes", "2"), "leave one out"),
        (("allreduce", "--nbytes", "8", "--topology", "/no/such"), "/no/such"),
    ],
)
def test_bad_arguments(cli, arguments, says):
    done = cli("explain", *arguments)
    assert done.code == 2
    assert says in done.err


def test_a_topology_without_ranks(cli, tmp_path):
    path = tmp_path / "empty.json"
    save(cluster(2, 0), str(path))
    done = cli("explain", "allreduce", "--nbytes", "8", "--topology", str(path))
    assert done.code == 2
    assert "has no ranks, want at least one" in done.err


def test_the_fixed_order_beside_any(cli):
    arguments = ("explain", "allreduce", "--nbytes", "1M", "--size", "8", "--cores", "8")
    done = cli(*arguments, "--order", "fixed")
    assert done.code == 0
    assert "\nin any order: " in done.out
    assert "is not in the fixed order: it folds chunk 1 on rank 0 as (0+(" in done.out
    assert "in any order" not in cli(*arguments).out
    done = cli("explain", "broadcast", "--nbytes", "1M", "--order", "fixed")
    assert done.code == 2
    assert "order is 'fixed', but broadcast folds nothing" in done.err
