"""How many numbers a row are enough to find the columns of a table, judged by whoever has the table.

Whoever collects a sum sees X_b theta_t for unknown weights that move: t = 1 ... T, each in double precision. From
T c >= rank(X_b) on these span the columns, and known rows, or columns of two values, name them. Two things make fewer
numbers enough, and both depend on what is in the table:

*Columns that go together.* The largest principal components come first, as gradients point along them. So many numbers
as components that hold NEARLY_ALL of the variance of the columns show nearly all of them.

*Columns of few values.* Every number has BITS bits. If all columns are 0/1, integers u with u . h = 0 for all h that
were received are short only if u is orthogonal to every column; lattice reduction (LLL) finds them, and with them the
space of the columns: the hidden subset sum problem (Nguyen and Stern 1999; Coron and Gini 2020). Measured with LLL in
double precision: the space of 14 columns of 0/1 from one number a row, of 24 from two; of 8 columns of 64 values from
two, of 4,096 values from four; of 8 columns of 0/1 and one of reals from two. So a column whose values lie on a grid of
V places counts as (log2 V + 1) / BITS of a number, 1/25 for 0/1, and one that others determine, as in one-hot groups,
as nothing.

No column counts as more than HALF a number. The weights follow from X and from residuals that the active party knows,
so what it sees are products of X X^T with known vectors, and these have far fewer unknowns than X theta_t.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk, RowSource, gram
from securevfl.base.normal_distribution import normal_cdf, normal_quantile

# How many bits the columns of a row hold: what scores of a few bits each are weighed against.
#
# A row's columns are worth what it takes to tell them to an eighth of a deviation: the entropies of each column in such
# steps, less what columns say of each other, by the determinant of their correlations (of normal columns the
# information that they share is -1/2 log2 det R). Eigenvalues count as 1/64 at least, and the whole as nothing at
# least: columns that others determine hold nothing of their own, and three bits of each other.
#
# Measured: 4.5 bits for one column of bill amounts, 8 for ten columns of 0/1, 70 for twenty of breast cancer.


STEP = 1 / 8  # of a deviation
FLOOR = 1 / 64  # of an eigenvalue


@dataclass(frozen=True)
class Holds:
    """What a row of one party's columns holds: bits, and the largest part of them that leaves with a single one of
    several columns."""

    bits: float
    heaviest: float

    def in_words(self, bits: int, outputs: int) -> str:
        """Say in words what so many scores of a row, of so many bits each, are against this."""
        sent, most = bits * outputs, min(bits * outputs, self.bits)
        numbers = f"{outputs} numbers, of {bits} bits each" if outputs > 1 else f"one number of {bits} bits"
        share = 1.0 if not self.bits else most / self.bits
        told = "so all of it may follow" if sent >= self.bits else f"of which it tells {share:.0%} at most"
        return f"{numbers}; its row holds {self.bits:.0f} bits, {told}"

    @classmethod
    def of(cls, X: Floats) -> Holds:
        """Measure how many bits the columns hold from some rows of a table (n x d), scaled or not."""
        # the entropy, in bits, of each column that varies, and the correlations of these columns
        centred = X - X.mean(axis=0)
        deviation = centred.std(axis=0)
        varies = deviation > SAME * np.abs(X).max(axis=0, initial=0.0)
        unit = centred[:, varies] / deviation[varies]
        entropies, R = np.array([_entropy(column) for column in unit.T]), unit.T @ unit / max(1, len(X))
        whole, d = _bits(entropies, R), len(entropies)
        if d < 2 or not whole:
            return cls(whole, 0.0)
        alone = np.flatnonzero(entropies - np.log2(FLOOR) / 2 >= whole / 2)  # others take less with them
        kept = (np.delete(np.arange(d), j) for j in alone)
        return cls(
            whole, max((1 - _bits(entropies[each], R[np.ix_(each, each)]) / whole for each in kept), default=0.0)
        )


def entropies(X: Floats) -> Floats:
    """Return the entropy of each column (n x d), in bits a row: 0 of one that does not vary."""
    return np.array([Holds.of(column[:, None]).bits for column in X.T])


def _entropy(column: Floats) -> float:
    _, counts = np.unique(np.rint(column / STEP), return_counts=True)
    p = counts / counts.sum()
    return float(-(p * np.log2(p)).sum())


def _bits(entropies: Floats, R: Floats) -> float:
    if not len(entropies):
        return 0.0
    shared = 0.5 * np.log2(np.maximum(np.linalg.eigvalsh(R), FLOOR)).sum()
    return max(0.0, float(entropies.sum() + shared))


# How much reason codes tell of a row: which k of a party's n columns cost it most, in order, under names of its own.
#
# Codes in order are one of n! / (n - k)! cases, so they tell log2 of that in bits at most.


def code_bits(columns: int, most: int) -> float:
    """Return how much `most` codes of a row tell of it at most, of a party with so many columns: log2 of
    n! / (n - k)!."""
    return sum(math.log2(columns - each) for each in range(min(most, columns)))


# How much labels hold, in bits, which what counts of the positive class in bins tell is a share of.
#
# A count is told as a word of log2(2n) bits (`securevfl.protocols.bin_classes`), which tells as many bits of labels at
# most, whatever a party has multiplied these by. The n labels hold n times the entropy of one. From as many bits on as
# they hold the words may determine all of them; integers of two values are found by lattice reduction far below as many
# equations as unknowns (`securevfl.audit.attacks.two_values`). Rows of rare bins together, or a bin of one
# class, are found before: this is an average.


_NONE = 1e-9  # of the largest eigenvalue: below it is rounding


def label_entropy(later: NDArray[np.bool_]) -> float:
    """Bits that one of these labels (n,) holds by itself: 1 where half of them are of the positive class."""
    p = float(np.mean(later))
    return sum(-each * math.log2(each) for each in (p, 1 - p) if each > 0)


def alone(bins: RowSource) -> int:
    """How many rows of a 0/1 matrix of bins (n x k) its counts single out: whose leverage exceeds `ALONE`.

    Where two bins differ by one row, the difference of their counts is that row's label. Leverage is that of
    `securevfl.disclosure.exposure`, by the k x k products of the columns.
    """
    stretch = RowChunk(bins)
    values, vectors = np.linalg.eigh(gram(stretch))
    kept = values > _NONE * values[-1]
    W: Floats = vectors[:, kept] / np.sqrt(values[kept])
    return sum(int((np.square(block @ W).sum(axis=1) > ALONE).sum()) for _, block in stretch.blocks())


NEARLY_ALL = 0.9
HALF = 0.5
BITS = 50
SAME = 1e-9  # of the reach of a column: closer values differ by rounding
FAR = 1e-4  # from the span of others, for a column of length 1: beyond doubt in products of doubles
ON_GRID = 1e-3  # of a step: how far off its place a value may be
ROWS = 4096  # of a table that are looked at


def enough(X: Floats) -> float:
    """Numbers a row that are enough to find the columns of X (n x d, some rows of a table, scaled or not)."""
    by_value = sum(_numbers(column) for column in _independent(X).T)
    components = int((np.cumsum(_variances(X)) < NEARLY_ALL - 1e-12).sum()) + 1
    return min(by_value, HALF * len(X), float(components)) if by_value else np.inf


def held(X: Floats, numbers: int) -> float:
    """Return the largest share of the variance of the columns of X (n x d) that this many numbers a row can hold."""
    return float(min(1.0, _variances(X)[:numbers].sum()))


def _numbers(column: Floats) -> float:
    """Return how many numbers one column counts as: by the grid on which its values lie, or as a column of 0/1 for each
    value but one.

    Values that miss their places by a share e of a step leave log2(1 / e) bits of a number.
    """
    values = np.unique(column)
    reach, steps = values[-1] - values[0], np.diff(values)
    steps = steps[steps > SAME * reach]
    places = (values - values[0]) / steps.min()
    missed = float(np.abs(places - np.rint(places)).max())
    bits = min(BITS, -np.log2(max(missed, 2.0**-BITS)))
    on_grid = (np.log2(places[-1] + 1) + 1) / bits if missed < ON_GRID else HALF
    return float(min(HALF, on_grid, 2 * len(steps) / BITS))


def _independent(X: Floats) -> Floats:
    """Columns that vary and that, with the constant 1, do not determine each other; those of few values first."""
    values = np.array([len(np.unique(column)) for column in X.T])
    own = X[:, np.argsort(values, kind="stable")]
    scaled = _standardised(own)
    if _all_new(scaled):
        return own
    new = np.abs(np.diag(np.linalg.qr(scaled, mode="r"))) > SAME
    return own[:, : len(new)][:, new]


def _all_new(scaled: Floats) -> bool:
    """Whether columns of length 1 are so far from determining each other that their products alone show it.

    The diagonal of the Cholesky factor is that of R in the QR decomposition, in half the digits; it takes a fraction of
    the time where there are many columns. False leaves it to QR.
    """
    n, d = scaled.shape
    if d >= n:
        return False
    try:
        factor = np.linalg.cholesky(scaled.T @ scaled)
    except np.linalg.LinAlgError:
        return False
    return bool((np.diag(factor) > FAR).all())


def _standardised(X: Floats) -> Floats:
    """Centre the columns and scale them to length 1; those that do not vary become zero."""
    centred = X - X.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    vary = lengths > SAME * np.linalg.norm(X, axis=0)
    return np.where(vary, centred, 0.0) / np.where(vary, lengths, 1.0)


def _variances(X: Floats) -> Floats:
    """Shares of the variance of the standardised columns along the principal components, largest first."""
    scaled = _standardised(X)
    products = scaled.T @ scaled if X.shape[1] <= X.shape[0] else scaled @ scaled.T
    squares = np.maximum(np.linalg.eigvalsh(products)[::-1], 0.0)  # those of the singular values
    return squares / max(1.0, squares.sum())


# Rows that stand nearly alone in a party's columns: their residual, and so their label, is nearly opened.
#
# A party that learns X^T g (X: the n x d rows of a batch) knows the projection H g on the span of its columns, where H
# = X (X^T X)^-1 X^T is the hat matrix. Its diagonal h_ii, the leverage (Hoaglin and Welsch 1978), says how much of g_i
# itself is in it: the rest is an average over other rows with weight at most sqrt(h_ii (1 - h_ii)). A column that is 1
# in a single row of the batch (a rare value, one-hot) makes h_ii = 1, however large the batch.


ALONE = 0.9


@dataclass(frozen=True)
class Leverage:
    """Over all batches: rows seen, rows with h_ii > ALONE, the largest h_ii."""

    rows: int
    alone: int
    largest: float


def leverage(X: Floats) -> Floats:
    """h_ii (n,) of X (n x d) by singular values; columns that others determine add nothing."""
    U, size, _ = np.linalg.svd(X, full_matrices=False)
    rank = int((size > size.max(initial=0.0) * max(X.shape) * np.finfo(np.float64).eps).sum())
    return np.einsum("ij,ij->i", U[:, :rank], U[:, :rank])


def measure(batches: Iterable[Floats]) -> Leverage:
    """Count the rows of a party's batches (n x d each, scaled as in training) that stand nearly alone, and find their
    largest leverage."""
    rows, alone, largest = 0, 0, 0.0
    for X in batches:
        h = leverage(X)
        rows += len(h)
        alone += int((h > ALONE).sum())
        largest = max(largest, float(h.max(initial=0.0)))
    return Leverage(rows, alone, largest)


# What an opened gradient says about labels by itself: label AUC against p / (n c), from columns of pure noise.
#
# A passive party with p = d c parameters opens X^T g: p equations about the n c residuals of a batch. The least-norm
# solution is the projection of g on d directions. For balanced labels and small weights (g = -1/2 or 1/2 of either
# sign) a row's share of it has mean s g_i and deviation about sqrt(s (1 - s)) |g_i| where s = p / (n c), so
#
#     AUC = Phi(sqrt(2 s / (1 - s)))                                      one batch
#
# which the table below follows to .01. Fixed batches repeat the same equations every epoch, so epochs add nothing (an
# average over epochs even loses a little, as g shrinks). Rows reshuffled every epoch give s more equations each time.
#
# The table was measured over seeds 0, 1, 2 (tests/security/test_label_curve.py), but for reshuffled batches beyond 10
# epochs at a share of 1/4 and beyond 5 at 3/4, where 1 is put down: fewer epochs had reached it. 10 batches of 256
# rows, logistic loss, an active party that learns five columns of its own while the attacker holds d columns of noise
# and solves all its equations by least squares. Real columns that go with the label say more, and so do attacks that
# use more than least squares: where g takes two known values, as it would before the first step from zero weights, see
# `securevfl.audit.attacks.two_values`.


SHARES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 192, 240]) / 256
EPOCHS = np.array([1, 2, 5, 10, 20, 40])
_FIXED = np.array([0.530, 0.545, 0.565, 0.592, 0.638, 0.703, 0.795, 0.915, 0.992, 1.0])
_RESHUFFLED = np.array(
    [
        [0.530, 0.538, 0.559, 0.589, 0.624, 0.671],
        [0.545, 0.567, 0.603, 0.649, 0.699, 0.763],
        [0.565, 0.592, 0.650, 0.706, 0.784, 0.861],
        [0.592, 0.631, 0.705, 0.795, 0.895, 0.939],
        [0.638, 0.694, 0.807, 0.920, 0.976, 0.998],
        [0.703, 0.785, 0.940, 0.998, 1.0, 1.0],
        [0.795, 0.908, 1.0, 1.0, 1.0, 1.0],
        [0.915, 1.0, 1.0, 1.0, 1.0, 1.0],
        [0.992, 1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ]
)


def expected_label_auc(p: int, rows: int, outputs: int, epochs: int, reshuffle: bool) -> float:
    """Label AUC from the opened gradients of p parameters on batches of `rows` rows, columns of noise (0.5 to 1).

    Interpolated in the table on log(share), log(epochs) and Phi^-1(AUC). Below the table Phi^-1 goes with the root of
    the share; more epochs than the table has count as so much larger a share.
    """
    share = p / (rows * outputs)
    if share >= SHARES[-1]:
        return 1.0
    if not reshuffle:
        return normal_cdf(_along_shares(_z(_FIXED), share))
    share *= max(1.0, epochs / EPOCHS[-1])
    columns = [_along_shares(column, min(share, float(SHARES[-1]))) for column in _z(_RESHUFFLED).T]
    return normal_cdf(float(np.interp(np.log(epochs), np.log(EPOCHS), columns)))


def smallest_batch(p: int, outputs: int, epochs: int, reshuffle: bool, limit: float) -> int:
    """Find the fewest rows a batch at which `expected_label_auc` is at most `limit`; for 0.5 < limit < 1."""
    low, high = 0, 1
    while expected_label_auc(p, high, outputs, epochs, reshuffle) > limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if expected_label_auc(p, middle, outputs, epochs, reshuffle) > limit:
            low = middle
        else:
            high = middle
    return high


def _z(auc: Floats) -> Floats:
    return normal_quantile(np.minimum(auc, 0.9999))


def _along_shares(z: Floats, share: float) -> float:
    if share <= SHARES[0]:
        return float(z[0] * np.sqrt(share / SHARES[0]))
    return float(np.interp(np.log(share), np.log(SHARES), z))
