"""New rows whose texts are not those of the training are scored with a notice."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

import securevfl as vfl
from securevfl.data.baseline import Baseline, baselines
from securevfl.data.column_transforms import OneHotTransform
from securevfl.data.column_types import read_types
from securevfl.data.columns import columns_of
from securevfl.data.new_texts import MIN_TEXTS, warn_of_new_texts
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.data.woe import Woe
from securevfl.errors import DataNotice
from tests.builders import make_job

CODES = [f"{code:03d}" for code in range(1, 9)]
N = 400


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    rng = np.random.default_rng(0)
    shop = pd.DataFrame({"branch": rng.choice(CODES, N), "visits": rng.normal(size=N)})
    bank = pd.DataFrame({"balance": rng.normal(size=N)})
    y = (bank["balance"] + shop["visits"] + rng.normal(size=N) > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return vfl.simulate(
            make_job(epochs=2), [vfl.Party("bank", bank, y, aligned=True), vfl.Party("shop", shop, aligned=True)]
        )


def notices(run: vfl.Run, branch: list[str]) -> list[str]:
    """Return the notices about texts of a prediction for rows with these branches."""
    rows = len(branch)
    tables = {
        "bank": pd.DataFrame({"balance": np.zeros(rows)}),
        "shop": pd.DataFrame({"branch": pd.Series(branch, dtype=object), "visits": np.zeros(rows)}),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.predict_proba(tables)
    return [str(item.message) for item in caught if "did not occur" in str(item.message)]


@pytest.mark.parametrize(
    ("known", "new", "warns"),
    [
        (0, MIN_TEXTS, True),
        (0, MIN_TEXTS - 1, False),
        (2, 18, False),  # exactly nine tenths are unknown
        (2, 19, True),
        (20, 0, False),
        (0, 1, False),
    ],
)
def test_a_notice_counts_texts_that_the_training_did_not_have(run: vfl.Run, known: int, new: int, warns: bool) -> None:
    texts = notices(run, [CODES[0]] * known + ["7x"] * new)
    assert bool(texts) == warns
    for text in texts:
        assert f"{new} of {known + new} values of column 'branch'" in text
        assert "7x" not in text


def test_codes_that_were_read_as_numbers_are_noticed(run: vfl.Run) -> None:
    assert notices(run, [str(int(code)) for code in CODES] * 5)
    assert not notices(run, CODES * 5)


@pytest.mark.parametrize("kind", ["one_hot", "woe"])
def test_rows_like_those_of_the_training_cause_no_notice(kind: str) -> None:
    """A column of names, nearly all of which are rare, is no reason for a notice as long as it stays like that."""
    rng = np.random.default_rng(1)
    names = [f"n{number}" if rng.random() < 0.95 else "Ulm" for number in range(2000)]
    options = Preparation() if kind == "one_hot" else Preparation(woe=Woe())
    table = columns_of("shop", {"name": pd.Series(names, dtype=object)}, declared=read_types({"name": "category"}))
    fitted = fit_preparation("shop", table, np.arange(2000), options)
    summaries = baselines(table, np.arange(2000))

    def is_noticed(rows: list[str], known: Sequence[Baseline] = summaries) -> bool:
        new = columns_of("shop", {"name": pd.Series(rows, dtype=object)}, declared=read_types({"name": "category"}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_new_texts("shop", fitted, new, known)
        return bool(caught)

    for count in (20, 50, 400, 2000):
        assert not is_noticed(names[:count])
        assert is_noticed(names[:count], ()) == (names[:count].count("Ulm") < 0.1 * count)
    assert not is_noticed(["x"] * 20)  # by chance one row in three samples of this size has no frequent name
    assert is_noticed(["x"] * 400)


def test_the_known_texts_of_a_column_are_computed_once() -> None:
    texts = [f"t{number}" for number in range(20_000)]
    step = OneHotTransform(column="name", base="t0", categories=tuple(texts[1:]))
    table = columns_of("shop", {"name": pd.Series(texts, dtype=object)}, declared=read_types({"name": "category"}))
    started = time.process_time()
    warn_of_new_texts("shop", FittedPreparation(["name"], (step,)), table)
    assert time.process_time() - started < 5  # 20,000 times 20,000 texts take minutes


@pytest.mark.parametrize("lacking", [0.0, 0.5, 0.95])
def test_missing_values_of_the_training_are_no_rare_texts(lacking: float) -> None:
    """Fifty rows of unknown texts are noticed if every text of the training was frequent."""
    texts = [CODES[row % 4] if row >= lacking * 2000 else None for row in range(2000)]
    declared = read_types({"name": "category"})
    table = columns_of("shop", {"name": pd.Series(texts, dtype=object)}, declared=declared)
    fitted = fit_preparation("shop", table, np.arange(2000), Preparation())
    new = columns_of("shop", {"name": pd.Series(["x"] * 50, dtype=object)}, declared=declared)
    with pytest.warns(DataNotice, match="50 of 50 values of column 'name'"):
        warn_of_new_texts("shop", fitted, new, baselines(table, np.arange(2000)))
