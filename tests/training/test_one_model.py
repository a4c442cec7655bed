"""Exported, printed and explained values of a model equal its scores, also for extreme, missing and unknown values.

f is compared with loops over the arithmetic of the share holders: whole numbers of 2^-8, times the weights that a party
received. So figures are compared before a score is rounded to levels.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import securevfl as vfl
from securevfl.credit.explanations import reasons, shapley
from securevfl.credit.onnx_export import to_onnx
from securevfl.credit.scorecard import BASE, Scorecard, ScorecardScale
from securevfl.errors import ConfigError, DataError, DataNotice
from securevfl.models import MODELS
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.linear import LinearModel
from securevfl.training.model_part import ModelPart

N = 900
DRAW = np.random.default_rng(23)
RARE = (np.arange(N) % 125 == 7).astype(float)
HEAVY = np.exp(1.8 * DRAW.normal(size=N))
OWN = np.column_stack([DRAW.normal(size=N), RARE, HEAVY])
GAPS = np.where(DRAW.random(N) < 0.15, np.nan, DRAW.normal(size=N) * 30 + 100)
OTHER = np.column_stack([DRAW.poisson(0.05, N).astype(float), GAPS, DRAW.normal(size=N) ** 3])
TOWN = DRAW.choice(["Ulm", "Bonn", "Jena"], N, p=[0.6, 0.37, 0.03])
F = OWN[:, 0] + 4 * RARE + 0.2 * np.log(HEAVY) + 1.5 * OTHER[:, 0] + 0.7 * (TOWN == "Jena") - 0.5
Y = (DRAW.random(N) < 1 / (1 + np.exp(-F))).astype(int)
FAR = np.array([1e9, -1e9, 1e-9, 8.0, -8.0, 50.0])
LABELS: dict[str, Any] = {
    "logistic": Y,
    "square": F + DRAW.normal(size=N),
    "poisson": DRAW.poisson(np.exp(F.clip(-2, 2) / 3)).astype(float),
    "one_vs_rest": np.digitize(F, [-1, 0.5]),
    "trees": Y,
    "gamma": DRAW.gamma(2.0, np.exp(F.clip(-2, 2) / 3)),
    "tweedie": DRAW.poisson(np.exp(F.clip(-2, 2) / 3)) * DRAW.gamma(2.0, 1.0, N),
    "negative_binomial": DRAW.poisson(np.exp(F.clip(-2, 2) / 3)).astype(float),
    "quantile": F + DRAW.normal(size=N),
    "huber": F + DRAW.normal(size=N),
    "smooth_hinge": Y,
    "softmax": np.digitize(F, [-1, 0.5]),
}


def frames_with_gaps() -> dict[str, Any]:
    pd = pytest.importorskip("pandas")
    shop = pd.DataFrame({"visits": OTHER[:, 0], "gaps": GAPS, "cubed": OTHER[:, 2], "town": TOWN})
    return {"bank": pd.DataFrame(dict(zip(("age", "rare", "amount"), OWN.T, strict=True))), "shop": shop}


def parties_with_gaps(family: str) -> list[vfl.Party]:
    bank, shop = frames_with_gaps().values()
    return [vfl.Party("bank", bank, LABELS[family], ids=range(N)), vfl.Party("shop", shop, ids=range(N))]


def new_rows() -> dict[str, Any]:
    """Return training rows, rows far beyond all bounds on either side, missing values, and unknown texts."""
    pd = pytest.importorskip("pandas")
    bank_columns = np.vstack([OWN[:40], np.column_stack([FAR, 1 - (FAR > 0), FAR])])
    other = np.vstack([OTHER[:40], np.column_stack([np.abs(FAR), FAR, -FAR])])
    other[41, 1] = np.nan
    town = np.append(TOWN[:40], ["Ulm", "Jena", "Trier", "", "Bonn", "elsewhere"])
    shop = pd.DataFrame({**dict(zip(("visits", "gaps", "cubed"), other.T, strict=True)), "town": town})
    return {"bank": pd.DataFrame(dict(zip(("age", "rare", "amount"), bank_columns.T, strict=True))), "shop": shop}


def train(family: str, prepare: dict[str, Any], scale: str, protocol: str) -> vfl.Run:
    model = vfl.Trees(trees=3, depth=2) if family == "trees" else family
    shares = vfl.Protocol(shares=vfl.Shares(open_weights=("bank", "shop")))
    keys: dict[str, Any] = {"scale": scale} if family != "trees" else {}
    if family in ("poisson", "gamma", "tweedie", "negative_binomial"):
        keys["optimizer"] = vfl.FedSGD(lr=0.05)
    job = vfl.Job(
        model=model,
        protocol=shares if protocol == "shares" else protocol,
        batch_size="all",
        epochs=4,
        prepare=prepare,
        accepts=[] if protocol == "shares" else ["columns", "rank", "label_auc", "fresh_equations"],
        **keys,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return vfl.simulate(job, parties_with_gaps(family))


def served(part: ModelPart, X: Any, clip: float | None) -> Any:
    """Compute a party's summand of f (m x c) by loops, as share holders compute it."""
    table, total = part.table(X), np.zeros((len(X), part.outputs))
    scaling = part.scaling
    for row, values in enumerate(table):
        for j, value in enumerate(values):
            scaled = (value - scaling.mean[j]) / scaling.deviation[j]
            if clip is not None:
                scaled = round(256 * min(max(scaled, -clip), clip)) / 256
            total[row] += scaled * part.theta[j]
    return total + part.theta[len(part.features) :].sum(axis=0)


def points(card: Scorecard, part: ModelPart, X: Any) -> Any:
    """Return the points of rows (m,), added up by the printed lines from the original columns."""
    total = np.zeros(len(X))
    for column in part.columns:
        column_points = {
            line.bin: line.points for line in card.lines if (line.party, line.column) == (part.name, column)
        }
        for row, value in enumerate(X[column]):
            lacks = value == "" or (not isinstance(value, str) and math.isnan(value))
            if lacks and "(missing)" in column_points:
                total[row] += column_points["(missing)"]
            elif isinstance(value, str):
                total[row] += column_points.get(value, column_points.get("(other)", 0.0))
            elif any(name.startswith("[") for name in column_points):
                matching = [name for name in column_points if name.startswith("[") and within(name, value)]
                assert len(matching) == 1
                total[row] += column_points[matching[0]]
            else:
                (unit,) = [name for name in column_points if name.startswith("each unit")]
                words = unit.split()
                low = float(words[words.index("from") + 1]) if "from" in words else -np.inf
                high = float(words[words.index("to") + 1]) if "to" in words else np.inf
                total[row] += column_points["at 0"] + column_points[unit] * min(max(value, low), high)
    return total


def within(name: str, value: float) -> bool:
    low, high = (float(bound) for bound in name[1:-1].split(", "))
    return low <= value < high


KEPT = {"tails": "keep"}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("logistic", KEPT, "standard", "shares"),
    ("logistic", KEPT, "none", "shares"),
    ("logistic", {"clip": 0.02}, "robust", "shares"),
    ("logistic", {"bins": 4}, "standard", "shares"),
    ("square", {}, "standard", "shares"),
    ("poisson", KEPT, "standard", "shares"),
    ("one_vs_rest", {}, "robust", "shares"),
    ("trees", {}, "standard", "shares"),
    ("gamma", KEPT, "robust", "shares"),
    ("tweedie", {"bins": 4}, "standard", "shares"),
    ("negative_binomial", {}, "standard", "open"),
    ("quantile", {"clip": 0.02}, "standard", "shares"),
    ("huber", {}, "robust", "open"),
    ("smooth_hinge", {}, "standard", "shares"),
    ("softmax", {"bins": 4}, "standard", "open"),
    ("logistic", KEPT, "robust", "open"),
    ("logistic", {"clip": 0.02}, "none", "open"),
    ("square", {"bins": 4}, "standard", "open"),
    ("logistic", {"woe": {"bins": 4}}, "standard", "open"),
]


def test_every_family_of_weights_for_columns_is_among_them() -> None:
    named = {name for name, kind in MODELS.items() if issubclass(kind, LinearModel)} - {"linear"}
    assert named <= {family for family, *_ in CASES}


LIKE_OTHERS = [case for case in CASES if case[0] in ("smooth_hinge", "tweedie") or case[:2] == ("square", {})]
"""Readers compute these as others of the same preparation and the same link."""


@pytest.mark.parametrize(
    ("family", "prepare", "scale", "protocol"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case in LIKE_OTHERS)) for case in CASES],
    ids=str,
)
def test_every_reader_of_a_model_says_what_is_served(
    family: str, prepare: dict[str, Any], scale: str, protocol: str, tmp_path: Path
) -> None:
    run, new = train(family, prepare, scale, protocol), new_rows()
    f, clip = run.decision(new), 8.0 if protocol == "shares" else None
    run.save(tmp_path)
    loaded = vfl.Run.load(tmp_path).parts
    total = np.zeros(f.shape)
    for name, part in run.parts.items():
        np.testing.assert_array_equal(part.rows(new[name]), loaded[name].rows(new[name]))
        if family == "trees":
            total += part.explain(new[name]).total
            continue
        exact = served(part, new[name], clip)
        total += exact
        size = 1e-6 * max(1.0, np.abs(exact).max() * 1e-6)  # beyond all bounds an open model has f of 1e9
        linear = part.counted(new[name]) @ list(part.coefficients().values()) + part.constant()
        np.testing.assert_allclose(linear, exact, atol=size)
        middle = part.theta[len(part.features) :].sum(axis=0)
        np.testing.assert_allclose(shapley(part, new[name]).sum(axis=1) + middle, exact, atol=size)
        if name == "bank":
            runtime = pytest.importorskip("onnxruntime")
            session = runtime.InferenceSession(to_onnx(part), providers=["CPUExecutionProvider"])
            (exported,) = session.run(["part"], {"X": new[name].to_numpy()})
            np.testing.assert_allclose(exported, exact, atol=size)
    np.testing.assert_allclose(total, f, rtol=1e-9, atol=2 * (2.0**-16 if protocol == "shares" else 1e-6))


@pytest.mark.parametrize("prepare", [{"bins": 4}, KEPT], ids=str)
def test_a_scorecard_adds_up_to_the_score_of_every_row(prepare: dict[str, Any]) -> None:
    run, new, scale = train("logistic", prepare, "standard", "shares"), new_rows(), ScorecardScale()
    card = vfl.scorecard(run.parts)
    (base,) = [line.points for line in card.lines if line.column == BASE]
    points_total = base + sum(points(card, run.parts[name], X) for name, X in new.items())
    f = sum(served(part, new[name], 8.0)[:, 0] for name, part in run.parts.items())
    # a column of numbers counts in steps of a 256th of a deviation
    theta = np.concatenate([part.theta[: len(part.features), 0] for part in run.parts.values()])
    step = 0.0 if "bins" in prepare else float(np.abs(theta).sum()) / 512
    np.testing.assert_allclose(points_total, scale.of(f), atol=scale.factor * (step + 1e-8))


@pytest.mark.slow
def test_a_rare_column_keeps_its_effect() -> None:
    """If .8 % of a column are ones, these are 11 deviations from the mean; clipped at 8, they would lose a quarter."""
    shares = vfl.Protocol(shares=vfl.Shares(open_weights=("bank", "shop"), step=0.0625, table_bits=8))
    keys: dict[str, Any] = {"model": vfl.Logistic(l2=1e-4), "batch_size": "all", "epochs": 200, "test_fraction": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(vfl.Job(protocol=shares, prepare=KEPT, **keys), parties_with_gaps("logistic"))
    part = run.parts["bank"]
    rows = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    f = served(part, rows, 8.0)[:, 0]
    assert part.coefficients()["rare"][0] == pytest.approx(f[1] - f[0], abs=1e-9)
    assert part.ends["rare"][0] <= 0
    assert part.ends["rare"][1] >= 1
    columns = [run.parts[name].rows(X) for name, X in (("bank", OWN), ("shop", parties_with_gaps("logistic")[1].table))]
    oracle = LogisticRegression(C=1 / (N * 1e-4), tol=1e-10, max_iter=1000).fit(np.hstack(columns), Y)
    # .013 more, of a standard deviation of .004 over runs, as residuals are rounded at random
    assert f[1] - f[0] == pytest.approx(oracle.coef_[0, 1] / part.scaling.deviation[1], rel=0.05)


MODEL_USES: dict[str, Any] = {
    "coefficients": lambda part, X: part.coefficients(),
    "constant": lambda part, X: part.constant(),
    "explain": lambda part, X: part.explain(X),
    "importance": lambda part, X: part.importance,
    "shapley": shapley,
    "reasons": reasons,
    "export": lambda part, X: to_onnx(part),
}


@pytest.mark.parametrize("boosted_score", [True, False])
def test_no_reader_gives_columns_a_share_of_what_mixes_them(boosted_score: bool) -> None:
    """One party's trees also have cosines of all its columns, whose weights cannot be divided among the columns."""
    model = vfl.Trees(trees=3, depth=2, boosted_score=boosted_score)
    shares = vfl.Protocol(shares=vfl.Shares(open_weights=("bank",)))
    job, tables, new = (
        vfl.Job(model=model, protocol=shares, epochs=4, test_fraction=0.0),
        parties_with_gaps("trees"),
        new_rows(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(job, tables)
    assert "cosine features, unless open_weights names them: they mix all columns of a party" in vfl.explain(
        job, tables
    )
    bank, shop = run.parts["bank"], run.parts["shop"]
    assert bank.state["inputs"]["cosines"] is None
    assert len(shop.state["inputs"]["cosines"]["phases"]) > 0
    for read in MODEL_USES.values():
        with pytest.raises((ConfigError, DataError), match=r"shop|trees"):
            read(shop, new["shop"])
    with pytest.raises((ConfigError, DataError)):
        vfl.scorecard(run.parts)
    np.testing.assert_allclose(bank.explain(new["bank"]).total[:, 0], own_part(bank, new["bank"]), atol=1e-9)


def own_part(part: ModelPart, X: Any) -> Any:
    """Compute a trees party's summand of f (m,): its inputs times the weights that it received."""
    return (ForestInputs.read(part.state["inputs"])(part.table(X)) @ part.theta)[:, 0]
