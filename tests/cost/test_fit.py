"""The fit finds a machine's rates again from noisy measurements of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pycoll.algorithms import get
from pycoll.cost.fit import Row, fit
from pycoll.cost.machine import Machine, Rates
from pycoll.cost.prediction import predict

NAMES = ("ring", "recursive_doubling", "double_binary_tree", "one_shot", "two_shot")
TRUE = Rates(
    message=60e-9,
    latency=500e-9,
    switch=4e-6,
    copy=1e-10,
    fold=4e-11,
    network_bandwidth=4e9,
    rdma_message=15e-6,  # as software RDMA
    rdma_latency=4e-6,
    rdma_bandwidth=1e9,
)


def rows(machine: Machine, noise: float) -> list[Row]:
    rng = random.Random(1)
    found = []
    for name in NAMES:
        algorithm = get(name)
        for n in (8, 4 << 10, 64 << 10, 1 << 20, 8 << 20):

            def of(rates: Rates, a: object = algorithm, n: int = n) -> float:
                return predict(a, n, replace(machine, rates=rates))  # type: ignore[arg-type]

            found.append(Row(of(TRUE) * math.exp(rng.gauss(0, noise)), of))
    return found


@pytest.mark.parametrize(
    "machine",
    [
        Machine(4, 4),
        Machine(8, 2),
        Machine(4, 4, (0, 0, 1, 1)),
        Machine(4, 4, (0, 0, 1, 1), rdma=True),
    ],
    ids=str,
)
def test_fitted_predictions_are_about_as_good_as_the_measurements(machine: Machine) -> None:
    noisy = rows(machine, 0.1)
    fitted = fit(noisy, machine)
    errors = sorted(abs(math.log(row.predict(fitted) / row.seconds)) for row in noisy)
    before = sorted(abs(math.log(row.predict(Rates()) / row.seconds)) for row in noisy)
    assert errors[len(errors) // 2] < 0.12 < before[len(before) // 2]
    # What was not measured with is predicted as well.
    other = get("halving_doubling")
    for n in (64, 1 << 14, 1 << 22):
        true = predict(other, n, replace(machine, rates=TRUE))
        assert predict(other, n, replace(machine, rates=fitted)) == pytest.approx(true, rel=0.25)


def test_one_wild_row_does_not_spoil_it() -> None:
    machine = Machine(4, 4)
    noisy = rows(machine, 0.05)
    noisy[0] = Row(noisy[0].seconds * 100, noisy[0].predict)
    fitted = fit(noisy, machine)
    errors = sorted(abs(math.log(row.predict(fitted) / row.seconds)) for row in noisy)
    assert errors[len(errors) // 2] < 0.12


def test_only_the_network_that_is_used_is_fitted() -> None:
    tcp, rdma = (Machine(4, 4, (0, 0, 1, 1), rdma=by) for by in (False, True))
    assert fit(rows(tcp, 0.05), tcp).rdma_message == Rates().rdma_message
    assert fit(rows(rdma, 0.05), rdma).network_message == Rates().network_message


def test_without_rows_the_defaults_stay() -> None:
    assert fit([], Machine(2, 2)) == Rates()
