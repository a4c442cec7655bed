"""Opened histograms reveal bins, chosen splits reveal labels, and trees on secret shares reveal neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.audit.attacks import label_auc
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.models.forest_inputs import ForestInputs
from tests.security.opened_histograms import ChosenSplit, bins_of, opened, points

BINS = 8


def rare_label_bins(seed: int, rows: int = 400) -> tuple[Any, Any, Any]:
    """Return bins of both parties, and rare labels that correlate with rare values."""
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(rows, 6))
    f = X[:, 0] + X[:, 3] + X[:, 4] + rng.logistic(size=rows) * 0.5
    y = (f > np.quantile(f, 0.8)).astype(int)
    edges = np.quantile(X, np.arange(1, BINS) / BINS, axis=0)
    bins = (X[None] > edges[:, None]).sum(axis=0)
    return bins[:, :3], bins[:, 3:], y


def share_read(gradients: Sequence[Floats], sums: Sequence[Sequence[Floats]], bins: np.ndarray) -> float:
    """Return the share of all bins (n, d) that opened histograms reveal."""
    A = np.stack(gradients)
    results = [bins_of(A, np.stack([total[j] for total in sums])) for j in range(bins.shape[1])]
    return float(np.mean(np.stack(results, axis=1) == bins))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_histograms_reveal_bins_and_splits_reveal_labels(seed: int) -> None:
    local, other, y = rare_label_bins(seed)
    displayed = opened(local, other, y, bins=BINS, trees=50)
    assert share_read(displayed.gradients, displayed.sums, other) >= 0.9
    few = opened(local, other, y, bins=BINS, trees=1)
    assert share_read(few.gradients, few.sums, other) < 0.6
    assert label_auc(points(displayed.chosen, len(y))[:, None], y) >= 0.7


def trees_job(**keys: Any) -> vfl.Job:
    options: dict[str, Any] = {"model": vfl.Trees(trees=8, depth=2), "test_fraction": 0.25} | keys
    return vfl.Job(protocol="shares", **options)


def binned_parties(seed: int) -> list[vfl.Party]:
    local, other, y = rare_label_bins(seed)
    return [
        vfl.Party("bank", local.astype(float), y, aligned=True),
        vfl.Party("shop", other.astype(float), aligned=True),
    ]


def leaves_read(pair: RealIdealPair) -> tuple[float, float, float]:
    """Return the share of the other party's leaves that the party with labels names from its shares.

    The attack uses its shares of residuals as gradients and its shares of weights as sums; both are uniform.

    Returns:
        The share from its shares, from the same numbers shuffled, and from naming the most frequent leaf.
    """
    run, _ = pair.real_run
    lead, train = run.active, pair.schedule.train
    (name, part), *_ = ((name, part) for name, part in run.parts.items() if not part.leads)
    inputs, party = ForestInputs.read(part.state["inputs"]), next(p for p in pair.parties if p.name == name)
    leaves = inputs.forest.leaves(part.table(party.table))[train]
    words = np.stack([residual_share.values[:, 0] for residual_share in pair.real(lead.name).residual_shares])
    order = np.argsort(next(iter(pair.real().rows.values())), kind="stable")
    gradients = words[:, order] / max(float(np.abs(words).max()), 1.0)
    rng, width = np.random.default_rng(pair.seed), 2**inputs.forest.depth
    right, wrong = list[float](), list[float]()
    for tree in range(min(10, len(inputs.forest))):
        held_out = lead.state["others"][name][1 : 1 + len(words), tree * width : (tree + 1) * width, 0].astype(np.int64)
        for sums, named in ((held_out, right), (rng.permuted(held_out, axis=1), wrong)):
            result = bins_of(gradients, sums / max(float(np.abs(sums).max()), 1.0))
            named.append(float(np.mean(result == leaves[:, tree])))
    return (
        float(np.mean(right)),
        float(np.mean(wrong)),
        float(np.mean([np.bincount(x).max() / len(x) for x in leaves.T])),
    )


def labels_ranked(pair: RealIdealPair) -> float:
    """Return the AUC of labels for the other party, which takes trees with the largest shares of weights as chosen."""
    party = pair.parties[1]
    part = pair.real_run[0].parts[party.name]
    inputs = ForestInputs.read(part.state["inputs"])
    numbers = inputs.forest.numbers(part.table(party.table))
    trees, width = len(inputs.forest), 2**inputs.forest.depth
    share = np.abs(pair.real(party.name).theta[: trees * width, 0]).reshape(trees, width).sum(axis=1)
    chosen = [
        ChosenSplit(level, np.arange(len(numbers)), (numbers[:, tree] >> level & 1).astype(bool))
        for tree in np.argsort(-share)[: max(1, trees // 4)]
        for level in range(inputs.forest.depth)
    ]
    return label_auc(points(chosen, len(numbers))[:, None], pair.labels)


def test_trees_on_shares_reveal_neither() -> None:
    pair = RealIdealPair(trees_job(), binned_parties(0), 0)
    real, shuffled, commonest = leaves_read(pair)
    assert real <= commonest + 0.05
    assert abs(real - shuffled) < 0.1


def test_shares_of_weights_name_no_tree() -> None:
    """Trees with a large weight cannot be recognized in the shares of the party that drew them.

    A correlation with both would rank labels. With 192 trees, a rank correlation above 0.45 is 6.2 standard errors (P <
    1e-9).
    """
    pair = RealIdealPair(trees_job(model=vfl.Trees(trees=128, depth=2)), binned_parties(0), 0)
    run, _ = pair.real_run
    trees = len(ForestInputs.read(run.parts["shop"].state["inputs"]).forest)
    full = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")["shop"]
    heavy, seen = (
        np.abs(item[: trees * 4, 0].astype(float)).reshape(trees, 4).sum(axis=1)
        for item in (full, pair.real("shop").theta)
    )
    assert trees == 192
    assert abs(spearmanr(heavy, seen).statistic) < 0.45


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_are_at_chance_over_twenty_seeds() -> None:
    """Splits that are taken as chosen rank rows as random splits do."""
    read, noise, real, drawn = [], [], [], []
    for seed in range(20):
        pair = RealIdealPair(trees_job(), binned_parties(seed), seed)
        by_shares, by_noise, _ = leaves_read(pair)
        read.append(by_shares)
        noise.append(by_noise)
        real.append(labels_ranked(pair))
        rng, other = np.random.default_rng(seed), pair.parties[1].X
        rows = np.arange(len(other))
        some = [ChosenSplit(level, rows, other[:, rng.integers(3)] > rng.integers(1, BINS - 1)) for level in (0, 1) * 3]
        drawn.append(label_auc(points(some, len(rows))[:, None], pair.labels))
    print(np.mean(read), np.mean(noise), np.mean(real), np.mean(drawn))
    for one, other in ((read, noise), (real, drawn)):  # within six standard errors of their difference
        assert abs(np.mean(one) - np.mean(other)) <= 0.03 + 6 * (np.var(one) / 20 + np.var(other) / 20) ** 0.5
