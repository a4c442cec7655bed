"""Forward sums of a model on secret shares, for any rows: the result is additively shared, and nobody sees a sum.

A is the active party, which has the labels, B its partner, and C any other party. A and B are the share holders. Every
party k has columns X_k (n, d), and the sum is H = sum_k X_k @ theta_k (n, c). The weights are shared, theta_k = s_k +
sum_h r_kh: party k has s_k, and every share holder h other than k has r_kh (iteration.py). All are integers modulo 2^L.

0. h -> k   r_kh, encrypted under a key for one occasion          once for all blocks of rows
1. k -> h   X_k @ r_kh minus a random share, encrypted            for each block; one share at k, one at h
   k        h_k = X_k @ s_k plus its shares of all products X @ r
2. C -> A   h_C - kappa            kappa: random numbers from a key that B and C have in common
   A, B     if the model has pairs, add their shares of a^T Theta b (pair_sums.py)
   A        its share of H: h_A plus all that it received
   B        its share of H: h_B plus all kappa

Comments refer to these steps by number. An *occasion* is one use of this protocol: an evaluation after a round, or one
request for scores. Every received value is a ciphertext under another party's key, or uniform (share_products.py). A
session has its own subchannel and keys (shares_session.py). Columns may be stored at workers, other processes of the
party. *Packed* integers take only the bytes that their bits need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import IntegerFactor, Integers, ShareRing, Words, narrowest_integers
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.pair_sums import ColumnSource, ColumnsWithPairs
from securevfl.protocols.shares.product_work import RemoteFactor
from securevfl.protocols.shares.remote_columns import RemoteColumns
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.runtime.codec import Message

ROWS_PER_PRODUCT = 16_384
_ROWS_PER_ENCODING = 4096


class ForwardSumShare(Message, frozen=True):
    """The masked share h_C - kappa of step 2: packed integers (n, c)."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [*share_products.declares(), MessageDeclaration(ForwardSumShare, "passive", "active", Reveal("uniform"))]


class ForwardSums:
    """One party's side of one use of the protocol, for any role. All parties must create it at the same point.

    Args:
        products: this party's session of encrypted matrix products (share_products.py).
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights.
        occasion: the purpose of the sums, such as "scores" or "loss"; encryption keys are derived from it.
        number: a number that no other use for the same purpose has in this session.
        rows: the approximate number of rows of a block.
    """

    def __init__(
        self, products: Products, params: SharesParams, state: SharedState, occasion: str, number: int, rows: int
    ) -> None:
        self._context, self._params, self._products, self._state = products.context, params, products, state
        self._ring = ShareRing(params.encoding.bits)
        context, ring = self._context, self._ring
        self._passives = tuple(name for name in context.passives if name != params.partner)
        self._theta = ring.reduce(params.rule_of(context.me).result(state.own_share, state.iterations))
        products.greet()
        self._holders = products.send_keys(number, (occasion,))  # step 0
        executor, width = products.executor(0), min(rows, ROWS_PER_PRODUCT)
        for name, r in state.peer_shares.items():
            V = ring.reduce(params.rule_of(name).result(r, state.iterations))
            # step 0
            products.send_queries(executor, [name], self._holders[0], {0: V}, columns=lambda _: width, uses=1)
        (self._evaluators,) = products.receive_keys(number, (occasion,))  # step 0
        self._queries = {name: products.receive_query(name, 0) for name in products.other_holders}
        label = f"sums on shares, {occasion} {number}"
        peers: tuple[str, ...] = ()
        if context.me == params.partner:
            peers = self._passives
        elif context.me in self._passives:
            peers = (params.partner,)
        self._kappas = [Prg(products.pair_keys[name], label) for name in peers]

    def block(self, number: int, X: ColumnSource) -> Words | None:
        """Return this party's share of the forward sums for a block of rows.

        Args:
            number: the number of the block of rows, counted from 0.
            X: this party's columns (n, d) of the block.

        Returns:
            The share (n, c) at the active party and its partner; None elsewhere.
        """
        context, ring, pair_share = self._context, self._ring, np.zeros((1, 1), np.uint64)
        if isinstance(X, ColumnsWithPairs):
            pairs = self._state.pairs
            assert pairs is not None, "columns have components only if the model has pairs"
            pair_share, X = X.sums.shares(X.components, pairs, self._params.rule)[:, None], X.columns
        blocks = [RowBlock(0, row, min(row + ROWS_PER_PRODUCT, len(X))) for row in range(0, len(X), ROWS_PER_PRODUCT)]
        factors: list[Integers | RemoteFactor]
        if isinstance(X, RemoteColumns):
            h = np.concatenate([X.sums(block, self._theta) for block in blocks])
            factors = [X.factor(block, steps=False) for block in blocks]
        else:
            encoding = self._params.encoding
            chunks = (X[row : row + _ROWS_PER_ENCODING] for row in range(0, len(X), _ROWS_PER_ENCODING))
            integers = np.concatenate([narrowest_integers(encoding.encode_columns(rows)) for rows in chunks])
            h = IntegerFactor(ring, integers).times(self._theta)
            factors = [integers[block.start : block.stop] for block in blocks]
        h = h + self._product_shares(number, factors, remote=isinstance(X, RemoteColumns)) + pair_share
        for prg in self._kappas:
            mask = ring.uniform(prg, h.shape)
            h = h + mask if context.me == self._params.partner else h - mask
        if context.me in self._passives:
            self._products.send(context.active, ForwardSumShare(ring.pack(ring.reduce(h))))  # step 2
            return None
        for name in self._passives if context.me == context.active else ():
            h = h + unpack_words(name, self._products.recv(name, ForwardSumShare).words, ring, h.shape)  # step 2
        return ring.reduce(h)

    def _product_shares(self, number: int, factors: Sequence[Integers | RemoteFactor], *, remote: bool) -> Words:
        """Return the sum (n, c) of this party's shares of all products X @ r of a block.

        Args:
            number: the number of the block of rows, counted from 0.
            factors: this party's columns X of the block, divided into chunks of rows.
            remote: whether workers store the columns.

        Returns:
            The sum of the shares.
        """
        products, c, d = self._products, self._params.outputs, max(self._params.columns.values())
        chunks = dict(enumerate(factors, number))
        executor = products.executor(len(chunks) * products.scheme.seconds(d, c, factors[0].shape[0]))
        summands = [
            products.answer_queries(
                executor,
                self._evaluators,
                dict.fromkeys(chunks, c),
                lambda chunk: chunks[chunk].T,
                sealed=lambda name, _: self._queries[name],
                remote=remote,
            )
        ]
        shapes = {chunk: (X.shape[0], c) for chunk, X in chunks.items()}
        summands += [products.open_replies(executor, self._holders[0], name, shapes) for name in products.queried]
        concatenated = [np.concatenate([shares[chunk] for chunk in chunks]) for shares in summands]
        total: Words = np.sum(concatenated, axis=0, dtype=np.uint64)
        return total
