"""The bytes of a message taken apart: public header, residues with their moduli, and what must never occur twice.

Engines write versioned headers (`crypto.paillier_bytes`, `crypto.lattice_profile`, `crypto.lattice_sum`); they come off
first, so that statistics see residues alone. Bytes of another format are taken as little-endian words of eight bytes.
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

from securevfl.crypto import lattice_shares, paillier_bytes, sealio
from securevfl.crypto.lattice_profile import BLINDED, OPENED, SEALED, Parameters
from securevfl.crypto.packing import layout
from securevfl.crypto.scheme import Floats
from securevfl.runtime.codec import Message

NO_FRACTIONS: Floats = np.empty(0)
NO_BYTES: NDArray[np.uint8] = np.empty(0, np.uint8)

_PAILLIER = struct.Struct(">4sBB16sIIIdI")
_PAILLIER_KEY = struct.Struct(">4sBH")
_SUM = struct.Struct("<4s16sIIIId")
_RINGS = (48, 56)  # bits of shares; those of fewer have the primes of the first


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
    """The bytes fields of the message, taken apart. Bytes that claim a format and do not keep it are raw."""
    return [_body(data, moduli) for data in byte_fields(message) if data]


def _body(data: bytes, moduli: Mapping[bytes, int]) -> Body:
    magic = data[:4]
    try:
        match magic:
            case b"SVPC":
                return _paillier(data, moduli)
            case b"SVPK" | b"SLK2" | b"SLA2" | b"SSK1":
                return Body("key", (magic, len(data)), fresh=(data,))
            case b"SLG2":
                return _sealed(data)
            case b"SLB2":
                return _blinded(data)
            case b"SLO2":
                return _opened(data)
            case b"SLS1":
                return _summed(data)
            case b"SSV1" | b"SSR1":
                return _shared(data)
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
    if kind == paillier_bytes.Kind.OPENED:
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
    """The sizes of the lattice engine."""
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
        parts.append(_residues(sealio.unpack(data[start:], primes, degree), primes))
        seeds.append(data[start + size - sealio.SEED_BYTES : start + size])
    return _joined("ciphertext", ("SLG2", *sizes), parts, seeds)


def _blinded(data: bytes) -> Body:
    _, _, n, c, s, p, d = BLINDED.unpack_from(data)
    own = parameters()
    where, primes, degree = own.layout(n, c, s, p), own.ring.primes, own.ring.degree
    view, parts, fresh = memoryview(data)[BLINDED.size :], [], []
    for output_block in range(where.output_blocks):
        for column_block in range(where.column_blocks(d)):
            for count in (degree, len(where.wanted(d, column_block, output_block))):
                size = sealio.packed_size(primes, count)
                parts.append(_residues(sealio.unpack(view, primes, count), primes))
                if count == degree:
                    fresh.append(bytes(view[:64]))
                view = view[size:]
    return _joined("ciphertext", ("SLB2", n, c, s, p, d), parts, fresh)


def _opened(data: bytes) -> Body:
    _, _, count = OPENED.unpack_from(data)
    values = np.frombuffer(data, "<i4", offset=OPENED.size)
    fractions = (values / parameters().levels) % 1.0
    fresh = (data[OPENED.size :],) if count > 1 else ()
    return Body("opened", ("SLO2", count), fractions, (values & 255).astype(np.uint8), fresh)


def _summed(data: bytes) -> Body:
    _, _, m, terms, summed, noises, bound = _SUM.unpack_from(data)
    primes, degree = _sum_primes()
    size = sealio.packed_size(primes, degree)
    parts, fresh = [], []
    for index, start in enumerate(range(_SUM.size, len(data), size)):
        parts.append(_residues(sealio.unpack(data[start:], primes, degree), primes))
        if index % 2:
            fresh.append(data[start : start + 64])
    return _joined("ciphertext", ("SLS1", m, terms, summed, noises, bound), parts, fresh)


def _shared(data: bytes) -> Body:
    """A query about shares, or the answer to one; of which ring it is its length tells."""
    asks = data[:4] == b"SSV1"
    _, _, *sizes = (lattice_shares.SEALED if asks else lattice_shares.REPLY).unpack_from(data)
    view = memoryview(data)[(lattice_shares.SEALED if asks else lattice_shares.REPLY).size :]
    for bits in _RINGS:
        own = _share_parameters(bits)
        primes, degree = own.bfv.primes, lattice_shares.DEGREE
        if asks:
            where = own.layout(*sizes)
            pieces = [own.sealed_size] * (where.sample_blocks * where.output_blocks)
            counts = [degree] * len(pieces)
        else:
            c, s, p, d = sizes
            where = own.layout(s, c, s, p)
            blocks = [(a, b) for a in range(where.output_blocks) for b in range(where.column_blocks(d))]
            counts = [count for a, b in blocks for count in (degree, len(where.wanted(d, b, a)))]
            pieces = [sealio.packed_size(primes, count) for count in counts]
        if sum(pieces) != len(view):
            continue
        parts, fresh = [], []
        for count, size in zip(counts, pieces, strict=True):
            parts.append(_residues(sealio.unpack(view, primes, count), primes))
            fresh += [bytes(view[size - sealio.SEED_BYTES : size] if asks else view[:64])] if count == degree else []
            view = view[size:]
        return _joined("ciphertext", (data[:4], *sizes), parts, fresh)
    raise ValueError("of no ring")


@lru_cache(maxsize=2)
def _share_parameters(bits: int) -> lattice_shares.Parameters:
    return lattice_shares.Parameters(bits)


@lru_cache(maxsize=1)
def _sum_primes() -> tuple[list[int], int]:
    from securevfl.crypto.lattice_ring import Ring
    from securevfl.crypto.lattice_sum import _BITS, _DEGREE

    ring = Ring(_DEGREE, _BITS)
    return ring.primes, ring.degree


def opened_numbers(body: Body) -> int | None:
    """How many numbers an opening tells; None if it is none."""
    match body.header:
        case ("SVPC", paillier_bytes.Kind.OPENED, *_, count):
            return int(count)
        case ("SLO2", count):
            return int(count)
    return None
