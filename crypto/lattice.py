"""J^T [[g]] as products of polynomials under RLWE encryption (SEAL, N = 4096).

    1. key holder   g in coefficients, encrypted symmetrically with a fresh seed        `encrypt`
    2. evaluator    products with the plaintexts of J, summed over sample blocks        `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask                                                  `unblind`

Who learns what, and why not more:

- The product's second polynomial c1 is c1(g) J, from which the holder of g would divide J out. The encryption of zero
  of step 3 makes it uniform (RLWE, even to the owner of the secret key), so the reply says nothing about J.
- Of the first polynomial only the wanted coefficients leave, each with a mask uniform modulo q: value and noise e J
  are hidden perfectly. The unwanted coefficients, cross terms between columns, never leave.
- An exact decryption would show the evaluator, which knows its mask, the noise, which is linear in the secret key (Li
  and Micciancio 2021). The holder returns floor((w + D) / 2^k), D uniform below 2^k and secret: what the noise e
  changes is at most E|e| / 2^k in statistical distance, per value. `Profile.distance_bits` is that bound.
- Decoding works in floats whose rounding depends on every coefficient, so the dither enters before it, modulo q, and
  coefficients that were not sent are filled with uniform ones: what is decoded is a function of dithered values alone.
- Zeros in J change no step: a block without any entry carries one unit in one coefficient.

Fixed point. For a layout of f columns and a public cap T, columns are scaled to integers x with ||x||_2 <= T / sqrt(f)
and ||x||_1 <= L = T sqrt(n / f); g is scaled to integers below G = 0.9 (q/2) / L. So |sum g x| < q/2 for every g within
its bound, the noise of a product has standard deviation at most sqrt(10.5) T, and the scale of g depends on n, the
layout and the bound alone. The scales of J's columns never leave the evaluator.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto import sealio
from securevfl.crypto.lattice_layout import Layout, choose
from securevfl.crypto.lattice_profile import BLINDED, OPENED, PROFILES, PUBLIC, SEALED, Parameters, fingerprint, sized
from securevfl.crypto.lattice_ring import Ring, dither_residues, fraction_of_modulus, uniform_residues
from securevfl.crypto.scheme import Evaluator, Floats, KeyHolder, LinearScheme, Secret
from securevfl.errors import ConfigError, CryptoError, RangeError


class LatticeScheme(LinearScheme):
    """J^T [[g]] in the ring of a CKKS context.

    `profile` is "strict" (the default: 128-bit RLWE alone) or "lean" (faster, with one more assumption; see
    `strength`). `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder
    tunes itself to the widths it has opened. Executors are not used: a call takes milliseconds, less than moving its
    objects to another process. ConfigError for an unknown profile.
    """

    name: ClassVar[str] = "lattice"

    def __init__(self, profile: str = "strict", *, columns: int = 32) -> None:
        if profile not in PROFILES:
            raise ConfigError(f"lattice: profile is one of {sorted(PROFILES)}, got {profile!r}")
        if columns < 1:
            raise ConfigError(f"lattice: columns is the expected width of J, at least 1, got {columns}")
        self.profile = PROFILES[profile]
        self._columns = columns
        self._parameters = Parameters(self.profile)

    @property
    def strength(self) -> str:
        profile, degree = self.profile, self._parameters.ring.degree
        return (
            f"RLWE ring N={degree}, {sum(profile.bits)}-bit modulus (HomomorphicEncryption.org: 128 bits), "
            f"{profile.name}: {profile.assumption}"
        )

    @property
    def rotates(self) -> bool:
        return True

    def keygen(self, executor: Executor | None = None) -> KeyHolder:
        return LatticeHolder(self._parameters, self._columns)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return LatticeEvaluator(self._parameters, public)


class LatticeHolder(KeyHolder):
    """Owns the secret key, which lives inside SEAL's objects and is never written anywhere."""

    def __init__(self, parameters: Parameters, columns: int) -> None:
        ring = parameters.ring
        self._parameters = parameters
        self._columns = columns
        self._widest = 0
        generator = seal.KeyGenerator(ring.context)
        key = seal.PublicKey()
        generator.create_public_key(key)
        secret = generator.secret_key()
        self._encryptor = seal.Encryptor(ring.context, secret)
        self._decryptor = seal.Decryptor(ring.context, secret)
        residues = ring.io.residues(key, (2, len(ring.key_primes), ring.degree))
        self.public = PUBLIC.pack(b"SLK1", parameters.profile.tag) + sealio.pack(residues, ring.key_primes)
        self._fingerprint = fingerprint(self.public)

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        g = np.asarray(g, np.float64)
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"lattice: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError("lattice: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"lattice: g has values that are not finite or above its bound {bound}; clip g or raise bound"
            )
        parameters, ring = self._parameters, self._parameters.ring
        n, c = g.shape
        layout = choose(ring.degree, n, c, self._widest or self._columns)
        messages = np.rint(layout.messages(g * parameters.g_scale(layout, bound)))
        parts = [
            SEALED.pack(b"SLG1", parameters.profile.tag, self._fingerprint, n, c, layout.s, layout.p, bound),
        ]
        for plain in ring.encode(messages.reshape(-1, ring.degree)):
            seeded = self._encryptor.encrypt_symmetric(plain)
            residues, seed = ring.io.seeded_residues(seeded, (len(ring.primes), ring.degree))
            parts += [sealio.pack(residues, ring.primes), seed]
        return b"".join(parts)

    def open(self, blinded: bytes) -> bytes:
        parameters, ring = self._parameters, self._parameters.ring
        n, c, s, p, d = parameters.header(BLINDED, b"SLB1", blinded, self._fingerprint)
        if d < 1:
            raise CryptoError("lattice: SLB1 message names no column; it is malformed")
        layout, primes = parameters.layout(n, c, s, p), parameters.reply_primes
        replies = layout.output_blocks * layout.column_blocks(d)
        body = replies * sealio.packed_size(primes, ring.degree) + sealio.packed_size(primes, c * d)
        sized(blinded, BLINDED.size + body, "SLB1")
        view = memoryview(blinded)[BLINDED.size :]
        opened = []
        for output_block in range(layout.output_blocks):
            for column_block in range(layout.column_blocks(d)):
                where = layout.wanted(d, column_block, output_block)
                second = sealio.unpack(view, primes, ring.degree)
                view = view[sealio.packed_size(primes, ring.degree) :]
                first = sealio.unpack(view, primes, len(where))
                view = view[sealio.packed_size(primes, len(where)) :]
                opened.append(self._open_one(first, second, where))
        self._widest = max(self._widest, d)
        header = OPENED.pack(b"SLO1", parameters.profile.tag, self._fingerprint, c * d)
        return header + np.concatenate(opened).astype("<i4").tobytes()

    def _open_one(self, first: sealio.Residues, second: sealio.Residues, where: np.ndarray[Any, Any]) -> Floats:
        """floor((w + D) / 2^k) at the wanted positions: exact dither first, floats after."""
        parameters, ring = self._parameters, self._parameters.ring
        primes, k = parameters.reply_primes, parameters.profile.k
        column = np.array(primes, np.uint64)[:, None]
        if (first >= column).any() or not second.any():
            raise CryptoError("lattice: SLB1 message holds values outside its modulus; it is malformed")
        full = uniform_residues(primes, ring.degree)
        full[:, where] = (first + self._dither(len(where))) % column
        plain = seal.Plaintext()
        self._decryptor.decrypt(ring.ciphertext(parameters.reply_level, full, second), plain)
        levels: Floats = np.floor(ring.decode(plain)[where] / 2.0**k)
        return levels

    def _dither(self, count: int) -> sealio.Residues:
        return dither_residues(self._parameters.reply_primes, self._parameters.profile.k, count)


class Prepared:
    """Plaintexts of one J, by layout: the two layouts used last are kept."""

    def __init__(self, ring: Ring, T: float, J: Floats) -> None:
        self.shape = J.shape
        self._ring = ring
        self._T = T
        self._largest = np.abs(J).max(axis=0)
        self._J = J / np.where(self._largest > 0, self._largest, 1.0)
        self._layouts: dict[tuple[int, int], tuple[list[list[Any]], Floats]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of J and its plaintexts."""
        plains = sum(len(row) for rows, _ in self._layouts.values() for row in rows)
        return int(self._J.nbytes) + plains * self._ring.degree * len(self._ring.primes) * 8

    def encoded(self, layout: Layout, column_cap: float) -> tuple[list[list[Any]], Floats]:
        """Plaintexts [column block][sample block] and the worth (d,) of one integer in each column."""
        slot = (layout.s, layout.columns)
        if slot not in self._layouts:
            fresh = self._encode(layout, column_cap)
            self._layouts = dict([*self._layouts.items()][-1:])
            self._layouts[slot] = fresh
        return self._layouts[slot]

    def _encode(self, layout: Layout, column_cap: float) -> tuple[list[list[Any]], Floats]:
        d = self.shape[1]
        zero = self._largest == 0
        euclid = np.sqrt((self._J**2).sum(axis=0)) + zero
        absolute = np.abs(self._J).sum(axis=0) + zero
        scale = np.minimum(self._T / math.sqrt(min(layout.columns, d)) / euclid, column_cap / absolute)
        integers = np.rint(layout.plaintexts(self._J * scale))
        # SEAL raises on a product with a zero polynomial, which would show where J is zero.
        integers[..., layout.s - 1] += ~integers.any(axis=-1)
        plains = self._ring.encode(integers.reshape(-1, self._ring.degree))
        blocks = layout.sample_blocks
        return [plains[i : i + blocks] for i in range(0, len(plains), blocks)], self._largest / scale


@dataclass(frozen=True)
class Scale:
    """How opened integers read as J^T g."""

    layout: Layout
    columns: Floats  # (d,): worth of one integer step in each column of J
    g: float  # worth of one integer step of g, times the dropped primes


@dataclass(frozen=True)
class Product:
    """[[J^T g]] in ciphertexts [output block][column block]; not fit to leave before it is blinded."""

    scale: Scale
    ciphertexts: list[list[Any]]


class Mask(Secret):
    """What `blind` added, as fractions of the modulus, and how to read the rest. Serves once."""

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: Scale, masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class LatticeEvaluator(Evaluator):
    """Owns J. Needs of the holder its public key and, per message, n, c, the layout and the bound."""

    def __init__(self, parameters: Parameters, public: bytes) -> None:
        ring = parameters.ring
        if len(public) < PUBLIC.size or PUBLIC.unpack_from(public) != (b"SLK1", parameters.profile.tag):
            raise CryptoError(
                f"lattice: not a public key of profile {parameters.profile.name!r}; both sides need the same"
            )
        half = sealio.packed_size(ring.key_primes, ring.degree)
        sized(public, PUBLIC.size + 2 * half, "SLK1")
        view = memoryview(public)[PUBLIC.size :]
        residues = np.stack([sealio.unpack(part, ring.key_primes, ring.degree) for part in (view[:half], view[half:])])
        self._parameters = parameters
        self._encryptor = seal.Encryptor(ring.context, ring.io.public_key(residues))
        self._fingerprint = fingerprint(public)

    def prepare(self, J: Floats) -> Prepared:
        J = np.asarray(J, np.float64)
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(f"lattice: J is n x d with n, d >= 1, got shape {J.shape}")
        if not np.isfinite(J).all():
            raise RangeError("lattice: J has values that are not finite; drop or impute them first")
        prepared = Prepared(self._parameters.ring, self._parameters.profile.T, J)
        n, d = J.shape
        layout = choose(self._parameters.ring.degree, n, 1, d)
        prepared.encoded(layout, self._parameters.column_cap(layout))
        return prepared

    def transpose_product(self, prepared: Prepared, sealed: bytes) -> Product:
        parameters = self._parameters
        n, c, s, p, bound = parameters.header(SEALED, b"SLG1", sealed, self._fingerprint)
        layout = parameters.layout(n, c, s, p)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError("lattice: SLG1 message has no positive finite bound; it is malformed")
        if n != prepared.shape[0]:
            raise CryptoError(f"lattice: g has {n} rows, J has {prepared.shape[0]}; both sides must use the same batch")
        blocks, size = layout.sample_blocks, parameters.sealed_size
        sized(sealed, SEALED.size + layout.output_blocks * blocks * size, "SLG1")
        columns, worth = prepared.encoded(layout, parameters.column_cap(layout))
        products = []
        for output_block in range(layout.output_blocks):
            start = SEALED.size + output_block * blocks * size
            ups = [self._sealed(sealed[start + b * size : start + (b + 1) * size]) for b in range(blocks)]
            products.append([self._inner(ups, plains) for plains in columns])
        return Product(Scale(layout, worth, parameters.dropped / parameters.g_scale(layout, bound)), products)

    def _sealed(self, part: bytes) -> Any:
        ring = self._parameters.ring
        residues = sealio.unpack(part, ring.primes, ring.degree)
        return ring.io.seeded_ciphertext(ring.level, residues, part[-sealio.SEED_BYTES :])

    def _inner(self, ups: list[Any], plains: list[Any]) -> Any:
        evaluator = self._parameters.ring.evaluator
        total, term = seal.Ciphertext(), seal.Ciphertext()
        evaluator.multiply_plain(ups[0], plains[0], total)
        for up, plain in zip(ups[1:], plains[1:], strict=True):
            evaluator.multiply_plain(up, plain, term)
            evaluator.add_inplace(total, term)
        return total

    def blind(self, product: Product) -> tuple[bytes, Mask]:
        parameters, layout, d = self._parameters, product.scale.layout, len(product.scale.columns)
        ring, primes = parameters.ring, parameters.reply_primes
        parts = [
            BLINDED.pack(b"SLB1", parameters.profile.tag, self._fingerprint, layout.n, layout.c, layout.s, layout.p, d)
        ]
        masks = []
        for output_block, row in enumerate(product.ciphertexts):
            for column_block, cipher in enumerate(row):
                where = layout.wanted(d, column_block, output_block)
                reply = self._rerandomised(cipher)
                mask = self._uniform(len(where))
                first = (ring.first_coefficients(reply, where) + mask) % np.array(primes, np.uint64)[:, None]
                parts += [sealio.pack(ring.second_polynomial(reply), primes), sealio.pack(first, primes)]
                masks.append(fraction_of_modulus(mask, primes))
        return b"".join(parts), Mask(product.scale, masks)

    def _rerandomised(self, cipher: Any) -> Any:
        """The product, at the level of the reply, plus a fresh public-key encryption of zero."""
        parameters, ring = self._parameters, self._parameters.ring
        total, zero = seal.Ciphertext(), seal.Ciphertext()
        self._encryptor.encrypt_zero(parameters.reply_level, zero)
        zero.scale = 1.0
        if parameters.profile.drop:
            ring.evaluator.rescale_to_next(cipher, total)
            total.scale = 1.0
            ring.evaluator.add_inplace(total, zero)
        else:
            ring.evaluator.add(cipher, zero, total)
        return total

    def _uniform(self, count: int) -> sealio.Residues:
        return uniform_residues(self._parameters.reply_primes, count)

    def unblind(self, opened: bytes, mask: Mask) -> Floats:
        parameters, layout, d = self._parameters, mask.scale.layout, len(mask.scale.columns)
        (count,) = parameters.header(OPENED, b"SLO1", opened, self._fingerprint)
        if count != layout.c * d:
            raise CryptoError(
                f"lattice: SLO1 message opens {count} values, {layout.c * d} were sent; it is not the answer"
            )
        sized(opened, OPENED.size + 4 * count, "SLO1")
        if mask.spent:
            raise CryptoError("lattice: this mask has been used; a mask serves for one opening")
        mask.spent = True
        values = np.frombuffer(opened, "<i4", offset=OPENED.size).astype(np.float64)
        levels = parameters.levels_of_reply
        rest = values - np.concatenate(mask.masks) * levels
        rest = (rest - levels * np.rint(rest / levels)) * 2.0**parameters.profile.k
        result = np.empty((d, layout.c))
        start = 0
        for output_block in range(layout.output_blocks):
            outputs = slice(output_block * layout.p, min(layout.c, (output_block + 1) * layout.p))
            for column_block in range(layout.column_blocks(d)):
                columns = slice(column_block * layout.columns, min(d, (column_block + 1) * layout.columns))
                shape = (outputs.stop - outputs.start, columns.stop - columns.start)
                stop = start + shape[0] * shape[1]
                result[columns, outputs] = rest[start:stop].reshape(shape).T
                start = stop
        return result * mask.scale.g * mask.scale.columns[:, None]
