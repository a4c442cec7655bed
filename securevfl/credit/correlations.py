"""Correlations between the columns of two parties before a training, and variance inflation over both parties.

    A, B   the two parties, which have the same n rows
    Z      a party's numeric columns, standardised, missing values at the mean     n x d
    R      Z_A^T Z_B / n, the correlations                                         d_A x d_B
    Q      Z U l^(-1/2), uncorrelated columns, from the eigenvectors U and the eigenvalues l of Z^T Z / n
    K      Q_A^T Q_B / n, whose singular values are the canonical correlations (Hotelling 1936)

The variance inflation factors (VIF) are the diagonal of the inverse of the correlation matrix of both parties' columns.
The block of this inverse for A's columns is U l^(-1/2) (1 - K K^T)^(-1) l^(-1/2) U^T (the Schur complement). So each
party computes its own factors from K and its own columns, and learns nothing about the correlations among the other
party's columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.display import html
from securevfl.errors import TableError

MIN_EIGENVALUE = 1e-6
"""If an eigenvalue of a party's correlation matrix is below this, a column counts as a linear combination of others."""
MAX_CANONICAL_CORRELATION = 59 / 60
"""Canonical correlations above this cannot be distinguished from 1 after rounding, so no factor above 30 is
reported."""
MIN_LISTED_CORRELATION = 0.5
"""Only correlations of at least this absolute value are listed."""


def standardised(X: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the columns of X (n, d) that vary, standardised, and a mask (d,) of these columns."""
    Z = X - X.mean(axis=0)
    deviation = Z.std(axis=0)
    varies = deviation > 1e-12 * np.abs(X).max(axis=0, initial=0.0)
    return Z[:, varies] / deviation[varies], varies


@dataclass(frozen=True)
class OwnColumns:
    """The numeric columns of a party that vary.

    Attributes:
        names: the names of the d columns.
        Z: the standardised columns (n, d).
        Q: the uncorrelated columns (n, d).
        whitening: U l^(-1/2) (d, d), which turns Z into Q.
    """

    names: tuple[str, ...]
    Z: Floats = field(repr=False)
    Q: Floats = field(repr=False)
    whitening: Floats = field(repr=False)

    @classmethod
    def of(cls, party: str, table: Columns) -> OwnColumns:
        """Select the numeric columns of a table.

        Args:
            party: name of the party, which error messages state.
            table: the party's table.

        Returns:
            The columns that vary.

        Raises:
            TableError: if no numeric column varies.
        """
        X = np.asarray(table.X)
        numeric = [j for j, name in enumerate(table.names) if name not in table.categories]
        numeric = [j for j in numeric if not np.isnan(table.without_codes(X, [j])).all()]
        filled = table.without_codes(X, numeric)
        if numeric:
            filled = np.where(np.isnan(filled), np.nanmean(filled, axis=0), filled)
        Z, varies = standardised(filled)
        if not varies.any():
            raise TableError(
                f"party {party} has no numeric columns that vary",
                "bring columns that vary",
                code="SVFL-TABLE-CONSTANT",
                party=party,
            )
        values, vectors = np.linalg.eigh(Z.T @ Z / len(Z))
        whitening = vectors / np.sqrt(np.maximum(values, MIN_EIGENVALUE))
        names = tuple(table.names[j] for j in np.array(numeric)[varies].tolist())
        return cls(names, Z, Z @ whitening, whitening)

    @property
    def local_inflation(self) -> Floats:
        """Variance inflation factors (d,) among the party's own columns."""
        return np.asarray((self.whitening**2).sum(axis=1))

    def joint_inflation(self, K: Floats, noise: float) -> Floats:
        """Return the variance inflation factors (d,) over both parties' columns.

        Args:
            K: the rounded matrix K (d, d_other).
            noise: the variance of the rounding error of an entry of K.

        Returns:
            The factors.
        """
        values, vectors = np.linalg.eigh(K @ K.T - noise * K.shape[1] * np.eye(len(K)))
        unexplained = 1 - np.clip(values, 0.0, MAX_CANONICAL_CORRELATION**2)
        return np.asarray(((self.whitening @ vectors) ** 2 / unexplained).sum(axis=1))


@dataclass(frozen=True)
class Correlations:
    """The correlations and variance inflation factors that one party learns about its columns and another party's.

    Attributes:
        party: name of the party.
        other: name of the other party.
        columns: the names of the party's d columns.
        R: the correlations (d, d_other); the other party's columns have numbers, from 1, and no names.
        local_inflation: variance inflation factors (d,) among the party's own columns.
        joint_inflation: variance inflation factors (d,) of the party's columns among both parties' columns.
    """

    party: str
    other: str
    columns: tuple[str, ...]
    R: Floats = field(repr=False)
    local_inflation: Floats = field(repr=False)
    joint_inflation: Floats = field(repr=False)

    @property
    def heads(self) -> list[str]:
        """The headings of the table's columns."""
        return ["column", "VIF alone", f"VIF with {self.other}", f"closest of {self.other}", "correlation"]

    def cells(self) -> list[list[html.Cell]]:
        """Return the table, one row for each column of the party."""
        closest = np.abs(self.R).argmax(axis=1).tolist()
        rows = zip(self.columns, self.local_inflation, self.joint_inflation, closest, strict=True)
        return [
            [name, float(local), float(joint), f"column {j + 1}", round(float(self.R[k, j]), 2)]
            for k, (name, local, joint, j) in enumerate(rows)
        ]

    def high(self) -> list[tuple[str, int, float]]:
        """Return the pairs of columns with a high correlation, the highest first.

        A pair consists of the name of the party's column, the number of the other party's column, and the correlation.
        """
        pairs = np.argwhere(np.abs(self.R) >= MIN_LISTED_CORRELATION).tolist()
        listed = [(self.columns[k], j + 1, float(self.R[k, j])) for k, j in pairs]
        return sorted(listed, key=lambda pair: -abs(pair[2]))

    def parts(self) -> list[str]:
        """Return the sections of an HTML page."""
        pairs: list[list[html.Cell]] = [[name, f"column {j}", round(r, 2)] for name, j, r in self.high()]
        sections = [html.section(f"With the columns of {self.other}", html.table(self.heads, self.cells()))]
        if pairs:
            heads = ["column", f"of {self.other}", "correlation"]
            title = f"Correlations with the columns of {self.other} of {MIN_LISTED_CORRELATION:g} or more"
            sections.append(html.section(title, html.table(heads, pairs)))
        return sections

    def plain(self) -> dict[str, Any]:
        """Return the correlations as lists and dicts that can be written as JSON."""
        plain = {"party": self.party, "other": self.other, "columns": list(self.columns)}
        arrays = {
            "correlations": self.R.tolist(),
            "alone": self.local_inflation.tolist(),
            "together": self.joint_inflation.tolist(),
        }
        return plain | arrays

    def __str__(self) -> str:
        """Return the correlations as JSON."""
        return json.dumps(self.plain(), indent=1)

    def _repr_html_(self) -> str:
        return html.table(self.heads, self.cells())


def page_of(correlations: Sequence[Correlations]) -> str:
    """Return an HTML page of one party's correlations with each other party."""
    name = html.escape(correlations[0].party)
    body = [
        f"<h1>Correlations of the columns of {name} with those of other parties</h1>",
        '<p class="soft">Correlations were rounded at random to steps of 1/30 before they were revealed, and variance '
        "inflation factors (VIF) are computed from such rounded numbers, so factors above 30 times the factor alone "
        "cannot be distinguished. Columns of other parties are identified by their numbers among the numeric "
        "columns of "
        "their tables.</p>",
        *(part for other in correlations for part in other.parts()),
    ]
    return html.page(f"{correlations[0].party}: correlations", body)
