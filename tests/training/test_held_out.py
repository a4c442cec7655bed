"""Held-out rows change no bit of any weight in a training, with any options."""

from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.families import leak_kinds
from securevfl.models.losses import LOSSES

SCALES = ("standard", "robust", "none")
OPEN = vfl.Protocol(residual="open")
METHODS: dict[str, dict[str, Any]] = {
    "FedSGD": {"optimizer": vfl.FedSGD(lr=0.02), "protocol": OPEN},
    "FedBCD, local steps": {"optimizer": vfl.FedBCD(local_steps=2), "protocol": OPEN},
    "FedBCD, in turn": {"optimizer": vfl.FedBCD(lr=0.1, mode="sequential"), "protocol": OPEN},
    "BlockNewton": {"optimizer": vfl.BlockNewton(), "protocol": OPEN, "batch_size": "all"},
    "CELU": {"optimizer": vfl.CeluVFL(lr=0.1), "protocol": OPEN},
    "FDML": {"optimizer": vfl.FDML(lr=0.1, tau=0, stored="open"), "protocol": OPEN},
}


def accepting_job(**keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"model": vfl.Logistic(l2=1e-2), "batch_size": 30, "epochs": 2, "test_fraction": 0.3}
    return vfl.Job(**defaults | {"accepts": [*leak_kinds()]} | keys)


def both(chosen_job: vfl.Job, *helper_columns: str) -> tuple[list[vfl.Party], list[vfl.Party]]:
    """Return two tables that differ in the held-out rows and their labels alone.

    The party with labels has positive `helper_columns` in addition, which no model reads.
    """
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 5))
    y = X[:, 0] + X[:, 3] + generator.normal(size=120) * 0.5
    classes = chosen_job.model.loss.classifies
    labels = (y > 0.4).astype(int) if classes else np.floor(np.exp(y)) + 1  # numbers that every loss takes
    helpers = [vfl.Helper(name, role) for name, role in chosen_job.family.example_helpers]

    def tables(X: np.ndarray, labels: np.ndarray) -> list[vfl.Party]:
        extra = [1.0 + np.abs(X[:, [k]]) for k in range(len(helper_columns))]
        names = ["a", "b", "c", *helper_columns]
        bank = vfl.Party("bank", np.hstack([X[:, :3], *extra]), labels, columns=names, aligned=True)
        return [bank, vfl.Party("shop", X[:, 3:], aligned=True), *helpers]

    one = tables(X, labels)
    held_out = chosen_job.schedule(one[0].register).test
    other, others = X.copy(), labels.copy()
    other[held_out] = 0.5 + 1.5 * generator.normal(size=(len(held_out), 5))
    others[held_out] = generator.permutation(np.arange(len(held_out)) % 2) if classes else 2 + labels[held_out]
    return one, tables(other, others)


def same(chosen_job: vfl.Job, *helper_columns: str) -> None:
    runs = [vfl.simulate(chosen_job, tables) for tables in both(chosen_job, *helper_columns)]
    for name, part in runs[0].parts.items():
        other = runs[1].parts[name]
        np.testing.assert_array_equal(part.scaling.mean, other.scaling.mean)
        np.testing.assert_array_equal(part.scaling.deviation, other.scaling.deviation)
        if part.columns:
            np.testing.assert_array_equal(part.theta, other.theta)
    assert runs[0].metrics["loss"] != runs[1].metrics["loss"]  # the rows do differ


@pytest.mark.parametrize("weights", [None, {"classes": "balanced"}], ids=["", "balanced"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", METHODS)
def test_no_bit_of_a_weight(method: str, scale: str, weights: Any) -> None:
    options = METHODS[method]
    if weights and method in ("CELU",):
        pytest.skip("weighs by itself")
    same(accepting_job(scale=scale, **options | ({"weights": weights} if weights and method != "FDML" else {})))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("loss", list(LOSSES))
def test_no_bit_under_any_loss(loss: str, scale: str) -> None:
    model = vfl.Softmax() if loss == "softmax" else vfl.GeneralLinear(loss=loss)
    same(accepting_job(model=model, scale=scale, **METHODS["FedSGD"]))


@pytest.mark.parametrize("prepare", [{"clip": 0.05}, {"bins": 4}, {"woe": {"bins": 2, "rows": 20}}], ids=str)
def test_no_bit_of_what_is_prepared(prepare: dict[str, Any]) -> None:
    same(accepting_job(prepare=prepare, **METHODS["FedSGD"] | {"batch_size": "all"}))


@pytest.mark.parametrize("method", ["FedSGD", "FedBCD, local steps", "BlockNewton"])
def test_no_bit_of_what_rows_bring_beside_their_columns(method: str) -> None:
    """Means of exposures (amounts of risk per row) and of row weights are those of the training rows."""
    counts = {"model": vfl.GeneralLinear(loss="poisson", l2=1e-2), "exposure": "years", "weights": {"column": "heavy"}}
    same(accepting_job(**METHODS[method] | counts), "years", "heavy")


@pytest.mark.parametrize("scale", SCALES)
def test_no_weight_on_shares(scale: str) -> None:
    """On shares, sums are rounded at random, so weights differ only as much as in two runs on one table."""
    shares_job = accepting_job(
        scale=scale, epochs=1, batch_size="all", optimizer=vfl.FedSGD(lr=0.1), protocol=vfl.Protocol(shares={})
    )
    weights, sizes = [], []
    for tables in both(shares_job):
        run = vfl.simulate(shares_job, tables)
        sizes.append({name: part.state["sizes"] for name, part in run.parts.items()})
        weights.append(whole_weights(shares_job, {name: part.state for name, part in run.parts.items()}, "bank"))
    for name, theta in weights[0].items():
        np.testing.assert_allclose(theta, weights[1][name], atol=1e-3)
    assert sizes[0] == sizes[1]  # columns that limit scores, among them
