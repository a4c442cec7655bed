"""J^T [[g]] under Paillier.

    key holder                                          evaluator
    g at one public scale, K samples a plaintext   ->   prod_i c_i^X_ij with signed digits (multiexp.py), for J's
                                                        columns and its checks (paillier_product.py),
                                                        P columns shifted into one plaintext (packing.py)
    decrypts v = m + r mod n, uniform              <-   times (1+n)^r x^n, r uniform in Z_n, x uniform in Z_n^*
    the target windows of v                        ->   minus the windows of r, checked, back to reals

What the evaluator sends are uniform units mod n^2, whatever the holder chose as its primes, as h and as the randomness
of [[g]]: its key comes with a proof of the one thing that this asks for (paillier_keys.py). So nothing of J is told,
without an assumption. (A power of a base of the holder's, such as h^s, would be cheaper and tell it the exponents X_ij
from a key with smooth p - 1 and an h of small order.) The evaluator sees ciphertexts (semantically secure under DCR)
and the windows that hold J^T g, of no more columns than were agreed: no cross terms, but for a carry (packing.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, as_array
from securevfl.crypto.paillier import fixed_point
from securevfl.crypto.paillier.multiexp import BaseRange, ExponentTerms, plan
from securevfl.crypto.paillier.packing import MAX_SAMPLES, PackedLayout, choose_packing, distance_bits, pack
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS, PaillierChecks
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey, check_bits
from securevfl.crypto.paillier.paillier_messages import (
    MessageKind,
    PaillierHeader,
    message_size,
    read_message,
    read_numbers,
    write_message,
)
from securevfl.crypto.paillier.paillier_workers import (
    decrypt_all,
    encrypt_as_holder,
    evaluate_block,
    rerandomise_all,
    run_in_pieces,
    worker_count,
)
from securevfl.crypto.scheme import MAX_PLAINTEXT_BYTES, Evaluator, KeyHolder, LinearScheme, OpeningShape
from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, CryptoError, OpeningMismatch, RangeError


class PaillierScheme(LinearScheme):
    """Paillier with keys of `bits` bits. ConfigError below 2048."""

    name: ClassVar[str] = "paillier"

    def __init__(self, bits: int = 3072) -> None:
        self.bits = check_bits(bits)

    @property
    def strength(self) -> str:
        level = 128 if self.bits >= 3072 else 112
        return f"Paillier {self.bits} bits, {level}-bit security, decisional composite residuosity"

    def distance_bits(self, values: int) -> float:
        return distance_bits(values)

    @property
    def checks(self) -> int:
        return PAILLIER_CHECKS

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        slots = choose_packing(self.bits, rows)
        return columns * word + PAILLIER_CHECKS * (slots.width - slots.residual_bits)

    def opened_size(self, shape: OpeningShape) -> int:
        width = _window_size(choose_packing(self.bits, shape.rows))
        return message_size(shape.outputs * (shape.columns + PAILLIER_CHECKS), width)

    @property
    def rotates(self) -> bool:
        return False

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return PaillierHolder(SecretKey.generate(self.bits), executor)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return PaillierEvaluator(PublicKey.load(public, self.bits), executor)


class PaillierHolder(KeyHolder):
    """See `KeyHolder`. With an executor, p and q go to its workers: it must run within the party."""

    def __init__(self, key: SecretKey, executor: Executor | None = None) -> None:
        self._key = key
        self._executor = executor
        self.public = key.public.data

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        G = np.asarray(g, dtype=np.float64)
        if G.ndim != 2 or not G.size:
            raise RangeError(f"g must be a matrix (n x c) with entries, got shape {G.shape}")
        n, c = G.shape
        public = self._key.public
        slots = choose_packing(public.bits, n)
        ints = fixed_point.encode(G, bound, slots.residual_bits)
        plaintexts = [m for k in range(c) for m in pack(ints[:, k], slots.samples, slots.pitch)]
        if self._executor is None:
            sealed = self._key.encrypt(plaintexts)
        else:
            sealed = run_in_pieces(self._executor, encrypt_as_holder, self._key.parts_for_workers(), plaintexts)
        return write_message(
            PaillierHeader(MessageKind.SEALED, public.fingerprint, (n, c, 0), float(bound)), sealed, public.size
        )

    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        public = self._key.public
        header, body, promised = read_message(blinded, MessageKind.BLINDED, public.fingerprint)
        shape.check(*header.sizes)
        (_, c, d), slots = header.sizes, _layout(public, header)
        ciphertexts = read_numbers(body, promised, c * slots.opened_count(d + PAILLIER_CHECKS), public.size)
        public.check_units(ciphertexts)
        if self._executor is None:
            plaintexts = self._key.decrypt(ciphertexts)
        else:
            plaintexts = run_in_pieces(self._executor, decrypt_all, self._key.parts_for_workers(), ciphertexts)
        opened = PaillierHeader(MessageKind.OPENED, public.fingerprint, header.sizes, header.bound)
        windows = _windows(plaintexts, slots, c, d + PAILLIER_CHECKS)
        if shape.word is not None:
            windows = _words(windows, slots, d, shape.word)
        return write_message(opened, windows, _window_size(slots))


@dataclass(frozen=True, repr=False)
class PaillierPrepared:
    """Digits of J and its checks by worker, and the columns' scales (d,), which no one else learns."""

    n: int
    d: int
    bits: int
    blocks: tuple[BaseRange, ...]
    scales: Floats
    checks: PaillierChecks

    @property
    def nbytes(self) -> int:
        """The bytes that the digits prepared for the products take."""
        chains = [chain for block in self.blocks for chain in (*block.plus, *block.minus)]
        return sum(chain.positions.nbytes + chain.starts.nbytes + chain.entries.nbytes for chain in chains)


@dataclass(frozen=True, repr=False)
class PaillierProduct:
    """[[J^T g]] column of g by column of g, P results a ciphertext. Not to be sent: `blind` it."""

    header: PaillierHeader
    ciphertexts: tuple[int, ...]
    scales: Floats
    checks: PaillierChecks


class PaillierMask(Secret):
    """The windows of the masks, what makes reals of the results, and what checks them."""

    __slots__ = ("checks", "header", "scales", "windows")

    def __init__(self, header: PaillierHeader, windows: list[int], scales: Floats, checks: PaillierChecks) -> None:
        self.header, self.windows, self.scales, self.checks = header, windows, scales, checks


class PaillierEvaluator(Evaluator):
    """See `Evaluator`. Entry j of J^T g is off by at most max|J_j| (2^-11 max|g| + 2^-17 bound)."""

    def __init__(self, public: PublicKey, executor: Executor | None = None) -> None:
        self._public = public
        self._executor = executor

    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> PaillierPrepared:
        matrix = as_array(J)
        if matrix is None:
            raise ConfigError(
                "paillier: J in memory was expected, this batch is read in blocks; take smaller batches, or Ckks"
            )
        if np.ndim(matrix) != 2 or not np.size(matrix):
            raise RangeError(f"J must be a matrix (n x d) with entries, got shape {np.shape(matrix)}")
        n, d = np.shape(matrix)
        slots = choose_packing(self._public.bits, n)
        ints, scales = fixed_point.encode_columns(matrix, slots.column_bits)
        checks = PaillierChecks(d, slots.column_bits)
        ints, width = np.concatenate([ints, checks.columns(ints)], axis=1), d + PAILLIER_CHECKS
        i, j = np.nonzero(ints)
        K, share, L = slots.samples, slots.share(width), slots.pitch
        terms = ExponentTerms(
            bases=slots.sealed_count,
            outputs=slots.opened_count(width),
            base=i // K,
            value=ints[i, j],
            shift=(K - 1 - i % K + K * (j % share)) * L,
            output=j // share,
        )
        return PaillierPrepared(
            n, d, self._public.bits, tuple(plan(terms, worker_count(self._executor))), scales, checks
        )

    def transpose_product(
        self, prepared: PaillierPrepared, sealed: bytes, onto: PaillierProduct | None = None
    ) -> PaillierProduct:
        if onto is not None:
            raise CryptoError(
                "paillier: g was expected in one message, more came; both sides must run the same release"
            )
        public = self._public
        header, body, promised = read_message(sealed, MessageKind.SEALED, public.fingerprint)
        (n, c, _), slots = header.sizes, _layout(public, header)
        if (n, public.bits) != (prepared.n, prepared.bits):
            raise CryptoError(f"J was prepared for {prepared.n} samples, g has {n}; use the same batch")
        ciphertexts = read_numbers(body, promised, c * slots.sealed_count, public.size)
        public.check_units(ciphertexts)
        outputs = slots.opened_count(prepared.d + PAILLIER_CHECKS)
        columns = [ciphertexts[k * slots.sealed_count :][: slots.sealed_count] for k in range(c)]
        tasks = [
            (block, columns[k][block.first_base :][: block.bases], k) for k in range(c) for block in prepared.blocks
        ]
        modulus = int(public.square)
        if self._executor is None:
            parts = [evaluate_block(block, bases, modulus) for block, bases, _ in tasks]
        else:
            futures = [self._executor.submit(evaluate_block, block, bases, modulus) for block, bases, _ in tasks]
            parts = [future.result() for future in futures]
        total = [1] * (c * outputs)
        for (block, _, k), part in zip(tasks, parts, strict=True):
            for place, factor in enumerate(part, k * outputs + block.first_output):
                total[place] = total[place] * factor % modulus
        blinded = PaillierHeader(MessageKind.BLINDED, public.fingerprint, (n, c, prepared.d), header.bound)
        return PaillierProduct(blinded, tuple(total), prepared.scales, prepared.checks)

    def blind(self, product: PaillierProduct) -> tuple[bytes, PaillierMask]:
        public, header = self._public, product.header
        _, c, d = header.sizes
        slots = choose_packing(public.bits, header.sizes[0])
        masks = [secrets.randbelow(int(public.n)) for _ in product.ciphertexts]
        masked = [
            int(ciphertext * public.shift(r + slots.offset) % public.square)
            for ciphertext, r in zip(product.ciphertexts, masks, strict=True)
        ]
        mask = PaillierMask(header, _windows(masks, slots, c, d + PAILLIER_CHECKS), product.scales, product.checks)
        return write_message(header, self._rerandomised(masked), public.size), mask

    def _rerandomised(self, ciphertexts: list[int]) -> list[int]:
        n = int(self._public.n)
        if self._executor is None:
            return rerandomise_all(n, ciphertexts)
        return run_in_pieces(self._executor, rerandomise_all, n, ciphertexts)

    def unblind(self, opened: bytes, mask: PaillierMask, word: int | None = None) -> Floats:
        header, body, promised = read_message(opened, MessageKind.OPENED, self._public.fingerprint)
        if (header.sizes, header.bound) != (mask.header.sizes, mask.header.bound):
            raise CryptoError("the opened values and the mask belong to different products; keep them in order")
        n, c, width = header.sizes[0], header.sizes[1], header.sizes[2] + PAILLIER_CHECKS
        slots = choose_packing(self._public.bits, n)
        windows = read_numbers(body, promised, c * width, _window_size(slots))
        if word is None:
            full, half = (1 << slots.width) - 1, 1 << (slots.width - 1)
            targets = [((v - r) & full) - half for v, r in zip(windows, mask.windows, strict=True)]
        else:
            targets = _whole(windows, mask.windows, slots, width - PAILLIER_CHECKS, word)
        if not all(mask.checks.fits(targets[k * width : (k + 1) * width]) for k in range(c)):
            raise OpeningMismatch(
                "paillier: what was opened does not fit the checks beside it: it is not what was decrypted, "
                "or g is no residual; nothing of it is used"
            )
        reals = [fixed_point.decode(t, header.bound, slots.residual_bits) for t in targets]
        return np.array(reals, dtype=np.float64).reshape(c, width).T[:-PAILLIER_CHECKS] / mask.scales[:, None]


def _layout(public: PublicKey, header: PaillierHeader) -> PackedLayout:
    if header.sizes[0] > MAX_SAMPLES:
        raise CryptoError("the header has an impossible number of samples; the bytes were altered")
    return choose_packing(public.bits, header.sizes[0])


def _window_size(slots: PackedLayout) -> int:
    return -(-slots.width // 8)


def _windows(plaintexts: Sequence[int], slots: PackedLayout, c: int, d: int) -> list[int]:
    """Return the target slot of each result, column of g by column of g."""
    full, outputs, share = (1 << slots.width) - 1, slots.opened_count(d), slots.share(d)
    return [plaintexts[k * outputs + j // share] >> slots.target(j, d) & full for k in range(c) for j in range(d)]


def _words(windows: Sequence[int], slots: PackedLayout, d: int, word: int) -> list[int]:
    """Cut the windows of one output down to what whole numbers need.

    J and g are whole, so below the scale of g there is nothing; of the d columns `word` bits above it are left, and of
    the checks, which are as wide as columns may be, all of these.
    """
    above = [window >> slots.residual_bits for window in windows]
    return [value & (1 << word) - 1 for value in above[:d]] + above[d:]


def _whole(words: Sequence[int], masks: Sequence[int], slots: PackedLayout, d: int, word: int) -> list[int]:
    """Return the results of one output, at the scale of g, from words and the windows of their masks."""
    sizes = [word] * d + [slots.width - slots.residual_bits] * PAILLIER_CHECKS
    found = []
    for value, mask, bits in zip(words, masks, sizes, strict=True):
        half = 1 << bits - 1
        offset = 1 << slots.width - 1 - slots.residual_bits  # of every slot, see `PackedLayout.offset`
        rest = (value - (mask >> slots.residual_bits) - offset + half) % (2 * half)
        found.append(rest - half << slots.residual_bits)
    return found
