"""Fit: the rates of a machine from what was measured there, by least squares of logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter, mul

from pycoll.cost.machine import SOFTWARE, Machine, Rates

#: How much a rate that is off its default by a factor of e counts against a row that is.
DOUBT = 0.1
ROUNDS = 5
#: A row that is further off than this counts less: the model may lack what makes it so.
FAR = 0.5
STEP = 0.05  #: of a rate's logarithm, to see what it does
LONGEST = 3.0  #: no rate is further off its default, as a logarithm

#: The seconds of one measured call if the machine had these rates.
Predict = Callable[[Rates], float]


@dataclass(frozen=True)
class Row:
    """One measurement, and the model's word on it."""

    seconds: float
    predict: Predict


def fit(rows: Sequence[Row], machine: Machine) -> Rates:
    """Return the machine's rates with those that its calls depend on fitted to the rows."""
    if not rows:
        return machine.rates
    starts = [machine.rates]  # the better fit of two counts
    if machine.hosts and machine.rdma:
        starts.append(machine.rates._replace(**SOFTWARE))
    return min((_fit(rows, _names(machine), start) for start in starts), key=itemgetter(0))[1]


def _fit(rows: Sequence[Row], names: Sequence[str], default: Rates) -> tuple[float, Rates]:
    """Return the rates near the default that fit best, and how far off they are still."""
    x = [0.0] * len(names)

    def rates(x: Sequence[float]) -> Rates:
        return default._replace(
            **{n: getattr(default, n) * math.exp(v) for n, v in zip(names, x, strict=True)}
        )

    def off(x: Sequence[float]) -> list[float]:
        now = rates(x)
        return [math.log(row.predict(now) / row.seconds) for row in rows]

    error, damping = off(x), 0.01
    for _ in range(ROUNDS):
        slopes = []
        for i in range(len(names)):
            moved = off([v + STEP * (i == j) for j, v in enumerate(x)])
            slopes.append([(m - e) / STEP for m, e in zip(moved, error, strict=True)])
        for _ in range(3):
            step = _step(slopes, error, x, damping)
            new = [max(-LONGEST, min(LONGEST, v + s)) for v, s in zip(x, step, strict=True)]
            after = off(new)
            if _cost(after, new) < _cost(error, x):
                x, error, damping = new, after, damping / 3
                break
            damping *= 10
        else:
            break  # nothing near is better
    return _cost(error, x), rates(x)


def _names(machine: Machine) -> list[str]:
    names = ["entry", "message", "copy", "fold", "store", "fused", "memory", "spread"]
    names += ["switch", "beside"] if machine.turns > 1 else ["latency"]
    if machine.hosts and machine.rdma:
        names += ["rdma_message", "rdma_latency", "rdma_bandwidth"]
    elif machine.hosts:
        names += ["network_message", "network_latency", "network_copy", "network_bandwidth"]
    return names


def _weight(error: float) -> float:
    return 1.0 if abs(error) <= FAR else FAR / abs(error)


def _cost(error: Sequence[float], x: Sequence[float]) -> float:
    return sum(_weight(e) * e * e for e in error) + DOUBT * sum(v * v for v in x)


def _step(
    slopes: Sequence[Sequence[float]],
    error: Sequence[float],
    x: Sequence[float],
    damping: float,
) -> list[float]:
    """Return the damped step of Gauss and Newton."""
    n = len(slopes)
    weights = [_weight(e) for e in error]
    matrix, right = [], []
    for i in range(n):
        weighted = [w * s for w, s in zip(weights, slopes[i], strict=True)]
        matrix.append([sum(map(mul, weighted, slopes[j])) for j in range(n)])
        matrix[i][i] += DOUBT + damping * (1 + matrix[i][i])
        right.append(-sum(map(mul, weighted, error)) - DOUBT * x[i])
    return _solve(matrix, right)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve by elimination; the matrix is symmetric and positive definite, so needs no pivots."""
    n = len(right)
    for i in range(n):
        for k in range(i + 1, n):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, n):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (right[i] - sum(matrix[i][j] * x[j] for j in range(i + 1, n))) / matrix[i][i]
    return x
