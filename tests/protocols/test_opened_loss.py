"""Sums of losses on shares: the lookup tables of the party with labels, and the lift of entries read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.protocols.shares import table_lookup
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.opened_loss import (
    EVALUATION_LIFT,
    LOSS_SUM_BITS,
    MAX_LOSS_ROWS,
    LossTable,
    _LossEntries,
    select_measured,
)
from securevfl.runtime.costs import Stage

LOSSES: dict[str, tuple[Any, float]] = {
    "logistic": (vfl.Logistic().loss, 1.0),
    "square": (vfl.Square().loss, 0.25),
    "poisson": (vfl.Poisson().loss, 0.25),
}


def entries_of(name: str, targets: Floats) -> tuple[_LossEntries, FixedPointEncoding]:
    loss, spacing = LOSSES[name]
    encoding = FixedPointEncoding(256, 0.1, step=int(np.log2(spacing)))
    return _LossEntries(encoding, LossTable(loss.value, targets, loss.minimizer)), encoding


@pytest.mark.parametrize("name", LOSSES)
def test_entries_fit_into_the_bits_that_a_lift_needs(name: str) -> None:
    targets = np.resize([0.0, 1.0] if name == "logistic" else [0.0, 0.5, 2.0, 1.0], (64, 1))
    words = entries_of(name, targets)[0].tables(slice(0, 64), np.zeros(64, np.uint8))
    assert words.shape == (64, 256)
    assert 2**14 < int(words.max()) < 2 ** (EVALUATION_LIFT.short_ring.bits - 1)
    assert int(words.max()) * MAX_LOSS_ROWS < 2**LOSS_SUM_BITS


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_of_interpolated_entries_is_the_mean_loss(name: str) -> None:
    """For sums between two entries, one of the two is read at random, in proportion to the distance."""
    rows, spacing = 40_000, LOSSES[name][1]
    draw = np.random.default_rng(0)
    targets = (draw.random((rows, 1)) < 0.3).astype(float)
    f = draw.normal(size=rows) * 3 * spacing
    entries, encoding = entries_of(name, targets)
    size, order = 2.0**encoding.fine_step, np.argsort(encoding.fine_knots)
    knots = encoding.fine_knots[order]
    lower = np.searchsorted(knots, f, side="right") - 1
    above, total = (f - knots[lower]) / size, 0.0
    for start in range(0, rows, 8000):
        block = slice(start, start + 8000)
        columns = np.arange(8000)
        words = entries.tables(block, np.zeros(8000, np.uint8)).T.astype(float)[order]
        low, high, part = words[lower[block], columns], words[lower[block] + 1, columns], above[block]
        total += float(((1 - part) * low + part * high).sum())
    exact = float(LOSSES[name][0].value(f[:, None], targets).mean())
    assert entries.mean(int(total)) == pytest.approx(exact, abs=1e-3 * max(1.0, exact))


def test_measured_rows_are_evenly_spaced_over_the_table() -> None:
    rows = np.random.default_rng(0).permutation(3 * MAX_LOSS_ROWS)[: 2 * MAX_LOSS_ROWS]
    for outputs in (1, 10):
        measured = select_measured(rows, outputs)
        assert len(measured) == MAX_LOSS_ROWS // outputs
        assert set(measured.tolist()) <= set(rows.tolist())
        assert np.diff(measured).min() > 0
        counts, _ = np.histogram(measured, bins=8, range=(0, 3 * MAX_LOSS_ROWS))
        assert counts == pytest.approx(len(measured) / 8, rel=0.05)
    np.testing.assert_array_equal(select_measured(rows[:90], 10), np.sort(rows[:90]))


def test_rows_that_are_measured_are_selected_in_one_place() -> None:
    """A ledger that recorded other rows than those that are measured would allow more measurements than its limit."""
    package = Path(vfl.__file__).parent
    sources = {path.name for path in package.rglob("*.py") if "MAX_LOSS_ROWS" in path.read_text()}
    assert sources <= {"opened_loss.py", "shares_outputs.py"}  # the latter counts them


def test_a_look_up_in_blocks_takes_as_few_round_trips() -> None:
    """The partner sends its messages about all blocks before it receives the first table entries."""
    X, rows = np.random.default_rng(0).normal(size=(20_000, 2)), (8_000, 20_000)
    protocol, trip = vfl.Protocol(shares=vfl.Shares(metrics="loss")), 1000  # seconds, against which nothing else counts
    job = vfl.Job(model=vfl.Logistic(), protocol=protocol, epochs=1, test_fraction=0.5)
    trips = []
    for n in rows:
        bank = vfl.Party("bank", X[:n, :1], X[:n].sum(axis=1) > 0, aligned=True)
        parties = [bank, vfl.Party("shop", X[:n, 1:], aligned=True)]
        run = vfl.simulate(job, parties, network=vfl.Network(mbps=1000, rtt_ms=1000 * trip))
        trips.append(round(float(run.costs.path[Stage.EVALUATE].sum()) / trip, 1))
    assert rows[0] / 2 <= table_lookup.SUMS_PER_LOOKUP < rows[1] / 4
    assert trips[0] == trips[1]
