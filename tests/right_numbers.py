"""Prints one table of what trainings find beside statsmodels, scikit-learn and scipy, with the bounds of each figure.

    PYTHONPATH=.:tests python tests/right_numbers.py [--smallest]

Of a model in the open, under CKKS and on shares: how far what is exported lies from what is served (f, points of a
scorecard); how far drift lies from scipy's; counts and amounts, balanced classes and several classes beside the
libraries. It ends with 1 if a figure is beyond its bound.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.data.drift import baselines, drifts
from securevfl.errors import DataNotice
from securevfl.training.scorecard import BASE, ScorecardScale
from tests.data.test_drift import Columns
from tests.models import test_right_numbers as glm
from tests.training import test_one_model as one

KINDS = ("open", "ckks", "shares")


class Figure(NamedTuple):
    """One line: how far something lies from what it should be, and how far it may."""

    point: str
    kind: str
    apart: float
    bound: float


def exported(kind: str) -> Iterator[Figure]:
    """Coefficients, and f of rows beyond all bounds, beside loops over what is served; points of training rows."""
    run, new, clip = (
        one.train("logistic", one.KEPT, "standard", kind),
        one.new_rows(),
        8.0 if kind == "shares" else None,
    )
    total, apart = np.zeros((len(new["bank"]), 1)), 0.0
    for name, part in run.parts.items():
        exact = one.served(part, new[name], clip)
        linear = part.counted(new[name]) @ list(part.coefficients().values()) + part.constant()
        apart, total = max(apart, float(np.abs(linear - exact).max() / max(1.0, np.abs(exact).max()))), total + exact
    yield Figure("1 coefficients", kind, apart, 1e-6)
    scale = max(1.0, float(np.abs(total).max()) * 1e-9)
    level = 2.0**-15 if kind == "shares" else 2e-6
    yield Figure("1 f as served", kind, float(np.abs(total - run.decision(new)).max() / scale), level)
    card = one.train("logistic", {"bins": 4}, "standard", kind)
    rows = one.tables()
    (base,) = [each.points for each in card.scorecard().lines if each.column == BASE]
    points = base + sum(one.points(card.scorecard(), card.parts[name], X) for name, X in rows.items())
    f = sum(one.served(card.parts[name], X, clip)[:, 0] for name, X in rows.items())
    yield Figure("2 points of a card", kind, float(np.abs(points - ScorecardScale().of(f)).max()), 1e-5)


def drift() -> Iterator[Figure]:
    """All 7 to all 5, and all 0 to -999, of which a third of a distance would be seen if ends were closed."""
    for before, after in ((7.0, 5.0), (0.0, -999.0)):
        training, new = np.full(400, before), np.full(200, after)
        (base,) = baselines(Columns(training[:, None], ["x"]), np.arange(400))
        (found,) = drifts([base], Columns(new[:, None], ["x"]))
        right = stats.ks_2samp(training, new).statistic
        yield Figure(f"3 drift {before:g} to {after:g}", "", float(abs(found.ks - right)), 0.012)


def counts(kind: str, cases: dict[str, Any]) -> Iterator[Figure]:
    for case, y in cases.items():
        apart, foreseen, _ = glm.found(case, kind, y)
        yield Figure(f"4 {case}", kind, apart, glm.bound(foreseen))


def balanced(kind: str, rows: int) -> Iterator[Figure]:
    """AUC of classes that count the same, of which one has 1 % of the rows, less scikit-learn's."""
    draw = np.random.default_rng(8)
    own, other = draw.normal(size=(rows, 2)), draw.normal(size=(rows, 2))
    f = own @ [1.5, -1.0] + other @ [1.0, 0.0] + draw.logistic(size=rows)
    y = (f >= np.sort(f)[-rows // 100]).astype(int)
    each = [vfl.Party("bank", own, y, ids=range(rows)), vfl.Party("shop", other, ids=range(rows))]
    keys = {} if kind == "shares" else {"protocol": kind, "accepts": glm.SEALED}
    job = vfl.Job(model=vfl.Logistic(), weights={"classes": "balanced"}, test_fraction=0.0, **keys)
    oracle = LogisticRegression(C=1e6, class_weight="balanced", max_iter=1000).fit(np.hstack([own, other]), y)
    right = roc_auc_score(y, oracle.decision_function(np.hstack([own, other])))
    yield Figure("5 AUC, balanced 1 %", kind, abs(vfl.simulate(job, each).metrics["auc"] - right), 2e-3)


def classes(epochs: int) -> Iterator[Figure]:
    """Trees of four classes by default: 1 less their AUC, which a random order would have at one half."""
    bank, shop = vfl.datasets.breast_cancer()
    y = np.digitize(bank.X[:, 0], np.quantile(bank.X[:, 0], [0.25, 0.5, 0.75]))
    each = [vfl.Party("bank", bank.X, y, aligned=True), vfl.Party("shop", shop.X, aligned=True)]
    job = vfl.Job(model=vfl.Trees(trees=4, depth=2, own_score=False), epochs=epochs)
    yield Figure("6 1 - AUC, 4 classes", "shares", 1 - vfl.simulate(job, each).metrics["auc"], 0.35)


def figures(*, smallest: bool = False) -> Iterator[Figure]:
    """Yield all figures, or with `smallest` some of each point."""
    kinds = KINDS[:1] if smallest else KINDS
    cases = {"gamma, weighted": glm.LABELS["gamma, weighted"]} if smallest else glm.LABELS | glm.MORE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        for kind in kinds:
            yield from exported(kind)
        yield from drift()
        for kind in KINDS:
            yield from counts(kind, cases)
        for kind in kinds:
            yield from balanced(kind, 2000 if smallest else 6000)
        yield from classes(4)


def main(*, smallest: bool) -> int:
    """Print the table, and return 1 if a figure is beyond its bound."""
    beyond = 0
    for each in figures(smallest=smallest):
        beyond += each.apart > each.bound
        print(f"{each.point:<40}{each.kind:<8}{each.apart:>12.3g}{each.bound:>12.3g}", flush=True)
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main(smallest="--smallest" in sys.argv[1:]))
