"""The attacks that levels of scores and metrics of pairs do not prevent, with the figures of the threat model.

Figures without a training use generated weights and sums and the strongest attacker, which knows the weights or its
part of every sum. `docs/threat-model.md` states the figures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.evaluated_rows import EvaluatedRows
from securevfl.audit.attacks.linked_outputs import linked_apart, linked_together
from securevfl.audit.attacks.marked_pairs import exact_rows, marked_gain
from securevfl.audit.attacks.new_row_scores import added_variance, round_to_levels
from securevfl.audit.attacks.rank_matching import rank_gain
from securevfl.audit.noise_tables import with_noise_parties
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.disclosure.score_reading import added_by_column
from securevfl.families import leak_kinds
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_outputs import PAIRS
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.protocols.shares.quantizer import Quantizer
from tests.builders import SHARES_JOB, make_job, random_parties
from tests.small_keys import SMALL

HALVES, SIXTEENTHS = Quantizer(-1, 7), Quantizer(-4, 9)


def drawn(*seeds: int) -> np.random.Generator:
    return np.random.default_rng(seeds)


def binary_columns(rows: int, d: int, heavy: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return binary columns (m, d) and weights (d,) whose sums have standard deviation 1.7 sqrt(d / 10)."""
    rng = drawn(1, d)
    p = rng.uniform(0.2, 0.5, d)
    weights = rng.normal(size=d)
    weights[0] *= heavy * np.abs(weights).max() / abs(weights[0]) if heavy > 1 else 1.0
    weights *= 1.7 * (d / 10) ** 0.5 / np.sqrt((weights**2 * p * (1 - p)).sum())
    return (rng.random((rows, d)) < p).astype(float), weights


def read(X: np.ndarray, weights: np.ndarray, step: float | None, askings: int = 1) -> np.ndarray:
    """Return the share of rows (d,) whose columns an attacker with the weights names from levels."""
    d, f = X.shape[1], X @ weights
    every = (np.arange(2**d)[:, None] >> np.arange(d) & 1).astype(float)
    p = X.mean(axis=0)
    prior = np.prod(np.where(every > 0, p, 1 - p), axis=1)
    seen = np.ones((len(X), 1)) * prior
    if step is not None:
        for k in range(askings):
            level = round_to_levels(f, Quantizer(int(np.log2(step)), 12), k)
            near = np.abs((every @ weights)[None] - level[:, None]) / step
            seen = seen * np.maximum(1 - near, 0)
    one = seen @ every / np.maximum(seen.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(((one > 0.5) == (X > 0)).mean(axis=0))


def sums(rows: int, seed: int = 0, share: float = 0.5) -> EvaluatedRows:
    """Return sums of standard deviation 1.5 and labels; `share` of the variance is the attacker's."""
    rng = drawn(rows, seed)
    columns, remaining = (rng.normal(size=(rows, 1)) * 1.5 * part**0.5 for part in (share, 1 - share))
    f = columns + remaining - 1
    return EvaluatedRows(f, columns, (f + rng.logistic(size=(rows, 1)) > 0).astype(np.uint8), SIXTEENTHS)


def classes(rows: int, own_columns: int) -> EvaluatedRows:
    rng = drawn(rows, own_columns)
    X, others = rng.normal(size=(rows, own_columns)), rng.normal(size=(rows, 8))
    columns, f = X @ rng.normal(size=(own_columns, 10)), others @ rng.normal(size=(8, 10))
    f = f + columns
    label = (f + rng.gumbel(size=f.shape)).argmax(axis=1)[:, None] == np.arange(10)
    return EvaluatedRows(f, columns, label, SIXTEENTHS)


def test_few_binary_columns_are_read_from_levels() -> None:
    """The weights are known. Without any score a column of 10, 6 or 3 is named on 0.66, 0.61 or 0.73 of the rows."""
    for d, bounds in ((10, (0.66, 0.92, 0.79, 0.72)), (6, (0.61, 0.99, 0.92, 0.77)), (3, (0.73, 1.0, 1.0, 0.94))):
        X, weights = binary_columns(3000, d)
        results = [float(read(X, weights, step).mean()) for step in (None, 1 / 256, 1 / 16, 1 / 2)]
        np.testing.assert_allclose(results, bounds, atol=0.02)


def test_four_answers_would_undo_half_of_the_rounding() -> None:
    """Therefore no question is answered twice with fresh rounding."""
    X, weights = binary_columns(3000, 6)
    once, four, finer = (read(X, weights, *item).mean() for item in ((0.5,), (0.5, 4), (0.25,)))
    assert four > finer > once + 0.03


def test_levels_reveal_a_column_with_a_large_weight() -> None:
    X, weights = binary_columns(3000, 8, heavy=4.0)
    result = read(X, weights, 0.5)
    assert result[0] > 0.99
    assert (result[1:] < 0.9).all()


def test_levels_reveal_a_single_column_and_a_sum() -> None:
    part = drawn(2).normal(size=(4000, 1))
    none = np.empty((4000, 0))
    for log, column, total in ((-4, 0.995, 0.999), (-2, 0.92, 0.99), (-1, 0.76, 0.966)):
        levels = Quantizer(log, 9)
        assert added_by_column(none, round_to_levels(0.35 * part, levels, 0), part, 200)[0] == pytest.approx(
            column, abs=0.02
        )
        assert added_variance(round_to_levels(1.1 * part, levels, 0)[:, 0], part[:, 0]) == pytest.approx(
            total, abs=0.01
        )


def test_levels_of_ten_classes_reveal_columns() -> None:
    rng = drawn(4)
    columns, X = rng.normal(size=(2000, 4)), rng.normal(size=(2000, 8))
    for c, bounds in ((1, (0.05, 0.2)), (10, (0.95, 1.0))):
        f = columns @ rng.normal(size=(4, c)) + X @ rng.normal(size=(8, c))
        disclosed = float(added_by_column(columns, round_to_levels(f, HALVES, 0), X, 200).mean())
        assert bounds[0] < disclosed < bounds[1]


def test_ranks_reveal_nothing_of_a_row_among_many() -> None:
    """Levels of other rows show as well how the attacker's parts and scores are related."""
    for rows, most in ((50, 0.03), (400, 0.008), (1000, 0.003)):
        gains = [rank_gain(sums(rows, seed), sums(rows, seed), seed) for seed in range(12)]
        by_others = [rank_gain(sums(rows, seed), sums(4000, 100 + seed), seed) for seed in range(12)]
        assert np.mean(gains) - np.mean(by_others) < most


def test_the_allowed_evaluations_with_marks_reveal_little() -> None:
    rows = sums(1000)
    assert marked_gain(rows, 10, drawn(3)) < 0.04  # one evaluation for each 100 rows
    assert 0.04 < marked_gain(rows, 30, drawn(3)) < 0.15
    assert marked_gain(rows, 100, drawn(3)) > 0.2
    assert marked_gain(rows, 100, drawn(3), marks=False) < 0.01


def test_rows_that_are_shifted_apart_are_read_exactly() -> None:
    """Scores are within 4: 1, 3, 7 and 15 rows in each evaluation, at a range of 4, 8, 16 and 32."""
    for reach, rows in ((4, 1), (8, 3), (16, 7), (32, 15)):
        levels = Quantizer(-4, 4 + int(np.log2(2 * reach)))
        f = np.clip(drawn(reach).normal(size=(400, 1)) * 1.5, -3.9, 3.9)
        assert (
            exact_rows(EvaluatedRows(np.array([[-3.9], [3.9]]), np.zeros((2, 1)), np.zeros((2, 1), np.uint8), levels))
            == rows
        )
        place = np.zeros(400, int)
        place[100 : 100 + rows] = 1 + np.arange(rows)  # one row of either mark in each window but the first
        moved = levels.dequantize(
            (np.rint((f[:, 0] + 8 * (place // 2)) * 16).astype(np.int64)).view(np.uint64), rounded_down=0
        )
        for row in range(100, 100 + rows):
            mine = (place % 2 == place[row] % 2) & (((moved - 8 * (place[row] // 2) + 4) % (2 * reach)) < 8)
            assert np.flatnonzero(mine).tolist() == [row]
            assert abs((moved[row] - 8 * (place[row] // 2) + reach) % (2 * reach) - reach - f[row, 0]) < 1 / 16


def test_tuples_would_link_rows_and_single_outputs_do_not() -> None:
    rows = classes(450, 20)
    assert linked_together(rows, 0) > 0.9
    assert linked_apart(rows, 0) < 0.01


MODES: dict[str, dict[str, Any]] = {
    "levels": {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=2))},
    "exact": {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=2, scores="exact"))},
    "classes": {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=2)), "model": vfl.GeneralLinear(loss="one_vs_rest")},
    "open": {"protocol": vfl.Protocol(residual="open")},
    "ckks": {"protocol": vfl.Protocol(residual=vfl.Ckks())},
    "paillier": {"protocol": vfl.Protocol(residual=SMALL.with_smallest_keys)},
    "pairwise": {"protocol": vfl.Protocol(sum="pairwise", residual="open")},
}
SCORE_ATTACKS, PAIR_ATTACKS, LINKED = (
    {"score_columns", "score_bits", "score_sums"},
    {"rank_matching", "marked_pairs"},
    {"linked_outputs"},
)


def test_without_scores_no_attack_on_scores_applies() -> None:
    none = vfl.Protocol(shares=vfl.Shares(scores="none"))
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.3), protocol=none, batch_size=60)
    assert {name for name in SCORE_ATTACKS if "no scores" in ATTACKS[name].skip_reason(job)} == SCORE_ATTACKS
    assert not any(ATTACKS[name].skip_reason(job) for name in PAIR_ATTACKS)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_every_attack_runs_on_noise_in_every_mode(mode: str) -> None:
    """Attacks on scores run if scores are disclosed, attacks on pairs if pairs are."""
    defaults: dict[str, Any] = {"model": vfl.Logistic(), "optimizer": vfl.FedSGD(lr=0.3), "batch_size": 30, "epochs": 1}
    job = vfl.Job(**(defaults | {"test_fraction": 0.4, "accepts": [*leak_kinds()]} | MODES[mode]))
    rng, several = drawn(7), 3 if mode == "classes" else 2
    bank = vfl.Party("bank", rng.normal(size=(150, 3)), rng.integers(0, several, 150), aligned=True)
    pair = RealIdealPair(job, with_noise_parties(job, bank, {"shop": 4, "telco": 3}, several), 0)
    ran = {name: attack.score(pair) for name, attack in ATTACKS.items() if not attack.skip_reason(job)}
    assert all(np.isfinite([score.real, score.simulated, score.chance]).all() for score in ran.values())
    disclosed = (SCORE_ATTACKS if mode != "none" else set()) | (
        PAIR_ATTACKS if job.protocol.shares is not None else set()
    )
    assert disclosed | ({"linked_outputs"} if mode == "classes" else set()) == ran.keys() & (
        SCORE_ATTACKS | PAIR_ATTACKS | {"linked_outputs"}
    )
    if mode in ("open", "ckks", "paillier", "pairwise", "exact"):
        assert ran["score_sums"].real > 0.999


def label_kind(loss: Loss) -> str | int:
    """Return the kind of labels (`tests.builders.labels_for`) that a loss can use."""
    if isinstance(loss, LogLinkLoss):
        return "amounts"
    return (2 if loss.single else 3) if loss.classifies else "numbers"


@pytest.mark.parametrize("rows", [1999, 2000])
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"softmax"}))  # which cannot train on shares
def test_attacks_on_an_output_apply_if_the_job_discloses_it(name: str, rows: int) -> None:
    """Pairs with rounded labels need 2,000 measured rows; with fewer an attack on them would attack nothing."""
    job = make_job(SHARES_JOB, model=vfl.GeneralLinear(loss=name), batch_size=500, test_fraction=0.0)
    known = pooled_run_facts(job, random_parties(rows=rows, labels=label_kind(LOSSES[name])))
    names = {output.name for output in known.outputs}
    assert (PAIRS in names) == (rows == 2000 or not isinstance(LOSSES[name], LogLinkLoss))
    for attack in ATTACKS.values():
        if attack.output and not attack.skip_reason(job):
            assert (attack.output in names) == (not attack.skip_reason(job, known)), attack.name
