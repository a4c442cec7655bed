"""Encrypted products J^T g under the Paillier cryptosystem.

The key holder has g, the residuals of a batch of rows ("samples"), and a secret key with the modulus n = p * q. The
evaluator has the matrix J; X is J as integers. In Paillier's scheme, multiplying ciphertexts modulo n^2 adds plaintexts
modulo n, and raising a ciphertext to the power X[i, j] multiplies its plaintext by X[i, j]. A plaintext has room for K
samples of g, or for the results of several columns, in slots of some bits each (packing.py).

    key holder                                   evaluator
    encrypts g, scaled to integers          ->   product over i of c_i^X[i, j], for each column j of J and for check
                                                 columns (paillier_checks.py), by multiexp.py; several columns are
                                                 shifted into one plaintext
    decrypts v = m + r mod n                <-   multiplies by (1 + n)^r * x^n, for a random mask r modulo n and a
                                                 random unit x
    sends the slots of v with results       ->   subtracts the slots of r, tests the checks, converts to real numbers

The evaluator sends uniformly random units modulo n^2, whatever key and ciphertexts the holder has chosen: the key
includes a proof of the only property that this requires (modulus_proof.py). So nothing about J is revealed, without any
assumption. (A power of a base in the holder's key, such as h^s, would be faster than x^n. But if the holder chose p - 1
with small factors only, and an h of small order, it could read the exponents X[i, j].) The evaluator sees ciphertexts,
which are secure under the decisional composite residuosity assumption (DCR), and the slots with J^T g, for no more
columns than agreed. It does not see the other slots, which contain products of g with wrong rows of J.
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
from securevfl.crypto.paillier import fixed_point_integers
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
    """The Paillier scheme for encrypted products J^T g.

    Args:
        bits: size of the keys, which is the number of bits of n.

    Raises:
        ConfigError: if the size is below 2048 bits or impossible.
    """

    name: ClassVar[str] = "paillier"

    def __init__(self, bits: int = 3072) -> None:
        self.bits = check_bits(bits)

    @property
    def strength(self) -> str:
        """Key size, security level and assumption, as one line of text."""
        level = 128 if self.bits >= 3072 else 112
        return f"Paillier {self.bits} bits, {level}-bit security, decisional composite residuosity"

    def distance_bits(self, values: int) -> float:
        """Return -log2 of the statistical distance of a run from an ideal one; see `LinearScheme.distance_bits`."""
        return distance_bits(values)

    @property
    def checks(self) -> int:
        """Number of check values that are decrypted for one column of g."""
        return PAILLIER_CHECKS

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        """Return the number of bits of an answer with `word` bits for each column; see `LinearScheme.opened_bits`."""
        slots = choose_packing(self.bits, rows)
        return columns * word + PAILLIER_CHECKS * (slots.width - slots.residual_bits)

    def opened_size(self, shape: OpeningShape) -> int:
        """Return the largest size of a holder's answer in bytes; see `LinearScheme.opened_size`."""
        width = _window_size(choose_packing(self.bits, shape.rows))
        return message_size(shape.outputs * (shape.columns + PAILLIER_CHECKS), width)

    @property
    def rotates(self) -> bool:
        """Whether keys should be replaced in every epoch: always False, because answers reveal nothing about a key."""
        return False

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        """Create a holder with a new key; see `LinearScheme.keygen`."""
        return PaillierHolder(SecretKey.generate(self.bits), executor)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        """Create the evaluator for a public key; see `LinearScheme.evaluator`."""
        return PaillierEvaluator(PublicKey.load(public, self.bits), executor)


class PaillierHolder(KeyHolder):
    """The party with g and the secret key.

    Args:
        key: the secret key.
        executor: processes of this party for expensive operations, which receive the secret key; None for the calling
            thread.
    """

    def __init__(self, key: SecretKey, executor: Executor | None = None) -> None:
        self._key = key
        self._executor = executor
        self.public = key.public.data

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        """Encrypt g in one message; see `KeyHolder.encrypt`."""
        G = np.asarray(g, dtype=np.float64)
        if G.ndim != 2 or not G.size:
            raise RangeError(f"residuals g of shape {G.shape} are not a matrix with entries", code="SVFL-CRYPTO-SHAPE")
        n, c = G.shape
        public = self._key.public
        slots = choose_packing(public.bits, n)
        ints = fixed_point_integers.encode(G, bound, slots.residual_bits)
        plaintexts = [m for k in range(c) for m in pack(ints[:, k], slots.samples, slots.pitch)]
        if self._executor is None:
            sealed = self._key.encrypt(plaintexts)
        else:
            sealed = run_in_pieces(self._executor, encrypt_as_holder, self._key.parts_for_workers(), plaintexts)
        return write_message(
            PaillierHeader(MessageKind.SEALED, public.fingerprint, (n, c, 0), float(bound)), sealed, public.size
        )

    def open(self, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a blinded product; see `KeyHolder.open`."""
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
    """J and its check columns as exponents, divided among workers.

    Attributes:
        n: number of rows of J.
        d: number of columns of J.
        bits: size of the keys.
        blocks: the exponents, one block for each worker.
        scales: the factors by which the columns of J were multiplied (d,); they stay with the evaluator.
        checks: the secret weights of the check columns.
    """

    n: int
    d: int
    bits: int
    blocks: tuple[BaseRange, ...]
    scales: Floats
    checks: PaillierChecks

    @property
    def nbytes(self) -> int:
        """Memory of the encoded J (its exponents), in bytes."""
        chains = [chain for block in self.blocks for chain in (*block.plus, *block.minus)]
        return sum(chain.positions.nbytes + chain.starts.nbytes + chain.entries.nbytes for chain in chains)


@dataclass(frozen=True, repr=False)
class PaillierProduct:
    """An encrypted product J^T g, which must be blinded before it is sent.

    Attributes:
        header: the header of the message that will be sent.
        ciphertexts: for each column of g, ciphertexts that contain the results of several columns of J each.
        scales: the factors by which the columns of J were multiplied (d,).
        checks: the secret weights of the check columns.
    """

    header: PaillierHeader
    ciphertexts: tuple[int, ...]
    scales: Floats
    checks: PaillierChecks


class PaillierMask(Secret):
    """The mask of a product, with everything that the evaluator needs to read the answer.

    Args:
        header: the header of the product's message.
        windows: the slots of the masks r at the positions of the results.
        scales: the factors by which the columns of J were multiplied (d,).
        checks: the secret weights of the check columns.
    """

    __slots__ = ("checks", "header", "scales", "windows")

    def __init__(self, header: PaillierHeader, windows: list[int], scales: Floats, checks: PaillierChecks) -> None:
        self.header, self.windows, self.scales, self.checks = header, windows, scales, checks


class PaillierEvaluator(Evaluator):
    """The party that has J.

    The error of entry j of J^T g is at most max|J[:, j]| * (2^-11 * max|g| + 2^-17 * bound).

    Args:
        public: the holder's public key.
        executor: processes for expensive operations; None for the calling thread.
    """

    def __init__(self, public: PublicKey, executor: Executor | None = None) -> None:
        self._public = public
        self._executor = executor

    def prepare(self, J: Floats | ChunkedMatrix, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> PaillierPrepared:
        """Encode J for products; see `Evaluator.prepare`."""
        matrix = as_array(J)
        if matrix is None:
            raise ConfigError(
                "Paillier needs the matrix J of a batch in memory, but this batch is read in blocks",
                'use smaller batches, or residual = "ckks"',
                code="SVFL-JOB-UNSUPPORTED",
            )
        if np.ndim(matrix) != 2 or not np.size(matrix):
            raise RangeError(
                f"derivatives J of shape {np.shape(matrix)} are not a matrix with entries", code="SVFL-CRYPTO-SHAPE"
            )
        n, d = np.shape(matrix)
        slots = choose_packing(self._public.bits, n)
        ints, scales = fixed_point_integers.encode_columns(matrix, slots.column_bits)
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
        """Return the encrypted product J^T g; see `Evaluator.transpose_product`. g must be in one message."""
        if onto is not None:
            raise CryptoError(
                "received a second message with encrypted residuals g, but Paillier uses one",
                "run the same version of securevfl on both sides",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        public = self._public
        header, body, promised = read_message(sealed, MessageKind.SEALED, public.fingerprint)
        (n, c, _), slots = header.sizes, _layout(public, header)
        if (n, public.bits) != (prepared.n, prepared.bits):
            raise CryptoError(
                f"the matrix J has {prepared.n} rows, but the residuals g have {n}", code="SVFL-CRYPTO-SHAPE"
            )
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
        for (block, _, k), factors in zip(tasks, parts, strict=True):
            for output, factor in enumerate(factors, k * outputs + block.first_output):
                total[output] = total[output] * factor % modulus
        blinded = PaillierHeader(MessageKind.BLINDED, public.fingerprint, (n, c, prepared.d), header.bound)
        return PaillierProduct(blinded, tuple(total), prepared.scales, prepared.checks)

    def blind(self, product: PaillierProduct) -> tuple[bytes, PaillierMask]:
        """Hide an encrypted product before it is sent; see `Evaluator.blind`."""
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
        """Return J^T g from the holder's answer; see `Evaluator.unblind`."""
        header, body, promised = read_message(opened, MessageKind.OPENED, self._public.fingerprint)
        if (header.sizes, header.bound) != (mask.header.sizes, mask.header.bound):
            raise CryptoError(
                "the decrypted values and the mask belong to different products",
                "pass them in order",
                code="SVFL-CRYPTO-OPENING",
            )
        n, c, width = header.sizes[0], header.sizes[1], header.sizes[2] + PAILLIER_CHECKS
        slots = choose_packing(self._public.bits, n)
        windows = read_numbers(body, promised, c * width, _window_size(slots))
        if word is None:
            full, half = (1 << slots.width) - 1, 1 << (slots.width - 1)
            targets = [((v - r) & full) - half for v, r in zip(windows, mask.windows, strict=True)]
        else:
            targets = _from_words(windows, mask.windows, slots, width - PAILLIER_CHECKS, word)
        if not all(mask.checks.fits(targets[k * width : (k + 1) * width]) for k in range(c)):
            raise OpeningMismatch(
                "the decrypted values do not pass their checks, so none of them is used",
                "stop, and ask the key holder for the reason: it returned other values, or its residuals g exceed "
                "their bound",
                code="SVFL-CRYPTO-OPENING",
            )
        reals = [fixed_point_integers.decode(t, header.bound, slots.residual_bits) for t in targets]
        return np.array(reals, dtype=np.float64).reshape(c, width).T[:-PAILLIER_CHECKS] / mask.scales[:, None]


def _layout(public: PublicKey, header: PaillierHeader) -> PackedLayout:
    if header.sizes[0] > MAX_SAMPLES:
        raise CryptoError(f"a Paillier message has more than {MAX_SAMPLES} rows", code="SVFL-CRYPTO-CIPHERTEXT")
    return choose_packing(public.bits, header.sizes[0])


def _window_size(slots: PackedLayout) -> int:
    return -(-slots.width // 8)


def _windows(plaintexts: Sequence[int], slots: PackedLayout, c: int, d: int) -> list[int]:
    """Return the contents of the slots with results, from plaintexts or masks: d for each of c columns of g."""
    full, outputs, share = (1 << slots.width) - 1, slots.opened_count(d), slots.share(d)
    return [plaintexts[k * outputs + j // share] >> slots.target(j, d) & full for k in range(c) for j in range(d)]


def _words(windows: Sequence[int], slots: PackedLayout, d: int, word: int) -> list[int]:
    """Cut the results for one column of g to the bits that are needed if J and g consist of integers.

    The lowest bits of every result are dropped, because they are below the scale of g. Of the other bits, the
    lowest `word` bits remain of a result of a column of J, and all bits of a result of a check.

    Args:
        windows: contents of the slots with the results of the columns of J, then of the checks.
        slots: the positions of numbers in a plaintext (packing.py).
        d: number of columns of J.
        word: number of bits that remain of each column's result.

    Returns:
        The remaining bits of each result, as integers.
    """
    above = [window >> slots.residual_bits for window in windows]
    return [value & (1 << word) - 1 for value in above[:d]] + above[d:]


def _from_words(words: Sequence[int], masks: Sequence[int], slots: PackedLayout, d: int, word: int) -> list[int]:
    """Restore the results for one column of g from the bits that `_words` returned.

    Args:
        words: the remaining bits of the masked results.
        masks: the contents of the same slots of the masks.
        slots: the positions of numbers in a plaintext (packing.py).
        d: number of columns of J.
        word: number of bits that remain of each column's result.

    Returns:
        The results as integers at the scale of g.
    """
    sizes = [word] * d + [slots.width - slots.residual_bits] * PAILLIER_CHECKS
    results = []
    for value, mask, bits in zip(words, masks, sizes, strict=True):
        half = 1 << bits - 1
        # half of a slot's range, which `PackedLayout.offset` added to every slot
        offset = 1 << slots.width - 1 - slots.residual_bits
        difference = (value - (mask >> slots.residual_bits) - offset + half) % (2 * half)
        results.append(difference - half << slots.residual_bits)
    return results
