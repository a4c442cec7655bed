"""Scores of new rows from a model on shares: the active party learns them, and nobody learns a weight.

theta_k = s_k + sum_h r_kh as in shares.py, A the active party, B its partner, C any other. Rows come in blocks; h_k is
X_k s_k and the party's shares of all X r, f_H the fractional bits of a sum.

0. h -> k   [[r_kh]]_h under keys of this session              once for all blocks
1. k -> h   masked X_k r_kh => one share at k, one at h        for each block
2. C -> A   h_C - kappa                                        kappa a keystream that B has too
3. B -> A   floor((h_B + all kappa + D) / 2^m), m = f_H - 16   D secret, uniform below 2^m
   A        H = h_A + all that came, to 16 fractional bits

What B sends is its sum rounded at random to 16 fractional bits: without D the bits below would depend on the noise of
encryption. Beyond the table's reach scores wrap, as sums do in training. Scores are outputs: what they tell is said in
shares_ledger.py, and every party but A asks its ledger before it sends anything about a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Floats
from securevfl.crypto.share_ring import Factor, ShareRing, Words
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.errors import ProtocolError
from securevfl.protocols import shares_products
from securevfl.protocols.base import Declared, Reveal, Seat
from securevfl.protocols.shares import State
from securevfl.protocols.shares_ahead import Terms
from securevfl.protocols.shares_ledger import Ledger
from securevfl.protocols.shares_products import Answer, Products, Query
from securevfl.runtime.codec import Message

__all__ = ["FRACTION", "Scores", "declares"]

FRACTION = 16  # bits of a score below one


class ScorePart(Message, frozen=True):
    """h_C - kappa, (n x c) words."""

    words: bytes


class OpenedScores(Message, frozen=True):
    """The partner's part of the scores, (n x c) words of L - m bits, rounded at random."""

    words: bytes


def declares() -> list[Declared]:
    """What the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [
        *shares_products.declares(),
        Declared(ScorePart, "passive", "active", Reveal("uniform")),
        Declared(OpenedScores, "partner", "active", Reveal("output", "the scores of the rows that were asked")),
    ]


class Scores:
    """One party's side of a session of scoring, whichever it is."""

    def __init__(
        self, seat: Seat, terms: Terms, scheme: ShareScheme, state: State, model: bytes, ledger: Ledger | None
    ) -> None:
        """model: its name, 16 bytes or so, the same in every session. ledger: None at the active party alone."""
        if (ledger is None) != (seat.me == seat.active):
            raise ProtocolError("scores: every party but the one that gets them keeps a ledger; name its file")
        self._seat, self._terms, self._state, self._model, self._ledger = seat, terms, state, model, ledger
        self._ring = ShareRing(terms.numbers.bits)
        self._dropped = max(0, terms.numbers.f_x + terms.numbers.f_theta - FRACTION)
        self._coarse = ShareRing(terms.numbers.bits - self._dropped)
        self._products = Products(seat, terms.partner, scheme)
        self._passives = tuple(name for name in seat.passives if name != terms.partner)
        self._own = self._ring.reduce(terms.rule.theta(state.own))
        self._dither = Prg.fresh("dither of scores")

    def begin(self, rows: int) -> None:
        """Before the first block; `rows` is about how many a block has."""
        products, rule = self._products, self._terms.rule
        products.meet()
        self._holders, (self._evaluators,) = products.keys(0, ("scores",))  # 0
        for number, (name, r) in enumerate(self._state.others.items()):
            V = self._ring.reduce(rule.theta(r))
            products.ask([name], self._holders[0], number, V, columns=rows, uses=1)  # 0
        self._sealed = {name: products.recv(name, Query).ciphertext for name in products.served}
        self._kappas = {
            name: Prg(products.pair_keys[name], "scores on shares")
            for name in (self._passives if self._seat.me == self._terms.partner else (self._terms.partner,))
            if self._seat.me != self._seat.active
        }

    def block(self, number: int, X: Floats, ids: Sequence[bytes]) -> Floats | None:
        """Goes through block `number` with this party's columns X (n x d) of the rows `ids`, in order.

        The scores (n x c) at the active party, None elsewhere. LeakageError if this party's ledger refuses.
        """
        if self._ledger is not None:
            self._ledger.admit(self._model, self._seat.active, ids, X.shape[1])
        integers = self._terms.numbers.columns(X)
        h = Factor(self._ring, integers).times(self._own) + self._shares(number, integers)
        if self._seat.me == self._seat.active:
            return self._scored(h)
        for prg in self._kappas.values():
            mask = self._ring.uniform(prg, h.shape)
            h = h + mask if self._seat.me == self._terms.partner else h - mask
        if self._seat.me == self._terms.partner:
            opened = self._ring.reduce(h + self._below(h.shape)) >> np.uint64(self._dropped)
            self._products.send(self._seat.active, OpenedScores(self._coarse.pack(opened)))  # 3
        else:
            self._products.send(self._seat.active, ScorePart(self._ring.pack(self._ring.reduce(h))))  # 2
        return None

    def _shares(self, number: int, X: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Words:
        """This party's shares of all X r of a block, added up."""
        products, meter, total = self._products, self._seat.meter, np.zeros((len(X), self._terms.outputs), np.uint64)
        prepared = None
        for name, evaluator in self._evaluators.items():
            prepared = meter("encode", partial(evaluator.prepare, X.T)) if prepared is None else prepared
            masked, share = meter("compute", partial(evaluator.product, prepared, self._sealed[name]))
            products.send(name, Answer(number, masked))  # 1
            total += share
        for name in products.asked:
            total += products.opened(self._holders[0], name, number, total.shape)
        return total

    def _below(self, shape: tuple[int, ...]) -> Words:
        """D: uniform below 2^m."""
        words = self._dither.array(shape, np.uint64)
        return words >> np.uint64(64 - self._dropped) if self._dropped else words & np.uint64(0)

    def _scored(self, h: Words) -> Floats:
        for name in self._passives:
            h = h + self._words(name, self._products.recv(name, ScorePart).words, self._ring, h.shape)  # 2
        partner = self._terms.partner
        opened = self._words(partner, self._products.recv(partner, OpenedScores).words, self._coarse, h.shape)  # 3
        total = self._ring.signed(self._ring.reduce(h + (opened << np.uint64(self._dropped))))
        numbers = self._terms.numbers
        return np.ldexp(total.astype(np.float64), -(numbers.f_x + numbers.f_theta))

    def _words(self, name: str, data: bytes, ring: ShareRing, shape: tuple[int, ...]) -> Words:
        if len(data) != ring.octets * int(np.prod(shape)):
            raise ProtocolError(
                f"{name}: {ring.octets * int(np.prod(shape))} bytes of scores were expected, {len(data)} came; "
                "do both ask for the same rows?"
            )
        return ring.unpack(data, shape)
