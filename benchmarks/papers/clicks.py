"""Generated clicks with a known truth: 13 numeric columns and 26 text columns with long tails, as in the Criteo tables.

Impressions and clicks are drawn in this order:

1. A row has hidden traits u, `TRAITS` standard normal numbers.
2. Column j is a mixture of u' a_j, with a random direction a_j, and independent noise: a standard normal number z.
   Numeric columns are z. The category of a text column is the position of z in a Zipf distribution: category l of m has
   a probability proportional to (l + SHIFT)^-1, and m grows from 4 to 200 over the 26 columns.
3. The log-odds of a click are those of a factorisation machine (Rendle 2010) on these columns,

       b + SHARPNESS (main effects + interactions),    interactions = sum over i < j of <v_i, v_j>

   with an effect and `LATENT_RANK` numbers v for each category, and for each numeric column times its value. Columns
   have exponentially distributed weights. Both sums are standardised; their shares of the variance are 1 - CROSSED and
   CROSSED. b sets the click rate.
4. The label is drawn with that probability.

Interactions exist between all pairs of columns, so for any division of the columns many of them cross the cut, and no
sum of functions of each party's columns can represent them. All probabilities are known, and therefore the AUC that no
model exceeds except by chance (`Clicks.bayes_auc`). The same seed gives the same table with the same version of numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.data.party import Party

NUMBER_COLUMNS, TEXT_COLUMNS = 13, 26  # columns of each kind
CATEGORIES = np.geomspace(4, 200, TEXT_COLUMNS).round().astype(int)
SHIFT = 2.0  # of the ranks in the Zipf distribution, which flattens its head
TRAITS, MIXED_SHARE = 4, 0.5  # hidden numbers of a row, and their share of the variance of a column
LATENT_RANK = 2
CROSSED = 0.5
SHARPNESS = 2.0  # standard deviation of the log-odds
NAMES = ("publisher", "advertiser", "exchange", "telco", "shop")


@dataclass(frozen=True)
class Clicks:
    """A generated table.

    Attributes:
        numbers: the numeric columns (n, 13).
        codes: the text columns (n, 26) as codes; 0 is the most frequent category.
        y: the labels (n,), 0 or 1.
        probability: the probability (n,) with which each label was drawn.
    """

    numbers: Floats
    codes: NDArray[np.intp]
    y: NDArray[np.intp]
    probability: Floats

    @property
    def bayes_auc(self) -> float:
        """The expected AUC of a ranking by the true probabilities on these rows."""
        p = np.sort(self.probability)
        below = np.cumsum(1 - p) - (1 - p)  # expected rows without a click that are ranked lower
        pairs = p.sum() * (1 - p).sum() - (p * (1 - p)).sum()
        return float((p * below).sum() / pairs)

    def parties(self, count: int = 2) -> list[Party]:
        """Return `count` parties, 2 to 13, with every count-th column of each kind; the first one has the labels."""
        assert 2 <= count <= NUMBER_COLUMNS, count
        return [self._party(k, count) for k in range(count)]

    def _party(self, k: int, count: int) -> Party:
        numbers, texts = range(k, NUMBER_COLUMNS, count), range(k, TEXT_COLUMNS, count)
        X = np.column_stack([self.numbers[:, numbers], self.codes[:, texts]])
        categories = {f"c{j}": tuple(f"level {l:04d}" for l in range(CATEGORIES[j])) for j in texts}
        columns = Columns(X, [*(f"i{j}" for j in numbers), *categories], categories)
        name = NAMES[k] if k < len(NAMES) else f"party{k}"
        return Party(name, columns, None if k else self.y, ids=np.arange(len(X)))


def clicks(rows: int = 20_000, *, rate: float = 0.25, seed: int = 0) -> Clicks:
    """Generate `rows` impressions, of which the share `rate` is clicked in the mean."""
    assert rows >= 1, rows
    assert 0 < rate < 1, rate
    truth, rows_of = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    directions = truth.normal(size=(TRAITS, NUMBER_COLUMNS + TEXT_COLUMNS))
    directions *= np.sqrt(MIXED_SHARE / (directions**2).sum(axis=0))
    noise = rows_of.normal(size=(rows, NUMBER_COLUMNS + TEXT_COLUMNS))
    z = rows_of.normal(size=(rows, TRAITS)) @ directions + np.sqrt(1 - MIXED_SHARE) * noise
    numbers, codes = z[:, :NUMBER_COLUMNS], np.empty((rows, TEXT_COLUMNS), np.intp)
    main, total, squares = np.zeros(rows), np.zeros((rows, LATENT_RANK)), np.zeros((rows, LATENT_RANK))
    for j in range(NUMBER_COLUMNS + TEXT_COLUMNS):
        weight = truth.exponential(size=2)  # of this column, in main effects and in interactions
        if j < NUMBER_COLUMNS:
            effects = numbers[:, j, None] * truth.normal(size=1 + LATENT_RANK)
        else:
            size = CATEGORIES[j - NUMBER_COLUMNS]
            # the position of standard normal numbers (n,) in a Zipf distribution of this size
            share = 1 / (np.arange(size) + SHIFT)
            edges = np.cumsum(share / share.sum())[:-1]
            codes[:, j - NUMBER_COLUMNS] = np.searchsorted(edges, _normal_share(z[:, j]), side="right").astype(np.intp)
            effects = truth.normal(size=(size, 1 + LATENT_RANK))[codes[:, j - NUMBER_COLUMNS]]
        main += weight[0] * effects[:, 0]
        total += weight[1] * effects[:, 1:]
        squares += (weight[1] * effects[:, 1:]) ** 2
    crossed = (total**2 - squares).sum(axis=1) / 2  # sum over pairs, as Rendle's equation 5
    logits = SHARPNESS * (np.sqrt(1 - CROSSED) * _standard(main) + np.sqrt(CROSSED) * _standard(crossed))
    probability = 1 / (1 + np.exp(-(logits + _offset(logits, rate))))
    y = (rows_of.random(rows) < probability).astype(np.intp)
    return Clicks(numbers, codes, y, probability)


def _normal_share(z: Floats) -> Floats:
    """Return the standard normal distribution function, to 8 digits (Abramowitz and Stegun 1964, 7.1.26)."""
    x = np.abs(z) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half: Floats = tail * np.exp(-(x**2)) / 2
    return np.where(z > 0, 1 - half, half)


def _standard(values: Floats) -> Floats:
    deviation = values.std()
    return (values - values.mean()) / (deviation if deviation > 0 else 1.0)


def _offset(logits: Floats, rate: float) -> float:
    """Return the offset with which the mean probability equals the rate, by bisection."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(logits + middle)))).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2
