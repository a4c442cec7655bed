"""Scores of new rows reveal columns in every mode, and class counts of bins reveal labels; an audit reports both."""

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.new_row_scores import query_scores
from securevfl.audit.attacks.score_bits import agree, split
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import run_audit
from securevfl.data.woe import Woe
from securevfl.disclosure.score_reading import added_by_column
from securevfl.families import FAMILIES, leak_kinds

ROW_NUMBERS = np.arange(120, dtype=np.intp)
EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}
OPEN, SEALED = vfl.Protocol(residual="open"), vfl.Protocol(residual=vfl.Ckks())
EXACT_SHARES = {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=3, scores="exact")), "optimizer": vfl.FedSGD(lr=0.3)}
MODES: dict[str, dict[str, Any]] = {
    "open": {"protocol": OPEN, "optimizer": vfl.FedSGD(lr=0.3)},
    "sealed": {"protocol": SEALED, "optimizer": vfl.FedSGD(lr=0.3)},
    "pairwise": {"protocol": vfl.Protocol(sum="pairwise", residual="open"), "optimizer": vfl.FedSGD(lr=0.3)},
    "fdml": {"protocol": OPEN, "optimizer": vfl.FDML(lr=0.3, stored="open")},
    "shares": EXACT_SHARES,
}


def scored_job(mode: str, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"model": vfl.Logistic(), "batch_size": 150, "epochs": 6, "test_fraction": 0.4}
    return vfl.Job(**(defaults | {"accepts": [*leak_kinds()]} | MODES[mode] | keys))


def bank_and_shop(columns: np.ndarray, seed: int = 0, weights: Any = None) -> list[vfl.Party]:
    """Return a bank with three numeric columns and the labels, and a shop with the given columns."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(len(columns), 3))
    if weights is None:
        weights = np.linspace(0.7, 1.9, columns.shape[1]) * np.sign(generator.normal(size=columns.shape[1]))
    y = X[:, 0] + (columns - columns.mean(axis=0)) @ weights + generator.logistic(size=len(columns)) > 0
    return [vfl.Party("bank", X, y, aligned=True), vfl.Party("shop", columns, aligned=True)]


def helpers(mode: str) -> list[vfl.Party]:
    """Return the parties without a table that this mode needs."""
    return [vfl.Helper(name, role) for name, role in scored_job(mode).family.example_helpers]


def bits(rows: int, d: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng([seed, d])
    return (generator.random((rows, d)) < generator.uniform(0.2, 0.8, d)).astype(float)


@pytest.mark.parametrize("mode", MODES)
def test_one_score_reveals_every_binary_column(mode: str) -> None:
    """Training on shares learns weights to about 0.02, differently each time.

    Two sums of weights that come closer than a rounding step hide the columns that differ. So the weights of
    this test are far from such a coincidence.
    """
    weights = np.array([0.5, -1.1, 2.3, -4.7]) if mode == "shares" else None
    bank, shop = bank_and_shop(bits(1500, 6 if weights is None else 4), weights=weights)
    others = [shop]
    if mode == "pairwise":
        others = [vfl.Party(name, X, aligned=True) for name, X in (("shop", shop.X[:, :4]), ("telco", shop.X[:, 4:]))]
    pair = RealIdealPair(scored_job(mode), [bank, *others, *helpers(mode)], 0)
    score = ATTACKS["score_bits"].score(pair)
    assert score.real == 1.0
    assert f"bank reads {6 if mode in ('open', 'sealed', 'fdml') else 4} of" in score.detail


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "pairwise"])
def test_a_single_column_is_recovered_from_few_known_rows(mode: str) -> None:
    column = np.random.default_rng(1).normal(size=(600, 1))
    pair = RealIdealPair(scored_job(mode), [*bank_and_shop(column), *helpers(mode)], 0)
    result = query_scores(pair)
    for known in (12, 200):
        assert (
            added_by_column(result.requester_columns, result.scores, result.other_columns["shop"][0], known)[0] > 0.999
        )
    assert (
        added_by_column(result.requester_columns, result.constant_scores, result.other_columns["shop"][0], 5)[0] > 0.999
    )
    assert ATTACKS["score_columns"].score(pair).real > 0.999


def test_several_classes_reveal_several_columns() -> None:
    generator = np.random.default_rng(0)
    X, columns = generator.normal(size=(900, 3)), generator.normal(size=(900, 2))
    y = np.argmax(np.column_stack([columns, X, np.zeros(900)]) + generator.gumbel(size=(900, 6)), axis=1)
    table = [vfl.Party("bank", columns, y, aligned=True), vfl.Party("shop", X, aligned=True)]
    pair = RealIdealPair(scored_job("shares", model=vfl.GeneralLinear(loss="one_vs_rest")), table, 0)
    result = query_scores(pair)
    assert result.scores.shape[1] == 6
    assert (added_by_column(result.requester_columns, result.scores, X[result.rows], 30) > 0.999).all()


@pytest.mark.parametrize("name", ["kernel direct", "transfer open"])
def test_other_families_are_attacked_too(name: str) -> None:
    """Random features and networks allow no exact map; the attack still finishes."""
    job = vfl.Job(**{"batch_size": 60, "epochs": 1, "accepts": [*leak_kinds()]} | EXAMPLES[name])
    score = ATTACKS["score_columns"].score(
        RealIdealPair(job, [party.take(ROW_NUMBERS) for party in vfl.datasets.breast_cancer(2)], 0)
    )
    assert 0 <= score.real <= 1
    assert "weight for each column" in ATTACKS["score_bits"].skip_reason(job)


def test_uninformative_scores_add_nothing() -> None:
    generator = np.random.default_rng(0)
    columns, X, noise = (generator.normal(size=(600, d)) for d in (3, 15, 1))
    assert added_by_column(columns, noise, X, 200).max() < 0.03
    assert added_by_column(columns, X @ generator.normal(size=(15, 1)), X, 200).max() < 0.5


def test_a_weight_close_to_a_sum_of_two_others_is_found() -> None:
    """The difference is 1e-4."""
    X = bits(1500, 6).astype(bool)
    f = X @ [0.47357, -0.59441, -0.71111, 1.06807, 1.36163, 1.39840]
    f = np.floor(f * 2**16 + np.random.default_rng(0).random(1500)) / 2**16
    assert all(any(agree(column, word) >= 0.99 for word in split(f)) for column in X.T)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.5, 0.9, 0.97])
def test_a_column_behind_the_widest_gap_is_read(share: float) -> None:
    """Other columns blur the scores, so that they form no clusters; outermost rows are apart by more than the gap."""
    draw = np.random.default_rng(0)
    column = draw.permutation(1000) < 1000 * share
    f = 3.0 * column + draw.random(1000)
    f[f.argmax()], f[f.argmin()] = 100.0, -100.0
    assert max(agree(column, word) for word in split(f)) == 1


@pytest.mark.parametrize("d", [4, 8, 10])
def test_clusters_are_separated(d: int) -> None:
    """3,000 scores with 16 bits, rounded at random."""
    generator = np.random.default_rng(d)
    X = bits(3000, d, seed=1).astype(bool)
    f = np.floor((X @ generator.normal(size=d) + 0.3) * 2**16 + generator.random(3000)) / 2**16
    read = [any(agree(column, word) >= 0.99 for word in split(f)) for column in X.T]
    assert sum(read) >= 0.8 * d


def test_levels_do_not_protect_a_column_with_a_large_weight() -> None:
    """Steps of 0.5 hide columns of similar weights, but not a column with a much larger weight."""
    generator = np.random.default_rng(0)
    X = bits(3000, 8).astype(bool)
    for weights, expected in ((np.full(8, 0.6), 0), (np.array([4.0] + [0.3] * 7), 1)):
        h = X @ (weights * np.linspace(1, 1.3, 8))
        level = 0.5 * np.floor(h / 0.5 + generator.random(3000))
        read = [any(agree(column, word) >= 0.99 for word in split(level)) for column in X.T]
        assert sum(read) == expected


@pytest.mark.long
def test_an_audit_reports_columns_in_scores() -> None:
    audit = run_audit(scored_job("open", accepts=[]), bank_and_shop(bits(600, 5)), seeds=(0,))
    (bits_read,) = [inference for inference in audit.inferences if inference.name == "score bits"]
    assert bits_read.attacker == "bank"
    assert bits_read.exceeds
    assert audit.exit_code == 1
    assert any("score bits: bank reads 5 of 5 binary columns of shop" in line for line in audit.exceeding)
    assert "the most successful attack is" in audit.verdict


@pytest.mark.parametrize("residual", ["open", vfl.Ckks()])
def test_class_counts_of_bins_reveal_labels(residual: Any) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 6))
    y = X[:, 0] + generator.normal(size=400) > 0
    table = [vfl.Party("bank", X[:, :2], y, aligned=True), vfl.Party("shop", X, aligned=True)]
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.1),
        protocol=vfl.Protocol(residual=residual),
        batch_size="all",
        epochs=1,
        prepare={"woe": Woe(bins=4, rows=30)},
        accepts=["columns", "rank"],
    )
    attack = ATTACKS["bin_counts"]
    assert not attack.skip_reason(job)
    score = attack.score(RealIdealPair(job, table, 0, unprepared=(job, table)))
    assert score.real == score.simulated
    assert score.real > (0.99 if residual == "open" else 0.7)
    assert "no weights of evidence" in attack.skip_reason(scored_job("open"))
