"""One job on one table has one result: run twice, and with its rows in another order, it ends at the same weights.

Masks, keys, dithers and shuffles are fresh each time; a seed and the tables determine the rest. The frequencies of
FDSKL are keys: a party that knows them reads the columns (`tests/security/test_fdskl_phases.py`). So its weights are
of other features each time, and predictions alone are compared: of 512 features they are .21 deviations of f apart
(.016 from pair to pair), and the bound is 12 of the latter above. On shares sums are rounded at random, which moves
weights of 112 rows by .05 to .07: the bound is seven times that.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.errors import DataNotice
from securevfl.families.shares.shares_job import trains_on_shares

N = 150
DRAW = np.random.default_rng(11)
OWN, OTHER = DRAW.normal(size=(N, 3)), DRAW.normal(size=(N, 3))
F = OWN[:, 0] - OTHER[:, 0]
Y = (F + DRAW.normal(size=N) > 0).astype(int)
SEALED = ["columns", "rank", "label_auc", "fresh_equations", "small_metrics"]
PLAIN: dict[str, Any] = {"protocol": "open", "accepts": SEALED, "epochs": 3, "batch_size": 40}
FDML_OPTIMIZER = vfl.FDML(
    lr=0.1, tau=0, shows_labels=True, stored="open"
)  # synchronous, because asynchronous runs differ
# jobs, and the largest difference of weights in standard deviations of f
JOBS: dict[str, tuple[dict[str, Any], float]] = {
    "fedbcd": (PLAIN | {"model": "logistic", "optimizer": vfl.FedBCD(lr=0.1, local_steps=3)}, 1e-9),
    "newton": (PLAIN | {"model": "logistic", "optimizer": vfl.BlockNewton(), "batch_size": "all"}, 1e-9),
    "softmax": (PLAIN | {"model": "softmax", "optimizer": vfl.FedBCD(lr=0.1, local_steps=2)}, 1e-9),
    "ckks": (PLAIN | {"model": "logistic", "optimizer": vfl.FedSGD(lr=0.1), "protocol": "ckks"}, 1e-4),
    "prepared": (PLAIN | {"model": "square", "optimizer": vfl.FedSGD(lr=0.1), "prepare": {"bins": 4}}, 1e-9),
    "celu": (PLAIN | {"model": "logistic", "optimizer": vfl.CeluVFL(R=2, W=2, lr=0.1)}, 1e-9),
    "fdml": (PLAIN | {"model": "logistic", "optimizer": FDML_OPTIMIZER, "protocol": vfl.Protocol()}, 1e-9),
    "transfer": (PLAIN | {"model": vfl.Transfer(units=4), "optimizer": vfl.FedBCD(local_steps=2, lr=0.5)}, 1e-9),
    "shares": ({"model": "logistic", "epochs": 4, "accepts": SEALED[-1:]}, 0.5),
    "trees": ({"model": vfl.Trees(trees=4, depth=2), "epochs": 3, "accepts": SEALED[-1:]}, 0.5),
}


def trained(keys: dict[str, Any], order: Any, seed: int = 0) -> vfl.Run:
    parties = [vfl.Party("bank", OWN[order], Y[order], ids=order), vfl.Party("shop", OTHER[order], ids=order)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return vfl.simulate(vfl.Job(seed=seed, **keys), parties)


def weights(run: vfl.Run) -> Any:
    """Return each party's summand of f for all rows, in the order of ids."""
    if trains_on_shares(run.job):
        theta = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")
    else:
        theta = {name: part.theta for name, part in run.parts.items()}
    return np.concatenate([theta[name].ravel() for name in ("bank", "shop")])


@pytest.mark.exact_outputs
@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_one_result_whatever_the_order_of_its_rows(name: str) -> None:
    keys, apart = JOBS[name]
    rows = np.arange(N)
    first, again, turned = (trained(keys, order) for order in (rows, rows, DRAW.permutation(rows)))
    for other in (again, turned):
        assert first.active.rounds == other.active.rounds
        np.testing.assert_allclose(weights(other), weights(first), atol=apart)
    if name == "trees":
        for party in ("bank", "shop"):
            one, other = (run.parts[party].state["inputs"]["forest"] for run in (first, turned))
            np.testing.assert_array_equal(one["sides"], other["sides"])
            np.testing.assert_allclose(one["cuts"], other["cuts"])
        shop = trained(keys, rows, seed=1).parts["shop"].state["inputs"]["forest"]
        assert not np.array_equal(shop["sides"], first.parts["shop"].state["inputs"]["forest"]["sides"])


def test_runs_of_fdskl_draw_other_features_and_predict_alike() -> None:
    model, steps = vfl.Kernel(gamma=0.1, loss="logistic", blocks=4, block_size=128), vfl.FDSKL(lr=0.5)
    keys = {"model": model, "optimizer": steps, "protocol": vfl.Protocol(sum="direct"), "batch_size": 40, "epochs": 10}
    keys |= {"accepts": ["columns", "rank", "single_passive"]}
    first, turned = (trained(keys, order) for order in (np.arange(N), DRAW.permutation(N)))
    one, other = (run.decision({"bank": OWN, "shop": OTHER})[:, 0] for run in (first, turned))
    assert np.sqrt(((one - other) ** 2).mean()) <= 0.4 * one.std()
    assert np.abs(one - other).max() > 0.01 * one.std()  # the features differ
