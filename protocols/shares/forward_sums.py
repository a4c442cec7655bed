"""Forward sums of rows outside a training on shares: made when they are asked for, and seen by nobody.

theta_k = s_k + sum_h r_kh as in shares.py, A the active party, B its partner, C any other; h_k is X_k s_k and the
party's shares of all X r.

0. h -> k   [[r_kh]]_h under keys of this occasion             once for all blocks of rows
1. k -> h   masked X_k r_kh => one share at k, one at h        for each block
2. C -> A   h_C - kappa                                        kappa a keystream that B has too
   A        h_A + all that came     B   h_B + all kappa        shares of H = X theta, modulo 2^L

What comes is a ciphertext under another's key or uniform (share_products.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.base.arrays import RowSlices
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import IntegerFactor, Integers, ShareRing, Words, narrowest_integers
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.product_work import RemoteFactor
from securevfl.protocols.shares.remote_columns import RemoteColumns
from securevfl.protocols.shares.share_products import ProductQuery, Products, unpack_words
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.runtime.codec import Message

ROWS_PER_PRODUCT = 16_384  # rows of one product
_READ = 4096  # rows that are made into integers at a time


ColumnSource = RowSlices | RemoteColumns  # of which batch 0 is meant


class ForwardSumShare(Message, frozen=True):
    """h_C - kappa, (n x c) words."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*share_products.declares(), MessageDeclaration(ForwardSumShare, "passive", "active", Reveal("uniform"))]


class ForwardSums:
    """One party's side of one occasion, whichever it is."""

    def __init__(
        self, products: Products, terms: SharesParams, state: SharedState, occasion: str, number: int, rows: int
    ) -> None:
        """Begins: all parties make theirs at the same point.

        occasion, number: no two of a session are equal in both. rows: about how many a block has.
        """
        self._context, self._terms, self._products = products.context, terms, products
        self._ring = ShareRing(terms.encoding.bits)
        context, ring = self._context, self._ring
        self._passives = tuple(name for name in context.passives if name != terms.partner)
        self._own = ring.reduce(terms.rule_of(context.me).theta(state.own, state.visits))
        products.meet()
        self._holders, (self._evaluators,) = products.keys(number, (occasion,))  # 0
        once = products.work(0)
        for at, (name, r) in enumerate(state.others.items()):
            V = ring.reduce(terms.rule_of(name).theta(r, state.visits))
            products.ask(
                once, [name], self._holders[0], {at: V}, columns=lambda at: min(rows, ROWS_PER_PRODUCT), uses=1
            )  # 0
        self._sealed = {name: products.recv(name, ProductQuery).ciphertext for name in products.served}
        label = f"sums on shares, {occasion} {number}"
        peers = (
            self._passives if context.me == terms.partner else (terms.partner,) if context.me in self._passives else ()
        )
        self._kappas = [Prg(products.pair_keys[name], label) for name in peers]

    def block(self, number: int, X: ColumnSource) -> Words | None:
        """Return this party's share (n x c) of H for block `number`, of which it has columns X (n x d), read some rows
        at a time where they are in this process.

        None at other parties than the active one and its partner.
        """
        context, ring = self._context, self._ring
        pieces = [RowBlock(0, at, min(at + ROWS_PER_PRODUCT, len(X))) for at in range(0, len(X), ROWS_PER_PRODUCT)]
        factors: list[Integers | RemoteFactor]
        if isinstance(X, RemoteColumns):
            h = np.concatenate([X.sums(piece, self._own) for piece in pieces])
            factors = [X.integers(piece)[0] for piece in pieces]
        else:
            stretches = (X[at : at + _READ] for at in range(0, len(X), _READ))
            integers = np.concatenate(
                [narrowest_integers(self._terms.encoding.encode_columns(rows)) for rows in stretches]
            )
            h = IntegerFactor(ring, integers).times(self._own)
            factors = [integers[piece.start : piece.stop] for piece in pieces]
        h = h + self._shares(number, factors, apart=isinstance(X, RemoteColumns))
        for prg in self._kappas:
            mask = ring.uniform(prg, h.shape)
            h = h + mask if context.me == self._terms.partner else h - mask
        if context.me in self._passives:
            self._products.send(context.active, ForwardSumShare(ring.pack(ring.reduce(h))))  # 2
            return None
        for name in self._passives if context.me == context.active else ():
            h = h + unpack_words(name, self._products.recv(name, ForwardSumShare).words, ring, h.shape)  # 2
        return ring.reduce(h)

    def _shares(self, number: int, factors: Sequence[Integers | RemoteFactor], *, apart: bool) -> Words:
        """Add up this party's shares of all X r of a block, from products of stretches of rows."""
        products, c, d = self._products, self._terms.outputs, max(self._terms.columns.values())
        stretches = dict(enumerate(factors, number))
        work = products.work(len(stretches) * products.scheme.seconds(d, c, factors[0].shape[0]))
        sealed = self._sealed
        parts = [
            products.answer(
                work,
                self._evaluators,
                dict.fromkeys(stretches, c),
                lambda k: stretches[k].T,
                sealed=lambda name, _: sealed[name],
                apart=apart,
            )
        ]
        shapes = {k: (X.shape[0], c) for k, X in stretches.items()}
        parts += [products.opened(work, self._holders[0], name, shapes) for name in products.asked]
        whole = [np.concatenate([shares[k] for k in stretches]) for shares in parts]
        total: Words = np.sum(whole, axis=0, dtype=np.uint64)
        return total
