"""One reply for a batch of several blocks of rows: its encrypted products are added up before they are hidden.

In a training on shares, a share holder sends encrypted random vectors psi (a *query* for each block of rows of a
batch). Another party, the *evaluator*, multiplies them by its matrix W, its columns times the step size, and replies
with W^T psi, still encrypted, which is a sum over the rows of the batch. If the batch has several blocks, the evaluator
multiplies each block of W with the query about this block. The sum of these products is the product for the whole
batch, and a reply about it is as long as one about a single block. So the evaluator adds up the encrypted products, and
replies after the last block. After the other blocks it sends an empty reply, so that the share holder does not send
queries faster than they are processed.

All parties derive from public sizes which replies are empty (`ends_sum`). Ciphertexts are polynomials with 4,096
coefficients. A block of fewer rows may be placed in them in another *layout* (order of the coefficients), so that its
product cannot be added to the others; it gets a separate reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.share_ring import Words
from securevfl.crypto.share_scheme import ShareEvaluator, ShareScheme
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams

MAX_SUMMED_COLUMNS = 128
"""Products with wider W are not added up, because the sum would need too much memory until it is sent."""
MIN_SUMMED_ROWS = DEGREE
"""Products of blocks with fewer rows are not added up."""


def ends_sum(scheme: ShareScheme, params: SharesParams, party: str, block: RowBlock) -> bool:
    """Return whether a party replies after it has multiplied a block of its steps W.

    Args:
        scheme: the encryption scheme of the products.
        params: the parameters of the training on which all parties agree (shares_params.py).
        party: the party that has W.
        block: the block of rows that the party has multiplied.

    Returns:
        False if it adds the product to that of the next block.
    """
    if not scheme.adds_products or params.columns[party] > MAX_SUMMED_COLUMNS or block.rows < MIN_SUMMED_ROWS:
        return True
    return params.rows[block.batch] - block.stop < MIN_SUMMED_ROWS


def layout_rows(scheme: ShareScheme, params: SharesParams, block: RowBlock) -> int:
    """Return the number of rows for which the layout of a query about a block is chosen; 0 for those of the block."""
    return min(params.block, params.rows[block.batch]) if scheme.adds_products and block.rows >= MIN_SUMMED_ROWS else 0


class ReplySums:
    """The encrypted products of one evaluator that it has not sent yet.

    Args:
        ends: returns whether a block, by its index, is the last one of a sum. Only these get a reply with a product.
    """

    def __init__(self, ends: Callable[[int], bool]) -> None:
        self._ends, self._totals = ends, dict[str, Any]()

    def reply(self, block: int, holder: str, evaluator: ShareEvaluator, product: Any) -> tuple[bytes, Words | None]:
        """Add a product to those of earlier blocks; after the last block, hide the sum.

        Args:
            block: the index of the block that was multiplied.
            holder: the share holder whose query was multiplied.
            evaluator: the object that computes with ciphertexts under this holder's key.
            product: the encrypted product (`ShareEvaluator.multiply`).

        Returns:
            The reply and this party's share, or an empty reply and None.
        """
        if holder in self._totals:
            evaluator.add(self._totals[holder], product)
        else:
            self._totals[holder] = product
        return evaluator.hide(self._totals.pop(holder)) if self._ends(block) else (b"", None)
