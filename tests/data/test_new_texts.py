"""New rows whose texts are not those of the training are scored with a notice."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import securevfl as vfl
from securevfl.data.new_texts import MIN_TEXTS
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
