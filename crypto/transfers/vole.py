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
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg, derive_key
from securevfl.crypto.scheme import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.binary_field import BITS, Multiplier, ghash, packed
from securevfl.crypto.transfers.ot_rows import Chooser, RowHash, RowOfferer, tweaks
from securevfl.errors import CryptoError

SUM_BYTES = 16
DIGEST_BYTES = 32

TREES = 848  # blocks of noise: the least number
WEIGHT = 21  # sums that each outcome adds up
INVERSE_RATE = 5
MOST = 1 << 21  # outcomes of one piece
_GROUP = 16  # trees that grow side by side
_AT_ONCE = 1 << 13  # outcomes that are added up at a time
_WORD = 16  # octets of an element
_NODES, _KEYS = "vector OLE trees", 3


class Size(NamedTuple):
    """One piece of a vector OLE: its outcomes, its trees, and how deep these are."""

    outcomes: int
    trees: int
    depth: int

    @property
    def places(self) -> int:
        return self.trees << self.depth

    @property
    def rows(self) -> int:
        """Transfers that the piece takes: a row for each level of a tree, 128 for each product."""
        return self.trees * self.depth + BITS * (self.trees + 1)

    @property
    def answer_bytes(self) -> int:
        return self.trees * (2 * self.depth + 1) * _WORD


def sizes(outcomes: int) -> list[Size]:
    """Cut a vector OLE into pieces of about as many outcomes each."""
    pieces = -(-outcomes // MOST)
    counts = [outcomes * (each + 1) // pieces - outcomes * each // pieces for each in range(pieces)]
    return [_size(count) for count in counts]


def _size(outcomes: int) -> Size:
    places = INVERSE_RATE * outcomes
    depth = max(1, (-(-places // TREES) - 1).bit_length())
    if depth > 1 and 4 * (TREES << depth) > 5 * places:  # rather more trees than places that nobody needs
        depth -= 1
    trees = max(TREES, -(-places >> depth) if places % (1 << depth) == 0 else (places >> depth) + 1)
    return Size(outcomes, -(-trees // _GROUP) * _GROUP, depth)


def choice_bytes(size: Size) -> int:
    """Return how many random octets a taker needs for a piece."""
    return Chooser.choice_bytes(size.rows)


class _Public:
    """What both ends make of the coin of their session: permutations, the hash of transfers, the map M."""

    def __init__(self, coin: bytes) -> None:
        self.coin = coin
        keys = [derive_key(coin, _NODES, side)[:16] for side in range(2)]
        self._sides = [Cipher(algorithms.AES(key), modes.ECB()).encryptor() for key in keys]  # noqa: S305
        self.hash = RowHash(derive_key(coin, _NODES, "rows")[:16])
        self._map = derive_key(coin, _NODES, "map")[:16]

    def children(self, nodes: Words, out: NDArray[np.uint8]) -> Words:
        """Return the children (2, L, trees, 2) of nodes (L, trees, 2), left ones first, in the first octets of `out`,
        which has 16 more."""
        octets, half = nodes.reshape(-1).view(np.uint8).data, nodes.nbytes
        for number, side in enumerate(self._sides):
            side.update_into(octets, out[number * half : (number + 1) * half + _WORD].data)
        children = out[: 2 * half].view(np.uint64).reshape(2, *nodes.shape)
        children ^= nodes
        return children

    def keys(self, rows: Words, first: int) -> Words:
        """Return the keys (n, 2) of rows (n, 2) with these numbers, from `first` on."""
        return self.hash(rows, tweaks(first, len(rows), _KEYS))

    def challenge(self, number: int, asked: bytes, answered: bytes) -> bytes:
        heads = (hashlib.sha256(each).digest() for each in (asked, answered))
        return hashlib.sha256(b"".join([self.coin, number.to_bytes(8, "little"), *heads])).digest()

    def map(self, number: int, size: Size, *vectors: Words) -> list[Words]:
        """Return M times each of the vectors (N, 2), which are used up: (outcomes, 2)."""
        for vector in vectors:
            np.bitwise_xor.accumulate(vector, axis=0, out=vector)
        sums = [vector.view(np.complex128)[:, 0] for vector in vectors]
        found = [np.zeros((size.outcomes, 2), np.uint64) for _ in vectors]
        for start, places in self._places(number, size):
            for row in places:
                for out, of in zip(found, sums, strict=True):
                    some = out[start : start + len(row)]
                    some ^= np.take(of, row, mode="clip").view(np.uint64).reshape(-1, 2)
        return found

    def _places(self, number: int, size: Size) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the places (21, k) that k outcomes from some one on add up: 32 random bits times N / 2^32 each."""
        stream = Cipher(algorithms.AES(self._map), modes.CTR(number.to_bytes(8, "big") + bytes(8))).encryptor()
        zeros = bytes(4 * WEIGHT * _AT_ONCE)
        for start in range(0, size.outcomes, _AT_ONCE):
            count = min(_AT_ONCE, size.outcomes - start)
            drawn = np.frombuffer(stream.update(zeros), "<u4").astype(np.uint64).reshape(WEIGHT, _AT_ONCE)
            drawn *= np.uint64(size.places)
            drawn >>= np.uint64(32)
            yield start, drawn[:, :count].view(np.int64)


class Giver(Secret):
    """The end with Delta. Pieces come in order, each by `answer` and then `confirm`."""

    __slots__ = ("_delta", "_offerer", "_public", "_roots", "_rows", "times")

    def __init__(self, secret: bytes, seeds: list[bytes], roots: bytes, coin: bytes) -> None:
        """secret: Delta, 16 octets, and of each of 128 pairs the seed that its bit has chosen (as `RowOfferer`). roots:
        32 octets, all that the trees are made of. coin: 32 octets, public, for this session alone."""
        self._public = _Public(coin)
        self._offerer = RowOfferer(secret, seeds, coin, 1)
        self._delta = np.frombuffer(secret, np.uint64)
        self._roots = Prg(roots, _NODES)
        self._rows = 0
        self.times = Multiplier(secret)

    def answer(self, number: int, size: Size, asked: bytes) -> tuple[bytes, GivenPiece]:
        """Return what to send for a piece (2), and its state. CryptoError if what came (1) fails its check."""
        q, first = self._offerer.correlated(size.rows, asked), self._rows
        self._rows += size.rows
        roots = self._roots.array((size.trees, 2), np.uint64, number=number)
        leaves, levels = _grown(self._public, roots, size.depth)
        ahead = size.trees * size.depth
        keys = np.stack([self._public.keys(each, first) for each in (q[:ahead], q[:ahead] ^ self._delta)])
        levels ^= keys.reshape(2, size.depth, size.trees, 2)
        short = packed(q[ahead : size.rows].reshape(-1, BITS, 2))
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, _GROUP, 2), axis=1).reshape(-1, 2)
        sent = b"".join([levels.tobytes(), (totals ^ short[:-1]).tobytes()])
        challenge = self._public.challenge(number, asked, sent)
        return sent, GivenPiece(self._public, number, size, leaves, challenge, short[-1], self.times)


class GivenPiece(Secret):
    """A piece at the end with Delta, once it has answered."""

    __slots__ = ("_challenge", "_leaves", "_mask", "_number", "_public", "_size", "_times")

    def __init__(
        self,
        public: _Public,
        number: int,
        size: Size,
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


class Taker(Secret):
    """The end without Delta. Pieces are asked for in order, then each is taken."""

    __slots__ = ("_asked", "_chooser", "_public", "_rows")

    def __init__(self, pairs: list[tuple[bytes, bytes]], coin: bytes) -> None:
        """pairs: 128 of 32-byte seeds, fresh. coin: 32 octets, public, for this session alone."""
        self._public = _Public(coin)
        self._chooser = Chooser(pairs, coin, 1)
        self._rows = 0
        self._asked: dict[int, tuple[int, bytes, NDArray[np.uint8], Words]] = {}

    def ask(self, number: int, size: Size, choices: bytes) -> bytes:
        """Return what to send for a piece (1). choices: as many random octets as `choice_bytes` says."""
        sent, r, t = self._chooser.correlated(size.rows, choices)
        self._asked[number] = self._rows, sent, r, t
        self._rows += size.rows
        return sent

    def take(self, number: int, size: Size, answered: bytes) -> TakenPiece:
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
        leaves, alpha = _regrown(self._public, chosen, bits)
        short = packed(t[ahead : size.rows].reshape(-1, BITS, 2))
        betas = np.packbits(r[ahead : size.rows].reshape(-1, BITS), axis=1).view(np.uint64)
        trees = np.arange(size.trees)
        places = (trees // _GROUP << size.depth | alpha) * _GROUP + trees % _GROUP
        totals = np.bitwise_xor.reduce(leaves.reshape(-1, 1 << size.depth, _GROUP, 2), axis=1).reshape(-1, 2)
        leaves[places] = totals ^ words[2 * ahead :] ^ short[:-1]
        noise = np.zeros((size.places, 2), np.uint64)
        noise[places] = betas[:-1]
        challenge = self._public.challenge(number, asked, answered)
        return TakenPiece(self._public, number, size, leaves, noise, challenge, betas[-1], short[-1])


class TakenPiece(Secret):
    """A piece at the end without Delta. said: what to send (3)."""

    __slots__ = ("_expected", "_leaves", "_noise", "_number", "_public", "_size", "said")

    def __init__(
        self,
        public: _Public,
        number: int,
        size: Size,
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


# Trees grow in groups of 16, so that one fits into the cache: leaf a of tree j of a group is place a * 16 + j of it.
# The children of node p of a level of L nodes are the nodes p and L + p of the next one.


def _grown(public: _Public, roots: Words, depth: int) -> tuple[Words, Words]:
    """Return the leaves (N, 2) of trees with these roots (trees, 2), and the sums (2, depth, trees, 2) of the left and
    of the right children at each level."""
    levels = np.empty((2, depth, len(roots), 2), np.uint64)
    out, room = _room(len(roots), depth)
    for start in range(0, len(roots), _GROUP):
        nodes = np.ascontiguousarray(roots[None, start : start + _GROUP])
        for level in range(depth):
            children = public.children(nodes, _into(out, room, start, level, depth))
            levels[:, level, start : start + _GROUP] = np.bitwise_xor.reduce(children, axis=1)
            nodes = children.reshape(-1, _GROUP, 2)
    return out[: len(roots) * _WORD << depth].view(np.uint64).reshape(-1, 2), levels


def _regrown(public: _Public, chosen: Words, bits: NDArray[np.uint8]) -> tuple[Words, NDArray[np.intp]]:
    """Return the leaves (N, 2), zero at the one leaf of each tree that is not known, and which (trees,) that is.

    chosen (depth, trees, 2): the sum of the left children of a level where `bits` (depth, trees) has 0, else the right.
    """
    depth, trees = bits.shape
    out, room = _room(trees, depth)
    alpha, each = np.zeros(trees, np.intp), np.arange(_GROUP)
    for start in range(0, trees, _GROUP):
        nodes, missing = np.zeros((1, _GROUP, 2), np.uint64), np.zeros(_GROUP, np.intp)
        for level in range(depth):
            children = public.children(nodes, _into(out, room, start, level, depth))
            side = bits[level, start : start + _GROUP].astype(np.intp)
            children[:, missing, each] = 0
            total = np.bitwise_xor.reduce(children, axis=1)[side, each]
            children[side, missing, each] = total ^ chosen[level, start : start + _GROUP]
            missing = missing + (1 - side) * len(nodes)
            nodes = children.reshape(-1, _GROUP, 2)
        alpha[start : start + _GROUP] = missing
    return out[: trees * _WORD << depth].view(np.uint64).reshape(-1, 2), alpha


def _room(trees: int, depth: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return octets for all leaves, and for two levels of a group that are no leaves."""
    return (
        np.empty((trees * _WORD << depth) + _WORD, np.uint8),
        np.empty((2, (_GROUP * _WORD << depth) + _WORD), np.uint8),
    )


def _into(out: NDArray[np.uint8], room: NDArray[np.uint8], start: int, level: int, depth: int) -> NDArray[np.uint8]:
    return out[start * _WORD << depth :] if level == depth - 1 else room[level % 2]


# An oblivious PRF from vector OLE: one end evaluates F on the keys it has stored, the other holds F.
#
# Rindal, Schoppmann 2021 ("VOLE-PSI") and Raghuraman, Rindal 2022 ("Blazing fast PSI from improved OKVS and subfield
# VOLE"), over GF(2^128). h hashes a key to the field; [V](x) is what a store with the table V answers to x (okvs.py), a
# sum of some of its rows. From a vector OLE as long as the store: the evaluator has a and c, the holder Delta and b,
# with c = b + a Delta (vole.py).
#
#     evaluator   P: a store of x -> h(x);  sends its seed and d = P + a
#     F(x)        holder: Hash([b](x) + ([d](x) + h(x)) Delta, x);  evaluator, for a key it has stored: Hash([c](x), x)
#
# d is uniform to the holder as a is. Both hash the same where [P](x) = h(x), as [b] + [d] Delta = [c] + [P] Delta. For
# any other key the holder's has a multiple of Delta more, which is unknown to the evaluator: noise to it, whatever d it
# sent. How many keys it can have stored is bounded by the slots (docs/proof.md).
#
# h(x) = pi(x) + x. Hash(z, x) is H of ot_rows.py, tweaked by the key: 32 bytes as two blocks, for x and for x with its
# highest bit changed, which no key has set (crypto/curve.py).


_LAST = np.array([0, 1 << 63], "<u8").astype(np.uint64)
_KEYS_AT_ONCE = 1 << 14


class PrfHash:
    """h and Hash under the coin (32 bytes, public) of a session."""

    def __init__(self, coin: bytes) -> None:
        self._hash = RowHash(derive_key(coin, "vector OLE PRF", "hash")[:16])
        key = derive_key(coin, "vector OLE PRF", "target")[:16]
        self._target = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def target(self, keys: Words) -> Words:
        """h (n, 2) of keys (n, 2)."""
        octets = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
        return np.frombuffer(self._target.update(octets), np.uint64).reshape(-1, 2) ^ keys

    def values(self, sums: Words, keys: Words) -> Words:
        """Hash (n, 4) of sums (n, 2) and keys (n, 2)."""
        out = np.empty((len(keys), 4), np.uint64)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            z, x = sums[start : start + _KEYS_AT_ONCE], keys[start : start + _KEYS_AT_ONCE]
            out[start : start + _KEYS_AT_ONCE, :2] = self._hash(z, x)
            out[start : start + _KEYS_AT_ONCE, 2:] = self._hash(z, x ^ _LAST)
        return out


def evaluated(hashing: PrfHash, seed: bytes, c: Words, keys: Words) -> Words:
    """F (n, 4) on n stored keys (n, 2), at the evaluator."""
    return hashing.values(okvs.decode(seed, keys, c)[0], keys)


def held(hashing: PrfHash, seed: bytes, b: Words, d: Words, times: Multiplier, keys: Words) -> Words:
    """F (n, 4) on any n keys (n, 2), at the holder; times: by Delta."""
    sums, asked = okvs.decode(seed, keys, b, d)
    asked ^= hashing.target(keys)
    sums ^= times(asked)
    return hashing.values(sums, keys)
