"""A job by default, on a real table with gaps and texts, scores as scikit-learn's own pipeline does."""

import csv
import gzip
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

TABLE = Path(__file__).parents[3] / "shared" / "data" / "support2.csv.gz"
pytestmark = [pytest.mark.realdata, pytest.mark.skipif(not TABLE.exists(), reason="needs the real tables")]


def test_texts_and_gaps_score_as_they_do_in_scikit_learn() -> None:
    with gzip.open(TABLE, "rt") as file:
        names, *rows = csv.reader(file)
    y = np.array([int(row[1]) for row in rows])
    X = np.array([[value or None for value in row] for row in rows], dtype=object)
    own, other = ([j for j, name in enumerate(names) if name.startswith(mark)] for mark in ("g_", "h_"))
    ids = X[:, 0].tolist()
    bank = vfl.Party("bank", X[:, own], y, ids=ids, columns=[names[j] for j in own])
    shop = vfl.Party("shop", X[:, other], ids=ids, columns=[names[j] for j in other])
    job = vfl.Job(model="logistic", protocol="open", test_fraction=0.25, accepts=["columns"])
    found = vfl.simulate(job, [bank, shop]).metrics["auc"]

    texts = [names.index(name) for name in (*bank.levels, *shop.levels)]
    numbers = [j for j in own + other if j not in texts]
    fill = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    prepared = make_column_transformer((fill, numbers), (OneHotEncoder(handle_unknown="ignore"), texts))
    pooled = make_pipeline(prepared, LogisticRegression(max_iter=1000))
    table = X.copy()
    table[:, numbers] = np.array(X[:, numbers], dtype=float)
    schedule = job.schedule(bank.register)
    pooled.fit(table[schedule.train], y[schedule.train])
    expected = roc_auc_score(y[schedule.test], pooled.decision_function(table[schedule.test]))
    assert found == pytest.approx(expected, abs=0.005)
