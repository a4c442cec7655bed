"""What opened histograms and chosen splits give away, and that trees on shares give neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS, label_auc
from securevfl.audit.attacks.chosen_splits import points
from securevfl.audit.attacks.histogram_bins import bins_of
from securevfl.audit.histograms import ChosenSplit, opened
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats

BINS = 8


def table(seed: int, rows: int = 400) -> tuple[Any, Any, Any]:
    """Bins of both parties, and labels that are rare and go with rare values."""
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(rows, 6))
    f = X[:, 0] + X[:, 3] + X[:, 4] + rng.logistic(size=rows) * 0.5
    y = (f > np.quantile(f, 0.8)).astype(int)
    edges = np.quantile(X, np.arange(1, BINS) / BINS, axis=0)
    bins = (X[None] > edges[:, None]).sum(axis=0)
    return bins[:, :3], bins[:, 3:], y


def share_read(gradients: Sequence[Floats], sums: Sequence[Sequence[Floats]], bins: np.ndarray) -> float:
    """Return the share of all bins (n x d) that opened histograms name."""
    A = np.stack(gradients)
    found = [bins_of(A, np.stack([each[j] for each in sums])) for j in range(bins.shape[1])]
    return float(np.mean(np.stack(found, axis=1) == bins))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_opened_histograms_name_bins_and_chosen_splits_labels(seed: int) -> None:
    own, other, y = table(seed)
    shown = opened(own, other, y, bins=BINS, trees=50)
    assert share_read(shown.gradients, shown.sums, other) >= 0.9
    few = opened(own, other, y, bins=BINS, trees=1)
    assert share_read(few.gradients, few.sums, other) < 0.6
    assert label_auc(points(shown.chosen, len(y))[:, None], y) >= 0.7


def job(**keys: Any) -> vfl.Job:
    return vfl.Job(model=vfl.Trees(trees=8, depth=2), protocol="shares", **({"test_fraction": 0.25} | keys))


def parties(seed: int) -> list[vfl.Party]:
    own, other, y = table(seed)
    return [vfl.Party("bank", own.astype(float), y, aligned=True), vfl.Party("shop", other.astype(float), aligned=True)]


def test_trees_on_shares_show_neither() -> None:
    worlds = Worlds(job(), parties(0), 0)
    score = ATTACKS["histogram_bins"].score(worlds)
    assert score.real <= score.chance + 0.05
    assert abs(score.excess) < 0.1
    assert ATTACKS["chosen_splits"].score(worlds).real < 0.95
    plain = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.3), protocol="shares", epochs=2)
    assert all("no trees" in ATTACKS[name].why_not(plain) for name in ("histogram_bins", "chosen_splits"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_are_at_chance_over_twenty_seeds() -> None:
    """Splits that are taken for chosen rank rows as splits drawn without any training do."""
    read, noise, real, drawn = [], [], [], []
    for seed in range(20):
        worlds = Worlds(job(), parties(seed), seed)
        score = ATTACKS["histogram_bins"].score(worlds)
        read.append(score.real)
        noise.append(score.simulated)
        real.append(ATTACKS["chosen_splits"].score(worlds).real)
        rng, other = np.random.default_rng(seed), worlds.parties[1].X
        rows = np.arange(len(other))
        some = [ChosenSplit(level, rows, other[:, rng.integers(3)] > rng.integers(1, BINS - 1)) for level in (0, 1) * 3]
        drawn.append(label_auc(points(some, len(rows))[:, None], worlds.labels))
    print(np.mean(read), np.mean(noise), np.mean(real), np.mean(drawn))
    for one, other in ((read, noise), (real, drawn)):  # within six standard errors of their difference
        assert abs(np.mean(one) - np.mean(other)) <= 0.03 + 6 * (np.var(one) / 20 + np.var(other) / 20) ** 0.5
