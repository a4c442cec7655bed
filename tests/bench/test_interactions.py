"""The generated tables with and without interactions, and the training of pairs in floating point."""

import numpy as np
import pytest

from benchmarks.interaction_tables import TABLES
from benchmarks.interactions import TARGETS, products
from benchmarks.interactions_page import PAGE, PLACE, drawn
from benchmarks.tree_floats import PreparedRows, Steps, outputs_by_iteration
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve
from securevfl.models.pair_components import PairComponents


def test_every_generated_table_has_a_target_and_both_classes() -> None:
    assert set(TARGETS) == set(TABLES)
    for name, table in TABLES.items():
        bank, shop = table.parties(400, seed=0)
        assert len(bank) == len(shop) == 400, name
        assert 0.1 < np.mean(bank.y) < 0.9, name
        assert np.isfinite([bank.X.sum(), shop.X.sum()]).all(), name
        again, _ = table.parties(400, seed=0)
        other, _ = table.parties(400, seed=1)
        assert np.array_equal(bank.X, again.X), name
        assert not np.array_equal(bank.X, other.X), name


def test_the_page_follows_from_the_stored_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert PLACE.search(text)
    assert drawn(text) == text, "python -m benchmarks.interactions --store"


@pytest.mark.long
@pytest.mark.parametrize("name", list(TABLES))
def test_mixing_parties_helps_only_on_tables_with_interactions(name: str) -> None:
    from benchmarks.interactions import boosting

    sets = []
    for seed in (0, 1):
        bank, shop = TABLES[name].parties(6000, seed)
        sets.append(PreparedRows([bank.X, shop.X], [], np.where(bank.y, 1.0, -1.0)[:, None]))
    outputs = boosting(*sets)
    gap = np.subtract(*(area_under_curve(sets[1].y[:, 0] > 0, outputs[model]) for model in ("pooled", "additive")))
    assert (gap > 0.007) == TABLES[name].interacts


def test_products_find_an_exclusive_or_that_columns_do_not() -> None:
    sets, job = [], Job.from_dict({"model": "trees", "test_fraction": 0.1})
    for seed in (0, 1):
        bank, shop = TABLES["exclusive-or"].parties(3000, seed)
        columns = [np.asarray(bank.X), np.asarray(shop.X)]
        sets.append(PreparedRows(columns, columns, np.where(bank.y, 1.0, -1.0)[:, None]))
    components = [PairComponents.fit(X, 4) for X in sets[0].columns]
    pairs = [products(components, rows.columns) for rows in sets]
    assert pairs[0].shape == (3000, 16)
    positive = sets[1].y[:, 0] > 0
    without, with_products = (
        area_under_curve(positive, outputs_by_iteration(job, sets, Steps(1, 10, 2), further)[9][0][:, 0])
        for further in ((), pairs)
    )
    assert without < 0.75
    assert with_products > without + 0.03
