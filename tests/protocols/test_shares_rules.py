"""Update rules for training on shares: their coefficients are fixed in advance and apply to any share."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.update_rules import FixedCoefficients
from tests.builders import raises_code
from tests.protocols.test_shares import LOSS, Case, Run, breast


@pytest.fixture(scope="module", params=[(6, 9), (4, 9, 5), (4, 6, 3, 2)], ids=["two", "three", "four"])
def run(request):
    case = Case(*breast(*request.param), 120)
    visits = 4 if len(request.param) == 2 else 1
    return Run(case, [case.order * visits, case.order[::-1] * 3]).go()


def accelerated(momentum):
    """Rows of Nesterov's method, v = momentum v + u, theta -= u + momentum v, as coefficients of the changes."""

    def row(t):
        return [sum(momentum**k for k in range(t - s)) + momentum ** (t - s) for s in range(t)]

    return row


def test_momentum_with_fixed_coefficients_equals_that_of_floats():
    rule = FixedCoefficients(accelerated(0.6))
    case = Case(*breast(5, 6, 4, rows=200), 200, rule=rule)
    run = Run(case, [case.order * 5, case.order * 4]).go()
    X = np.clip(np.hstack(list(case.X.values())), -8, 8)
    changes = []
    for t in range(9):
        theta = -sum((c * u for c, u in zip(accelerated(0.6)(t), changes, strict=True)), np.zeros((X.shape[1], 1)))
        rows = case.batches[0]
        changes.append(case.rate / len(rows) * X[rows].T @ LOSS.residual(X[rows] @ theta, case.y[rows]))
    theta = -sum(c * u for c, u in zip(accelerated(0.6)(9), changes, strict=True))
    assert np.abs(run.weights - theta).max() < 0.1
    assert abs(roc_auc_score(case.y, run.scores()) - roc_auc_score(case.y, X @ theta)) <= 0.002


def test_a_rule_is_that_of_its_coefficients_on_any_share():
    rng, ring = np.random.default_rng(0), ShareRing(48)
    rule = FixedCoefficients(lambda t: [0.5 + s - t for s in range(t)], m=4)
    shares_of = [rng.integers(0, 2**48, (5, 3, 2), dtype=np.uint64) for _ in range(2)]
    states = [rule.start(item[0]) for item in shares_of]
    for t in range(1, 5):
        states = [ring.reduce(rule.step(state, item[t], t - 1)) for state, item in zip(states, shares_of, strict=True)]
    weights = [int(x) for x in sum(rule.theta(state, 4) for state in states).ravel() & ring.mask]
    total = sum(shares_of)
    slow = [
        (int(total[0].flat[i]) - sum(round(16 * (0.5 + s - 4)) * int(total[s + 1].flat[i]) for s in range(4))) % 2**48
        for i in range(6)
    ]
    assert weights == slow


def test_a_rule_of_other_bits_than_agreed_is_refused():
    with raises_code(ConfigError, "SVFL-JOB-COMBINATION"):
        SharesParams(FixedPointEncoding(10, 0.1), (10,), {"a": 1, "b": 1}, "b", FixedCoefficients(lambda t: [1.0] * t))


def test_a_party_turns_its_steps_by_a_matrix_of_its_own():
    """A party takes Newton steps for its own columns, with the bound 1/4 on the curvature."""
    X, y = breast(6, 9)
    bounds = [x.T @ x / (4 * len(y)) + 1e-2 * np.eye(x.shape[1]) for x in X]
    P = {name: np.linalg.inv(bound) for name, bound in zip("ab", bounds, strict=True)}
    case = Case(X, y, len(y), rate=0.5, P=P)
    run = Run(case, [case.order * 6]).go()
    plain = np.clip(np.hstack(X), -8, 8)
    theta = np.zeros((plain.shape[1], 1))
    turn = np.block([[P["a"], np.zeros((7, 9))], [np.zeros((9, 7)), P["b"]]])
    for _ in range(6):
        theta -= 0.5 / len(y) * turn @ plain.T @ LOSS.residual(plain @ theta, case.y)
    assert abs(roc_auc_score(y, run.scores()) - roc_auc_score(y, plain @ theta)) <= 0.001


# --- interrupted and resumed runs ------------------------------------------------------------------------------------
