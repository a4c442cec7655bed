"""Vector OLE over GF(2^128): the sender has Delta and b, the receiver a and c = b + a Delta, with a pseudorandom a.

A short vector OLE and punctured trees yield a long vector OLE whose a is zero nearly everywhere. A public linear map
makes it short and pseudorandom (Boyle, Couteau, Gilboa, Ishai 2018, "Compressing vector OLE"; Weng, Yang, Katz, Wang
2021, "Wolverine", section 5, for the checks). The receiver R makes random choices, the sender S has Delta, 128 bits.

    transfers  correlated rows of ot_extension.py: R has bits r and t, S has q = t + r Delta. 128 rows, combined with
               powers of x, are one product: R has beta, whose bits are r, and c_0, and S has b_0 = c_0 + beta Delta
1. R -> S  the messages of the rows
   S       t trees of 2^D leaves: a node x has the children pi_0(x) + x and pi_1(x) + x
2. S -> R  for each tree and level, the sums of all left and of all right children, under the keys H(q), H(q + Delta) of
           a row; and the sum of the tree's leaves + its b_0
   R       for each level, the sum that its bit chooses; so all leaves v except one, alpha, whose bits are the others;
           and there v + beta Delta. So w = v + e Delta at all N places, where e is beta at alpha of each tree, else 0
3. R -> S  h(e) + beta of one more product     4. S -> R  Hash(h(v) + b_0 of that product + the received value Delta)
   R       compares with Hash(h(w) + c_0); h is GHASH under a key that is a hash of messages 1 and 2
   both    c = M w, b = M v, a = M e

M is the dual of an expand-accumulate code (Boyle, Couteau, Gilboa, Ishai, Kohl, Resch, Scholl 2022, "Correlated
pseudorandomness from expand-accumulate codes"): the prefix sums of all places, and for each outcome the sum of 21
random ones of these. N is at least five times the number of outcomes. a is pseudorandom under the dual LPN assumption
for this code with regular noise: one place in each of t blocks. docs/proof.md has the parameters and known attacks.

A malicious sender may craft messages that are right only if alpha is where it guesses. Otherwise the check fails and R
stops. The sender then learns whether its guess was right, at the risk of detection for every guessed bit of alpha. The
check of the rows forces R to use one beta for each product.
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
from securevfl.crypto.transfers.vole_pieces import TREES_PER_GROUP, VoleSize
from securevfl.crypto.transfers.vole_public import NODES, VolePublic
from securevfl.crypto.transfers.vole_trees import grow_trees, regrow_trees
from securevfl.errors import CryptoError

SUM_BYTES = 16
"""Length of the receiver's message 3."""
CHECK_DIGEST_BYTES = 32
"""Length of the sender's message 4."""


class VoleSender(Secret):
    """The party with Delta. It processes pieces in order, each with `answer` and then `confirm`.

    Args:
        secret: Delta, 16 bytes.
        seeds: for each of 128 pairs, the seed that its bit of Delta chooses (see `OtSender`).
        roots: 32 bytes that determine all trees.
        coin: 32 public bytes for this session alone.

    Attributes:
        times: multiplication by Delta.
    """

    __slots__ = ("_delta", "_offerer", "_public", "_roots", "_rows", "times")

    def __init__(self, secret: bytes, seeds: list[bytes], roots: bytes, coin: bytes) -> None:
        self._public = VolePublic(coin)
        self._offerer = OtSender(secret, seeds, coin, 1)
        self._delta = np.frombuffer(secret, np.uint64)
        self._roots = Prg(roots, NODES)
        self._rows = 0
        self.times = Multiplier(secret)

    def answer(self, number: int, size: VoleSize, request: bytes) -> tuple[bytes, VoleSenderPiece]:
        """Answer message 1 of a piece.

        Args:
            number: number of the piece.
            size: its size.
            request: message 1.

        Returns:
            Message 2, and the state of the piece; CryptoError if message 1 fails its check.
        """
        q, first = self._offerer.correlated(size.rows, request), self._rows
        self._rows += size.rows
        roots = self._roots.array((size.trees, 2), np.uint64, number=number)
        leaves, levels = grow_trees(self._public, roots, size.depth)
        level_rows = size.trees * size.depth
        keys = np.stack([self._public.keys(x, first) for x in (q[:level_rows], q[:level_rows] ^ self._delta)])
        levels ^= keys.reshape(2, size.depth, size.trees, 2)
        short = combine_powers(q[level_rows : size.rows].reshape(-1, FIELD_BITS, 2))
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, TREES_PER_GROUP, 2), axis=1).reshape(-1, 2)
        message = b"".join([levels.tobytes(), (totals ^ short[:-1]).tobytes()])
        challenge = self._public.challenge(number, request, message)
        return message, VoleSenderPiece(self._public, number, size, leaves, challenge, short[-1], self.times)


class VoleSenderPiece(Secret):
    """A piece of the sender after its answer."""

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

    def confirm(self, response: bytes) -> bytes:
        """Return message 4, which proves to the receiver that the answer was correct, from its message 3."""
        value = ghash(self._challenge, self._leaves) ^ self._mask
        value ^= self._times(np.frombuffer(response, np.uint64)[None])[0]
        return hashlib.sha256(self._challenge + value.tobytes()).digest()

    def outcome(self) -> Words:
        """Return b (outcomes, 2); the method may be called once."""
        (b,) = self._public.map(self._number, self._size, self._leaves)
        return b


class VoleReceiver(Secret):
    """The party without Delta. It requests pieces in order and then receives each.

    Args:
        pairs: 128 pairs of fresh 32-byte seeds.
        coin: 32 public bytes for this session alone.
    """

    __slots__ = ("_chooser", "_public", "_requests", "_rows")

    def __init__(self, pairs: list[tuple[bytes, bytes]], coin: bytes) -> None:
        self._public = VolePublic(coin)
        self._chooser = OtReceiver(pairs, coin, 1)
        self._rows = 0
        self._requests: dict[int, tuple[int, bytes, NDArray[np.uint8], Words]] = {}

    def ask(self, number: int, size: VoleSize, choices: bytes) -> bytes:
        """Request a piece.

        Args:
            number: number of the piece.
            size: its size.
            choices: random bytes, see `choice_bytes`.

        Returns:
            Message 1.
        """
        message, r, t = self._chooser.correlated(size.rows, choices)
        self._requests[number] = self._rows, message, r, t
        self._rows += size.rows
        return message

    def take(self, number: int, size: VoleSize, answer: bytes) -> VoleReceiverPiece:
        """Process message 2 of a piece.

        Args:
            number: number of the piece.
            size: its size.
            answer: message 2.

        Returns:
            The piece.

        Raises:
            CryptoError: if the message has another length.
        """
        if len(answer) != size.answer_bytes:
            raise CryptoError(
                f"received {len(answer)} bytes of trees instead of {size.answer_bytes}",
                "run the same version of securevfl on both sides",
                code="SVFL-PROTOCOL-SIZE",
            )
        first, request, r, t = self._requests.pop(number)
        level_rows, words = size.trees * size.depth, np.frombuffer(answer, np.uint64).reshape(-1, 2)
        levels = words[: 2 * level_rows].reshape(2, size.depth, size.trees, 2)
        bits = r[:level_rows].reshape(size.depth, size.trees)
        keys = self._public.keys(t[:level_rows], first).reshape(size.depth, size.trees, 2)
        chosen = np.where(bits[:, :, None].astype(bool), levels[1], levels[0]) ^ keys
        leaves, alpha = regrow_trees(self._public, chosen, bits)
        short = combine_powers(t[level_rows : size.rows].reshape(-1, FIELD_BITS, 2))
        betas = np.packbits(r[level_rows : size.rows].reshape(-1, FIELD_BITS), axis=1).view(np.uint64)
        trees = np.arange(size.trees)
        places = (trees // TREES_PER_GROUP << size.depth | alpha) * TREES_PER_GROUP + trees % TREES_PER_GROUP
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, TREES_PER_GROUP, 2), axis=1).reshape(-1, 2)
        leaves[places] = totals ^ words[2 * level_rows :] ^ short[:-1]
        noise = np.zeros((size.places, 2), np.uint64)
        noise[places] = betas[:-1]
        challenge = self._public.challenge(number, request, answer)
        return VoleReceiverPiece(self._public, number, size, leaves, noise, challenge, betas[-1], short[-1])


class VoleReceiverPiece(Secret):
    """A piece of the receiver."""

    __slots__ = ("_expected", "_leaves", "_noise", "_number", "_public", "_size", "response")

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
        self.response: bytes = (ghash(challenge, noise) ^ beta).tobytes()
        self._expected = hashlib.sha256(challenge + (ghash(challenge, leaves) ^ short).tobytes()).digest()

    def check(self, confirmed: bytes) -> None:
        """Check message 4; after a CryptoError, the session and its secrets must be discarded."""
        if not hmac.compare_digest(self._expected, confirmed):
            raise CryptoError("the received trees contain different values of Delta", code="SVFL-PROTOCOL-CHEATING")

    def outcome(self) -> tuple[Words, Words]:
        """Return a and c (outcomes, 2); the method may be called once."""
        a, c = self._public.map(self._number, self._size, self._noise, self._leaves)
        return a, c
