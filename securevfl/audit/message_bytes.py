"""Parsing of a message's bytes: public header, residues with their moduli, and values that must never occur twice.

Encryption engines write versioned headers (`crypto.paillier`, `crypto.kernel.row_products`, `crypto.kernel.shares`,
`crypto.lattice.lattice_sum`). A residue is a number modulo a public modulus, of which ciphertexts consist. Parsing
removes headers, so that statistics see residues alone. Bytes of another format are read as little-endian words of eight
bytes.

A ciphertext consists of two polynomials (c0, c1); of ciphertexts under a secret key, a seed replaces c1. Rows are
encrypted ("sealed") in groups called sample blocks, by a layout. A query is a key holder's message with encrypted
vectors, an answer the peer's message with encrypted products of these vectors and its data, and an opening a message
with decrypted, masked values, which may be followed by check values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import seeded_vectors, share_protocol, shares
from securevfl.crypto.kernel.ciphertexts import column_groups
from securevfl.crypto.kernel.gradient import GradientParameters
from securevfl.crypto.kernel.opening_checks import columns_with_checks
from securevfl.crypto.kernel.residue_bytes import packed_size, unpack
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout, checked_layout
from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, OPENED_HEADER, SEALED_HEADER
from securevfl.crypto.kernel.row_plaintexts import BLOCKS_PER_PIECE
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES as SEED
from securevfl.crypto.lattice import lattice_shares, residue_encoding, seal_io
from securevfl.crypto.lattice.lattice_gradient import LatticeGradientParameters
from securevfl.crypto.paillier import paillier_messages
from securevfl.crypto.paillier.packing import choose_packing
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS
from securevfl.errors import CryptoError
from securevfl.runtime.codec import Message

NO_FRACTIONS: Floats = np.empty(0)
NO_BYTES: NDArray[np.uint8] = np.empty(0, np.uint8)

_PAILLIER = struct.Struct(">4sBB16sIIIdI")
_PAILLIER_KEY = struct.Struct(">4sBH")
_SUM = struct.Struct("<4s16sIIIId")
# bits of shares for which the encryption has primes; shares of fewer bits use the primes of the next larger entry
_RINGS = (40, 48, 56)


@dataclass(frozen=True)
class Body:
    """One bytes field of a message.

    Attributes:
        form: kind of the field: key, ciphertext, opened or raw.
        header: public header, without names of keys.
        fractions: each residue divided by its modulus.
        low: lowest byte of each residue.
        fresh: one entry for each single-use piece of randomness.
        bare: number of Paillier ciphertexts 1 + m * N, from which anyone can read m without a key.
    """

    form: str
    header: tuple[Any, ...] = ()
    fractions: Floats = field(default_factory=lambda: NO_FRACTIONS)
    low: NDArray[np.uint8] = field(default_factory=lambda: NO_BYTES)
    fresh: tuple[bytes, ...] = ()
    bare: int = 0


def public_moduli(messages: Iterable[Message]) -> dict[bytes, int]:
    """Return the modulus n of every Paillier key among the messages, by its fingerprint."""
    moduli = {}
    for data in (data for message in messages for data in byte_fields(message) if data[:4] == b"SVPK"):
        bits = _PAILLIER_KEY.unpack_from(data)[2]
        n = int.from_bytes(data[_PAILLIER_KEY.size : _PAILLIER_KEY.size + bits // 8], "big")
        moduli[sha256(data).digest()[:16]] = n
    return moduli


def byte_fields(message: Message) -> list[bytes]:
    """Return the bytes fields of a message, those in lists included."""
    values = msgspec.structs.astuple(message)
    items = (item for value in values for item in (value if isinstance(value, list | tuple) else [value]))
    return [item for item in items if isinstance(item, bytes)]


def array_fields(message: Message) -> list[NDArray[Any]]:
    """Return the array fields of a message."""
    return [value for value in msgspec.structs.astuple(message) if isinstance(value, np.ndarray)]


def bodies(message: Message, moduli: Mapping[bytes, int]) -> list[Body]:
    """Parse the bytes fields of a message. Bytes with an invalid format are raw."""
    return [_body(data, moduli) for data in byte_fields(message) if data]


def _body(data: bytes, moduli: Mapping[bytes, int]) -> Body:
    """Parse one bytes field by its first four bytes."""
    magic = data[:4]
    try:
        if magic in _KEYS:
            return Body("key", (magic, len(data)), fresh=(data,))
        if magic == b"SVPC":
            return _paillier(data, moduli)
        if magic in _READERS:
            return _READERS[magic](data)
    except (struct.error, ValueError, KeyError):
        pass
    return raw(data)


def raw(data: bytes, word: int = 8) -> Body:
    """Read bytes as little-endian words of `word` bytes; each piece of 32 bytes counts as single-use randomness."""
    octets = np.frombuffer(data, np.uint8)
    fresh = tuple(data[i : i + 32] for i in range(0, len(data) - 31, 32)) if len(data) >= 32 else ()
    size = len(data) // word * word
    words = np.frombuffer(data[:size], f"<u{word}")
    return Body("raw", (len(data),), words / 2.0 ** (8 * word), octets, fresh)


def _paillier(data: bytes, moduli: Mapping[bytes, int]) -> Body:
    """Parse Paillier ciphertexts or opened numbers."""
    _, _, kind, key, a, b, c, bound, count = _PAILLIER.unpack_from(data)
    body = data[_PAILLIER.size :]
    width = len(body) // max(1, count)
    numbers = [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
    header = ("SVPC", kind, a, b, c, bound, count)
    n = moduli[key]
    if kind == paillier_messages.MessageKind.OPENED:
        bits = choose_packing(n.bit_length(), a).width
        fractions = np.array([x / 2**bits for x in numbers])
        fresh = tuple(x.to_bytes(width, "big") for x in numbers)
        return Body("opened", header, fractions, np.array([x & 255 for x in numbers], np.uint8), fresh)
    bits = n.bit_length() - 64
    fractions = np.array([(x // n >> bits) / (n >> bits) for x in numbers])
    parts = [x % n for x in numbers]
    return Body(
        "ciphertext",
        header,
        np.concatenate([fractions, [(x >> bits) / (n >> bits) for x in parts]]),
        np.array([[x // n & 255, x & 255] for x in numbers], np.uint8).ravel(),
        tuple(x.to_bytes(width, "big") for x in parts if x != 1),
        parts.count(1),
    )


@lru_cache(maxsize=1)
def _gradients() -> tuple[GradientParameters, LatticeGradientParameters]:
    return GradientParameters(), LatticeGradientParameters()


def _residues(residues: NDArray[np.uint64], primes: list[int]) -> tuple[Floats, NDArray[np.uint8]]:
    column = np.array(primes, np.float64)[:, None]
    return (residues / column).ravel(), (residues & np.uint64(255)).astype(np.uint8).ravel()


def _joined(form: str, header: tuple[Any, ...], parts: list[_Part], fresh: Any) -> Body:
    return Body(
        form,
        header,
        np.concatenate([fractions for fractions, _ in parts]),
        np.concatenate([low for _, low in parts]),
        tuple(fresh),
    )


_Part = tuple[Floats, NDArray[np.uint8]]


class _Wire(NamedTuple):
    """How an engine writes residues. SEAL writes each ciphertext separately, followed by its seed.

    Attributes:
        moduli: the moduli of the residues.
        size: a function from a number of residues to their size in bytes.
        read: a function that reads a number of residues from bytes.
        on_seal: whether SEAL writes them.
    """

    moduli: list[int]
    size: Callable[[int], int]
    read: Callable[[memoryview, int], NDArray[np.uint64]]
    on_seal: bool

    def split(
        self, view: memoryview, counts: Iterable[int]
    ) -> tuple[list[tuple[Floats, NDArray[np.uint8]]], list[bytes]]:
        """Read consecutive residues and the single-use values among them.

        Args:
            view: the bytes of a message after its header.
            counts: the number of residues of each item; a negative number is the number of bytes of a seed.

        Returns:
            The residues of each item, and its seeds and the first bytes of each polynomial.
        """
        parts, fresh = [], []
        for count in counts:
            size = -count if count < 0 else self.size(count)
            if count < 0 or count >= DEGREE:
                fresh.append(bytes(view[: min(size, 64)]))
            if count > 0:
                parts.append(_residues(self.read(view, count), self.moduli))
            view = view[size:]
        return parts, fresh

    def sealed(self, where: RingLayout, blocks: int) -> list[int]:
        """Return the counts that `split` needs to read `blocks` blocks of rows that were encrypted in one message."""
        counts = []
        for outputs in where.outputs:
            count = where.points * (outputs.stop - outputs.start)
            counts += [count, -seal_io.SEAL_SEED_BYTES] * blocks if self.on_seal else [-SEED, count * blocks]
        return counts

    def answer(self, where: RingLayout, d: int, *, seeded: bool = False) -> list[int]:
        """Return the counts that `split` needs to read an answer about d columns: c1, then the requested part of c0.

        Args:
            where: the layout.
            d: the number of columns.
            seeded: whether a seed follows c1 in place of the requested coefficients of c0.

        Returns:
            The counts.
        """
        groups = lattice_shares.blocks(where, d, 1) if self.on_seal else column_groups(where, d)
        sizes = [(1 if self.on_seal else group.stop - group.start, part.stop - part.start) for group, part in groups]
        widths = [outputs.stop - outputs.start for outputs in where.outputs]
        return [x for width in widths for b, f in sizes for x in (b * DEGREE, -SEED if seeded else f * width)]


def _wire(parameters: Any) -> _Wire:
    attribute = "ring" if isinstance(parameters, LatticeGradientParameters) else "bfv"
    ring = getattr(parameters, attribute, None)
    if ring is not None:
        primes = ring.primes
        return _Wire(
            primes,
            lambda count: residue_encoding.packed_size(primes, count),
            lambda view, count: residue_encoding.unpack(view, primes, count),
            True,
        )
    column = np.array(parameters.primes.values)[:, None]
    return _Wire(
        [int(p) for p in parameters.primes.values],
        lambda count: packed_size(parameters.primes, count),
        lambda view, count: np.mod(unpack(parameters.primes, view, (count,)), column).astype(np.uint64),
        False,
    )


def _parse_opened(data: bytes) -> Body:
    """Parse an opening of a lattice scheme: decrypted, masked values and their check values."""
    _, _, count, checks = OPENED_HEADER.unpack_from(data)
    values = np.frombuffer(data, "<i4", count + checks, offset=OPENED_HEADER.size)
    fractions = (values / _gradients()[data[:4] == b"SLO4"].levels) % 1.0
    fresh = (data[OPENED_HEADER.size :],) if count > 1 else ()
    return Body("opened", (data[:4].decode(), count), fractions, (values & 255).astype(np.uint8), fresh)


def _gradient(data: bytes, wire: _Wire) -> Body:
    """Parse encrypted residuals, or the answer: their encrypted products with columns, plus masks."""
    asks = data[2:3] == b"G"
    _, _, n, c, r, s, bound_or_columns = (SEALED_HEADER if asks else BLINDED_HEADER).unpack_from(data)
    where, view = (
        checked_layout("audit", n, c, r, s),
        memoryview(data)[(SEALED_HEADER if asks else BLINDED_HEADER).size :],
    )
    counts = [] if asks else wire.answer(where, columns_with_checks(where, bound_or_columns))
    left = len(view) // wire.size(where.points * c) if asks else 0
    for start in range(0, left, BLOCKS_PER_PIECE):
        counts += wire.sealed(where, min(BLOCKS_PER_PIECE, left - start))
    parts, fresh = wire.split(view, counts)
    return _joined("ciphertext", (data[:4].decode(), n, c, r, s, bound_or_columns), parts, fresh)


def _shared(data: bytes, parameters: Callable[[int], Any]) -> Body:
    """Parse a query for products of shares, or the answer; its length determines the number of bits of the shares."""
    asks = data[2:3] == b"V"
    _, _, *sizes = (share_protocol.QUERY_HEADER if asks else share_protocol.REPLY_HEADER).unpack_from(data)
    view = memoryview(data)[(share_protocol.QUERY_HEADER if asks else share_protocol.REPLY_HEADER).size :]
    candidates = [parameters(bits) for bits in _RINGS]
    if parameters is shares.ShareParameters:
        candidates += [shares.ShareParameters(max(_RINGS), primes) for primes in shares.SHORT_PRIMES]
    for ring_parameters in candidates:
        n, c, r, s = sizes if asks else (sizes[2], *sizes[:3])
        where, wire = ring_parameters.layout(n, c, r, s), _wire(ring_parameters)
        if len(view) != (ring_parameters.query_size(where) if asks else ring_parameters.reply_size(where, sizes[3])):
            continue
        if not asks:
            counts = wire.answer(where, sizes[3], seeded=not wire.on_seal)
        elif wire.on_seal:
            counts = wire.sealed(where, where.sample_blocks)
        else:  # all ciphertexts of the message share one seed
            counts = [-SEED, where.points * where.sample_blocks * c]
        parts, fresh = wire.split(view, counts)
        return _joined("ciphertext", (data[:4], *sizes), parts, fresh)
    raise ValueError("the length fits no ring")


def _seeded(data: bytes) -> Body:
    """Parse a query that consists of a seed and of remainders (`securevfl.crypto.kernel.seeded_vectors`).

    The length and the largest remainder determine the number of bits of the shares.
    """
    _, _, n, c, r, s = share_protocol.QUERY_HEADER.unpack_from(data)
    body = data[share_protocol.QUERY_HEADER.size :]
    rings = {bits: shares.ShareParameters(bits).primes for bits in _RINGS}
    for bits, primes in sorted(rings.items(), key=lambda ring: seeded_vectors.remainder_limit(ring[1], ring[0])):
        if len(body) == SEED + seeded_vectors.remainders_size(primes, bits, n * c):
            limit = seeded_vectors.remainder_limit(primes, bits)
            try:
                numbers = seeded_vectors.unpack_remainders(primes, bits, body[SEED:], n * c) + limit
            except CryptoError:
                continue
            header = data[:4], n, c, r, s
            return Body(
                "ciphertext", header, numbers / (2 * limit + 1), (numbers & 255).astype(np.uint8), (body[:SEED],)
            )
    raise ValueError("the length fits no ring")


@lru_cache(maxsize=3)
def _share_parameters(bits: int) -> lattice_shares.BfvParameters:
    return lattice_shares.BfvParameters(bits)


def _summed(data: bytes) -> Body:
    """Parse the ciphertexts of a message of an encrypted sum (`securevfl.crypto.lattice.lattice_sum`)."""
    _, _, m, terms, summed, noises, bound = _SUM.unpack_from(data)
    primes = _sum_primes()
    size = residue_encoding.packed_size(primes, DEGREE)
    parts, fresh = [], []
    for index, start in enumerate(range(_SUM.size, len(data), size)):
        parts.append(_residues(residue_encoding.unpack(data[start:], primes, DEGREE), primes))
        if index % 2:
            fresh.append(data[start : start + 64])
    return _joined("ciphertext", ("SLS2", m, terms, summed, noises, bound), parts, fresh)


_KEYS = (b"SVPK", b"SLK3", b"SLA3", b"SSK1", b"SKK2", b"SGK2")
_READERS: dict[bytes, Callable[[bytes], Body]] = {
    b"SLS2": _summed,
    **dict.fromkeys((b"SGO1", b"SLO4"), _parse_opened),
    **dict.fromkeys((b"SGG2", b"SGB2"), lambda data: _gradient(data, _wire(_gradients()[0]))),
    **dict.fromkeys((b"SLG3", b"SLB4"), lambda data: _gradient(data, _wire(_gradients()[1]))),
    shares.SEEDED_QUERY: _seeded,
    **dict.fromkeys((b"SKV2", b"SKR3"), lambda data: _shared(data, shares.ShareParameters)),
    **dict.fromkeys((b"SSV2", b"SSR2"), lambda data: _shared(data, _share_parameters)),
}


@lru_cache(maxsize=1)
def _sum_primes() -> list[int]:
    from securevfl.crypto.lattice.lattice_sum import LatticeSum

    return LatticeSum()._ring.primes


def opened_numbers(body: Body) -> int | None:
    """Return the number of values in an opening, without its check values; None if the field is not an opening."""
    match body.header:
        case ("SVPC", paillier_messages.MessageKind.OPENED, _, c, d, _, count):
            return int(count) - PAILLIER_CHECKS * c if count == c * (d + PAILLIER_CHECKS) else int(count)
        case ("SLO4" | "SGO1", count):
            return int(count)
    return None
