"""The bytes of a message taken apart: public header, residues with their moduli, and what must never occur twice.

Engines write versioned headers (`crypto.paillier.packing`, `crypto.lattice.layout`,
`crypto.lattice.lattice_sum`); they come off first, so that statistics see residues alone. Bytes of another format are
taken as little-endian words of eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
from securevfl.crypto.lattice.layout import BLINDED, OPENED, SEALED, FixedPoint, Parameters
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
    from hashlib import sha256

    found = {}
    for message in messages:
        for data in byte_fields(message):
            if data[:4] == b"SVPK":
                bits = _PAILLIER_KEY.unpack_from(data)[2]
                n = int.from_bytes(data[_PAILLIER_KEY.size : _PAILLIER_KEY.size + bits // 8], "big")
                found[sha256(data).digest()[:16]] = n
    return found


def byte_fields(message: Message) -> list[bytes]:
    """Every bytes value of the message, lists included."""
    found: list[bytes] = []
    for value in msgspec.structs.astuple(message):
        if isinstance(value, bytes):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [item for item in value if isinstance(item, bytes)]
    return found


def array_fields(message: Message) -> list[NDArray[Any]]:
    """Every array of the message."""
    return [value for value in msgspec.structs.astuple(message) if isinstance(value, np.ndarray)]


def bodies(message: Message, moduli: Mapping[bytes, int]) -> list[Body]:
    """Take apart the bytes fields of the message. Bytes that claim a format and do not keep it are raw."""
    return [_body(data, moduli) for data in byte_fields(message) if data]


def _body(data: bytes, moduli: Mapping[bytes, int]) -> Body:
    magic = data[:4]
    try:
        match magic:
            case b"SVPC":
                return _paillier(data, moduli)
            case b"SVPK" | b"SLK2" | b"SLA2" | b"SSK1" | b"SKK2" | b"SGK2":
                return Body("key", (magic, len(data)), fresh=(data,))
            case b"SLG2":
                return _sealed(data)
            case b"SLB3":
                return _blinded(data)
            case b"SLO3" | b"SGO1":
                return _parse_opened(data)
            case b"SGG2" | b"SGB2":
                return _gradient_on_the_kernel(data)
            case b"SLS1":
                return _summed(data)
            case b"SSV1" | b"SSR1":
                return _parse_shared(data)
            case b"SKV2" | b"SKR2":
                return _on_the_kernel(data)
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


def _residues(residues: NDArray[np.uint64], primes: list[int]) -> tuple[Floats, NDArray[np.uint8]]:
    column = np.array(primes, np.float64)[:, None]
    return (residues / column).ravel(), (residues & np.uint64(255)).astype(np.uint8).ravel()


def _joined(form: str, header: tuple[Any, ...], parts: list[tuple[Floats, NDArray[np.uint8]]], fresh: Any) -> Body:
    return Body(
        form,
        header,
        np.concatenate([fractions for fractions, _ in parts]),
        np.concatenate([low for _, low in parts]),
        tuple(fresh),
    )


def _sealed(data: bytes) -> Body:
    _, _, *sizes = SEALED.unpack_from(data)
    own = parameters()
    primes, degree, size = own.ring.primes, own.ring.degree, own.sealed_size
    parts, seeds = [], []
    for start in range(SEALED.size, len(data), size):
        parts.append(_residues(polynomial_ring.unpack(data[start:], primes, degree), primes))
        seeds.append(data[start + size - polynomial_ring.SEED_BYTES : start + size])
    return _joined("ciphertext", ("SLG2", *sizes), parts, seeds)


def _blinded(data: bytes) -> Body:
    _, _, n, c, s, p, d = BLINDED.unpack_from(data)
    own = parameters()
    where, primes, degree = own.layout(n, c, s, p), own.ring.primes, own.ring.degree
    view, parts, fresh, width = memoryview(data)[BLINDED.size :], [], [], checked(where, d)
    for output_block in range(where.output_blocks):
        for column_block in range(where.column_blocks(width)):
            for count in (degree, len(where.wanted(width, column_block, output_block))):
                size = polynomial_ring.packed_size(primes, count)
                parts.append(_residues(polynomial_ring.unpack(view, primes, count), primes))
                if count == degree:
                    fresh.append(bytes(view[:64]))
                view = view[size:]
    return _joined("ciphertext", ("SLB3", n, c, s, p, d), parts, fresh)


def _parse_opened(data: bytes) -> Body:
    _, _, count, checks = OPENED.unpack_from(data)
    values = np.frombuffer(data, "<i4", count + checks, offset=OPENED.size)
    own: FixedPoint = parameters() if data[:4] == b"SLO3" else gradient.GradientParameters()
    fractions = (values / own.levels) % 1.0
    fresh = (data[OPENED.size :],) if count > 1 else ()
    return Body("opened", (data[:4].decode(), count), fractions, (values & 255).astype(np.uint8), fresh)


def _summed(data: bytes) -> Body:
    _, _, m, terms, summed, noises, bound = _SUM.unpack_from(data)
    primes, degree = _sum_primes()
    size = polynomial_ring.packed_size(primes, degree)
    parts, fresh = [], []
    for index, start in enumerate(range(_SUM.size, len(data), size)):
        parts.append(_residues(polynomial_ring.unpack(data[start:], primes, degree), primes))
        if index % 2:
            fresh.append(data[start : start + 64])
    return _joined("ciphertext", ("SLS1", m, terms, summed, noises, bound), parts, fresh)


def _parse_shared(data: bytes) -> Body:
    """Take apart a query about shares, or the answer to one; its length tells of which ring it is."""
    asks = data[:4] == b"SSV1"
    _, _, *sizes = (bfv_product.SEALED if asks else bfv_product.REPLY).unpack_from(data)
    view = memoryview(data)[(bfv_product.SEALED if asks else bfv_product.REPLY).size :]
    for bits in _RINGS:
        own = _share_parameters(bits)
        primes, degree = own.bfv.primes, bfv_product.DEGREE
        if asks:
            where = own.layout(*sizes)
            pieces = [own.sealed_size] * (where.sample_blocks * where.output_blocks)
            counts = [degree] * len(pieces)
        else:
            c, s, p, d = sizes
            where = own.layout(s, c, s, p)
            blocks = [(a, b) for a in range(where.output_blocks) for b in range(where.column_blocks(d))]
            counts = [count for a, b in blocks for count in (degree, len(where.wanted(d, b, a)))]
            pieces = [polynomial_ring.packed_size(primes, count) for count in counts]
        if sum(pieces) != len(view):
            continue
        parts, fresh = [], []
        for count, size in zip(counts, pieces, strict=True):
            parts.append(_residues(polynomial_ring.unpack(view, primes, count), primes))
            fresh += (
                [bytes(view[size - polynomial_ring.SEED_BYTES : size] if asks else view[:64])]
                if count == degree
                else []
            )
            view = view[size:]
        return _joined("ciphertext", (data[:4], *sizes), parts, fresh)
    raise ValueError("of no ring")


@lru_cache(maxsize=2)
def _share_parameters(bits: int) -> bfv_product.BfvParameters:
    return bfv_product.BfvParameters(bits)


def _on_the_kernel(data: bytes) -> Body:
    """Take apart a query about shares on the kernel, or the answer to one; its length tells of which ring it is."""
    asks = data[:4] == b"SKV2"
    _, _, *sizes = (kernel.SEALED if asks else kernel.REPLY).unpack_from(data)
    view = memoryview(data)[(kernel.SEALED.size + SEED if asks else kernel.REPLY.size) :]
    for bits in _KERNEL_RINGS:
        own = kernel.ShareParameters(bits)
        n, c, r, s = sizes if asks else (sizes[2], *sizes[:3])
        where = own.layout(n, c, r, s)
        counts = [where.points * where.sample_blocks * c] if asks else _residues_of_answer(where, sizes[3])
        if sum(packed_size(own.primes, count) for count in counts) != len(view):
            continue
        parts, fresh = _small_residues(own.primes, view, counts)
        return _joined("ciphertext", (data[:4], *sizes), parts, [data[kernel.SEALED.size :][:SEED]] if asks else fresh)
    raise ValueError("of no ring")


def _residues_of_answer(where: RingLayout, d: int) -> list[int]:
    """How many residues stand together in an answer on the kernel about d columns: c1, then wanted ones of c0."""
    widths = [outputs.stop - outputs.start for outputs in where.outputs]
    groups = [(blocks.stop - blocks.start, part.stop - part.start) for blocks, part in column_groups(where, d)]
    return [x for width in widths for b, f in groups for x in (b * DEGREE, f * width)]


def _small_residues(
    primes: Primes, view: memoryview, counts: list[int]
) -> tuple[list[tuple[Floats, NDArray[np.uint8]]], list[bytes]]:
    """Residues that follow each other, and the first bytes of each polynomial among them."""
    parts, fresh, moduli = [], [], [int(p) for p in primes.values]
    for count in counts:
        found = unpack(primes, view, (count,))
        parts.append(_residues(np.mod(found, np.array(moduli)[:, None]).astype(np.uint64), moduli))
        fresh += [bytes(view[:64])] if count >= DEGREE else []
        view = view[packed_size(primes, count) :]
    return parts, fresh


def _gradient_on_the_kernel(data: bytes) -> Body:
    """Split a sealed residual on the kernel, or the blinded product, into groups."""
    own, asks = gradient.GradientParameters(), data[:4] == b"SGG2"
    _, _, n, c, r, s, last = (SEALED if asks else BLINDED).unpack_from(data)
    where, view = named(gradient.ENGINE, n, c, r, s), memoryview(data)[(SEALED if asks else BLINDED).size :]
    if not asks:
        parts, fresh = _small_residues(own.primes, view, _residues_of_answer(where, checked(where, last)))
        return _joined("ciphertext", ("SGB2", n, c, r, s, last), parts, fresh)
    parts, fresh = [], []
    while view:
        blocks = min(gradient.PIECE, len(view) // packed_size(own.primes, where.points * c))
        for outputs in where.outputs:
            count = where.points * (outputs.stop - outputs.start) * blocks
            found, _ = _small_residues(own.primes, view[SEED:], [count])
            fresh.append(bytes(view[:SEED]))
            parts += found
            view = view[SEED + packed_size(own.primes, count) :]
    return _joined("ciphertext", ("SGG2", n, c, r, s, last), parts, fresh)


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
