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
    """Return two parties, of which one has an extreme value in its second column.

    The tables have their rows in different orders, and a row that only one party has, so that the position of a row in
    the training is not its number in a table.
    """
    tables = {"bank": LEFT.copy(), "shop": RIGHT.copy()}
    tables[extreme][EXTREME_ROW, 1] = 1e6
    bank = vfl.Party("bank", tables["bank"], COUNTS, ids=range(ROWS), columns=["a", "b", "c"])
    order = np.roll(np.arange(ROWS), 1000)  # row 17 of the bank is row 1017 of the shop
    shop = vfl.Party("shop", tables["shop"][order], ids=order, columns=["d", "e", "f"])
    return [*vfl.align([bank.take(np.arange(3, ROWS)), shop])]


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


@pytest.mark.parametrize(
    ("extreme", "column", "protocol"),
    [
        ("bank", "b", "open"),
        ("bank", "b", "ckks"),
        ("shop", "e", "open"),
        pytest.param("shop", "e", "ckks", marks=pytest.mark.slow),
    ],
)
def test_the_owner_is_told_its_row_and_column(extreme: str, column: str, protocol: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataNotice)
        with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED") as error:
            vfl.simulate(batches(protocol), parties(extreme))
    (notice,) = [str(item.message) for item in caught if "standard deviations from the mean" in str(item.message)]
    number = {"bank": EXTREME_ROW + 1, "shop": EXTREME_ROW + 1001}[extreme]
    assert notice.startswith(f"party {extreme}: row {number} of the table of {extreme} is more than")
    assert repr(column) in notice
    assert "1000000" not in notice + str(error.value)
    assert f"Row {EXTREME_ROW + 1} of the table of bank alone makes the loss so large" in str(error.value)
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
    assert "alone makes the loss so large" not in str(error.value)
