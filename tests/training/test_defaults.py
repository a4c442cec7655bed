"""A job by default, on real tables as they come, trains as long as guards let it and scores as scikit-learn does."""

import csv
import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import securevfl as vfl
from securevfl.errors import ConfigError, LeakageError
from securevfl.organisations.join import check_role
from securevfl.privacy.allowance import MOST, settled
from securevfl.transport.peers import Peers

DATA = Path(__file__).parents[3] / "shared" / "data"
real = [pytest.mark.realdata, pytest.mark.skipif(not DATA.exists(), reason="needs the real tables")]


def read(name: str) -> tuple[list[str], np.ndarray]:
    with gzip.open(DATA / name, "rt") as file:
        names, *rows = csv.reader(file)
    return names, np.array([[value or None for value in row] for row in rows], dtype=object)


def one_file(name: str) -> list[vfl.Party]:
    """Columns of g_ and h_, texts and gaps among them."""
    names, X = read(f"{name}.csv.gz")
    y = X[:, names.index("y")].astype(float).astype(int)
    own, other = ([j for j, name in enumerate(names) if name.startswith(mark)] for mark in ("g_", "h_"))
    ids = X[:, 0].tolist()
    return [
        vfl.Party("bank", X[:, own], y, ids=ids, columns=[names[j] for j in own]),
        vfl.Party("shop", X[:, other], ids=ids, columns=[names[j] for j in other]),
    ]


def two_files(name: str) -> list[vfl.Party]:
    """The files of guest and host."""
    made = []
    for party, side in (("bank", "guest"), ("shop", "host")):
        names, X = read(f"{name}_hetero_{side}.csv.gz")
        own = [j for j, column in enumerate(names) if column.startswith("x")]
        y = X[:, names.index("y")].astype(float).astype(int) if "y" in names else None
        made.append(vfl.Party(party, X[:, own].astype(float), y, ids=X[:, 0].tolist()))
    return vfl.align(made)[0]


def a9a() -> list[vfl.Party]:
    with np.load(DATA / "a9a.npz") as file:
        X, y, g, h = file["X"].astype(float), (file["y"] > 0).astype(int), file["g"], file["h"]
    ids = np.arange(len(y))
    return [vfl.Party("bank", X[:, g], y, ids=ids), vfl.Party("shop", X[:, h], ids=ids)]


TABLES: dict[str, tuple[Callable[[], list[vfl.Party]], int, int]] = {
    "support2": (partial(one_file, "support2"), 2, 1),
    "default_credit": (partial(two_files, "default_credit"), 3, 2),
    "a9a": (a9a, 3, 2),
    "breast": (partial(two_files, "breast"), 7, 6),
}
QUICK = ("support2", "breast")


def pooled(parties: list[vfl.Party], job: vfl.Job, *, held_out: bool) -> float:
    """AUC of scikit-learn's own preparation and logistic regression on the pooled columns."""
    y, schedule = parties[0].y, job.schedule(parties[0].register)
    assert y is not None
    table = np.hstack([party.X.astype(object) for party in parties])
    names = [column for party in parties for column in party.columns]
    texts = [names.index(column) for party in parties for column in party.levels]
    numbers = [j for j in range(len(names)) if j not in texts]
    fill = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    prepared = make_column_transformer((fill, numbers), (OneHotEncoder(handle_unknown="ignore"), texts))
    model = make_pipeline(prepared, LogisticRegression(max_iter=1000)).fit(table[schedule.train], y[schedule.train])
    rows = schedule.test if held_out else schedule.train
    return float(roc_auc_score(y[rows], model.decision_function(table[rows])))


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[*real, *[pytest.mark.slow] * (each not in QUICK)]) for each in TABLES],
)
def test_three_lines_train_as_long_as_guards_let_them(name: str) -> None:
    make, held_out, training = TABLES[name]
    parties = make()
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=0.25)
    run = vfl.simulate(job, parties)
    assert run.job.epochs == held_out
    assert run.metrics["auc"] == pytest.approx(pooled(parties, job, held_out=True), abs=0.005)

    job = vfl.Job(model="logistic", protocol="open", accepts=["columns"])
    assert vfl.simulate(job, parties).metrics["auc"] == pytest.approx(pooled(parties, job, held_out=False), abs=0.005)
    assert settled(vfl.Job(model="logistic", protocol="ckks"), parties).epochs == training


@pytest.mark.parametrize("test_fraction", [pytest.param(each, marks=[*real, pytest.mark.slow]) for each in (0.0, 0.25)])
def test_a_table_of_few_values_stays_refused_but_for_one_line(test_fraction: float) -> None:
    parties = one_file("adult")
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=test_fraction)
    with pytest.raises(LeakageError, match=r'bank: .* columns of shop.*accepts = \["columns"\]$'):
        vfl.simulate(job, parties)
    job = job.model_copy(update={"accepts": ("columns",)})
    expected = pooled(parties, job, held_out=test_fraction > 0)
    assert vfl.simulate(job, parties).metrics["auc"] == pytest.approx(expected, abs=0.005)


def test_one_epoch_more_would_be_refused() -> None:
    parties = vfl.datasets.breast_cancer(3)
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=0.25)
    run = vfl.simulate(job, parties)
    assert 0 < run.job.epochs < MOST
    assert "would be refused" not in vfl.explain(job, parties)
    with pytest.raises(LeakageError, match="columns of"):
        vfl.simulate(job.model_copy(update={"epochs": run.job.epochs + 1}), parties)
    assert settled(job.model_copy(update={"accepts": ("columns",)}), parties).epochs == MOST
    assert settled(job.model_copy(update={"epochs": 3}), parties).epochs == 3


def test_between_organisations_a_job_names_its_epochs() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    job = vfl.Job(model="logistic", protocol="ckks")
    peers = Peers(active="bank", passives=("shop",), address={"bank": "127.0.0.1:7300", "shop": "127.0.0.1:7301"})
    for what in (lambda: check_role(job, bank, peers), lambda: vfl.explain(job, [shop], others={"bank": 3})):
        with pytest.raises(ConfigError, match="a number of epochs was expected, as each party sees its own"):
            what()
