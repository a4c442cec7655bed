"""The bytes of a message taken apart: public header, residues with their moduli, and what must never occur twice.

Engines write versioned headers (`crypto.paillier.packing`, `crypto.lattice.layout`,
`crypto.lattice.lattice_sum`); they come off first, so that statistics see residues alone. Bytes of another format are
taken as little-endian words of eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import cycle
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import gradient
from securevfl.crypto.kernel import shares as kernel
from securevfl.crypto.kernel.ciphertexts import RingLayout, column_groups, named, packed_size, unpack
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.lattice import bfv_product, polynomial_ring
from securevfl.crypto.lattice.layout import BLINDED, OPENED, SEALED, FixedPoint, Layout, Parameters
from securevfl.crypto.lattice.row_products import checked
from securevfl.crypto.paillier import packing
from securevfl.crypto.paillier.packing import layout
from securevfl.crypto.paillier.paillier_product import CHECKS
from securevfl.crypto.prg import KEY_BYTES as SEED
from securevfl.runtime.codec import Message

NO_FRACTIONS: Floats = np.empty(0)
NO_BYTES: NDArray[np.uint8] = np.empty(0, np.uint8)

_PAILLIER = struct.Struct(">4sBB16sIIIdI")
_PAILLIER_KEY = struct.Struct(">4sBH")
_SUM = struct.Struct("<4s16sIIIId")
_RINGS = (48, 56)  # bits of shares; those of fewer have the primes of the first
_KERNEL_RINGS = (40, 48, 56)


@dataclass(frozen=True)
class Body:
    """One bytes field of a message.

    header: what anyone may read, key names left out. fractions: each residue divided by its modulus. low: the lowest
    byte of each residue. fresh: one entry for each piece of randomness that serves once.
    """

    form: str
    header: tuple[Any, ...] = ()
    fractions: Floats = field(default_factory=lambda: NO_FRACTIONS)
    low: NDArray[np.uint8] = field(default_factory=lambda: NO_BYTES)
    fresh: tuple[bytes, ...] = ()
    bare: int = 0  # ciphertexts 1 + mN, which open without a key


def public_moduli(messages: Iterable[Message]) -> dict[bytes, int]:
    """n of every Paillier key among the messages, by its fingerprint."""
    moduli = {}
    for data in (data for message in messages for data in byte_fields(message) if data[:4] == b"SVPK"):
        bits = _PAILLIER_KEY.unpack_from(data)[2]
        n = int.from_bytes(data[_PAILLIER_KEY.size : _PAILLIER_KEY.size + bits // 8], "big")
        moduli[sha256(data).digest()[:16]] = n
    return moduli


def byte_fields(message: Message) -> list[bytes]:
    """Every bytes value of the message, lists included."""
    values = msgspec.structs.astuple(message)
    items = (item for value in values for item in (value if isinstance(value, list | tuple) else [value]))
    return [item for item in items if isinstance(item, bytes)]


def array_fields(message: Message) -> list[NDArray[Any]]:
    """Every array of the message."""
    return [value for value in msgspec.structs.astuple(message) if isinstance(value, np.ndarray)]


def bodies(message: Message, moduli: Mapping[bytes, int]) -> list[Body]:
    """Take apart the bytes fields of the message. Bytes that claim a format and do not keep it are raw."""
    return [_body(data, moduli) for data in byte_fields(message) if data]


def _body(data: bytes, moduli: Mapping[bytes, int]) -> Body:
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
    """Bytes as words of `word` bytes; each run of 32 bytes must be fresh."""
    octets = np.frombuffer(data, np.uint8)
    fresh = tuple(data[i : i + 32] for i in range(0, len(data) - 31, 32)) if len(data) >= 32 else ()
    whole = len(data) // word * word
    words = np.frombuffer(data[:whole], f"<u{word}")
    return Body("raw", (len(data),), words / 2.0 ** (8 * word), octets, fresh)


def _paillier(data: bytes, moduli: Mapping[bytes, int]) -> Body:
    _, _, kind, key, a, b, c, bound, count = _PAILLIER.unpack_from(data)
    body = data[_PAILLIER.size :]
    width = len(body) // max(1, count)
    numbers = [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
    header = ("SVPC", kind, a, b, c, bound, count)
    n = moduli[key]
    if kind == packing.MessageKind.OPENED:
        bits = layout(n.bit_length(), a).width
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
def parameters() -> Parameters:
    """Return the sizes of the lattice engine."""
    return Parameters()


class Residues:
    """Residues behind a header, taken off polynomial by polynomial, and what serves once among their bytes."""

    def __init__(self, data: bytes, header: int) -> None:
        self.view = memoryview(data)[header:]
        self.fresh: list[bytes] = []
        self._fractions: list[Floats] = []
        self._low: list[NDArray[np.uint8]] = []

    def take(self, primes: list[int], count: int, fresh: slice | None = None, size: int | None = None) -> None:
        """Take `count` residues modulo each prime off `size` bytes; `fresh`: which of these bytes serve once."""
        size = size or polynomial_ring.packed_size(primes, count)
        self._add(polynomial_ring.unpack(self.view, primes, count), primes)
        self.fresh += [] if fresh is None else [bytes(self.view[:size][fresh])]
        self.view = self.view[size:]

    def take_small(self, primes: Primes, *counts: int) -> None:
        """Take so many residues on the kernel, one lot after another; the first bytes of each polynomial serve once."""
        moduli = [int(p) for p in primes.values]
        for count in counts:
            residues = unpack(primes, self.view, (count,))
            self._add(np.mod(residues, np.array(moduli)[:, None]).astype(np.uint64), moduli)
            self.fresh += [bytes(self.view[_HEAD])] if count >= DEGREE else []
            self.view = self.view[packed_size(primes, count) :]

    def _add(self, residues: NDArray[np.uint64], moduli: list[int]) -> None:
        self._fractions.append((residues / np.array(moduli, np.float64)[:, None]).ravel())
        self._low.append((residues & np.uint64(255)).astype(np.uint8).ravel())

    def body(self, *header: Any) -> Body:
        """Return what was taken as the body of a ciphertext."""
        return Body("ciphertext", header, np.concatenate(self._fractions), np.concatenate(self._low), tuple(self.fresh))


_HEAD, _LAST = slice(64), slice(-polynomial_ring.SEED_BYTES, None)  # bytes of a polynomial, and its seed


def _sealed(data: bytes) -> Body:
    _, _, *sizes = SEALED.unpack_from(data)
    own, residues = parameters(), Residues(data, SEALED.size)
    while residues.view:
        residues.take(own.ring.primes, own.ring.degree, _LAST, own.sealed_size)
    return residues.body("SLG2", *sizes)


def _blinded(data: bytes) -> Body:
    _, _, n, c, s, p, d = BLINDED.unpack_from(data)
    own, residues = parameters(), Residues(data, BLINDED.size)
    where = own.layout(n, c, s, p)
    for count in _answered(where, checked(where, d), own.ring.degree):
        residues.take(own.ring.primes, count, _HEAD if count == own.ring.degree else None)
    return residues.body("SLB3", n, c, s, p, d)


def _answered(where: Layout, width: int, degree: int) -> list[int]:
    """How many residues stand together in an answer about columns: a polynomial, then those wanted of another."""
    blocks = [(a, b) for a in range(where.output_blocks) for b in range(where.column_blocks(width))]
    return [count for a, b in blocks for count in (degree, len(where.wanted(width, b, a)))]


def _parse_opened(data: bytes) -> Body:
    _, _, count, checks = OPENED.unpack_from(data)
    values = np.frombuffer(data, "<i4", count + checks, offset=OPENED.size)
    own: FixedPoint = parameters() if data[:4] == b"SLO3" else gradient.GradientParameters()
    fractions = (values / own.levels) % 1.0
    fresh = (data[OPENED.size :],) if count > 1 else ()
    return Body("opened", (data[:4].decode(), count), fractions, (values & 255).astype(np.uint8), fresh)


def _summed(data: bytes) -> Body:
    _, _, m, terms, summed, noises, bound = _SUM.unpack_from(data)
    (primes, degree), residues = _sum_primes(), Residues(data, _SUM.size)
    fresh = cycle((None, _HEAD))
    while residues.view:
        residues.take(primes, degree, next(fresh))
    return residues.body("SLS1", m, terms, summed, noises, bound)


def _parse_shared(data: bytes) -> Body:
    """Take apart a query about shares, or the answer to one; its length tells of which ring it is."""
    asks = data[:4] == b"SSV1"
    head = bfv_product.SEALED if asks else bfv_product.REPLY
    _, _, *sizes = head.unpack_from(data)
    residues = Residues(data, head.size)
    for bits in _RINGS:
        own = _share_parameters(bits)
        primes, degree = own.bfv.primes, bfv_product.DEGREE
        if asks:
            where = own.layout(*sizes)
            counts = [degree] * (where.sample_blocks * where.output_blocks)
            pieces = [own.sealed_size] * len(counts)
        else:
            c, s, p, d = sizes
            counts = _answered(own.layout(s, c, s, p), d, degree)
            pieces = [polynomial_ring.packed_size(primes, count) for count in counts]
        if sum(pieces) == len(residues.view):
            for count, size in zip(counts, pieces, strict=True):
                residues.take(primes, count, (_LAST if asks else _HEAD) if count == degree else None, size)
            return residues.body(data[:4], *sizes)
    raise ValueError("of no ring")


@lru_cache(maxsize=2)
def _share_parameters(bits: int) -> bfv_product.BfvParameters:
    return bfv_product.BfvParameters(bits)


def _on_the_kernel(data: bytes) -> Body:
    """Take apart a query about shares on the kernel, or the answer to one; its length tells of which ring it is."""
    asks = data[:4] == b"SKV2"
    head = kernel.SEALED if asks else kernel.REPLY
    _, _, *sizes = head.unpack_from(data)
    residues = Residues(data, head.size + SEED if asks else head.size)
    for bits in _KERNEL_RINGS:
        own = kernel.ShareParameters(bits)
        n, c, r, s = sizes if asks else (sizes[2], *sizes[:3])
        where = own.layout(n, c, r, s)
        counts = [where.points * where.sample_blocks * c] if asks else _residues_of_answer(where, sizes[3])
        if sum(packed_size(own.primes, count) for count in counts) == len(residues.view):
            residues.take_small(own.primes, *counts)
            if asks:
                residues.fresh = [data[head.size :][:SEED]]
            return residues.body(data[:4], *sizes)
    raise ValueError("of no ring")


def _residues_of_answer(where: RingLayout, d: int) -> list[int]:
    """How many residues stand together in an answer on the kernel about d columns: c1, then wanted ones of c0."""
    widths = [outputs.stop - outputs.start for outputs in where.outputs]
    groups = [(blocks.stop - blocks.start, part.stop - part.start) for blocks, part in column_groups(where, d)]
    return [x for width in widths for b, f in groups for x in (b * DEGREE, f * width)]


def _gradient_on_the_kernel(data: bytes) -> Body:
    """Split a sealed residual on the kernel, or the blinded product, into groups."""
    own, asks = gradient.GradientParameters(), data[:4] == b"SGG2"
    head = SEALED if asks else BLINDED
    _, _, n, c, r, s, last = head.unpack_from(data)
    where, residues = named(gradient.ENGINE, n, c, r, s), Residues(data, head.size)
    if not asks:
        residues.take_small(own.primes, *_residues_of_answer(where, checked(where, last)))
        return residues.body("SGB2", n, c, r, s, last)
    seeds = []
    while residues.view:
        blocks = min(gradient.PIECE, len(residues.view) // packed_size(own.primes, where.points * c))
        for outputs in where.outputs:
            seeds.append(bytes(residues.view[:SEED]))
            residues.view = residues.view[SEED:]
            residues.take_small(own.primes, where.points * (outputs.stop - outputs.start) * blocks)
    residues.fresh = seeds
    return residues.body("SGG2", n, c, r, s, last)


_KEYS = (b"SVPK", b"SLK2", b"SLA2", b"SSK1", b"SKK2", b"SGK2")
_READERS: dict[bytes, Callable[[bytes], Body]] = {
    b"SLG2": _sealed,
    b"SLB3": _blinded,
    b"SLS1": _summed,
    **dict.fromkeys((b"SLO3", b"SGO1"), _parse_opened),
    **dict.fromkeys((b"SGG2", b"SGB2"), _gradient_on_the_kernel),
    **dict.fromkeys((b"SSV1", b"SSR1"), _parse_shared),
    **dict.fromkeys((b"SKV2", b"SKR2"), _on_the_kernel),
}


@lru_cache(maxsize=1)
def _sum_primes() -> tuple[list[int], int]:
    from securevfl.crypto.lattice.lattice_sum import _BITS, _DEGREE
    from securevfl.crypto.lattice.polynomial_ring import Ring

    ring = Ring(_DEGREE, _BITS)
    return ring.primes, ring.degree


def opened_numbers(body: Body) -> int | None:
    """How many numbers an opening tells beside checks, which are combinations of them; None if it is none."""
    match body.header:
        case ("SVPC", packing.MessageKind.OPENED, _, c, d, _, count):
            return int(count) - CHECKS * c if count == c * (d + CHECKS) else int(count)
        case ("SLO3" | "SGO1", count):
            return int(count)
    return None
