"""Columns of two parties side by side, before a training: correlations, and variance inflation with the other's.

    Z      a party's columns of numbers, standardised, gaps at the mean     n x d
    R      Z_A^T Z_B / n, the correlations                                  d_A x d_B
    Q      Z U l^(-1/2), U l U^T = Z^T Z / n: uncorrelated among themselves
    K      Q_A^T Q_B / n, whose singular values are the canonical correlations (Hotelling 1936)

Of the inverse of all correlations, whose diagonal is the variance inflation, the block of A is
U l^(-1/2) (1 - K K^T)^(-1) l^(-1/2) U^T (the Schur complement), so K tells both parties their own inflation by what
either knows of itself, and neither the other's correlations among themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.display import html
from securevfl.errors import TableError

LEAST = 1e-6  # eigenvalue of own correlations: what is less is a sum of other own columns
CLOSEST = 59 / 60  # canonical correlation: what is more can't be told from 1, so inflation is told up to 30 fold
HIGH = 0.5  # correlations that are listed


def standardised(X: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return those columns of X (n x d) that vary, about their means and in deviations, and which they are (d,)."""
    Z = X - X.mean(axis=0)
    deviation = Z.std(axis=0)
    varies = deviation > 1e-12 * np.abs(X).max(axis=0, initial=0.0)
    return Z[:, varies] / deviation[varies], varies


@dataclass(frozen=True)
class OwnColumns:
    """A party's columns of numbers that vary: names, Z and Q (n x d), and U l^(-1/2) (d x d)."""

    names: tuple[str, ...]
    standard: Floats = field(repr=False)
    white: Floats = field(repr=False)
    back: Floats = field(repr=False)

    @classmethod
    def of(cls, party: str, table: Columns) -> OwnColumns:
        """Take the columns of numbers out of a table. TableError if none varies."""
        X = np.asarray(table.X)
        at = [j for j, name in enumerate(table.names) if name not in table.levels and not np.isnan(X[:, j]).all()]
        filled = X[:, at]
        if at:
            filled = np.where(np.isnan(filled), np.nanmean(filled, axis=0), filled)
        Z, varies = standardised(filled)
        if not varies.any():
            raise TableError(f"party {party}: columns of numbers that vary were expected, there are none; bring others")
        values, vectors = np.linalg.eigh(Z.T @ Z / len(Z))
        back = vectors / np.sqrt(np.maximum(values, LEAST))
        names = tuple(table.names[j] for j in np.array(at)[varies].tolist())
        return cls(names, Z, Z @ back, back)

    @property
    def alone(self) -> Floats:
        """Variance inflation (d,) of each column among the party's own."""
        return np.asarray((self.back**2).sum(axis=1))

    def inflation(self, K: Floats, noise: float) -> Floats:
        """Return the variance inflation (d,) beside another party's columns, from K (d x d_other) as it was told, with
        this variance of its rounding."""
        values, vectors = np.linalg.eigh(K @ K.T - noise * K.shape[1] * np.eye(len(K)))
        left = 1 - np.clip(values, 0.0, CLOSEST**2)
        return np.asarray(((self.back @ vectors) ** 2 / left).sum(axis=1))


@dataclass(frozen=True)
class Correlations:
    """What a party knows after it has looked at its columns beside those of another.

    columns: its own; R (d x d_other) correlations, the other's columns by their numbers, from 1; alone, together (d,):
    variance inflation among its own, and beside the other's.
    """

    party: str
    other: str
    columns: tuple[str, ...]
    R: Floats = field(repr=False)
    alone: Floats = field(repr=False)
    together: Floats = field(repr=False)

    @property
    def heads(self) -> list[str]:
        """The headings of the table, one for each column."""
        return ["column", "VIF alone", f"VIF with {self.other}", f"closest of {self.other}", "correlation"]

    def cells(self) -> list[list[html.Cell]]:
        """Return a row for each own column, under `heads`."""
        at = np.abs(self.R).argmax(axis=1)
        return [
            [name, float(alone), float(vif), f"column {j + 1}", round(float(self.R[k, j]), 2)]
            for k, (name, alone, vif, j) in enumerate(
                zip(self.columns, self.alone, self.together, at.tolist(), strict=True)
            )
        ]

    def high(self) -> list[tuple[str, int, float]]:
        """List own column, number of the other's and correlation of all pairs from HIGH on, the closest first."""
        found = np.argwhere(np.abs(self.R) >= HIGH).tolist()
        return sorted(((self.columns[k], j + 1, float(self.R[k, j])) for k, j in found), key=lambda each: -abs(each[2]))

    def parts(self) -> list[str]:
        """Assemble what was found as parts of a page."""
        pairs: list[list[html.Cell]] = [[name, f"column {j}", round(r, 2)] for name, j, r in self.high()]
        found = [html.section(f"Beside the columns of {self.other}", html.table(self.heads, self.cells()))]
        if pairs:
            heads = ["column", f"of {self.other}", "correlation"]
            found.append(html.section(f"Correlations with {self.other}'s from {HIGH:g} on", html.table(heads, pairs)))
        return found

    def __str__(self) -> str:
        plain = {"party": self.party, "other": self.other, "columns": list(self.columns)}
        arrays = {"correlations": self.R.tolist(), "alone": self.alone.tolist(), "together": self.together.tolist()}
        return json.dumps(plain | arrays, indent=1)

    def _repr_html_(self) -> str:
        return html.table(self.heads, self.cells())


def page_of(found: Sequence[Correlations]) -> str:
    """Assemble what one party has found beside each other into one file of HTML."""
    name = html.escape(found[0].party)
    body = [
        f"<h1>Columns of {name} beside those of others</h1>",
        '<p class="soft">Correlations were rounded at random to steps of 1/30 before they were told, and variance '
        "inflation (VIF) follows from such numbers: beyond 30 times what it is alone it is not told apart. Columns of "
        "others go by their numbers among the columns of numbers in their tables.</p>",
        *(part for each in found for part in each.parts()),
    ]
    return html.page(f"{found[0].party} beside others", body)
