"""Mutants (deliberate errors) of shared products by this package's arithmetic (the kernel)."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import numpy as np

from securevfl.crypto.kernel import (
    blas_check,
    ciphertexts,
    ntt,
    residue_bytes,
    residue_products,
    residues,
    ring_keys,
    ring_sampling,
    seeded_vectors,
    shares,
    square_ntt,
)
from securevfl.crypto.kernel.ciphertexts import KernelSecretKey
from securevfl.crypto.kernel.residues import Primes
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.share_protocol import PreparedFactor, RingParameters
from securevfl.crypto.kernel.shares import KernelEvaluator, KernelShares, ShareParameters
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from selfcheck.mutants.mutant import Mutant, edited, patched

_second, _pack, _powers, _zero, _hide = (
    ring_keys.second_polynomial,
    residue_bytes.pack,
    ntt._powers,
    KernelEvaluator._zero,
    KernelEvaluator.hide,
)
_squares = square_ntt._squares


def _modulo(prg: Any, primes: Any, shape: Any) -> Any:
    """Return words modulo each prime, so that small residues are more frequent."""
    words = [prg.array(shape, np.uint32) & np.uint32(2**primes.bits - 1) for _ in primes.values]
    return np.stack([np.mod(row, p).astype(np.float64) for row, p in zip(words, primes.values, strict=True)])


def _given(primes: Any, coin: bytes) -> Any:
    return _second(primes, bytes(32))


def _modulo_t(primes: Any, seed: bytes, shape: Any) -> Any:
    """Return words modulo 2^48, scaled to q: nothing hides the noise."""
    ring = ShareRing(48)
    return primes.scaled(ring.uniform(Prg(seed, ciphertexts.REPLY_FIRST_LABEL), shape), ring.bits)


def one_prime_short(self: Any, prg: Any, shape: Any) -> Any:
    """Return masks that are multiples of the last prime and uniform modulo all others."""
    mask = ring_sampling.uniform(prg, self._primes, shape)
    mask[-1] = 0.0
    return mask


def _one_prime_short(primes: Any, seed: bytes, shape: Any) -> Any:
    """Return numbers that are multiples of the last prime and uniform modulo all others."""
    first = ring_sampling.uniform(Prg(seed, ciphertexts.REPLY_FIRST_LABEL), primes, shape)
    first[-1] = 0.0
    return first


def no_zero(self: Any, layout: Any, width: int, prg: Any, count: int) -> Any:
    return np.zeros((len(self._primes), layout.points, width + layout.r, count))


class _Unhiding(KernelEvaluator):
    _zero = no_zero


def _bare_sum(self: Any, total: Any) -> Any:
    bare = copy.copy(self)
    bare.__class__ = _Unhiding
    return _hide(bare, total)


def _no_errors(self: Any, layout: Any, width: int, prg: Any, count: int) -> Any:
    with mock.patch.object(ciphertexts, "errors", lambda prg, shape: np.zeros(shape)):
        return _zero(self, layout, width, prg, count)


def _five(bits: int) -> Primes:
    return Primes(23, 5)


def _any_layout(self: Any, n: int, c: int, r: int, s: int) -> RingLayout:
    return RingLayout(n, c, r, s)


def _at_once(primes: Any, left: Any, right: Any) -> Any:
    return primes.reduce(residue_products._product(left, right))


def _off_by_one(p: int, order: int) -> Any:
    return np.roll(_powers(p, order), 1)


def _on_their_side(x: Any) -> Any:
    return np.ascontiguousarray(_squares(x).swapaxes(-1, -2))


def _swapped(primes: Any, rows: Any) -> bytes:
    if primes.bits != 20:
        return _pack(primes, rows)
    return _pack(primes, rows[[1, 0, 3, 2]])


def _unchecked(primes: Any, data: Any, shape: Any) -> Any:
    return np.zeros((len(primes), *shape))


MUTANTS = [
    Mutant(
        "secrets from all bytes",
        "bytes modulo 3 without rejection, so that zeros and ones come more often",
        "kernel: draws",
        "bias",
        patched((ring_sampling, "_MULTIPLE_OF_3", 256)),
    ),
    Mutant(
        "residues by remainder",
        "uniform words are taken modulo each prime",
        "kernel: draws",
        "bias",
        patched((ciphertexts, "uniform", _modulo), (shares, "uniform", _modulo), (ring_keys, "uniform", _modulo)),
    ),
    Mutant(
        "errors of a narrower distribution",
        "errors are counted from 40 bits, not 42",
        "kernel: draws",
        "bias",
        patched((ring_sampling, "_HALF_ERROR_BITS", 20)),
    ),
    Mutant(
        "a coin that is not bound",
        "the second polynomial of every key on the kernel is the same",
        "kernel: answers",
        "keys",
        patched((shares, "second_polynomial", _given)),
    ),
    Mutant(
        "answers of the kernel without zero",
        "an answer is the product as it is",
        "kernel: answers",
        "fresh",
        patched((KernelEvaluator, "_zero", no_zero)),
    ),
    Mutant(
        "sums of products without zero",
        "a reply about several blocks is the sum of their products as it is",
        "kernel: answers",
        "fresh",
        patched((KernelEvaluator, "hide", _bare_sum)),
    ),
    Mutant(
        "encryptions of zero without errors",
        "the value added to a reply is u times the key, without noise",
        "kernel: answers",
        "fresh",
        patched((KernelEvaluator, "_zero", _no_errors)),
    ),
    Mutant(
        "masks of the kernel modulo t",
        "products are masked modulo 2^L, and not the noise below",
        "kernel: answers",
        "uniform",
        patched((ciphertexts, "masked_first", _modulo_t), (shares, "masked_first", _modulo_t)),
    ),
    Mutant(
        "masks modulo the wrong product",
        "a mask is a multiple of one of the primes",
        "kernel: answers",
        "uniform",
        patched((ciphertexts, "masked_first", _one_prime_short), (shares, "masked_first", _one_prime_short)),
    ),
    Mutant(
        "one seed for all answers",
        "the masked coefficients of all answers are computed from one seed",
        "kernel: answers",
        "fresh",
        patched((shares, "new_seed", lambda: bytes(32))),
    ),
    Mutant(
        "a prime too many",
        "five primes of 23 bits: 115 bits of modulus at N = 4096",
        "kernel: sizes",
        "size",
        patched((shares, "primes_for", _five), (shares, "MAX_MODULUS_BITS", 128)),
    ),
    Mutant(
        "vectors from a seed without errors",
        "a vector is c0 + a s exactly, so seed and remainders determine the key",
        "kernel: vectors",
        "fresh",
        patched(
            (
                KernelSecretKey,
                "decrypted",
                edited(KernelSecretKey, "decrypted", ("message + errors(prg, message.shape[1:])", "message")),
            )
        ),
    ),
    Mutant(
        "remainders that not every word has",
        "seeds are not discarded if a word with one remainder more occurs",
        "kernel: vectors",
        "uniform",
        patched((seeded_vectors, "remainder_limit", lambda primes, bits: primes.q // 2 ** (bits + 1) + 1)),
    ),
    Mutant(
        "noise that is not counted",
        "entries of a factor do not count in the noise of its products",
        "kernel: sizes",
        "noise",
        patched((RingParameters, "noise", lambda self, entries, largest: 0.0)),
    ),
    Mutant(
        "one short prime",
        "forward sums are multiplied modulo one prime of 24 bits, whatever its noise",
        "kernel: sizes",
        "noise",
        patched(
            (shares, "SHORT_PRIMES", ((24, 1),)),
            (KernelShares, "deviation", lambda *of: 0.0),
            (PreparedFactor, "check", lambda self, columns: None),
        ),
    ),
    Mutant(
        "layouts that do not exist",
        "whatever sizes a peer names are computed with",
        "kernel: sizes",
        "size",
        patched((ShareParameters, "layout", _any_layout)),
    ),
    Mutant(
        "reduction skipped at the bound",
        "sums of any number of products are taken in one piece",
        "kernel: arithmetic",
        "exact",
        patched((residue_products, "multiply_residues", _at_once)),
    ),
    Mutant(
        "sums that count on fused multiplication",
        "sums may reach 2^55, as if a longer accumulator held them",
        "kernel: arithmetic",
        "exact",
        patched((residues, "_EXACT", 2**55)),
    ),
    Mutant(
        "twiddle factors off by one",
        "powers of the root are one place further",
        "kernel: arithmetic",
        "exact",
        patched((ntt, "_powers", _off_by_one)),
    ),
    Mutant(
        "squares on their side",
        "rows and columns change places where few long polynomials are transformed as squares",
        "kernel: arithmetic",
        "exact",
        patched((square_ntt, "_squares", _on_their_side)),
    ),
    Mutant(
        "half bytes swapped",
        "two primes that share five bytes are in the wrong order",
        "kernel: arithmetic",
        "exact",
        patched((residue_bytes, "pack", _swapped)),
    ),
    Mutant(
        "residues beyond their prime",
        "received residues are not compared with their prime",
        "kernel: arithmetic",
        "exact",
        patched((residue_bytes, "unpack", _unchecked)),
    ),
    Mutant(
        "any BLAS will do",
        "nothing looks whether products are exact on this machine",
        "kernel: arithmetic",
        "exact",
        patched((blas_check, "find_blas_problem", lambda product: "")),
    ),
]
