"""Forward sums of pairs for any rows: shares of a^T Theta b, the part of a model's output that is not additive.

A and B are the share holders. A row has small integers a (r_A,) at A and b (r_B,) at B, its components, and Theta
(r_A, r_B) are the shared weights of their products. The view Theta = S + R (pair_weights.py) has S at A and R at B, so
the sum has two summands, each a product of one holder's words with the other's small integers:

1. A, B   shares of (S^T a)^T b: A has the words S^T a (small_products.py)
2. B, A   shares of a^T (R b): B has the words R b

Comments refer to these steps by number. All values that A and B receive look uniform to them. Components are not
checked: a party may use any integers from -8 to 7 in a row, as it may use any columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.crypto.share_ring import Words
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import small_products
from securevfl.protocols.shares.pair_weights import PairParams, PairShares
from securevfl.protocols.shares.remote_columns import RemoteColumns
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.small_products import PRODUCT_ROWS, SmallIntegers, WordFactors
from securevfl.protocols.shares.update_rules import LinearRule

_PURPOSES = "forward sums of the active party's words", "forward sums of the partner's words"


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner."""
    return [*small_products.declares(), *small_products.declares(reverse=True)]


class PairSums:
    """One share holder's side of the forward sums of pairs.

    Args:
        session: the session of the share holders for measurements and scores.
        params: the parameters of pairs on which the share holders agree (pair_weights.py).
    """

    def __init__(self, session: SharesSession, params: PairParams) -> None:
        self._session, self._params = session, params

    def shares(self, components: SmallIntegers, shares: PairShares, rule: LinearRule) -> Words:
        """Return this party's shares (n,) of a^T Theta b modulo 2^L for some rows.

        Args:
            components: this party's components (n, r) of the rows.
            shares: this party's parts of the gradients of pairs.
            rule: the update rule of the training.

        Returns:
            The shares.
        """
        params, ring, context = self._params, self._params.ring, self._session.products.context
        is_active = context.me == context.active
        parts = shares.opened if is_active else shares.masks
        # row b of theta belongs to component b of the partner, column a to component a of the active party
        theta = params.weights(rule, parts, result=True).reshape(params.partner, params.active)
        words = components.astype(np.int64).view(np.uint64) @ (theta.T if is_active else theta)
        total = np.zeros(len(components), np.uint64)
        blocks = [slice(start, start + PRODUCT_ROWS) for start in range(0, len(components), PRODUCT_ROWS)]
        widths = params.partner, params.active
        for step, (purpose, width) in enumerate(zip(_PURPOSES, widths, strict=True)):
            factors = self._session.small_products(purpose, ring, 1, reverse=bool(step))
            if isinstance(factors, WordFactors):
                products = factors.shares((ring.reduce(words[block])[:, :, None] for block in blocks), width)
            else:
                products = factors.shares(components[block] for block in blocks)
            total += np.concatenate([share.sum(axis=(1, 2), dtype=np.uint64) for share in products])
        return total << np.uint64(params.shift)


@dataclass(frozen=True, repr=False)
class ColumnsWithPairs:
    """A share holder's columns of some rows together with its components of them.

    Attributes:
        columns: this party's columns of the rows, as `ForwardSums.block` accepts them.
        components: this party's components of the same rows (n, r).
        sums: computes the forward sums of pairs.
    """

    columns: RowSlices | RemoteColumns
    components: SmallIntegers
    sums: PairSums

    def __len__(self) -> int:
        return len(self.columns)


ColumnSource = RowSlices | RemoteColumns | ColumnsWithPairs
"""One party's columns: an array-like of rows in this process, or columns at workers, of which batch 0 is used; with
components, if the model has pairs."""


def selected_rows(X: Floats | ColumnsWithPairs, mask: NDArray[np.bool_]) -> Floats | ColumnsWithPairs:
    """Return the rows for which the mask (n,) is True."""
    if not isinstance(X, ColumnsWithPairs):
        return X[mask]
    columns = X.columns
    assert isinstance(columns, np.ndarray), "rows of a request are in this process"
    return ColumnsWithPairs(columns[mask], X.components[mask], X.sums)
