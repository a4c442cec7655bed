"""Training is lossless on a real table: open, Paillier and CKKS give one model, as good as scikit-learn's."""

import csv
import gzip

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.protocols.engines import Engine
from securevfl.runtime.costs import Kind
from tests.builders import REAL_TABLES

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="there are no real tables"),
]


@pytest.fixture(scope="module")
def credit() -> list[vfl.Party]:
    """Return 30,000 credit card clients in FATE's split, joined by id; one side is shuffled and lacks some rows."""
    parties = []
    generator = np.random.default_rng(0)
    for name, side in (("bank", "guest"), ("shop", "host")):
        with gzip.open(REAL_TABLES / f"default_credit_hetero_{side}.csv.gz", "rt") as file:
            head, *rows = csv.reader(file)
        table = np.array(rows, dtype=np.float64)
        if side == "host":
            table = generator.permutation(table)[:29_000]
        first = 2 if "y" in head else 1
        y = table[:, 1].astype(int) if "y" in head else None
        parties.append(vfl.Party(name, table[:, first:], y, ids=table[:, 0].astype(int), columns=head[first:]))
    aligned = vfl.align(parties)
    missing = aligned.missing
    assert len(missing["shop"]) == 1000
    assert len(aligned[0]) == 29_000
    return aligned


def train(parties: list[vfl.Party], residual: Engine | str, **keys: object) -> vfl.Run:
    defaults: dict[str, object] = {"batch_size": 4096, "epochs": 2, "seed": 1, "accepts": ["columns"]}
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-4),
        optimizer=vfl.FedBCD(local_steps=5, lr=0.1),
        protocol=vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        **(defaults | keys),  # type: ignore[arg-type]
    )
    return vfl.simulate(job, parties)


@pytest.mark.exact_outputs
@pytest.mark.slow
def test_open_paillier_and_ckks_give_one_model(credit: list[vfl.Party]) -> None:
    opened = train(credit, "open")
    for engine in (vfl.Ckks(), vfl.Paillier(bits=2048)):
        sealed = train(credit, engine)
        for name, part in sealed.parts.items():
            np.testing.assert_allclose(part.theta, opened.parts[name].theta, atol=1e-3)
        assert sealed.metrics["auc"] == pytest.approx(opened.metrics["auc"], abs=5e-4)
        assert sealed.costs.seconds(Kind.ENCRYPTION) > 0


@pytest.mark.slow
def test_the_sealed_model_is_as_good_as_the_pooled_one(credit: list[vfl.Party]) -> None:
    sealed = train(credit, vfl.Ckks(), batch_size=256, epochs=5, prepare={"tails": "keep"})  # as for the pooled model
    X = np.hstack([party.X for party in credit])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    pooled = LogisticRegression(max_iter=1000).fit(X, credit[0].y)
    assert sealed.metrics["auc"] == pytest.approx(roc_auc_score(credit[0].y, pooled.decision_function(X)), abs=0.005)


@pytest.mark.exact_outputs
@pytest.mark.parametrize("xi", [60.0, pytest.param(None, marks=pytest.mark.slow)])
def test_kept_exchanges_give_the_open_model_under_ckks(credit: list[vfl.Party], xi: float | None) -> None:
    def celu(residual: str) -> vfl.Run:
        job = vfl.Job(
            model=vfl.Logistic(l2=1e-4),
            optimizer=vfl.CeluVFL(R=5, W=5, xi=xi, lr=0.03, rule=vfl.AdaGrad()),
            protocol=vfl.Protocol(residual=residual),
            batch_size=4096,
            epochs=5,
            accepts=["columns", "fresh_equations"],
        )
        return vfl.simulate(job, credit)

    opened, sealed = celu("open"), celu("ckks")
    assert opened.metrics["auc"] > 0.715
    # the difference is 1.2e-5 in every run
    assert sealed.metrics["auc"] == pytest.approx(opened.metrics["auc"], abs=1e-4)
