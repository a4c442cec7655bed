"""The part of the offline phase that concerns pairs: encrypted products with shared columns, computed in advance.

A and B are the share holders, and a *pair* is the product of a component of A and one of B (pair_columns.py). Each has
a share Phi_h (n, d) modulo 2^P of these products, and a random mask psi_h of the residuals g = psi_A + psi_B + delta.
The gradient of the weights of pairs is G = Phi^T g, with Phi = Phi_A + Phi_B. pair_weights.py explains the two views of
these weights. For each chunk of iterations and both share holders h, with the other one o:

1. h <-> o  products Phi_o^T psi_h of all iterations (share_products.py)      => one share at h and one at o
2. h        draws the mask m_h of each iteration, and computes r, the other view's share of the weights, from m_h
3. h <-> o  products Phi_o r of all iterations                                => one share at h and one at o

Comments refer to these steps by number. Entries of Phi_h are uniform modulo 2^P, too large for an encrypted product.
They are divided into limbs of 14 bits. A product of the limbs W_0, W_1, .. with multiples of a vector V is exact:

    W^T V = [W_0; W_1; ..]^T [V; 2^14 V; ..]

The products of step 1 differ by at most one from this, because all limbs are added up before they are rounded. Those of
step 3 are part of a forward sum, and may have a larger random error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words
from securevfl.crypto.share_scheme import ShareHolder, ShareScheme
from securevfl.protocols.shares.pair_columns import PairColumns
from securevfl.protocols.shares.pair_weights import LIMB_BITS, PairShares
from securevfl.protocols.shares.share_products import Evaluators, Products
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams

PURPOSES = "steps of pairs", "sums of pairs"
"""The purposes of the keys of steps 1 and 3."""

_LARGEST_LIMB = 1 << (LIMB_BITS - 1)


def schemes(params: SharesParams, products: Products) -> tuple[ShareScheme, ShareScheme]:
    """Return the encryption schemes of steps 1 and 3; all parties obtain the same ones, which depend on sizes only.

    Args:
        params: the parameters of the training on which all parties agree, for a model with pairs.
        products: the session of encrypted products of the offline phase.

    Returns:
        The schemes.
    """
    pairs = params.pairs
    assert pairs is not None, "only models with pairs have such products"
    scheme = products.scheme.with_bits(pairs.bits)
    # a forward sum contains 2 * (parties - 1) encrypted products with columns, and two with shares of pairs
    tolerance = params.encoding.sum_tolerance(2 * (len(products.others) + 1)) / 2.0**pairs.shift
    sizes = {block.rows for block in params.blocks}
    shapes = [(pairs.limbs * pairs.products, 1, rows) for rows in sorted(sizes)]
    return scheme, scheme.within(tolerance, _LARGEST_LIMB, shapes, uses=params.chunks)


class PairPhase:
    """One share holder's side of this part of the offline phase.

    Args:
        products: the session of encrypted products of the offline phase.
        params: the parameters of the training on which all parties agree, for a model with pairs.
        columns: this party's share of the products of components.
    """

    def __init__(self, products: Products, params: SharesParams, columns: PairColumns) -> None:
        assert params.pairs is not None, "only jobs with pairs have this phase"
        self._products, self._params, self._pairs, self.columns = products, params, params.pairs, columns
        (self._peer,) = products.other_holders
        self.masks: Words = PairShares.empty(params.pairs.products).masks

    def set_params(self, params: SharesParams) -> None:
        """Use these parameters, which may have another update rule, for chunks that are generated from now on."""
        self._params = params

    def steps(
        self, holder: ShareHolder, evaluators: Evaluators, group: Mapping[int, int], psi: Mapping[int, Words]
    ) -> dict[int, Words]:
        """Compute the products of step 1 for some blocks of rows.

        Args:
            holder: this party's secret key.
            evaluators: the object that computes with the other share holder's ciphertexts.
            group: the number of iterations for each block.
            psi: the masks (n, iterations) of each block.

        Returns:
            For each block, the sum of this party's shares of both products (d, iterations) modulo 2^P.
        """
        pairs, blocks = self._pairs, self._params.blocks
        vectors = {block: pairs.multiples(pairs.ring.reduce(psi[block])) for block in group}
        widths = dict.fromkeys(group, pairs.products)
        stacked = lambda block: np.concatenate(self._limbs(blocks[block]))  # noqa: E731
        scheme = schemes(self._params, self._products)[0]
        return self._multiply(holder, evaluators, scheme, vectors, widths, stacked)

    def advance(self, batches: Sequence[int]) -> tuple[Words, dict[int, Words]]:
        """Run step 2 for the iterations of a chunk.

        Args:
            batches: the batch of each iteration.

        Returns:
            The mask of each iteration (iterations, d); and for each batch r before each iteration that uses it, (d,
            iterations on this batch).
        """
        pairs, rule = self._pairs, self._params.rule
        masks = pairs.ring.uniform(Prg.fresh("masks of gradients of pairs"), (len(batches), pairs.products))
        r_before: dict[int, list[Words]] = {batch: [] for batch in batches}
        for mask, batch in zip(masks, batches, strict=True):
            r_before[batch].append(pairs.weights(rule, self.masks))
            self.skip(mask, batch)
        return masks, {batch: np.stack(columns, axis=1) for batch, columns in r_before.items()}

    def skip(self, mask: Words, batch: int) -> None:
        """Advance the state by an iteration on a batch, whose mask (d,) was drawn before."""
        factor = self._pairs.factor(self._params.rows[batch])
        self.masks = np.vstack([self.masks, self._pairs.ring.reduce(mask * factor)])

    def sums(
        self, holder: ShareHolder, evaluators: Evaluators, group: Mapping[int, int], r_before: Mapping[int, Words]
    ) -> dict[int, Words]:
        """Compute the products of step 3 for some blocks of rows.

        Args:
            holder: this party's secret key.
            evaluators: the object that computes with the other share holder's ciphertexts.
            group: the number of iterations for each block.
            r_before: the vectors r (d, iterations) of each batch.

        Returns:
            For each block, the sum of this party's shares of both products (n, iterations) modulo 2^L.
        """
        pairs, blocks = self._pairs, self._params.blocks
        vectors = {block: pairs.multiples(r_before[blocks[block].batch]) for block in group}
        transposed = lambda block: np.concatenate([limb.T for limb in self._limbs(blocks[block])])  # noqa: E731
        widths = {block: blocks[block].rows for block in group}
        scheme = schemes(self._params, self._products)[1]
        totals = self._multiply(holder, evaluators, scheme, vectors, widths, transposed)
        return {block: share << np.uint64(pairs.shift) for block, share in totals.items()}

    def rows(self, block: RowBlock) -> Words:
        """Return this party's share of Phi (n, d) for the rows of a block."""
        params = self._params
        first = block.start if params.has_nested_batches else sum(params.rows[: block.batch]) + block.start
        return self.columns.block(first, first + block.rows)

    def _limbs(self, block: RowBlock) -> Integers:
        return self._pairs.split(self.rows(block))

    def _multiply(
        self,
        holder: ShareHolder,
        evaluators: Evaluators,
        scheme: ShareScheme,
        vectors: Mapping[int, Words],
        widths: Mapping[int, int],
        factor: Callable[[int], Integers],
    ) -> dict[int, Words]:
        """Multiply both share holders' vectors by the other one's limbs; both have vectors of equal shapes.

        Args:
            holder: this party's secret key.
            evaluators: the object that computes with the other share holder's ciphertexts.
            scheme: the encryption scheme.
            vectors: this party's vectors of each block.
            widths: the number of columns of each block's product.
            factor: returns the limbs of this party's columns of a block (rows of a vector, columns of the product).

        Returns:
            For each block, the sum of this party's shares of both products.
        """
        products = self._products
        counts = {block: V.shape[1] for block, V in vectors.items()}
        seconds = sum(scheme.seconds(len(V), V.shape[1], widths[block]) for block, V in vectors.items())
        executor = products.executor(2 * seconds, scheme)
        products.send_queries(
            executor, [self._peer], holder, vectors, columns=widths.__getitem__, uses=self._params.chunks
        )
        total = products.answer_queries(executor, evaluators, counts, factor)
        shapes = {block: (widths[block], count) for block, count in counts.items()}
        for block, share in products.open_replies(executor, holder, self._peer, shapes).items():
            total[block] = self._pairs.ring.reduce(total[block] + share)
        return total
