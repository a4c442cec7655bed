"""Vector OLE over GF(2^128): one end has Delta and b, the other one a and c = b + a Delta, a as good as uniform.

A short vector OLE and punctured trees give a long one whose a is nearly everywhere zero; a public linear map makes it
short and random (Boyle, Couteau, Gilboa, Ishai 2018, "Compressing vector OLE"; Weng, Yang, Katz, Wang 2021,
"Wolverine", section 5, for the checks). The taker T has choices of its own, the giver G has Delta, 128 bits.

    transfers  rows of `correlated` in ot_rows.py: T has bits r and t, G has q = t + r Delta. 128 rows, packed by powers
               of x, are one product: T has beta, whose bits are r, and c_0, and G has b_0 = c_0 + beta Delta
1. T -> G  what the rows take
   G       t trees of 2^D leaves: a node x has the children pi_0(x) + x and pi_1(x) + x
2. G -> T  of each tree and level the sums of all left and of all right children, under the keys H(q), H(q + Delta)
           of a row; and the sum of its leaves + its b_0
   T       of each level the sum that its bit chooses, so all leaves v but one, alpha, whose bits are those not chosen;
           and there v + beta Delta. So w = v + e Delta in all N places, e nothing but beta at alpha of each tree
3. T -> G  h(e) + beta of one product more      4. G -> T  Hash(h(v) + b_0 of that product + what came times Delta)
   T       compares with Hash(h(w) + c_0): h is GHASH under a key that hashing 1 and 2 decides
   both    c = M w, b = M v, a = M e

M is the dual of an expand-accumulate code (Boyle, Couteau, Gilboa, Ishai, Kohl, Resch, Scholl 2022, "Correlated
pseudorandomness from expand-accumulate codes"): sums of all places up to each, then of 21 of these, drawn at random,
for each outcome. N is five times the outcomes or more. That a is pseudorandom is the dual LPN assumption for this code
with noise that is regular: one place in each of t blocks. Parameters and what is known of them: docs/proof.md.

What G sends may be crafted to be right only if alpha lies where it guesses. The check finds it out otherwise, T ends,
and what is told is that the guess was wrong or right, which costs as many bits of alpha as were guessed. What T sends
is held to one beta a product by the check of the rows.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.binary_field import FIELD_BITS, Multiplier, combine_powers, ghash
from securevfl.crypto.transfers.ot_extension import OtReceiver, OtSender
from securevfl.crypto.transfers.vole_pieces import GROUP, VoleSize
from securevfl.crypto.transfers.vole_public import NODES, VolePublic
from securevfl.crypto.transfers.vole_trees import grow_trees, regrow_trees
from securevfl.errors import CryptoError

SUM_BYTES = 16
DIGEST_BYTES = 32


class VoleSender(Secret):
    """The end with Delta. Pieces come in order, each by `answer` and then `confirm`."""

    __slots__ = ("_delta", "_offerer", "_public", "_roots", "_rows", "times")

    def __init__(self, secret: bytes, seeds: list[bytes], roots: bytes, coin: bytes) -> None:
        """secret: Delta, 16 octets, and of each of 128 pairs the seed that its bit has chosen (as `OtSender`). roots:
        32 octets, all that the trees are made of. coin: 32 octets, public, for this session alone."""
        self._public = VolePublic(coin)
        self._offerer = OtSender(secret, seeds, coin, 1)
        self._delta = np.frombuffer(secret, np.uint64)
        self._roots = Prg(roots, NODES)
        self._rows = 0
        self.times = Multiplier(secret)

    def answer(self, number: int, size: VoleSize, asked: bytes) -> tuple[bytes, VoleSenderPiece]:
        """Return what to send for a piece (2), and its state. CryptoError if what came (1) fails its check."""
        q, first = self._offerer.correlated(size.rows, asked), self._rows
        self._rows += size.rows
        roots = self._roots.array((size.trees, 2), np.uint64, number=number)
        leaves, levels = grow_trees(self._public, roots, size.depth)
        ahead = size.trees * size.depth
        keys = np.stack([self._public.keys(each, first) for each in (q[:ahead], q[:ahead] ^ self._delta)])
        levels ^= keys.reshape(2, size.depth, size.trees, 2)
        short = combine_powers(q[ahead : size.rows].reshape(-1, FIELD_BITS, 2))
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, GROUP, 2), axis=1).reshape(-1, 2)
        sent = b"".join([levels.tobytes(), (totals ^ short[:-1]).tobytes()])
        challenge = self._public.challenge(number, asked, sent)
        return sent, VoleSenderPiece(self._public, number, size, leaves, challenge, short[-1], self.times)


class VoleSenderPiece(Secret):
    """A piece at the end with Delta, once it has answered."""

    __slots__ = ("_challenge", "_leaves", "_mask", "_number", "_public", "_size", "_times")

    def __init__(
        self,
        public: VolePublic,
        number: int,
        size: VoleSize,
        leaves: Words,
        challenge: bytes,
        mask: NDArray[np.uint64],
        times: Multiplier,
    ) -> None:
        self._public, self._number, self._size, self._leaves = public, number, size, leaves
        self._challenge, self._mask, self._times = challenge, mask, times

    def confirm(self, said: bytes) -> bytes:
        """Return what shows the taker (4) that this end has not strayed, from what it said (3)."""
        value = ghash(self._challenge, self._leaves) ^ self._mask
        value ^= self._times(np.frombuffer(said, np.uint64)[None])[0]
        return hashlib.sha256(self._challenge + value.tobytes()).digest()

    def outcome(self) -> Words:
        """Return b (outcomes, 2); once."""
        (b,) = self._public.map(self._number, self._size, self._leaves)
        return b


class VoleReceiver(Secret):
    """The end without Delta. Pieces are asked for in order, then each is taken."""

    __slots__ = ("_asked", "_chooser", "_public", "_rows")

    def __init__(self, pairs: list[tuple[bytes, bytes]], coin: bytes) -> None:
        """pairs: 128 of 32-byte seeds, fresh. coin: 32 octets, public, for this session alone."""
        self._public = VolePublic(coin)
        self._chooser = OtReceiver(pairs, coin, 1)
        self._rows = 0
        self._asked: dict[int, tuple[int, bytes, NDArray[np.uint8], Words]] = {}

    def ask(self, number: int, size: VoleSize, choices: bytes) -> bytes:
        """Return what to send for a piece (1). choices: as many random octets as `choice_bytes` says."""
        sent, r, t = self._chooser.correlated(size.rows, choices)
        self._asked[number] = self._rows, sent, r, t
        self._rows += size.rows
        return sent

    def take(self, number: int, size: VoleSize, answered: bytes) -> VoleReceiverPiece:
        """Take in what came (2). CryptoError if it has another length."""
        if len(answered) != size.answer_bytes:
            raise CryptoError(
                f"vector OLE: trees of {size.answer_bytes} bytes were expected, {len(answered)} came; do both run the "
                "same version?"
            )
        first, asked, r, t = self._asked.pop(number)
        ahead, words = size.trees * size.depth, np.frombuffer(answered, np.uint64).reshape(-1, 2)
        levels = words[: 2 * ahead].reshape(2, size.depth, size.trees, 2)
        bits = r[:ahead].reshape(size.depth, size.trees)
        keys = self._public.keys(t[:ahead], first).reshape(size.depth, size.trees, 2)
        chosen = np.where(bits[:, :, None].astype(bool), levels[1], levels[0]) ^ keys
        leaves, alpha = regrow_trees(self._public, chosen, bits)
        short = combine_powers(t[ahead : size.rows].reshape(-1, FIELD_BITS, 2))
        betas = np.packbits(r[ahead : size.rows].reshape(-1, FIELD_BITS), axis=1).view(np.uint64)
        trees = np.arange(size.trees)
        places = (trees // GROUP << size.depth | alpha) * GROUP + trees % GROUP
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, GROUP, 2), axis=1).reshape(-1, 2)
        leaves[places] = totals ^ words[2 * ahead :] ^ short[:-1]
        noise = np.zeros((size.places, 2), np.uint64)
        noise[places] = betas[:-1]
        challenge = self._public.challenge(number, asked, answered)
        return VoleReceiverPiece(self._public, number, size, leaves, noise, challenge, betas[-1], short[-1])


class VoleReceiverPiece(Secret):
    """A piece at the end without Delta. said: what to send (3)."""

    __slots__ = ("_expected", "_leaves", "_noise", "_number", "_public", "_size", "said")

    def __init__(
        self,
        public: VolePublic,
        number: int,
        size: VoleSize,
        leaves: Words,
        noise: Words,
        challenge: bytes,
        beta: Words,
        short: Words,
    ) -> None:
        self._public, self._number, self._size, self._leaves, self._noise = public, number, size, leaves, noise
        self.said: bytes = (ghash(challenge, noise) ^ beta).tobytes()
        self._expected = hashlib.sha256(challenge + (ghash(challenge, leaves) ^ short).tobytes()).digest()

    def check(self, confirmed: bytes) -> None:
        """CryptoError if the end with Delta has strayed (4): the session must end then, with what it was made of."""
        if not hmac.compare_digest(self._expected, confirmed):
            raise CryptoError("vector OLE: trees that came do not carry one Delta; the peer is cheating: stop")

    def outcome(self) -> tuple[Words, Words]:
        """Return a and c (outcomes, 2); once."""
        a, c = self._public.map(self._number, self._size, self._noise, self._leaves)
        return a, c
