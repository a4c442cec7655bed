"""One extreme row: each party gets a notice of its row and column, and an error of the batch names the row."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.errors import DataNotice, DivergenceError

ROWS, EXTREME_ROW = 20_000, 17
DRAW = np.random.default_rng(0)
LEFT, RIGHT = DRAW.normal(size=(ROWS, 3)), DRAW.normal(size=(ROWS, 3))
COUNTS = DRAW.poisson(np.exp(0.5 * LEFT[:, 0] + 0.5 * LEFT[:, 1] + 0.5 * RIGHT[:, 1])).astype(float)
COUNTS[EXTREME_ROW] = 30
ACCEPTED = ["columns", "rank", "label_auc", "fresh_equations"]


def parties(extreme: str) -> list[vfl.Party]:
    """Return two parties, of which one has an extreme value in its second column."""
    tables = {"bank": LEFT.copy(), "shop": RIGHT.copy()}
    tables[extreme][EXTREME_ROW, 1] = 1e6
    bank = vfl.Party("bank", tables["bank"], COUNTS, ids=range(ROWS), columns=["a", "b", "c"])
    return [bank, vfl.Party("shop", tables["shop"], ids=range(ROWS), columns=["d", "e", "f"])]


def batches(protocol: str) -> vfl.Job:
    optimizer = vfl.FedBCD(lr=0.1)
    return vfl.Job(
        model="poisson",
        optimizer=optimizer,
        batch_size=64,
        epochs=2,
        prepare={"tails": "keep"},
        test_fraction=0.0,
        protocol=protocol,
        accepts=ACCEPTED,
    )


@pytest.mark.parametrize("protocol", ["open", "ckks"])
@pytest.mark.parametrize(("extreme", "column"), [("bank", "b"), ("shop", "e")])
def test_the_owner_is_told_its_row_and_column(extreme: str, column: str, protocol: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataNotice)
        with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED") as error:
            vfl.simulate(batches(protocol), parties(extreme))
    (notice,) = [str(item.message) for item in caught if "standard deviations from the mean" in str(item.message)]
    assert notice.startswith(f"party {extreme}: row {EXTREME_ROW}, counted from 0")
    assert repr(column) in notice
    assert "1000000" not in notice + str(error.value)
    assert f"Row {EXTREME_ROW} of the table of bank, counted from 0, alone makes it so large" in str(error.value)
    assert ("'b'" in str(error.value)) == (extreme == "bank")
    assert ("the label or another party's column may be" in str(error.value)) == (extreme == "shop")


def test_no_row_is_named_if_all_rows_diverge() -> None:
    ordinary = [
        vfl.Party("bank", LEFT, COUNTS, ids=range(ROWS)),
        vfl.Party("shop", RIGHT, ids=range(ROWS)),
    ]
    job = batches("open").model_copy(update={"optimizer": vfl.FedBCD(lr=1e4)})
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED") as error:
        vfl.simulate(job, ordinary)
    assert "alone makes it so large" not in str(error.value)
