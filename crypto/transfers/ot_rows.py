"""Random transfers 1-of-2^b by rows: the offerer has 2^b pads for each row, the chooser one of them, chosen at random.

Ishai, Kilian, Nissim, Petrank 2003 extend 128 base transfers to m = b (rows) transfers of keys. s: 128 secret bits of
the offerer, r: the chooser's m bits, b to a row, those of its choice chi, lowest first.

    base transfers   the offerer chooses s and has one seed of each of 128 pairs; the chooser has all
    T, T'            bits (m, 128): column j is the PRG on seed 0, on seed 1, of pair j
    chooser          U: column j is T_j ^ T'_j ^ r; sends U and the check
    offerer          Q: column j is T_j where s_j = 0, T'_j ^ U_j where it is 1; by rows q_i = t_i ^ r_i s
    keys             offerer: K_i0 = H(q_i, i), K_i1 = H(q_i ^ s, i);  chooser: K_i,r_i = H(t_i, i)
    pads of a row    pad(j) = H(xor over its b transfers i of K_i,j_i ; row, j), the low 64 bits

Rows of Q and T differ by one secret s throughout, so keys must be hashed, each with its own number, before any are
put together by XOR: unhashed, two unknown keys of two transfers XOR to a known one. After that the unknown keys of a
row are as good as independent, and every pad but the chosen one depends on at least one of them. H is `RowHash`.

To the offerer U is uniform: it lacks one of T, T' in each column. A chooser whose columns of U carry different r would
read bits of s out of pads; the *check* of Roy 2022 ("SoftSpokenOT", section 5), after Keller, Orsini, Scholl 2015, lets
it pass only as often as it guesses those bits. h is a universal hash that is linear over GF(2), GHASH with a key drawn
from U by hashing; the chooser sends h(r) and all h(T_j), the offerer compares h(Q_j) ^ h(T_j) with s_j h(r). A block
of 128 random transfers at the end makes h(r) uniform.

H(x, i) = pi(pi(x) ^ i) ^ pi(x) is a tweakable, circular correlation robust hash of 128 bits (Guo, Katz, Wang, Yu 2020,
"Efficient and secure multiparty computation from fixed-key block ciphers", section 7.4), with pi a public random
permutation, here AES-128 under a key that both parties make for their session. Inputs may be related by secrets of 128
bits (x and x ^ D), tweaks may be anything as long as no pair (x, i) repeats; with one call alone, pi(sigma(x) ^ i),
tweaks shift outputs into one another (the paper's section 7.1).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from gmpy2 import jacobi
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from numpy.typing import NDArray

from securevfl.crypto.prg import KEY_BYTES, Prg, derive_key
from securevfl.crypto.scheme import Secret
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError, CryptoError

# Base oblivious transfers: one end gets pairs of keys, the other one key of each pair, the one it has chosen.
#
# Chou, Orlandi 2015 ("The simplest protocol for oblivious transfer"), on Ed25519's group of prime order l with
# generator G, for transfers j = 1 .. n at once:
#
#     1. offerer -> chooser    A = a G
#     2. chooser -> offerer    B_j = b_j G + c_j A
#        keys                  offerer: Hash(j, A, B_j, a (B_j - m A)) for m = 0, 1;  chooser: Hash(j, A, B_j, b_j A)
#
# B_j is uniform whatever c_j, so the offerer learns nothing of the choices; under computational Diffie-Hellman, with
# the hash as a random oracle, the chooser has nothing of the other key. For semi-honest parties over an authenticated
# line. Products and sums of points are libsodium's.
#
# Points that come are checked here to be canonical, on the curve and in the group of prime order, and by libsodium once
# more. Of an offer with a part of small order each B_j would tell c_j, by whether it has that part too; libsodium took
# a part of order two for none until the end of 2025 (CVE-2025-69277).


POINT_BYTES = 32
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_BEFORE_ORDER = (_ORDER - 1).to_bytes(32, "little")


class Offerer(Secret):
    """The end that gets both keys of every pair; serves once."""

    __slots__ = ("_scalar", "offer")

    offer: bytes  # A, safe to publish

    def __init__(self) -> None:
        self._scalar = _scalar()
        self.offer = crypto_scalarmult_ed25519_base_noclamp(self._scalar)

    def pairs(self, choices: bytes) -> list[tuple[bytes, bytes]]:
        """Two keys of 32 bytes for each of the points (n x 32 bytes) that came. CryptoError if one is none."""
        if len(choices) % POINT_BYTES:
            raise CryptoError(f"base transfers: {len(choices)} bytes of points came, no multiple of {POINT_BYTES}")
        shift = crypto_scalarmult_ed25519_noclamp(self._scalar, self.offer)
        pairs = []
        for number, start in enumerate(range(0, len(choices), POINT_BYTES)):
            point = choices[start : start + POINT_BYTES]
            _check(point)
            shared = crypto_scalarmult_ed25519_noclamp(self._scalar, point)
            other = crypto_core_ed25519_sub(shared, shift)
            pairs.append((_key(number, self.offer, point, shared), _key(number, self.offer, point, other)))
        return pairs


def choose(offer: bytes, choices: list[bool]) -> tuple[bytes, list[bytes]]:
    """Return what to send back (n x 32 bytes), and the key of 32 bytes that each choice gives.

    CryptoError if the offer is no point of the group.
    """
    _check(offer)
    points, keys = [], []
    for number, choice in enumerate(choices):
        scalar = _scalar()
        plain = crypto_scalarmult_ed25519_base_noclamp(scalar)
        shifted = crypto_core_ed25519_add(plain, offer)
        point = shifted if choice else plain
        points.append(point)
        keys.append(_key(number, offer, point, crypto_scalarmult_ed25519_noclamp(scalar, offer)))
    return b"".join(points), keys


def _scalar() -> bytes:
    return (1 + secrets.randbelow(_ORDER - 1)).to_bytes(32, "little")


def _check(point: bytes) -> None:
    if not (_on_curve(point) and crypto_core_ed25519_is_valid_point(point) and _of_prime_order(point)):
        raise CryptoError(
            "base transfers: a canonical point of Ed25519's group of prime order was expected, something else came; "
            "the sender runs other software or is cheating"
        )


def _on_curve(point: bytes) -> bool:
    """Whether these are 32 bytes of a point with y < p, other than those with x = 0 (of order one and two)."""
    y = int.from_bytes(point, "little") & (2**255 - 1)
    # -x^2 + y^2 = 1 + d x^2 y^2 with d = -121665/121666, so x^2 = (y^2 - 1) / (d y^2 + 1): RFC 8032 section 5.1.3.
    return len(point) == POINT_BYTES and y < _P and jacobi((y * y - 1) * 121666 * (121666 - 121665 * y * y), _P) == 1


def _of_prime_order(point: bytes) -> bool:
    """Whether (l - 1) P = -P, that is, l P is the neutral point; -P is P with the other sign of x."""
    return crypto_scalarmult_ed25519_noclamp(_BEFORE_ORDER, point) == point[:-1] + bytes([point[-1] ^ 128])


def _key(number: int, offer: bytes, point: bytes, shared: bytes) -> bytes:
    context = number.to_bytes(4, "little") + offer + point + shared
    return hashlib.blake2b(context, digest_size=KEY_BYTES, person=b"securevfl ot").digest()


# Transposition of matrices of bits that are stored by columns.
#
# A square of 64 x 64 bits is transposed in six swaps of ever smaller blocks (Warren, Hacker's Delight, section 7-3),
# each for all squares at once.


_SIDE = 64
_WORDS_AT_ONCE = 1 << 16  # words that are swapped at a time
_SWAPS = tuple(  # by how many places, and which bits of a word go to another
    (shift, np.uint64(sum((2**shift - 1) << at for at in range(0, _SIDE, 2 * shift)))) for shift in (32, 16, 8, 4, 2, 1)
)


def transposed(columns: NDArray[np.uint8]) -> Words:
    """Row r of the result is bit r of every column: (64 m, k) octets to (8 k, m) words, lowest bit first everywhere."""
    count, octets = columns.shape
    if octets % 8:
        return transposed(np.pad(columns, ((0, 0), (0, 8 - octets % 8))))[: 8 * octets]
    words = np.ascontiguousarray(columns).view("<u8").reshape(-1, _SIDE, octets // 8)
    rows = np.empty((octets // 8, _SIDE, count // _SIDE), np.uint64)
    step = max(1, _WORDS_AT_ONCE // count)
    for start in range(0, octets // 8, step):
        some = words[:, :, start : start + step].astype(np.uint64)
        for shift, low in _SWAPS:
            blocks = some.reshape(len(some), -1, 2, shift, some.shape[2])
            above, below = blocks[:, :, 0], blocks[:, :, 1]
            swap = above >> np.uint64(shift)
            swap ^= below
            swap &= low
            below ^= swap
            swap <<= np.uint64(shift)
            above ^= swap
        rows[start : start + step] = some.transpose(2, 1, 0)
    return rows.reshape(8 * octets, -1)


BLOCK_WORDS = 2  # uint64 in a block of AES


class RowHash:
    """H under one public key of 16 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 16:
            raise CryptoError(f"row hash: a key of 16 bytes was expected, {len(key)} came")
        self.key = key
        self._permutation = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def __call__(self, x: Words, tweak: Words) -> Words:
        """H(x, tweak) (.., 2) for blocks x (.., 2); tweak (.., 2) broadcasts to the shape of x."""
        inner = self._permute(x)
        outer = self._permute(inner ^ tweak)
        outer ^= inner
        return outer

    def _permute(self, blocks: Words) -> Words:
        blocks = np.ascontiguousarray(blocks, "<u8")
        out = np.empty(blocks.nbytes + 15, np.uint8)
        self._permutation.update_into(blocks.reshape(-1).view(np.uint8).data, out.data)
        return out[: blocks.nbytes].view("<u8").reshape(blocks.shape).astype(np.uint64, copy=False)


def tweaks(first: int, count: int, purpose: int) -> Words:
    """Return the tweaks (count, 2) of rows: their numbers, from `first` on, and a purpose."""
    out = np.empty((count, BLOCK_WORDS), np.uint64)
    out[:, 0] = np.arange(first, first + count, dtype=np.uint64)
    out[:, 1] = purpose
    return out


COLUMNS = 128  # base transfers: bits of s
SECRET_BYTES = COLUMNS // 8
MOST_ROWS = 1 << 22  # of one block
_TAG = 16
_LABEL = "transfers by rows"
_AT_ONCE = 1024  # rows whose pads are made at a time
_CHOSEN_AT_ONCE = 4096  # rows of which one pad each is made at a time
_KEYS, _PADS = 1, 2  # purposes of tweaks

Octets = NDArray[np.uint8]


def fresh_secret() -> tuple[bytes, list[bool]]:
    """s: 16 secret bytes, and the same as the choices of the base transfers."""
    secret = os.urandom(SECRET_BYTES)
    return secret, np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()


def message_bytes(rows: int, bits: int) -> int:
    """How long the chooser's message for a block is."""
    return COLUMNS * _column_octets(rows, bits) + _TAG * (COLUMNS + 1)


def _column_octets(rows: int, bits: int) -> int:
    """Octets of a column: its transfers filled up to whole blocks of GHASH, and one block of random ones."""
    return -(-rows * bits // COLUMNS) * _TAG + _TAG


class _End(Secret):
    """What both ends share: numbers of blocks and rows, the hash."""

    __slots__ = ("_bits", "_blocks", "_coin", "_hash", "_rows")

    def __init__(self, coin: bytes, bits: int) -> None:
        if not 1 <= bits <= 8:
            raise ConfigError(f"transfers: 1 of 2^1 to 2^8 entries, 2^{bits} were asked for")
        self._bits = bits
        self._coin = coin
        self._hash = RowHash(derive_key(coin, _LABEL, bits)[:16])
        self._blocks = 0
        self._rows = 0

    def _next(self, rows: int) -> tuple[int, int]:
        """Take the number of the next block, and that of its first row."""
        if not 1 <= rows <= MOST_ROWS:
            raise ConfigError(f"transfers: a block has 1 to {MOST_ROWS} rows, {rows} were asked for; make several")
        number, first = self._blocks, self._rows
        self._blocks, self._rows = number + 1, first + rows
        return number, first

    def _tags(self, number: int, corrections: bytes | memoryview, columns: Iterable[Octets]) -> bytes:
        """h of each column, 16 bytes: GHASH under a key that U decides, plus the same constant for all."""
        hashed = hashlib.sha256(self._coin + number.to_bytes(8, "little"))
        hashed.update(corrections)
        challenge = hashed.digest()
        ghash = AESGCM(challenge[:16])
        return b"".join(ghash.encrypt(challenge[16:28], b"", column.data) for column in columns)


@dataclass(frozen=True, repr=False)
class Chosen:
    """The chooser's end of a block: its choices chi (rows,) below 2^b, and a pad (rows,) of 64 bits for each."""

    choices: Octets
    pads: Words


class Chooser(_End):
    """The end that gets one pad of each row."""

    __slots__ = ("_first", "_second")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], coin: bytes, bits: int) -> None:
        """pairs: 128 of 32-byte seeds from base transfers, fresh. coin: 32 bytes, public, for this session alone.

        ConfigError unless 1 <= bits <= 8.
        """
        super().__init__(coin, bits)
        self._first = [Prg(first, _LABEL) for first, _ in pairs]
        self._second = [Prg(second, _LABEL) for _, second in pairs]

    @staticmethod
    def choice_bytes(rows: int) -> int:
        """Return how many octets of choices `correlated` takes for this many rows of one bit."""
        return _column_octets(rows, 1)

    def correlated(self, rows: int, choices: bytes) -> tuple[bytes, Octets, Words]:
        """Return what to send for the next block of rows of one bit, their choices r (rows,), 0 or 1, and t (rows, 2).

        choices: random octets, as many as `choice_bytes` says. The other end has q = t ^ r s.
        """
        number, _ = self._next(rows)
        message, columns = self._columns(number, np.frombuffer(choices, np.uint8))
        bits = np.unpackbits(np.frombuffer(choices, np.uint8), count=rows, bitorder="little")
        return message, bits, transposed(columns)[:rows]

    def extend(self, rows: int) -> tuple[bytes, Chosen]:
        """Return what to send for the next block of rows, and this end of it."""
        number, start = self._next(rows)
        r = np.frombuffer(os.urandom(_column_octets(rows, self._bits)), np.uint8)
        message, columns = self._columns(number, r)
        bits = np.unpackbits(r, count=rows * self._bits, bitorder="little").reshape(rows, self._bits)
        choices = np.packbits(bits, axis=1, bitorder="little")[:, 0]
        return message, Chosen(choices, self._pads(transposed(columns), start, choices))

    def _columns(self, number: int, r: Octets) -> tuple[bytes, Octets]:
        """Return the message of a block whose transfers choose r, and the columns of T."""
        columns = _streams(self._first, number, len(r))
        corrections = _streams(self._second, number, len(r))
        corrections ^= columns
        corrections ^= r
        check = self._tags(number, corrections.data.cast("B"), [r, *columns])
        return b"".join([corrections.data, check]), columns

    def _pads(self, t: Words, start: int, choices: Octets) -> Words:
        pads, bits = np.empty(len(choices), np.uint64), self._bits
        for first in range(0, len(choices), _CHOSEN_AT_ONCE):
            some = choices[first : first + _CHOSEN_AT_ONCE]
            rows, number = len(some), start + first
            keys = self._hash(t[first * bits : (first + rows) * bits], tweaks(number * bits, rows * bits, _KEYS))
            total = _xor(keys.reshape(rows, bits, BLOCK_WORDS))
            tweak = tweaks(number, rows, _PADS)
            tweak[:, 1] |= some.astype(np.uint64) << np.uint64(8)
            pads[first : first + rows] = self._hash(total, tweak)[:, 0]
        return pads


class RowOfferer(_End):
    """The end that has all pads of each row."""

    __slots__ = ("_secret", "_seeds")

    def __init__(self, secret: bytes, seeds: Sequence[bytes], coin: bytes, bits: int) -> None:
        """secret: s, as `fresh_secret` made it. seeds: of each pair the one that its bit of s has chosen.

        ConfigError unless 1 <= bits <= 8.
        """
        super().__init__(coin, bits)
        self._secret = np.frombuffer(secret, np.uint8)
        self._seeds = [Prg(seed, _LABEL) for seed in seeds]

    def correlated(self, rows: int, message: bytes) -> Words:
        """Return q (rows, 2) of the next block, one bit a row, from the chooser's message. CryptoError as `extend`."""
        number, _ = self._next(rows)
        return self._columns(number, rows, message)

    def extend(self, rows: int, message: bytes) -> Offered:
        """Return this end of the next block of rows, from the chooser's message.

        CryptoError if the message has another length or fails the check: the session must end then.
        """
        number, start = self._next(rows)
        q, s = self._columns(number, rows, message), self._secret.view("<u8").astype(np.uint64)
        return Offered(self._hash, self._bits, start, q, s)

    def _columns(self, number: int, rows: int, message: bytes) -> Words:
        """Return the transfers (rows b, 2) of block `number`."""
        if len(message) != message_bytes(rows, self._bits):
            raise CryptoError(
                f"transfers: a message of {message_bytes(rows, self._bits)} bytes was expected for {rows} rows, "
                f"{len(message)} came; both sides must use the same rows and bits"
            )
        octets = _column_octets(rows, self._bits)
        corrections = memoryview(message)[: COLUMNS * octets]
        chosen = np.unpackbits(self._secret, bitorder="little").astype(bool)
        columns = _streams(self._seeds, number, octets)
        received = np.frombuffer(corrections, np.uint8).reshape(COLUMNS, octets)
        for column, came, taken in zip(columns, received, chosen * np.uint8(255), strict=True):
            column ^= came & taken
        self._check(number, corrections, message[COLUMNS * octets :], columns, chosen)
        return transposed(columns)[: rows * self._bits]

    def _check(
        self, number: int, corrections: memoryview, check: bytes, columns: Octets, chosen: NDArray[np.bool_]
    ) -> None:
        zero = np.zeros(columns.shape[1], np.uint8)
        tags = np.frombuffer(self._tags(number, corrections, [zero, *columns]), np.uint8)
        tags, sent = tags.reshape(-1, _TAG), np.frombuffer(check, np.uint8).reshape(-1, _TAG)
        expected = tags[1:] ^ np.where(chosen[:, None], sent[0] ^ tags[0], 0).astype(np.uint8)
        if not hmac.compare_digest(expected.tobytes(), sent[1:].tobytes()):
            raise CryptoError("transfers: the columns that came do not carry one choice; the peer is cheating: stop")


class Offered(Secret):
    """The offerer's end of a block: pads are made when they are asked for, since they take 2^b words a row."""

    __slots__ = ("_bits", "_hash", "_q", "_s", "_start", "rows")

    def __init__(self, hashed: RowHash, bits: int, start: int, q: Words, s: Words) -> None:
        self._hash, self._bits, self._start, self._q, self._s = hashed, bits, start, q, s
        self.rows = len(q) // bits

    def stored(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return the rows from `first` up to `last`, as bytes to be kept where secrets may be; see `restored`."""
        head = struct.pack("<BQ", self._bits, self._start + first)
        q = self._q[first * self._bits : last * self._bits]
        return head, self._hash.key, self._s.astype("<u8").tobytes(), q.astype("<u8", copy=False).tobytes()

    @classmethod
    def restored(cls, parts: tuple[bytes, ...]) -> Offered:
        """Restore the rows that `stored` wrote."""
        head, key, s, q = parts
        bits, start = struct.unpack("<BQ", head)
        words = (np.frombuffer(each, "<u8").astype(np.uint64, copy=False) for each in (q, s))
        return cls(RowHash(key), bits, start, next(words).reshape(-1, BLOCK_WORDS), next(words))

    def pads(self, first: int, last: int) -> Words:
        """Return the pads (2^b, last - first) of 64 bits of the rows from `first` up to `last` of this block."""
        out = np.empty((2**self._bits, last - first), np.uint64)
        numbers = tweaks(self._start + first, min(_AT_ONCE, last - first), _PADS)
        tweak = np.repeat(numbers[None], 2**self._bits, axis=0)
        tweak[:, :, 1] |= (np.arange(2**self._bits, dtype=np.uint64) << np.uint64(8))[:, None]
        for start in range(first, last, _AT_ONCE):
            stop = min(start + _AT_ONCE, last)
            out[:, start - first : stop - first] = self._some(start, stop, tweak[:, : stop - start])
            tweak[:, :, 0] += np.uint64(_AT_ONCE)
        return out

    def _some(self, first: int, last: int, numbered: Words) -> Words:
        """Return the pads of some rows; `numbered` (2^b, rows, 2): the tweak of each."""
        bits, rows = self._bits, last - first
        q = self._q[first * bits : last * bits]
        tweak = tweaks((self._start + first) * bits, rows * bits, _KEYS)
        zeros, ones = (self._hash(each, tweak).reshape(rows, bits, BLOCK_WORDS) for each in (q, q ^ self._s))
        mixed = np.empty((2**bits, rows, BLOCK_WORDS), np.uint64)
        mixed[0] = _xor(zeros)
        for bit in range(bits):
            np.bitwise_xor(mixed[: 1 << bit], zeros[:, bit] ^ ones[:, bit], out=mixed[1 << bit : 2 << bit])
        return self._hash(mixed, numbered)[..., 0]


def _streams(prgs: Sequence[Prg], number: int, octets: int) -> Octets:
    """Columns (128, octets) of block `number`."""
    columns = np.empty((COLUMNS, octets // 8), np.uint64)
    for column, prg in zip(columns, prgs, strict=True):
        prg.fill(column, number=number)
    return columns.view(np.uint8)


def _xor(keys: Words) -> Words:
    """XOR of the keys (rows, bits, 2) of each row."""
    total = keys[:, 0].copy()
    for bit in range(1, keys.shape[1]):
        total ^= keys[:, bit]
    return total


# A network of switches that brings rows into any order: each switch swaps the values of two wires, or does not.
#
# Benes 1964, for any number of wires (Chang and Melhem 1997; Beauquier and Darrot 2002). A network of n wires is a row
# of floor(n/2) switches over neighbours, a network over all first wires of these pairs and one over all second ones
# (with the last wire, if n is odd, which has no switch), and the same row of switches again; of two wires it is one
# switch. That makes n log2 n - n/2 switches where n is a power of two, and about that elsewhere: no wires are added.
# Which switches there are depends on n alone, so an order is one bit a switch.
#
# Settings: two values that enter by one switch must take different inner networks, and so must two that leave by one.
# So every value has one neighbour at its entrance and one at its exit, and the graph of these is a set of even cycles,
# which have two colours. From a value two steps on (in by its exit's neighbour, out by that one's entrance) the colour
# is the same; the smallest number among all that are reached so, found by doubling the steps, tells which of the two it
# takes.


Places = NDArray[np.intp]
Settings = NDArray[np.uint8]  # 1 where a switch swaps


class SwitchNetwork:
    """The switches for rows in blocks of these sizes, each block put in an order of its own. ConfigError without rows.

    layers: pairs of wires (k,), (k,) that are switched at once, in order. switches: how many there are.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        if not sizes or min(sizes) < 1:
            raise ConfigError("an order of rows: one row or more was expected, none came; bring rows")
        self.rows = sum(sizes)
        self._levels: list[_Level] = []
        counts, wires = np.array(sizes), np.arange(self.rows)
        while len(counts):
            level = _Level(counts, wires)
            self._levels.append(level)
            counts, wires = level.inner
        entering = [(level.wires, level.enters) for level in self._levels]
        leaving = [(level.wires, level.leaves) for level in reversed(self._levels)]
        self.layers = [(wires[2 * at], wires[2 * at + 1]) for wires, at in (*entering, *leaving) if len(at)]
        self.switches = sum(len(first) for first, _ in self.layers)

    def settings(self, order: Places) -> Settings:
        """How the switches (switches,) stand so that row j of the outcome is row order[j] of what entered."""
        entering, leaving, source = [], [], order
        for level in self._levels:
            filled = level.filled(source)
            lower = level.colours(filled)
            entering.append(lower[2 * level.enters])
            leaving.append(lower[filled[2 * level.leaves]])
            source = level.within(filled, lower)
        return np.concatenate([*entering, *reversed(leaving)])

    def apply(self, settings: Settings, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values (rows, ...) as they leave the network when its switches stand as in `settings`."""
        out, start = values.copy(), 0
        for first, second in self.layers:
            crossed = settings[start : start + len(first)].astype(bool)
            start += len(first)
            one, other = first[crossed], second[crossed]
            out[one], out[other] = out[other], out[one]
        return out


class _Level:
    """The inner networks of one depth side by side, each filled up to an even number of wires; neighbours are the
    places 2 i and 2 i + 1.

    wires: the wire of each place, -1 where it was filled in. enters, leaves: the pairs that have a switch before and
    behind the networks of the next depth. inner: sizes and wires of these.
    """

    def __init__(self, counts: Places, wires: Places) -> None:
        """Make one depth of networks. counts: their sizes in wires, one or more; wires: those of all, one after
        another."""
        even = counts + counts % 2
        starts = np.cumsum(even) - even
        self._places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(len(wires))
        self.wires = np.full(int(even.sum()), -1)
        self.wires[self._places] = wires
        whole, long = self.wires[1::2] >= 0, np.repeat(counts > 2, even // 2)
        self.enters, self.leaves = np.flatnonzero(whole & long), np.flatnonzero(whole)
        self._longest = int(even.max())
        sizes = np.stack([counts // 2, even // 2], axis=1).ravel()
        number = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._pair, self._lower = starts[number // 2] // 2 + within, number % 2
        kept = sizes[number] > 1
        self._pair, self._lower = self._pair[kept], self._lower[kept]
        last = self.wires[2 * self._pair + self._lower]
        self.inner = sizes[sizes > 1], np.where(last < 0, self.wires[2 * self._pair], last)
        self._entrance = np.full((2, len(self.wires) // 2), -1)
        self._entrance[self._lower, self._pair] = np.arange(len(self._pair))

    def filled(self, source: Places) -> Places:
        """Return for each place the one that its value comes from; what was filled in stays where it is."""
        found = np.arange(len(self.wires))
        found[self._places] = self._places[source]
        return found

    def colours(self, source: Places) -> Settings:
        """Say for each place where a value enters whether it takes the network of second wires: 1 if so, else 0."""
        places = np.arange(len(source))
        leaves_at = np.empty_like(source)
        leaves_at[source] = places
        step = source[leaves_at ^ 1] ^ 1
        smallest = np.where(self.wires < 0, places - len(source), places)  # what was filled in takes the first wires
        for _ in range(self._longest.bit_length()):
            smallest = np.minimum(smallest, smallest[step])
            step = step[step]
        return (smallest > smallest[places ^ 1]).astype(np.uint8)

    def within(self, source: Places, lower: Settings) -> Places:
        """Return the order that each network of the next depth brings its rows into."""
        first = source[2 * self._pair]
        value = np.where(lower[first] == self._lower, first, source[2 * self._pair + 1])
        return self._entrance[self._lower, value // 2]


@lru_cache(maxsize=4)
def network(rows: int, blocks: int = 1) -> SwitchNetwork:
    """Build the network for so many blocks of as many rows each."""
    return SwitchNetwork((rows,) * blocks)
