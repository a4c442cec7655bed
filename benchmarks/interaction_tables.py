"""Generated tables of two parties, with and without interactions between a column of each.

The tables have the shape of public ones that cannot be shipped: MAGIC's gamma telescope, ELENA's phonemes, and blocks
of houses in California. Their laws are simulations of the same kind, and not fits to these tables. Their noise is
chosen so that boosting on all columns, and boosting whose trees use the columns of one party only, have about the AUC
that they have on the public tables (`python -m benchmarks.interactions` prints both). Nothing about models of this
package went into that choice.

n is the number of rows. A table is a pair of arrays of columns, one for each party, and the labels (n,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party

Table = tuple[Floats, Floats, NDArray[np.intp]]
Draw = np.random.Generator


@dataclass(frozen=True)
class GeneratedTable:
    """A table's law.

    Attributes:
        generate: returns the columns of both parties and the labels, given the number of rows and random numbers.
        rows: number of rows by default.
        interacts: whether the labels depend on a column of one party in a way that a column of the other decides.
    """

    generate: Callable[[int, Draw], Table]
    rows: int
    interacts: bool = True

    def parties(self, rows: int | None, seed: int) -> list[Party]:
        """Return both parties of a table of `rows` rows (by default its usual number); the bank has the labels."""
        size = self.rows if rows is None else rows
        local, other, y = self.generate(size, np.random.default_rng([seed, size]))
        return [Party("bank", local, y, aligned=True), Party("shop", other, aligned=True)]


def exclusive_or(n: int, draw: Draw) -> Table:
    """Return numbers whose label is mostly the exclusive or of the signs of a column of each party.

    A second column of each party has an effect of its own, which adds to the log odds.
    """
    local, other = draw.normal(size=(n, 5)), draw.normal(size=(n, 5))
    differ = (local[:, 0] > 0) ^ (other[:, 0] > 0)
    return local, other, _labels(np.where(differ, 2.0, -2.0) + local[:, 1] + other[:, 1], draw)


def magic_like(n: int, draw: Draw) -> Table:
    """Return images of air showers in a telescope: their size and shape at the bank, and their position at the shop.

    The image of a gamma ray is an ellipse that points at the source: its angle alpha is near 0. The error of the angle
    is smaller for long, narrow and bright images, which only the bank sees, and for those far from the centre. Images
    of hadrons, which arrive from everywhere, have any angle and less regular shapes.
    """
    gamma, shape = draw.random(n) < 0.65, draw.normal(size=n)
    size = 2.1 + draw.gamma(1.8, 0.36, n) + np.where(gamma, 0.0, 0.1)  # logarithm of the number of photons
    distance = np.clip(draw.normal(190, 75, n), 1, None)
    length = np.where(gamma, 35, 44) * np.exp(0.55 * (size - 2.75) + np.where(gamma, 0.42, 0.7) * shape)
    ratio = 1 / (1 + np.exp(0.4 * shape - draw.normal(np.where(gamma, 0.0, -0.35), 0.5)))
    width = length * ratio
    concentration = 1 / (1 + np.exp(2.0 * (size - 2.75) + 0.65 + draw.normal(0, 0.45, n)))
    brightest = concentration * np.clip(draw.normal(0.57, 0.05, n), 0.3, 0.9)
    error = 24 * (length / 35) ** -1.2 * ratio * np.exp((190 - distance) / 110 + 0.6 * (2.75 - size))
    angle = np.abs(draw.normal(0, error))
    alpha = np.where(gamma & (angle < 90), angle, draw.uniform(0, 90, n))
    skew = draw.normal(np.where(gamma, 0.15, -0.1), np.where(gamma, 0.8, 1.0)) * length
    third = draw.normal(np.where(gamma, 0.4, 0.1), 0.8) * length
    across = draw.normal(0, 0.8, n) * width
    local = np.column_stack([length, width, size, concentration, brightest])
    return local, np.column_stack([skew, third, across, alpha, distance]), gamma.astype(np.intp)


def phoneme_like(n: int, draw: Draw) -> Table:
    """Return energies of five harmonics of nasal and oral vowels: three at the bank, and two at the shop.

    Each vowel is a cloud of points with directions of its own. Several vowels belong to each of the two classes, and
    those of one class are shifted by the same vector, so that a part of the difference adds up over the columns.
    """
    law, vowels = np.random.default_rng(20), 14  # the vowels are the same in every table
    nasal = np.arange(vowels) % 7 < 2
    means, shapes = law.normal(size=(vowels, 5)), law.normal(0, 0.35, size=(vowels, 5, 5))
    means[nasal] += 0.7 * law.choice([-1, 1], 5)
    vowel = draw.integers(vowels, size=n)
    X = means[vowel] + np.einsum("nij,nj->ni", shapes[vowel], draw.normal(size=(n, 5)))
    X += draw.normal(0, 0.35, size=X.shape)
    return X[:, :3], X[:, 3:], nasal[vowel].astype(np.intp)


def california_like(n: int, draw: Draw) -> Table:
    """Return blocks of houses: incomes and houses at the bank, and people and positions at the shop.

    Prices rise with income, near cities and near the coast. In each city, income, age, rooms and occupancy have
    further effects of their own: an old house raises the price in one city and lowers it in another. The labels are
    prices above the median.
    """
    law, cities = np.random.default_rng(7), 12  # the cities are the same in every table
    along, inland = np.sort(law.uniform(0, 10, cities)), law.exponential(0.6, cities)
    premium, spread = law.uniform(0.1, 0.9, cities), law.uniform(0.1, 0.35, cities)
    slopes, shares = law.normal(0, 0.6, (cities, 4)), law.dirichlet(np.full(cities, 1.5))
    city, rural = draw.choice(cities, size=n, p=shares), draw.random(n) < 0.2
    position = np.where(rural, draw.uniform(0, 10, n), draw.normal(along[city], spread[city]))
    coast = np.where(rural, draw.exponential(1.2, n), np.abs(draw.normal(inland[city], spread[city])))
    latitude = 32.5 + 0.8 * position + 0.35 * coast
    longitude = -117.2 - 0.6 * position + 0.75 * coast
    near = np.exp(-((position[:, None] - along) ** 2 + (coast[:, None] - inland) ** 2) / (8 * spread**2))
    place = (premium * near).max(axis=1) + 0.35 * np.exp(-coast / 0.6)
    income = np.exp(draw.normal(1.2 + 0.25 * place, 0.42))
    age = np.clip(draw.normal(28 + 10 * place, 12), 1, 52)
    rooms = np.clip(draw.normal(5.2 + 0.35 * (income - 3.8) - 0.8 * place, 0.9), 1.5, None)
    bedrooms = np.clip(draw.normal(1.06, 0.08, n), 0.5, None)
    people = np.exp(draw.normal(7.1 + 0.2 * place, 0.7))
    occupancy = np.clip(draw.normal(2.9 - 0.1 * (income - 3.8), 0.6), 1.1, None)
    scaled = np.column_stack(
        [(np.log(income) - 1.3) / 0.42, (age - 30) / 12, (rooms - 5) / 1.2, 5 * np.log(occupancy / 2.9)]
    )
    local_effects = (scaled * (near @ slopes)).sum(axis=1) / (1 + near.sum(axis=1))
    price = 1.5 * np.log(income) + 1.6 * place + 0.004 * age + np.log(rooms / occupancy) + local_effects
    price += draw.normal(0, 0.3, n)
    local = np.column_stack([income, age, rooms, bedrooms])
    return local, np.column_stack([people, occupancy, latitude, longitude]), (price > np.median(price)).astype(np.intp)


def additive(n: int, draw: Draw) -> Table:
    """Return correlated columns whose effects on the log odds have steps and curves, and add up over the parties."""
    common = draw.normal(size=(n, 1))
    local, other = (0.6 * common + 0.8 * draw.normal(size=(n, d)) for d in (6, 5))
    f = sum(
        (np.abs(X[:, 0]) < 0.8) * 1.2 + np.tanh(2 * X[:, 1]) + 0.7 * np.sign(X[:, 2]) + 0.5 * X[:, 3]
        for X in (local, other)
    )
    return local, other, _labels(f - np.median(f), draw)


def binary(n: int, draw: Draw) -> Table:
    """Return columns of two values with linear effects, as in tables of categories."""
    rates = np.random.default_rng(3).uniform(0.05, 0.6, 40)
    X = (draw.random((n, 40)) < rates).astype(float)
    f = X @ np.random.default_rng(4).normal(0, 0.8, 40)
    return X[:, :20], X[:, 20:], _labels(f - np.quantile(f, 0.75), draw)


def _labels(f: Floats, draw: Draw) -> NDArray[np.intp]:
    return np.asarray(f + draw.logistic(size=len(f)) > 0).astype(np.intp)


TABLES: dict[str, GeneratedTable] = {
    "exclusive-or": GeneratedTable(exclusive_or, 12_000),
    "magic-like": GeneratedTable(magic_like, 19_020),
    "phoneme-like": GeneratedTable(phoneme_like, 5_404),
    "california-like": GeneratedTable(california_like, 20_640),
    "additive": GeneratedTable(additive, 20_000, interacts=False),
    "binary": GeneratedTable(binary, 20_000, interacts=False),
}
"""The tables by name."""
