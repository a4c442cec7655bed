"""Preparation of a party's columns equals scikit-learn's transformers, uses only training rows, and is stored."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import OPEN_JOB, SHARES_JOB, make_job, raises_code, reread
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, RobustScaler

import securevfl as vfl
from securevfl import errors
from securevfl.base.config import to_plain
from securevfl.data.bin_edges import BIN_SCALE, MIN_BIN_ROWS, find_bin_edges, format_number, shortest_between
from securevfl.data.column_transforms import BinTransform
from securevfl.data.columns import columns_of
from securevfl.data.location_scale import quartiles
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.data.woe import Woe, number_bins
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.table_preparation import prepare_party, with_prepared_tables
from securevfl.families.training_data import TrainingData
from securevfl.training.model_part import ModelPart

N = 400
GENERATOR = np.random.default_rng(7)
AGE = np.where(GENERATOR.random(N) < 0.2, np.nan, GENERATOR.normal(50, 12, N))
INCOME = GENERATOR.lognormal(10, 1, N)
CITY = [*GENERATOR.choice(["Rome", "Oslo", "Bern"], N - 4, p=[0.5, 0.3, 0.2]).tolist(), "Lima", "Lima", None, "Bern"]
CITY = CITY[::-1]
TABLE = pa.table(
    {"age": AGE, "income": INCOME, "city": CITY},
    schema=pa.schema([("age", pa.float64()), ("income", pa.float64()), ("city", pa.string())]),
)
TRAIN = np.arange(300)
SECRET = "Xanadu"


def fitted(**options: object) -> FittedPreparation:
    return fit_preparation("shop", columns_of("shop", TABLE), TRAIN, Preparation(**options))


def test_gaps_are_filled_and_marked_as_scikit_learn_does() -> None:
    prepared = fitted().apply(columns_of("shop", TABLE))
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(AGE[TRAIN, None])
    np.testing.assert_array_equal(prepared[:, :2], imputer.transform(AGE[:, None]))
    assert fitted().features == ["age", "age=(missing)", "income", "city=Bern", "city=Oslo"]
    assert fitted(missing="fill").features == ["age", "income", "city=Bern", "city=Oslo"]


def test_text_columns_match_scikit_learn_with_pooled_rare_ones() -> None:
    known = ["nobody" if city is None else city for city in CITY]
    encoder = OneHotEncoder(
        drop=["Rome"], min_frequency=0.05, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    encoder.fit(np.array(known)[TRAIN, None])
    prepared = fit_preparation("shop", columns_of("shop", np.array(CITY)[:, None]), TRAIN, Preparation(rare=0.05))
    assert prepared.features == ["x0=Bern", "x0=Oslo"]  # the rare ones are too few to share a column: they go with Rome
    some = fit_preparation("shop", columns_of("shop", np.array(CITY)[:, None]), TRAIN, Preparation(rare=0.25))
    assert some.features == ["x0=Oslo", "x0=(other)"]
    new = columns_of("shop", np.array([["Oslo"], ["Rome"], ["Bern"], [SECRET], [None]], object))
    np.testing.assert_array_equal(some.apply(new), [[1, 0], [0, 0], [0, 1], [0, 1], [0, 1]])
    np.testing.assert_array_equal(prepared.apply(new), [[0, 1], [0, 0], [1, 0], [0, 0], [0, 0]])
    at = [list(encoder.get_feature_names_out()).index(f"x0_{city}") for city in ("Bern", "Oslo")]
    np.testing.assert_array_equal(
        prepared.apply(columns_of("shop", np.array(known)[:, None])), encoder.transform(np.array(known)[:, None])[:, at]
    )


def test_text_codes_start_at_the_commonest_and_are_not_scaled() -> None:
    codes_fit = fitted(texts="codes")
    assert codes_fit.features == ["age", "age=(missing)", "income", "city"]
    assert codes_fit.codes == ("city",)
    counts = {city: CITY[:300].count(city) for city in ("Rome", "Oslo", "Bern")}
    codes = {city: at for at, city in enumerate(sorted(counts, key=lambda city: -counts[city]), 1)}
    expected = [codes.get(city, 0) for city in CITY]  # Lima and missing values are rare
    np.testing.assert_array_equal(codes_fit.apply(columns_of("shop", TABLE))[:, 3], expected)
    new = pa.table({"age": [1.0], "income": [1.0], "city": [SECRET]})
    assert codes_fit.apply(columns_of("shop", new))[0, 3] == 0
    assert reread(codes_fit) == codes_fit
    shop = vfl.Party("shop", TABLE, aligned=True).prepared(codes_fit)
    for scale in ("standard", "robust", "none"):
        schedule = prepared_job(scale=scale).schedule(shop.register)
        data = TrainingData(shop, schedule, vfl.Logistic().loss, scale=scale)
        np.testing.assert_array_equal(data.scaled(np.arange(N))[:, 3], expected)
    again = with_prepared_tables(prepared_job(), [shop])[1][0]
    assert prepare_party(prepared_job(), again, again.register).preparation.codes == ("city",)


def test_codes_are_for_models_that_embed_them() -> None:
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        prepared_job(prepare={"texts": "codes"})


def test_bins_and_clipping_follow_quantiles() -> None:
    binned = fit_preparation("shop", columns_of("shop", INCOME[:, None]), TRAIN, Preparation(bins=5))
    discretizer = KBinsDiscretizer(5, encode="onehot-dense", strategy="quantile", quantile_method="linear")
    discretizer.fit(INCOME[TRAIN, None])
    over = discretizer.transform(INCOME[TRAIN, None])[:, ::-1].cumsum(axis=1)[:, ::-1][
        :, 1:
    ]  # in this bin or a later one
    np.testing.assert_array_equal(binned.apply(columns_of("shop", INCOME[TRAIN, None])), over)
    clipped = fit_preparation("shop", columns_of("shop", INCOME[:, None]), TRAIN, Preparation(clip=0.1))
    low, high = np.quantile(INCOME[TRAIN], [0.1, 0.9])
    np.testing.assert_allclose(clipped.apply(columns_of("shop", INCOME[:, None]))[:, 0], np.clip(INCOME, low, high))
    rare = (np.arange(N) % 50 == 0).astype(float)
    same = fit_preparation(
        "shop", columns_of("shop", np.column_stack([rare, INCOME])), TRAIN, Preparation(clip=0.1, bins=9)
    )
    assert same.features[0] == "x0"  # a value of 6 rows has no bin
    np.testing.assert_array_equal(same.apply(columns_of("shop", np.column_stack([rare, INCOME])))[:, 0], rare)


def test_values_that_stand_by_themselves_have_bins_of_their_own() -> None:
    draw = np.random.default_rng(0)
    late = np.concatenate([draw.poisson(0.4, 5000).astype(float), np.full(30, 96.0), np.full(40, 98.0)])
    edges = find_bin_edges(late, 10)
    assert edges[:2] == [1.0, 2.0]  # few different values, each by itself while it has rows
    assert edges[-2:] == [96.0, 98.0]
    assert find_bin_edges(-late, 10)[0] == -96.0  # -98 before it
    assert -97 < find_bin_edges(-late, 10)[0] < find_bin_edges(-late, 10)[1] <= -3  # -96 by itself
    paid = np.concatenate([np.zeros(200), draw.lognormal(size=1800)])
    first, *later_edges = find_bin_edges(paid, 5)
    assert 0 < first <= np.sort(paid)[200]  # 0 alone
    assert 4 <= len(later_edges) + 1 <= 6
    assert find_bin_edges(np.zeros(100), 5) == []
    assert find_bin_edges(draw.normal(size=30), 5) == []  # too few rows to part
    for values in (late, paid, np.round(draw.normal(size=700), 1)):
        _, rows = np.unique(np.searchsorted(find_bin_edges(values, 7), values, side="right"), return_counts=True)
        assert rows.min() >= MIN_BIN_ROWS


def test_bin_columns_keep_one_scale_when_prepared() -> None:
    shop = vfl.Party("shop", np.column_stack([INCOME, INCOME**2]), np.median(INCOME) < INCOME, aligned=True)
    bins_job = prepared_job(prepare={"bins": 5})
    prepared = prepare_party(bins_job, shop, shop.register)
    again = with_prepared_tables(bins_job, [shop])[1][0]
    for party in (prepared, again):
        data = TrainingData(party, bins_job.schedule(shop.register), vfl.Logistic().loss, scale="standard")
        np.testing.assert_array_equal(data.scaling.deviation, np.full(8, BIN_SCALE))
        assert abs(data.scaled(data.schedule.batch_order).mean(axis=0)).max() < 1e-12


def test_robust_scaling_is_by_median_and_quartiles() -> None:
    X = np.column_stack([INCOME, np.arange(N) % 10 == 0])
    scaler = RobustScaler(unit_variance=True).fit(X[TRAIN])
    middle, spread = quartiles(X, TRAIN)[:2]
    np.testing.assert_allclose(middle, scaler.center_)
    np.testing.assert_allclose(spread[0], scaler.scale_[0])
    np.testing.assert_allclose(spread[1], X[TRAIN, 1].std())  # its quartiles are equal


def test_rows_that_are_held_out_change_nothing() -> None:
    spoiled = TABLE.to_pydict()
    spoiled["age"][300:], spoiled["city"][300:] = [1e9] * 100, [SECRET] * 100
    refitted = fit_preparation("shop", columns_of("shop", pa.table(spoiled)), TRAIN, Preparation(clip=0.01))
    assert [to_plain(step) for step in refitted.steps] == [to_plain(step) for step in fitted(clip=0.01).steps]


def test_a_preparation_comes_back_from_json() -> None:
    for preparation in (fitted(), fitted(bins=4, clip=0.02)):
        again = reread(preparation)
        assert again == preparation
        np.testing.assert_array_equal(again.apply(columns_of("s", TABLE)), preparation.apply(columns_of("s", TABLE)))


def test_numbers_without_gaps_stay_as_they_are() -> None:
    party = vfl.Party("shop", INCOME[:, None], aligned=True)
    prepared = prepare_party(prepared_job(), party, party.register)
    assert prepared.X is party.X
    assert not prepared.preparation.steps


@pytest.mark.parametrize(
    ("options", "code", "columns"),
    [
        ({"missing": "refuse"}, "SVFL-TABLE-MISSING-VALUES", ["age"]),
        ({"texts": "refuse"}, "SVFL-TABLE-TYPE", ["city"]),
    ],
)
def test_a_job_may_refuse_what_would_be_prepared(options: dict[str, str], code: str, columns: list[str]) -> None:
    with raises_code(errors.TableError, code, party="shop", columns=columns):
        fitted(**options)


def test_what_cannot_be_prepared_is_named() -> None:
    names = [f"{SECRET} {k}" for k in range(N)]
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as caught:
        fit_preparation("shop", columns_of("shop", np.array(names)[:, None]), TRAIN, Preparation())
    assert SECRET not in str(caught.value)
    late = np.where(np.arange(N) < 300, np.nan, 1.5 * np.arange(N))
    with raises_code(errors.TableError, "SVFL-TABLE-EMPTY-COLUMN"):
        fit_preparation("shop", columns_of("shop", late[:, None]), TRAIN, Preparation())


def prepared_job(**more: object) -> vfl.Job:
    options = {
        "model": vfl.Logistic(l2=1e-2),
        "optimizer": vfl.FedBCD(lr=0.3),
        "protocol": vfl.Protocol(residual="open"),
    }
    return vfl.Job(**options, batch_size=100, epochs=3, test_fraction=0.25, accepts=["columns", "rank"], **more)


def text_parties() -> list[vfl.Party]:
    y = (np.median(INCOME) < INCOME) ^ (GENERATOR.random(N) < 0.1)
    return [vfl.Party("bank", GENERATOR.normal(size=(N, 2)), y, aligned=True), vfl.Party("shop", TABLE, aligned=True)]


def test_a_model_takes_raw_rows_and_its_file_does_too(tmp_path: Path) -> None:
    """Outputs f equal those for prepared columns; columns of new rows may be in another order."""
    bank, shop = text_parties()
    run = vfl.simulate(prepared_job(scale="robust"), [bank, shop])
    assert run.metrics["auc"] > 0.8
    part = run.parts["shop"]
    assert part.columns == ["age", "income", "city"]
    assert part.features == ["age", "age=(missing)", "income", "city=Bern", "city=Oslo"]
    ready = prepare_party(prepared_job(), shop, shop.register)
    plain_run = vfl.simulate(prepared_job(scale="robust"), [bank, vfl.Party("shop", ready.X, aligned=True)])
    np.testing.assert_array_equal(plain_run.parts["shop"].theta, part.theta)
    new = TABLE.slice(0, 20).select(["city", "income", "age"])
    f = run.decision({"bank": bank.X[:20], "shop": new})
    np.testing.assert_array_equal(f, plain_run.decision({"bank": bank.X[:20], "shop": ready.X[:20]}))
    run.save(tmp_path)
    np.testing.assert_array_equal(f, vfl.Run.load(tmp_path).decision({"bank": bank.X[:20], "shop": new}))
    assert ModelPart.load(tmp_path / "shop.json").preparation == part.preparation
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE"):
        run.decision({"bank": bank.X[:1], "shop": pa.table({"age": ["old"], "income": [1.0], "city": ["Rome"]})})
    with raises_code(errors.TableError, "SVFL-TABLE-MISSING-VALUES"):
        run.decision({"bank": bank.X[:1], "shop": pa.table({"age": [1.0], "income": [np.nan], "city": ["Rome"]})})


@pytest.mark.parametrize(
    ("job", "tolerance"),
    [
        (make_job(OPEN_JOB), 0.0),
        (make_job(OPEN_JOB, scale="robust"), 0.0),
        (make_job(SHARES_JOB, test_fraction=0.5), 0.07),  # scores are rounded, so metrics vary by about 0.01
        (make_job(SHARES_JOB, test_fraction=0.5, model={"name": "trees", "trees": 3}), 0.07),
    ],
)
def test_a_large_prepared_table_is_converted_when_it_is_read(job: vfl.Job, tolerance: float) -> None:
    """The model of a view of the prepared columns is that of the prepared columns in memory."""
    bank, shop = text_parties()
    in_memory = prepare_party(job, shop, shop.register)
    by = in_memory.preparation
    assert by is not None
    view = shop.prepared(by, max_bytes=0)
    rows = GENERATOR.permutation(N)[:50]
    np.testing.assert_array_equal(view.X[rows], in_memory.X[rows])
    assert (view.content, view.columns, len(view)) == (in_memory.content, in_memory.columns, N)
    runs = [vfl.simulate(job, [bank, party]) for party in (view, in_memory)]
    for metric in ("auc", "log_loss"):
        assert runs[0].metrics[metric] == pytest.approx(runs[1].metrics[metric], abs=tolerance, rel=0)
    assert runs[0].parts["shop"].preparation == runs[1].parts["shop"].preparation


def test_weights_of_evidence_need_an_array() -> None:
    job = prepared_job(prepare={"woe": {}})
    prepared = prepare_party(job, text_parties()[1], vfl.Party("shop", TABLE, aligned=True).register)
    assert prepared.preparation is not None
    assert isinstance(text_parties()[1].prepared(prepared.preparation, max_bytes=0).X, np.ndarray)


def test_one_party_with_ids_among_others_without(tmp_path: Path) -> None:
    bank, shop = text_parties()
    run = vfl.simulate(prepared_job(), [bank, vfl.Party("shop", TABLE, ids=range(N))])
    np.testing.assert_array_equal(
        run.parts["shop"].theta, vfl.simulate(prepared_job(), [bank, shop]).parts["shop"].theta
    )


def test_what_is_counted_is_what_comes_out() -> None:
    bank, shop = text_parties()
    assert pooled_run_facts(prepared_job(), [bank, shop]).shape.columns == {"bank": 2, "shop": 5}
    assert "of the dimensions of the 5 columns" in vfl.explain(prepared_job(), [bank, shop])


@pytest.mark.parametrize("scale", ["standard", "robust"])
def test_a_clip_loses_nothing_where_a_scale_can_spare_it(scale: str) -> None:
    """Two values and counts up to 32 deviations out stay distinct, however rare they are.

    The owner of the column is notified of values further out.
    """
    rows, draw = 20_000, np.random.default_rng(3)
    rare, three = np.zeros(rows), np.full(rows, 3.5)
    rare[:6], three[:9000] = 1.0, -0.1
    counts = draw.poisson(0.02, rows).astype(float)
    counts[-1] = 4.0
    wild = draw.normal(size=rows)
    wild[0] = 1e5
    X = np.column_stack([rare, three, counts, wild, np.ones(rows)])
    party = vfl.Party("shop", X, columns=["rare", "three", "counts", "wild", "same"], aligned=True)
    schedule = vfl.Job(model=vfl.Logistic(), protocol="open", accepts=["columns"]).schedule(party.register)
    cut = r"clips extreme values of these columns: wild outside -\d+[.\d]* to \d+[.\d]*\. "
    with pytest.warns(errors.DataNotice, match=cut) as notices:
        data = TrainingData(party, schedule, vfl.Logistic().loss, scale=scale, clip=8.0)
    assert sum("clips extreme values" in str(notice.message) for notice in notices) == 1
    scaled_rows = data.scaled(np.arange(rows))
    assert np.abs(scaled_rows).max() <= 8
    np.testing.assert_array_equal(scaled_rows * 256, np.rint(scaled_rows * 256))
    low, high = data.scaling.ends
    for j in range(3):
        unit = np.diff(np.unique(X[:, j])) / data.scaling.deviation[j]
        slack = 1e-12 if j < 2 else 2.0**-8
        np.testing.assert_allclose(np.diff(np.unique(scaled_rows[:, j])), unit, atol=slack)
        assert low[j] <= X[:, j].min() + 1e-9
        assert high[j] >= X[:, j].max() - 1e-9
    assert not scaled_rows[:, 4].any()


@pytest.mark.parametrize("digits", [0, 3, 9, 17])
@pytest.mark.parametrize("size", [1e-300, 1e-6, 1.0, 1e9])
def test_printed_bin_edges_split_the_training_rows(size: float, digits: int) -> None:
    """Whatever is read back from a printed edge puts every training value where the fit has put it."""
    draw = np.random.default_rng(digits)
    values = np.array([float(f"{value:.{digits}e}") for value in draw.normal(size=3000) * size])
    for step in (
        BinTransform(column="x", edges=tuple(find_bin_edges(values, 20))),
        number_bins("x", values, gaps=False, options=Woe(bins=20)),
    ):
        read = np.array([float(format_number(edge)) for edge in step.edges])
        np.testing.assert_array_equal(read, step.edges)
        assert len(read) >= (15 if digits else 4)
        assert (np.diff(read) > 0).all()
        longest = max(len(format_number(edge).split("e")[0].replace(".", "").strip("-0")) for edge in read)
        assert longest <= 7, "a spreadsheet keeps fifteen digits"
    ordered = np.sort(values)
    for edge in find_bin_edges(values, 20):
        first = int(np.searchsorted(ordered, edge))
        assert ordered[first - 1] < edge <= ordered[first]
    assert format_number(96.0) == "96"
    assert shortest_between(0.0, 96.0) == 96.0
    assert shortest_between(0.1, np.nextafter(0.1, 1)) == np.nextafter(0.1, 1)  # nothing rounder is between these
