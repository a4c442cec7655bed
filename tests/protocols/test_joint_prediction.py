"""Scores of a block belong to the rows of this block, and results of parts of a request keep their rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.protocols.joint_prediction import ROWS_PER_MESSAGE, ScoreResult, predict
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads


class Doubled:
    """A part of a model whose outputs are twice its column."""

    def forward(self, X: Floats) -> Floats:
        return 2 * X

    def combine(self, X: Floats, others: Floats) -> Floats:
        return 2 * X + others


@pytest.mark.parametrize("rows", [0, 1, ROWS_PER_MESSAGE, ROWS_PER_MESSAGE + 1, 2 * ROWS_PER_MESSAGE + 2])
@pytest.mark.parametrize("passives", [("shop",), ("shop", "telco")], ids=len)
def test_each_row_of_each_block_is_sanitized_as_itself(passives: tuple[str, ...], rows: int) -> None:
    """A party's secret number of a row, here added to its outputs, belongs to the row at its position."""
    column = np.arange(rows, dtype=np.float64)[:, None]
    secrets = {name: np.random.default_rng(number).integers(1, 9, (rows, 1)) for number, name in enumerate(passives)}

    def play(channel: Channel) -> Floats | None:
        context = PartyContext(channel, Roles.labelled("bank", passives), Meter(channel.clock, channel.counters))
        sums = DirectSum().role(context.sum_to("bank"))

        def sanitize(H: Floats, block: slice) -> Floats:
            return H + secrets[channel.me][block]

        return predict(context, sums, Doubled(), column, 1, sanitize)

    results = run_threads(dict.fromkeys(("bank", *passives), play), WallClock, timeout=60)
    expected = 2 * column * (1 + len(passives)) + sum(secrets.values())
    np.testing.assert_array_equal(results.pop("bank"), expected)
    assert set(results.values()) == {None}


def copied(result: ScoreResult) -> ScoreResult:
    masks = (result.scored, result.fresh, result.trained, result.changed, result.known)
    reasons = {name: [list(codes) for codes in rows] for name, rows in result.reasons.items()}
    return ScoreResult(None if result.f is None else result.f.copy(), *(mask.copy() for mask in masks), reasons)


def assert_equal(one: ScoreResult, other: ScoreResult) -> None:
    for name in ("f", "scored", "fresh", "trained", "changed", "known"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.reasons == other.reasons


def drawn(seed: int, rows: int) -> ScoreResult:
    """Return a result with random values, each row of which has one reason code."""
    generator = np.random.default_rng(seed)
    masks = generator.integers(0, 2, (5, rows)).astype(bool)
    return ScoreResult(generator.normal(size=(rows, 2)), *masks, {"shop": [[f"{seed} {row}"] for row in range(rows)]})


def test_replacing_rows_changes_these_and_no_earlier_result() -> None:
    first, second, rows = drawn(0, 6), drawn(1, 3), np.array([4, 0, 2])
    before = copied(first), copied(second)
    updated = first.updated(rows, second)
    assert_equal(first, before[0])
    assert_equal(second, before[1])
    expected = copied(first)
    for name in ("f", "scored", "fresh", "trained", "changed", "known"):
        getattr(expected, name)[rows] = getattr(second, name)
    for row, codes in zip(rows, second.reasons["shop"], strict=True):
        expected.reasons["shop"][row] = codes
    assert_equal(updated, expected)


def test_joined_results_are_the_rows_in_their_order() -> None:
    parts = [drawn(seed, rows) for seed, rows in enumerate((2, 0, 3))]
    joined = ScoreResult.joined(parts)
    for name in ("f", "scored", "fresh", "trained", "changed", "known"):
        np.testing.assert_array_equal(getattr(joined, name), np.concatenate([getattr(part, name) for part in parts]))


def test_the_first_state_that_applies_to_a_row_is_reported() -> None:
    """With another state, a user would change columns in vain, or ask for a row again that gets no score."""
    order = ("trained", "changed", "scored", "beyond", "unknown")
    flags = np.array(list(product([False, True], repeat=len(order))))
    trained, changed, scored, beyond, unknown = flags.T
    f = np.where(beyond, np.inf, np.nan)[:, None]
    result = ScoreResult(f, scored, scored, trained, changed, ~unknown)
    expected = [next((name for name, flag in zip(order, row, strict=True) if flag), "refused") for row in flags]
    assert result.states == expected
