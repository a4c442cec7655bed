"""Vector OLE (oblivious linear evaluation): two parties generate long random vectors with c = b + a * Delta.

The sender S has the vector b and one secret number Delta; the receiver R has the vectors a and c, and a looks random to
S. Entries and Delta are elements of the field GF(2^128), of 16 bytes each; + is XOR, and 2 words of 64 bits represent
an element. An entry of the result is called an outcome. Vectors are generated in pieces:

- Oblivious transfers (ot_extension.py) give a few values with the right relation: for every transfer ("row"), R has a
  random bit r and an element t, and S has q = t + r * Delta. 128 rows are combined to one product: R has beta, whose
  bits are the 128 bits r, and c_0, and S has b_0 = c_0 + beta * Delta.
- S computes `trees` binary trees of pseudorandom elements: a node x has the children pi_0(x) + x and pi_1(x) + x, with
  two public permutations (AES). R learns all leaves v of a tree except one. N is the number of leaves ("places") of all
  trees.
- A public linear map M compresses the N places to random-looking outcomes.

1. R -> S  its messages for the oblivious transfers of the piece
2. S -> R  for each tree and level, the sum of all left and the sum of all right children, encrypted so that R can
           decrypt one of the two, by its bit r; and for each tree, the sum of all its leaves plus b_0 of a product
   R       computes all leaves except number alpha, whose path consists of the sides that R did not choose. For that
           leaf it computes v + beta * Delta. So at all N places it has w = v + e * Delta; e is beta at alpha, else 0
3. R -> S  h(e) + beta, with the beta of one more product
4. S -> R  a digest of h(v) + b_0 + (received value) * Delta, with the b_0 of that product
   R       compares it with the digest of h(w) + c_0. h is a universal hash (GHASH) under a key that depends on 1 and 2
   both    R computes c = M @ w and a = M @ e; S computes b = M @ v

Comments refer to these steps by number. `VoleSender` names the papers and assumptions.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.binary_field import BINARY_FIELD_BITS, Multiplier, combine_powers, ghash
from securevfl.crypto.transfers.ot_extension import OtReceiver, OtSender
from securevfl.crypto.transfers.vole_pieces import TREES_PER_GROUP, VoleSize
from securevfl.crypto.transfers.vole_public import NODES, VolePublic
from securevfl.crypto.transfers.vole_trees import grow_trees, regrow_trees
from securevfl.errors import CryptoError

SUM_BYTES = 16
"""Length of the receiver's message of step 3, for one piece."""
CHECK_DIGEST_BYTES = 32
"""Length of the sender's message of step 4, for one piece."""


class VoleSender(Secret):
    """The sender S, which has Delta. It processes pieces in order, each with `answer` and then `confirm`.

    This is the method of Boyle, Couteau, Gilboa, Ishai 2018, "Compressing vector OLE", with the checks of Weng, Yang,
    Katz, Wang 2021, "Wolverine", section 5. M is the dual of an expand-accumulate code (Boyle, Couteau, Gilboa, Ishai,
    Kohl, Resch, Scholl 2022, "Correlated pseudorandomness from expand-accumulate codes"): it computes the prefix sums
    of all places, and adds up 21 randomly selected ones for each outcome. N is at least five times the number of
    outcomes. a is pseudorandom under the dual LPN (learning parity with noise) assumption for this code, with one
    non-zero place in each tree. docs/proof.md has the parameters and known attacks.

    A malicious sender may send messages that are correct only if alpha is where the sender guesses. If the guess is
    wrong, the check fails and R stops. The sender thus learns some bits of alpha only with the risk of being detected.
    The check of the oblivious transfers forces R to use the same beta everywhere.

    Args:
        secret: Delta, 16 bytes.
        seeds: results of 128 base transfers: for each pair of seeds, the one that a bit of Delta selects (`OtSender`).
        roots: 32 secret bytes that determine all trees.
        coin: 32 public bytes that no other session uses.

    Attributes:
        times: a function that multiplies elements by Delta.
    """

    __slots__ = ("_delta", "_offerer", "_public", "_roots", "_rows", "times")

    def __init__(self, secret: bytes, seeds: list[bytes], roots: bytes, coin: bytes) -> None:
        self._public = VolePublic(coin)
        self._offerer = OtSender(secret, seeds, coin)
        self._delta = np.frombuffer(secret, np.uint64)
        self._roots = Prg(roots, NODES)
        self._rows = 0
        self.times = Multiplier(secret)

    def answer(self, number: int, size: VoleSize, request: bytes) -> tuple[bytes, VoleSenderPiece]:
        """Answer the receiver's message of step 1 for a piece. Raise CryptoError if the message fails its check.

        Args:
            number: number of the piece.
            size: numbers of outcomes, trees and levels of the piece.
            request: the message of step 1.

        Returns:
            The message of step 2, and the sender's state of the piece.
        """
        q, first = self._offerer.correlated(size.rows, request), self._rows
        self._rows += size.rows
        roots = self._roots.array((size.trees, 2), np.uint64, number=number)
        leaves, levels = grow_trees(self._public, roots, size.depth)
        level_rows = size.trees * size.depth
        keys = np.stack([self._public.keys(x, first) for x in (q[:level_rows], q[:level_rows] ^ self._delta)])
        levels ^= keys.reshape(2, size.depth, size.trees, 2)
        short = combine_powers(q[level_rows : size.rows].reshape(-1, BINARY_FIELD_BITS, 2))
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, TREES_PER_GROUP, 2), axis=1).reshape(-1, 2)
        message = b"".join([levels.tobytes(), (totals ^ short[:-1]).tobytes()])
        challenge = self._public.challenge(number, request, message)
        return message, VoleSenderPiece(self._public, number, size, leaves, challenge, short[-1], self.times)


class VoleSenderPiece(Secret):
    """The sender's values of a piece after step 2, which steps 3 and 4 need."""

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
        """Return the message of step 4, which proves that step 2 was correct, from the receiver's message of step 3."""
        value = ghash(self._challenge, self._leaves) ^ self._mask
        value ^= self._times(np.frombuffer(response, np.uint64)[None])[0]
        return hashlib.sha256(self._challenge + value.tobytes()).digest()

    def outcome(self) -> Words:
        """Return b (outcomes, 2). This method may be called once only, because it overwrites the leaves."""
        (b,) = self._public.map(self._number, self._size, self._leaves)
        return b


class VoleReceiver(Secret):
    """The receiver R, which does not know Delta. It requests pieces with `ask`, and processes answers with `take`.

    Args:
        pairs: results of 128 base transfers: pairs of new seeds of 32 bytes.
        coin: 32 public bytes that no other session uses.
    """

    __slots__ = ("_chooser", "_public", "_requests", "_rows")

    def __init__(self, pairs: list[tuple[bytes, bytes]], coin: bytes) -> None:
        self._public = VolePublic(coin)
        self._chooser = OtReceiver(pairs, coin)
        self._rows = 0
        self._requests: dict[int, tuple[int, bytes, NDArray[np.uint8], Words]] = {}

    def ask(self, number: int, size: VoleSize, choices: bytes) -> bytes:
        """Return the message of step 1 for a piece.

        Args:
            number: number of the piece.
            size: numbers of outcomes, trees and levels of the piece.
            choices: secret random bytes; `choice_bytes` gives their number.

        Returns:
            The message.
        """
        message, r, t = self._chooser.correlated(size.rows, choices)
        self._requests[number] = self._rows, message, r, t
        self._rows += size.rows
        return message

    def take(self, number: int, size: VoleSize, answer: bytes) -> VoleReceiverPiece:
        """Process the sender's message of step 2 for a piece.

        Args:
            number: number of the piece.
            size: numbers of outcomes, trees and levels of the piece.
            answer: the message of step 2.

        Returns:
            The receiver's state of the piece.

        Raises:
            CryptoError: if the message has the wrong length.
        """
        if len(answer) != size.answer_bytes:
            raise CryptoError(
                f"received {len(answer)} bytes of seed trees instead of {size.answer_bytes}",
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
        short = combine_powers(t[level_rows : size.rows].reshape(-1, BINARY_FIELD_BITS, 2))
        betas = np.packbits(r[level_rows : size.rows].reshape(-1, BINARY_FIELD_BITS), axis=1).view(np.uint64)
        trees = np.arange(size.trees)
        places = (trees // TREES_PER_GROUP << size.depth | alpha) * TREES_PER_GROUP + trees % TREES_PER_GROUP
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, TREES_PER_GROUP, 2), axis=1).reshape(-1, 2)
        leaves[places] = totals ^ words[2 * level_rows :] ^ short[:-1]
        noise = np.zeros((size.places, 2), np.uint64)
        noise[places] = betas[:-1]
        challenge = self._public.challenge(number, request, answer)
        return VoleReceiverPiece(self._public, number, size, leaves, noise, challenge, betas[-1], short[-1])


class VoleReceiverPiece(Secret):
    """The receiver's values of a piece after step 2. `response` is its message of step 3."""

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
        """Check the sender's message of step 4. If this raises CryptoError, discard the session and its secrets."""
        if not hmac.compare_digest(self._expected, confirmed):
            raise CryptoError(
                "the received seed trees do not belong to one value of Delta, the secret factor of their sender",
                code="SVFL-PROTOCOL-CHEATING",
            )

    def outcome(self) -> tuple[Words, Words]:
        """Return a and c (outcomes, 2). This method may be called once only, because it overwrites the leaves."""
        a, c = self._public.map(self._number, self._size, self._noise, self._leaves)
        return a, c
