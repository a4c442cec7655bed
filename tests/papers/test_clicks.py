"""Generated clicks: reproducible, long-tailed, with a true AUC and interactions across parties."""

import numpy as np
import pytest

import securevfl as vfl
from benchmarks.papers.clicks import CATEGORIES, NUMBER_COLUMNS, TEXT_COLUMNS, _normal_share, clicks
from securevfl.models.metrics import area_under_curve

ROWS = 20_000
MADE = clicks(ROWS)


def test_the_seed_makes_the_table() -> None:
    again, other = clicks(ROWS), clicks(ROWS, seed=1)
    for name in ("numbers", "codes", "y", "probability"):
        np.testing.assert_array_equal(getattr(again, name), getattr(MADE, name))
        assert (getattr(other, name) != getattr(MADE, name)).any()
    digests = [party.digest for party in MADE.parties()]
    assert digests == [party.digest for party in again.parties()] != [party.digest for party in other.parties()]


def test_columns_are_of_two_kinds_and_texts_have_long_tails() -> None:
    assert MADE.numbers.shape == (ROWS, NUMBER_COLUMNS)
    assert MADE.codes.shape == (ROWS, TEXT_COLUMNS)
    np.testing.assert_allclose(MADE.numbers.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(MADE.numbers.std(axis=0), 1, atol=0.05)
    for codes, size in zip(MADE.codes.T, CATEGORIES, strict=True):
        counts = np.bincount(codes, minlength=size)
        share = 1 / (np.arange(size) + 2)
        spread = np.sqrt(ROWS * share / share.sum())
        assert (np.abs(counts - spread**2) < 6 * spread + 1).all()
    assert MADE.y.mean() == pytest.approx(0.25, abs=0.01)
    assert MADE.probability.mean() == pytest.approx(0.25)


def test_the_normal_distribution_is_that_of_scipy() -> None:
    norm = pytest.importorskip("scipy.stats").norm
    z = np.linspace(-7, 7, 999)
    np.testing.assert_allclose(_normal_share(z), norm.cdf(z), atol=1e-7)


def test_no_ranking_is_expected_to_do_better_than_the_truth() -> None:
    few = clicks(2_000, seed=5)
    p = few.probability
    order = np.sort(p)
    pairs = np.outer(1 - order, order)  # row without, column with
    np.fill_diagonal(pairs, 0)
    assert few.bayes_auc == pytest.approx(np.triu(pairs, 1).sum() / pairs.sum())
    assert MADE.bayes_auc == pytest.approx(area_under_curve(MADE.y == 1, MADE.probability), abs=0.01)
    generator = np.random.default_rng(0)
    drawn = [area_under_curve(generator.random(len(p)) < p, p) for _ in range(200)]
    assert np.mean(drawn) == pytest.approx(few.bayes_auc, abs=3 * np.std(drawn) / 200**0.5)


def test_interactions_cross_the_cut() -> None:
    """Products of two parties' numbers explain log-odds that no sum of functions of single parties explains."""
    f = np.log(MADE.probability / (1 - MADE.probability))
    one, other = (party.X[:, [j for j, name in enumerate(party.columns) if name[0] == "i"]] for party in MADE.parties())
    products = np.einsum("ni,nj->nij", one, other).reshape(ROWS, -1)
    separate = np.hstack([np.ones((ROWS, 1)), one, other, one**2, other**2])
    left = f - separate @ np.linalg.lstsq(separate, f, rcond=None)[0]
    explained = products @ np.linalg.lstsq(products, left, rcond=None)[0]
    by_chance = products.shape[1] / ROWS
    assert explained.var() / left.var() > 5 * by_chance


@pytest.mark.parametrize("count", [2, 3, 5])
def test_parties_have_some_of_each_kind_and_all_of_them_together(count: int) -> None:
    parties = MADE.parties(count)
    assert [party.active for party in parties] == [True] + [False] * (count - 1)
    names = [name for party in parties for name in party.columns]
    assert sorted(names) == sorted([*(f"i{j}" for j in range(NUMBER_COLUMNS)), *(f"c{j}" for j in range(TEXT_COLUMNS))])
    assert all({name[0] for name in party.columns} == {"i", "c"} for party in parties)
    assert vfl.align(parties)[1].X.shape == parties[1].X.shape
