"""All labels of a batch from its gradient (Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022 for VFL).

The equations that a view holds about one batch, A g = b, are solved outright where rank(A) reaches n. Otherwise the
attacker fits soft labels s in (0, 1): at the first visit all weights are zero, so g is p0 - s with p0 known, and
|A (p0 - s) - b|^2 is made small by L-BFGS from s = p0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import coo_array, vstack
from scipy.sparse.linalg import lsqr
from scipy.special import expit

from securevfl.audit.attacks.base import BY_COLUMN, CLASSES, SINGLE, Attack, By, LabelAttack, Score, always, known_rows
from securevfl.audit.recording.views import View, Worlds, as_numbers, fields, least_norm
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.disclosure.exposure import ALONE, leverage
from securevfl.job import Job


class BatchInversion(LabelAttack):
    name = "batch_inversion"
    paper = "Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022, batch label inference in VFL"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        seen: dict[bytes, tuple[Rows, Floats]] = {}
        for rows, A, b in view.equations():
            seen.setdefault(rows.tobytes(), (rows, -invert(A, b)))
        return view.mean_by_row(list(seen.values()))


def invert(A: Floats, b: Floats) -> Floats:
    """G (n x c) with entries in (-1/2, 1/2) for c = 1 that fits A (k x n) g = b (k x c)."""
    n = A.shape[1]
    least = least_norm(A, b)
    if b.shape[1] > 1 or np.linalg.matrix_rank(A) == n:
        return least
    scale = np.linalg.norm(A, 2) or 1.0
    M, v = A / scale, b[:, 0] / scale

    def misfit(u: Floats) -> tuple[float, Floats]:
        s = expit(u)
        miss = M @ (0.5 - s) - v
        return float(miss @ miss), -2.0 * (M.T @ miss) * s * (1 - s)

    start = -4.0 * least[:, 0]
    u = minimize(misfit, start, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x
    return (0.5 - expit(u))[:, None]


# Residuals from the opened gradients of all rounds together (the leak behind `fresh_equations`).
#
# Every opened gradient adds equations about the residuals of its rows. Those change slowly, so the attacker takes each
# as constant in time and solves all equations by least squares (LSQR). With one fixed partition the equations of an
# epoch repeat those of the last; with reshuffled rows each epoch brings new ones.


class CrossRound(LabelAttack):
    name = "cross_round"
    paper = "gradients of several rounds as one linear system (after Hitaj et al. 2017; design, section 4)"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        return -solve(view.equations(), len(view.X), view.outputs)


def solve(equations: list[tuple[Rows, Floats, Floats]], m: int, c: int) -> Floats:
    """Residuals (m x c) taken as constant in time, from (rows, A, A g); NaN for rows in no equation."""
    if not equations:
        return np.full((m, c), np.nan)
    blocks = []
    for rows, A, _ in equations:
        k, n = A.shape
        blocks.append(coo_array((A.ravel(), (np.repeat(range(k), n), np.tile(rows, k))), (k, m)))
    system, b = vstack(blocks).tocsr(), np.vstack([b for *_, b in equations])
    g = np.column_stack([lsqr(system, b[:, j], iter_lim=60)[0] for j in range(c)])
    g[np.setdiff1d(np.arange(m), np.concatenate([rows for rows, *_ in equations]))] = np.nan
    return g


# All labels of the first batch from one opened gradient, where residuals take two known values (lattice reduction).
#
# Where all weights start at zero, every row with y = 1 has the residual a before the first step and every other b, both
# known. Then X^T g = X^T (b + (a - b) s) with s in {0, 1}^n is a subset-sum problem with p equations of as many bits as
# the opened values are precise. It has one solution once p times those bits exceeds n, far below p = n, and lattice
# reduction finds it while n is small (Lagarias and Odlyzko 1985; Coster et al. 1992, whose lattice this is, with one
# column an equation; reduced by LLL, Lenstra, Lenstra and Lovasz 1982, after Cohen 1993, algorithm 2.6.3).
#
# The active party starts from weights of its own drawing instead (`securevfl.models.linear.starting_weights`):
# residuals are continuous then, and the attack finds nothing. Its test puts zero weights back and sees it succeed.


MAX_ROWS = 64  # what LLL does in seconds; stronger reduction reaches further
BITS = (15, 20, 11)  # precisions to try

Integers = NDArray[np.int64]


class TwoValues(LabelAttack):
    name = "two_values"
    paper = "Lagarias and Odlyzko 1985; Coster et al. 1992, improved low-density subset sum algorithms"
    measures = "AUC of the labels of the first batch"
    needs = (
        *LabelAttack.needs,
        SINGLE,
        (
            lambda job: not isinstance(job.batch_size, str) and job.batch_size <= MAX_ROWS,
            f"batches have more than the {MAX_ROWS} rows that lattice reduction takes in seconds",
        ),
    )

    def guess(self, view: View, worlds: Worlds) -> Floats:
        scores = np.full((len(view.X), 1), np.nan)
        equations = view.equations()
        if equations:
            rows, A, b = equations[0]
            loss = worlds.job.model.loss
            low, high = (float(loss.residual(np.zeros((1, 1)), np.array([[y]]))[0, 0]) for y in (-1.0, 1.0))
            s = subset(A, (b[:, 0] - A.sum(axis=1) * low) / (high - low))
            scores[rows] = -least_norm(A, b) if s is None else s[:, None]
        return scores


def subset(A: Floats, total: Floats) -> Integers | None:
    """s in {0, 1}^n with A (p x n) s = total (p,) up to a small error; None if none is found."""
    n = A.shape[1]
    if np.linalg.matrix_rank(A) == n:
        return np.rint(least_norm(A, total[:, None])[:, 0]).astype(np.int64)
    if n > MAX_ROWS:
        return None
    for bits in BITS:
        # rows (2 e_i | 0 | K A_i) and (-1 ... -1 | 1 | -K total): their shortest sum is (2 s - 1 | 1 | nearly 0)
        basis = np.zeros((n + 1, n + 1 + len(A)))
        basis[:n, :n] = 2 * np.eye(n)
        basis[n, :n], basis[n, n] = -1, 1
        basis[:n, n + 1 :], basis[n, n + 1 :] = np.rint(A.T * 2.0**bits), -np.rint(total * 2.0**bits)
        for row in reduce(basis):
            if abs(row[n]) == 1 and (np.abs(row[:n]) == 1).all():
                return ((row[:n] * row[n] + 1) / 2).astype(np.int64)
    return None


def reduce(basis: Floats, delta: float = 0.99) -> Floats:
    """LLL-reduced rows of an integer basis (entries below 2^40 or so), in floating point."""
    B = basis.copy()
    mu, squares = _orthogonalise(B)
    k, swaps = 1, 0
    while k < len(B):
        for j in range(k - 1, -1, -1):
            q = np.rint(mu[k, j])
            if q:
                B[k] -= q * B[j]
                mu[k, : j + 1] -= q * mu[j, : j + 1]
        m = mu[k, k - 1]
        if squares[k] >= (delta - m * m) * squares[k - 1]:
            k += 1
            continue
        longer = squares[k] + m * m * squares[k - 1]
        new = m * squares[k - 1] / longer
        squares[k], squares[k - 1] = squares[k - 1] * squares[k] / longer, longer
        B[[k, k - 1]] = B[[k - 1, k]]
        mu[[k, k - 1], : k - 1] = mu[[k - 1, k], : k - 1]
        mu[k, k - 1] = new
        below = mu[k + 1 :, k].copy()
        mu[k + 1 :, k] = mu[k + 1 :, k - 1] - m * below
        mu[k + 1 :, k - 1] = below + new * mu[k + 1 :, k]
        swaps += 1
        if swaps % 500 == 0:  # rounding errors start anew
            mu, squares = _orthogonalise(B)
        k = max(k - 1, 1)
    return B


def _orthogonalise(B: Floats) -> tuple[Floats, Floats]:
    """Gram-Schmidt coefficients (lower triangular, ones on the diagonal) and squared lengths of the rows of B."""
    R = np.linalg.qr(B.T, mode="r")
    diagonal = np.diag(R)
    mu: Floats = (R / diagonal[:, None]).T.copy()
    return mu, diagonal**2


# Labels of rows that stand alone in the attacker's columns (leverage; Hoaglin and Welsch 1978).
#
# Where a row has leverage h_ii near 1 in its batch, as a row with a value that no other row of the batch has, one of
# the opened equations is nearly g_i itself. The attacker reads the sign of its least-norm solution on those rows alone.
# This is in the declared output; `explain` counts the rows.


class RareValues(Attack):
    name = "rare_values"
    paper = "Hoaglin and Welsch 1978, the hat matrix in regression and ANOVA"
    measures = "share of right labels among the attacker's rows of leverage above 0.9; chance where it has none"
    by = By.EACH
    needs = (CLASSES, BY_COLUMN, SINGLE)
    remedy = always("drop or group values that stand alone in a batch, or larger batches")

    def score(self, worlds: Worlds) -> Score:
        view = worlds.real()
        lonely = lonely_rows(view)
        share = worlds.labels[lonely].mean() if len(lonely) else 0.5
        chance = float(max(share, 1 - share))
        if not len(lonely):
            return Score(chance, chance, chance)
        noise = float(np.sqrt(chance * (1 - chance) / len(lonely)))
        detail = f"{len(lonely)} of {len(view.X)} rows; of a single one no figure is beyond chance, and it is opened"
        real, ideal = _right(view, worlds, lonely), _right(worlds.ideal(), worlds, lonely)
        return Score(real, ideal, chance, detail, noise)


def lonely_rows(view: View) -> np.ndarray:
    """Rows of high leverage in a batch of the view."""
    alone = [view.rows_of(opened)[leverage(opened.J) > ALONE] for opened in view.openings]
    return np.unique(np.concatenate([np.empty(0, np.intp), *alone]))


def _right(view: View, worlds: Worlds, rows: np.ndarray) -> float:
    first: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for opened in view.openings:
        first.setdefault(opened.index, (view.rows_of(opened), least_norm(opened.J.T, opened.gradient)))
    g = view.mean_by_row(list(first.values()))
    return float(np.mean((g[rows, 0] < 0) == (worlds.labels[rows] == 1)))


# Labels from counts of the positive class in a party's bins, which weights of evidence open before a training.
#
# Each count is a linear equation about the labels of all training rows: the sum of the labels of one bin. The attacker
# takes the shortest y that fits all of its bins; where a residual goes down in the clear, y stands in the message
# itself. Rows of a bin share a guess, so the score is what classes in bins say, and more where bins of several columns
# cross. The ideal attacker has the same counts, which are declared.


class BinCounts(LabelAttack):
    name = "bin_counts"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 8.1 (linear queries)"
    needs = (
        (lambda job: job.prepare.woe is not None, "no classes in bins are told: the job has no weights of evidence"),
    )

    def hidden(self, job: Job) -> bool:
        return False

    remedy = always("fewer bins of more rows (prepare.woe), or columns as they are")

    def guess(self, view: View, worlds: Worlds) -> Floats:
        seen, rows = worlds.bins_tape[view.name], worlds.schedule.flow
        labels = np.full((len(worlds.labels), 1), np.nan)
        for opened in seen.bins:
            labels[rows] = np.linalg.lstsq(opened.J.T, opened.gradient)[0]
        for receipt in seen.receipts:
            told = [as_numbers(value, len(rows), 1) for value in fields(receipt.message)] if receipt.visit < 0 else []
            labels[rows] = next((each for each in told if each is not None), labels[rows])
        return labels


# Label from the sign of the residual (Li et al. 2022, section 3; known since Liu et al. 2019's open FedBCD).
#
# A residual that is read gives the label by the loss's own `undo`: for a logistic or hinge loss g < 0 exactly where
# y = 1, for softmax the one negative entry of a row marks its class.
# Under a sealed residual the attacker takes the least-norm g that fits its opened gradient.


class ResidualSign(LabelAttack):
    name = "residual_sign"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        undo = worlds.job.loss.undo
        read = [(rows, np.nan_to_num(undo(g).targets)) for rows, g in view.residuals()]
        signs = read or [(rows, -np.sign(g)) for rows, g in view.estimates()]
        return view.mean_by_row(signs)


# Label from the norm of the residual (Li et al. 2022, section 3.1).
#
# Where one class is rare, a model that has learned anything predicts the frequent one with more confidence, so the rows
# of the rare class have the larger |g|. The attacker knows which class is rare. The score is best on unbalanced data.


class ResidualNorm(LabelAttack):
    name = "residual_norm"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"
    needs = (*LabelAttack.needs, SINGLE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        norms = [(rows, np.linalg.norm(g, axis=1, keepdims=True)) for rows, g in view.estimates()]
        rare = 1.0 if worlds.labels.mean() < 0.5 else -1.0
        return rare * view.mean_by_row(norms)


# Label from the direction of the residual (Li et al. 2022, section 3.2).
#
# Residuals of one class point the same way. The attacker knows the label of a few rows, takes their mean residual as
# the direction of their class, and ranks all others by the cosine. It need not know the loss.


class ResidualDirection(LabelAttack):
    name = "residual_direction"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        g = view.mean_by_row(view.estimates())
        known = known_rows(worlds)
        known = known[np.isfinite(g[known]).all(axis=1)]
        classes = [1] if view.outputs == 1 else range(view.outputs)
        scores = np.column_stack([_towards(g, g[known], worlds.labels[known] == label) for label in classes])
        scores[known] = np.nan
        return scores


def _towards(g: Floats, examples: Floats, positive: np.ndarray) -> Floats:
    """Cosine with the mean residual of the positive examples less that of the others; for c = 1 the signed length."""
    if positive.all() or not positive.any():
        return np.full(len(g), np.nan)
    direction = examples[positive].mean(axis=0) - examples[~positive].mean(axis=0)
    length = np.linalg.norm(g, axis=1) if g.shape[1] > 1 else np.ones(len(g))
    return g @ direction / np.maximum(length * np.linalg.norm(direction), 1e-300)


# Labels ranked by what a party knows of residuals that are shared: its own shares, and masked ones that came.
#
# A residual follows its label, so any part of it would: the mean, over all visits, of the words about a row is where a
# bias of masks shows. One keystream used again, or an entry opened without its pad, raises it. The order of the classes
# is taken from a few labels that the attacker knows.


class SharedResiduals(LabelAttack):
    name = "shared_residual"
    paper = "Li et al. 2022, label leakage from residuals, on shares of these"
    drawn = True
    needs = (
        (lambda job: job.protocol.shares is not None, "no residual is shared in this job"),
        *LabelAttack.needs,
        SINGLE,
    )

    def guess(self, view: View, worlds: Worlds) -> Floats:
        mean = view.mean_by_row([(view.rows[each.index], each.values) for each in view.shared])
        known = known_rows(worlds)
        slope = float(np.nan_to_num(mean[known, 0]) @ (worlds.labels[known] - worlds.labels[known].mean()))
        guess = mean if slope >= 0 else -mean
        guess[known] = np.nan
        return guess
