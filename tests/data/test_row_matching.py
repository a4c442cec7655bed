"""Rows with ids are never paired by position: in training, prediction, evaluation, groups and labels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl import errors as vfl_errors
from securevfl.credit.fairness_by_group import local_group_rates
from securevfl.data.row_matching import match_tables, match_values
from securevfl.errors import DataNotice, IdError
from securevfl.training.new_rows import rows_of_array

N = 400
GENERATOR = np.random.default_rng(0)
BANK, SHOP = GENERATOR.normal(size=(N, 3)), GENERATOR.normal(size=(N, 2))
Y = (BANK[:, 0] - SHOP[:, 0] + GENERATOR.normal(size=N) > 0).astype(int)
GROUPS = np.where(BANK[:, 0] + SHOP[:, 1] > 0, "m", "f")
IDS = pd.Index([f"c{k:04}" for k in GENERATOR.permutation(N)], name="client")
ORDER = GENERATOR.permutation(N)
MATCHED_JOB = vfl.Job(
    model=vfl.Logistic(),
    optimizer=vfl.FedBCD(lr=0.3),
    protocol=vfl.Protocol(residual="open"),
    batch_size=50,
    epochs=2,
    accepts=("columns",),
)


def frame(X: np.ndarray, letter: str, index: Any = IDS) -> pd.DataFrame:
    return pd.DataFrame(X, columns=[f"{letter}{j}" for j in range(X.shape[1])], index=index)


bank, shop, y, groups = frame(BANK, "b"), frame(SHOP, "s"), pd.Series(Y, IDS), pd.Series(GROUPS, IDS)


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    return vfl.simulate(MATCHED_JOB, [vfl.Party("bank", bank, y), vfl.Party("shop", shop)])


def test_prediction_and_evaluation_join_by_the_index(run: vfl.Run) -> None:
    tables, shuffled = {"bank": bank, "shop": shop}, {"bank": bank, "shop": shop.iloc[ORDER]}
    expected = run.predict_proba({"bank": BANK, "shop": SHOP})
    np.testing.assert_array_equal(run.predict_proba(tables), expected)
    np.testing.assert_array_equal(run.predict_proba(shuffled), expected)
    np.testing.assert_array_equal(run.predict(shuffled), run.predict(tables))
    first = {"shop": shop, "bank": bank.iloc[ORDER]}  # the result has the order of the leading party
    np.testing.assert_array_equal(run.predict_proba(first), expected[ORDER])
    metrics = run.evaluate(tables, Y)
    for labels in (y, y.iloc[ORDER]):
        assert run.evaluate(shuffled, labels) == metrics
        assert run.evaluate(first, labels)["auc"] == pytest.approx(metrics["auc"])
    weights = pd.Series(np.linspace(1, 5, N), IDS)
    weighted = run.evaluate(tables, Y, weights.to_numpy())
    assert run.evaluate(shuffled, y, weights.iloc[ORDER]) == weighted != metrics
    rates = run.evaluate_by_group(tables, Y, GROUPS)
    assert run.evaluate_by_group(shuffled, y.iloc[ORDER], groups.sample(frac=1, random_state=1)) == rates


def test_ids_that_are_passed_join_arrays(run: vfl.Run) -> None:
    ids = {"bank": IDS.to_list(), "shop": IDS[ORDER].to_numpy()}
    proba = run.predict_proba({"bank": BANK, "shop": SHOP[ORDER]}, ids=ids)
    np.testing.assert_array_equal(proba, run.predict_proba({"bank": BANK, "shop": SHOP}))
    numbers = {"bank": np.arange(N), "shop": np.arange(N)[ORDER].astype(float)}  # a column with gaps becomes floats
    np.testing.assert_array_equal(run.predict_proba({"bank": BANK, "shop": SHOP[ORDER]}, ids=numbers), proba)
    with raises_code(vfl_errors.PartiesError, "SVFL-PARTIES-NAME"):
        run.predict({"bank": BANK, "shop": SHOP}, ids={"telco": [1]})
    with raises_code(vfl_errors.TableError, "SVFL-TABLE-SHAPE"):
        run.predict({"bank": BANK, "shop": SHOP}, ids={"bank": IDS[:5]})


def test_rows_of_other_people_are_refused(run: vfl.Run) -> None:
    for tables in (
        {"bank": bank.iloc[:5], "shop": shop.iloc[100:105]},
        {"bank": bank, "shop": shop.iloc[:-1]},
        {"bank": bank.iloc[[0, 1, 1]], "shop": shop.iloc[[1, 1, 0]]},
    ):
        with pytest.raises(IdError) as caught:
            run.predict(tables)
        assert caught.value.code in {"SVFL-ID-NO-MATCH", "SVFL-ID-DUPLICATE"}
        assert not any(row_id in str(caught.value) for row_id in IDS)
    for values in (y.iloc[:-1], pd.Series(Y, IDS + "x")):
        with raises_code(IdError, "SVFL-ID-NO-MATCH"):
            run.evaluate({"bank": bank, "shop": shop}, values)
        with raises_code(IdError, "SVFL-ID-NO-MATCH"):
            run.evaluate_by_group({"bank": bank, "shop": shop}, Y, values)
        with raises_code(IdError, "SVFL-ID-NO-MATCH"):
            vfl.Party("bank", bank, values)


def test_repeated_rows_in_one_order_are_scored(run: vfl.Run) -> None:
    rows = GENERATOR.integers(0, N, 50)
    proba = run.predict_proba({"bank": bank.iloc[rows], "shop": shop.iloc[rows]})
    np.testing.assert_allclose(proba, run.predict_proba({"bank": BANK, "shop": SHOP})[rows], rtol=1e-12)


def test_matching_by_position_is_announced_if_a_table_has_ids(run: vfl.Run) -> None:
    with pytest.warns(DataNotice, match="the rows of shop have no ids and are matched with those of bank by position"):
        run.predict({"bank": bank, "shop": SHOP})
    with pytest.warns(DataNotice, match="the labels have an index and the table has no ids"):
        run.evaluate({"bank": BANK, "shop": SHOP}, y)


@pytest.mark.parametrize("ids", [None, IDS])
def test_labels_as_a_series_are_joined_in_training(ids: Any) -> None:
    table: Any = bank if ids is None else BANK
    party = vfl.Party("bank", table, y.iloc[ORDER], ids=ids)
    np.testing.assert_array_equal(party.labels, Y)
    unnamed = vfl.Party("bank", frame(BANK, "b", np.arange(N) + 7), pd.Series(Y, np.arange(N) + 7).iloc[ORDER])
    np.testing.assert_array_equal(unnamed.labels, Y)


def test_groups_and_predictions_as_series_are_joined() -> None:
    party = vfl.Party("bank", bank, y)
    predicted = pd.Series(np.where(BANK[:, 0] > 0, "1", "0"), IDS)
    expected = local_group_rates(party, predicted.to_numpy(), GROUPS)
    assert local_group_rates(party, predicted.iloc[ORDER], groups.iloc[::-1]) == expected


def test_rows_for_other_organisations_have_the_ids_of_the_index(run: vfl.Run) -> None:
    part = run.parts["shop"]
    assert rows_of_array(part, shop, None).order == rows_of_array(part, SHOP, IDS).order != b""
    assert rows_of_array(part, SHOP, None).order == b""


@pytest.mark.parametrize("kind", ["values", "tables"])
def test_rows_are_matched_only_if_one_order_is_possible(kind: str) -> None:
    """Tables of one to three rows with the ids a and b, or of three with a, b and c, are matched with all others."""
    ids_of_tables = [ids for rows in (1, 2, 3) for ids in itertools.product("ab", repeat=rows)]
    ids_of_tables += itertools.permutations("abc")
    for row_ids, wanted in itertools.product(ids_of_tables, repeat=2):
        is_unique = len(set(row_ids)) == len(row_ids) == len(wanted) and set(row_ids) == set(wanted)
        values, table_ids = np.arange(len(row_ids)), np.array(wanted, object)

        def matched(row_ids: tuple[str, ...] = row_ids, values: Any = values, table_ids: Any = table_ids) -> list[int]:
            if kind == "values":
                return match_values("the labels", pd.Series(values, list(row_ids)), table_ids).tolist()
            order = match_tables({"bank": table_ids, "shop": np.array(row_ids, object)}, "bank")["shop"]
            return values.tolist() if order is None else order.tolist()

        if row_ids == wanted:
            assert matched() == values.tolist()
        elif is_unique:
            assert matched() == [row_ids.index(row_id) for row_id in wanted]
        else:
            with pytest.raises(IdError):
                matched()
