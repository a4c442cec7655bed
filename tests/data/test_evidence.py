"""Bins of columns and their weights of evidence equal those that the test counts in the pooled table."""

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code, reread

import securevfl as vfl
from securevfl.data.columns import columns_of
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.data.woe import BinIndicators, Woe, WoeTransform, apply_class_counts
from securevfl.errors import ConfigError

N = 600
GENERATOR = np.random.default_rng(11)
AGE = np.where(GENERATOR.random(N) < 0.15, np.nan, GENERATOR.normal(50, 12, N).round())
DEBT = np.where(GENERATOR.random(N) < 0.01, np.nan, GENERATOR.lognormal(8, 1, N))
CITY = [*GENERATOR.choice(["Rome", "Oslo", "Bern"], N - 30, p=[0.5, 0.3, 0.2]).tolist(), *["Lima"] * 25, *[None] * 5]
TABLE = pa.table({"age": pa.array(AGE), "debt": pa.array(DEBT), "city": pa.array(CITY, pa.string())})
LATER = GENERATOR.random(N) < 0.3
TRAIN = GENERATOR.permutation(N)[:500]
WOE = Woe(bins=4, rows=30)


def bins_of(woe: Woe = WOE) -> tuple[FittedPreparation, np.ndarray]:
    columns = columns_of("shop", TABLE)
    prepared = fit_preparation("shop", columns, TRAIN, Preparation(woe=woe))
    return prepared, prepared.apply(columns)


def weights_of(woe: Woe = WOE) -> FittedPreparation:
    prepared, places = bins_of(woe)
    rows = BinIndicators(places[TRAIN], woe.slots)
    return FittedPreparation(
        prepared.columns, apply_class_counts(prepared.steps, rows, rows.positives(LATER[TRAIN]), woe)
    )


def test_no_bin_has_fewer_rows_than_the_job_says() -> None:
    for woe in (WOE, Woe(bins=20, rows=20), Woe(bins=2, rows=200)):
        prepared, places = bins_of(woe)
        for column, step in zip(places[TRAIN].T, prepared.steps, strict=True):
            counts = np.bincount(column.astype(int))
            assert isinstance(step, WoeTransform)
            assert len(counts) == step.bins <= woe.slots
            assert step.bins == 1 or counts.min() >= woe.rows


def test_frequent_missing_and_rare_values_get_their_bin() -> None:
    _, places = bins_of()
    assert len(set(places[np.isnan(AGE), 0])) == 1
    assert not np.isin(places[~np.isnan(AGE), 0], places[np.isnan(AGE), 0]).any()
    middle = np.searchsorted(np.sort(DEBT[TRAIN]), np.nanmedian(DEBT[TRAIN]))
    assert set(places[np.isnan(DEBT), 1]) == {places[TRAIN][np.argsort(DEBT[TRAIN])[middle], 1]}
    rare = np.isin(np.array(CITY, object), ["Lima", None])
    commonest = places[np.array(CITY, object) == "Rome", 2]
    assert set(places[rare, 2]) == set(commonest)  # 30 of 600 rows are too few for a separate bin
    wide = bins_of(Woe(bins=2, rows=20))[1]
    assert not np.isin(wide[rare, 2], wide[np.array(CITY, object) == "Rome", 2]).any()


def test_weights_are_those_of_the_pooled_table() -> None:
    _, places = bins_of()
    weighted = weights_of()
    P, total, s = LATER[TRAIN].sum(), len(TRAIN), WOE.smoothing
    for j, step in enumerate(weighted.steps):
        assert isinstance(step, WoeTransform)
        iv = 0.0
        for place in range(step.bins):
            labels_of_bin = LATER[TRAIN][places[TRAIN, j] == place]
            p, n = labels_of_bin.sum(), (~labels_of_bin).sum()
            weight = np.log((p + s) / (P + 2 * s) / ((n + s) / (total - P + 2 * s)))
            assert step.weights[place] == pytest.approx(weight)
            iv += (p / P - n / (total - P)) * weight
        assert weighted.information_values[step.column] == pytest.approx(iv)


def test_new_rows_get_the_weights_of_their_bins() -> None:
    weighted, (_, places) = weights_of(), bins_of()
    again = reread(weighted)
    assert again == weighted
    np.testing.assert_array_equal(again.apply(columns_of("shop", TABLE)), weighted.weigh(places))
    new = pa.table({"age": [None, 1e9], "debt": [-1.0, None], "city": ["Xanadu", "Rome"]})
    applied = again.apply(columns_of("shop", new, known=again.types))
    age, debt, city = (step.weights for step in again.steps if isinstance(step, WoeTransform))
    assert applied[0].tolist() == [age[-1], debt[0], city[0]]
    assert applied[1, 0] == age[-2]


def test_columns_that_say_too_little_say_nothing() -> None:
    information = weights_of().information_values
    least = sorted(information.values())[1]
    weighted = weights_of(Woe(bins=4, rows=30, iv=least))
    has_weights = {step.column: any(step.weights) for step in weighted.steps if isinstance(step, WoeTransform)}
    assert has_weights == {column: value >= least for column, value in information.items()}
    assert weighted.information_values == information


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prepare": {"woe": {"rows": 5}}}, "prepare.woe.rows: should be greater than or equal to 20"),
        ({"prepare": {"woe": {}, "bins": 5}}, "prepare.woe: divides columns into bins itself; leave out clip, bins"),
        ({"model": "softmax"}, "prepare.woe: softmax loss does not have two classes"),
        ({"protocol": {"shares": {}}}, "which shares do not disclose; use prepare = { bins = 10 }"),
        (
            {"protocol": {"residual": {"name": "open", "defence": {"name": "rounding"}}}},
            "prepare.woe: a defence adds noise to residuals, but",
        ),
    ],
)
def test_what_has_no_use_for_it_says_so(options: dict[str, object], says: str) -> None:
    defaults: dict[str, object] = {"model": "logistic", "optimizer": {"name": "fedbcd", "lr": 0.1}, "protocol": "ckks"}
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        vfl.Job(**defaults | {"prepare": {"woe": {}}} | options)
    assert says in str(refused.value)
