"""Print one table of results against statsmodels, scikit-learn and scipy, with the bounds of each figure.

    PYTHONPATH=.:tests python tests/right_numbers.py [--smallest | --rates ROWS ... | --tables NAME ...]

For a model in the open, under CKKS and on shares: the distance of exported from served values (f, points of a
scorecard); drift against scipy's; counts and amounts, balanced classes, several classes and bins against the
libraries. It ends with 1 if a figure is beyond its bound. It takes some ten minutes on two busy cores. With --tables it
prints the log loss of the default model on shares and of scikit-learn's on the pooled columns, for real tables in the
folder of `builders.REAL_TABLES`, all of them by default.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from builders import REAL_TABLES
from scipy import stats
from selfcheck.whole_weights import whole_weights
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

import securevfl as vfl
from benchmarks.real_tables import TABLES, two_files
from securevfl.credit.drift import measure_drift
from securevfl.credit.scorecard import BASE, ScorecardScale
from securevfl.data.baseline import baselines
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.families.table_preparation import prepare_party
from tests.data.test_drift import Columns
from tests.models import test_right_numbers as glm
from tests.models import test_unbiased as unbiased
from tests.training import test_one_model as one

BINARY_TABLES = TABLES | {"epsilon_5k": partial(two_files, "epsilon_5k")}
"""Real tables with labels of two classes, by name."""
PROTOCOL_KINDS = ("open", "ckks", "shares")


class Figure(NamedTuple):
    """One line: the distance of a figure from the correct one, and its bound."""

    point: str
    kind: str
    apart: float
    bound: float


def exported(kind: str) -> Iterator[Figure]:
    """Compare coefficients and f of rows beyond all bounds with loops over served values; points of training rows."""
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
    rows = one.frames_with_gaps()
    (base,) = [line.points for line in vfl.scorecard(card.parts).lines if line.column == BASE]
    points = base + sum(one.points(vfl.scorecard(card.parts), card.parts[name], X) for name, X in rows.items())
    f = sum(one.served(card.parts[name], X, clip)[:, 0] for name, X in rows.items())
    yield Figure("2 points of a card", kind, float(np.abs(points - ScorecardScale().of(f)).max()), 1e-5)


def drift() -> Iterator[Figure]:
    """Shift all rows from 7 to 5, and from 0 to -999; open interval ends would change a third of a distance."""
    for before, after in ((7.0, 5.0), (0.0, -999.0)):
        training, new = np.full(400, before), np.full(200, after)
        (base,) = baselines(Columns(training[:, None], ["x"]), np.arange(400))
        (drifted,) = measure_drift([base], Columns(new[:, None], ["x"]))
        right = stats.ks_2samp(training, new).statistic
        yield Figure(f"3 drift {before:g} to {after:g}", "", float(abs(drifted.ks - right)), 0.012)


def counts(kind: str, cases: dict[str, Any]) -> Iterator[Figure]:
    for case, y in cases.items():
        apart, foreseen, above = glm.found(case, kind, y)
        yield Figure(f"4 {case}", kind, apart, glm.bound(foreseen))
        yield Figure(f"4 {case}, deviance", kind, above, glm.LOSS)


def balanced(kind: str, rows: int) -> Iterator[Figure]:
    """AUC of two classes of equal weight, one with 1 % of the rows, minus scikit-learn's."""
    draw = np.random.default_rng(8)
    columns, other = draw.normal(size=(rows, 2)), draw.normal(size=(rows, 2))
    f = columns @ [1.5, -1.0] + other @ [1.0, 0.0] + draw.logistic(size=rows)
    y = (f >= np.sort(f)[-rows // 100]).astype(int)
    members = [vfl.Party("bank", columns, y, ids=range(rows)), vfl.Party("shop", other, ids=range(rows))]
    keys = {} if kind == "shares" else {"protocol": kind, "accepts": glm.SEALED}
    job = vfl.Job(model=vfl.Logistic(), weights={"classes": "balanced"}, test_fraction=0.0, **keys)
    oracle = LogisticRegression(C=1e6, class_weight="balanced", max_iter=1000).fit(np.hstack([columns, other]), y)
    right = roc_auc_score(y, oracle.decision_function(np.hstack([columns, other])))
    yield Figure("5 AUC, balanced 1 %", kind, abs(vfl.simulate(job, members).metrics["auc"] - right), 2e-3)


def four(rows: int) -> list[vfl.Party]:
    """Four classes that hang on smooth columns of two parties."""
    draw = np.random.default_rng(3)
    X, weights = draw.normal(size=(rows, 8)), draw.normal(size=(8, 4))
    y = (X @ weights + draw.gumbel(size=(rows, 4))).argmax(axis=1)
    return [vfl.Party("bank", X[:, :4], y, ids=range(rows)), vfl.Party("shop", X[:, 4:], ids=range(rows))]


def split(job: vfl.Job, parties: list[vfl.Party]) -> tuple[Any, Any, Any, Any]:
    """Return columns of training rows and of those held out, and their labels."""
    rows, X, y = job.schedule(register_of(parties)), np.hstack([party.X for party in parties]), parties[0].labels
    return X[rows.train], X[rows.test], y[rows.train], y[rows.test]


def classes(*, smallest: bool) -> Iterator[Figure]:
    """Four classes, one against the rest: mean AUC minus scikit-learn's, for logistic regressions and trees.

    Trees are compared with boosted ones; fewer splits may lower their AUC.
    """
    parties = four(2000)
    right = {vfl.OneVsRest(): LogisticRegression(C=1e6, max_iter=5000)}
    right |= {} if smallest else {vfl.Trees(): HistGradientBoostingClassifier()}
    for (model, oracle), bound in zip(right.items(), (5e-3, 0.03), strict=False):
        job = vfl.Job(model=model)
        X, new, y, labels = split(job, parties)
        scaled = StandardScaler().fit(X)
        one_vs_rest = OneVsRestClassifier(oracle).fit(scaled.transform(X), y)
        f = one_vs_rest.decision_function(scaled.transform(new))
        auc = np.mean([roc_auc_score(labels == k, f[:, k]) for k in range(4)])
        auc_of_run = vfl.simulate(job, parties).metrics["auc"]
        yield Figure(f"6 AUC, 4 classes, {model.name}", "shares", float(max(0.0, auc - auc_of_run)), bound)


def binned() -> Iterator[Figure]:
    """Compare AUC of the default, and on bins, with scikit-learn's for a label that is a logistic function of smooth
    columns; and how much better bins are than the default, which leaves such columns as they are."""
    draw, rows = np.random.default_rng(9), 4000
    X = draw.normal(size=(rows, 8))
    y = (X @ np.resize([1.2, -0.8], 8) + draw.logistic(size=rows) > 0).astype(int)
    parties = [vfl.Party("bank", X[:, :4], y, ids=range(rows)), vfl.Party("shop", X[:, 4:], ids=range(rows))]
    discrete = KBinsDiscretizer(10, quantile_method="averaged_inverted_cdf")
    right = {None: StandardScaler(), 10: discrete}
    auc = {}
    for bins, columns in right.items():
        job = vfl.Job(model="logistic", prepare={"bins": bins})
        train_columns, new, of, labels = split(job, parties)
        oracle = make_pipeline(columns, LogisticRegression(C=1e3, max_iter=5000)).fit(train_columns, of)
        auc[bins] = vfl.simulate(job, parties).metrics["auc"]
        apart = abs(roc_auc_score(labels, oracle.decision_function(new)) - auc[bins])
        yield Figure("6 AUC, smooth columns" + (", bins" if bins else ""), "shares", apart, 5e-3)
    yield Figure("6 AUC, bins less default", "shares", max(0.0, auc[10] - auc[None]), 2e-3)


def figures(*, smallest: bool = False) -> Iterator[Figure]:
    """Yield all figures, or with `smallest` some of each point."""
    kinds = PROTOCOL_KINDS[:1] if smallest else PROTOCOL_KINDS
    cases = {"gamma, weighted": glm.LABELS["gamma, weighted"]} if smallest else glm.LABELS | glm.MORE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        for kind in kinds:
            yield from exported(kind)
        yield from drift()
        for kind in PROTOCOL_KINDS:
            yield from counts(kind, cases)
        for kind in kinds:
            yield from balanced(kind, 2000 if smallest else 6000)
        yield from classes(smallest=smallest)
        yield from () if smallest else binned()


def rates(rows: Iterable[int]) -> None:
    """Print the bias of the default model and of long steps, for each number of rows and rate."""
    print(f"{'rows':>9}{'rate':>7}  {'steps':<8}{'largest z':>10}{'mean / rate':>12}{'slope':>8}")
    steps = {"long": {"optimizer": vfl.BlockDescent(lr=2), "epochs": 30, "evaluate_every": 10}, "default": {}}
    keys = {"batch_size": "growing", "test_fraction": 0.25}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        for n in rows:
            for rate in unbiased.RATES:
                for name, more in steps.items():
                    bias = unbiased.measure(n, rate, **(keys | more if more else {}))
                    figures = f"{bias.z:>10.2f}{bias.ratio:>12.4f}{bias.slope:>8.4f}"
                    print(f"{n:>9,}{rate:>7g}  {name:<8}{figures}", flush=True)


def print_held_out_losses(names: Iterable[str]) -> None:
    """Print log losses and AUC of the default model and of the pooled optimum on the same prepared columns.

    Without a penalty, the optimum overfits tables of few rows and many columns. The held-out loss of the default model
    may therefore be lower.
    """
    heads = ("training", "pooled", "held out", "error", "pooled", "AUC", "pooled")
    print(f"{'table':<16}{'rows':>9}{'columns':>8}{'steps':>6}" + "".join(f"{head:>10}" for head in heads))
    for name in names:
        parties = BINARY_TABLES[name](REAL_TABLES)
        job = vfl.Job(model="logistic")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = vfl.simulate(job, parties)
        weights = whole_weights(run.job, {party: part.state for party, part in run.parts.items()}, "bank")
        rows = job.schedule(register_of(parties))
        prepared = {party.name: prepare_party(run.job, party, party.register) for party in parties}
        blocks = [run.parts[party].scaling(np.asarray(table.X, float)) for party, table in prepared.items()]
        X, y = np.hstack(blocks), np.asarray(parties[0].y)
        y = (y == run.active.label_classes[1]).astype(int)
        theta = np.concatenate(
            [weights[part][: block.shape[1], 0] for part, block in zip(prepared, blocks, strict=True)]
        )
        f = X @ theta + weights["bank"][blocks[0].shape[1] :, 0].sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            oracle = LogisticRegression(C=1e8, max_iter=2000).fit(X[rows.train], y[rows.train])
        pooled = oracle.decision_function(X)

        def loss(scores: Any, chosen: Any, y: Any = y) -> float:
            return float(np.logaddexp(0, -(2 * y[chosen] - 1) * scores[chosen]).mean())

        figures = (
            loss(f, rows.train),
            loss(pooled, rows.train),
            run.metrics["log_loss"],
            run.metric_std_errors["log_loss"],
            loss(pooled, rows.test),
            run.metrics["auc"],
            roc_auc_score(y[rows.test], pooled[rows.test]),
        )
        values = "".join(f"{value:>10.4f}" for value in figures)
        print(f"{name:<16}{len(y):>9,}{X.shape[1]:>8}{run.job.epochs:>6}{values}", flush=True)


def main(*, smallest: bool) -> int:
    """Print the table, and return 1 if a figure is beyond its bound."""
    beyond = 0
    for figure in figures(smallest=smallest):
        beyond += figure.apart > figure.bound
        print(f"{figure.point:<48}{figure.kind:<8}{figure.apart:>12.3g}{figure.bound:>12.3g}", flush=True)
    return int(beyond > 0)


if __name__ == "__main__":
    if "--tables" in sys.argv[1:]:
        print_held_out_losses(sys.argv[2:] or BINARY_TABLES)
        sys.exit()
    if "--rates" in sys.argv[1:]:
        rates(map(int, sys.argv[2:]))
        sys.exit()
    sys.exit(main(smallest="--smallest" in sys.argv[1:]))
