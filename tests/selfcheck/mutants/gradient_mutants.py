"""Mutants (deliberate errors) of encrypted gradients by this package's arithmetic: masks, dithers, headers, scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from securevfl.crypto.kernel import gradient, ring_sampling, row_products
from securevfl.crypto.kernel.gradient import KernelGradientEvaluator, KernelGradientHolder
from securevfl.crypto.kernel.row_products import RowEvaluator
from selfcheck.mutants.kernel_mutants import no_zero, one_prime_short
from selfcheck.mutants.mutant import Mutant, patched

_pieces, _unblind, _dither = KernelGradientHolder.encrypt_pieces, RowEvaluator.unblind, ring_sampling.dither


def _no_mask(self: Any, prg: Any, shape: Any) -> Any:
    return np.zeros((len(self._primes), *shape))


def _no_dither(self: Any, prg: Any, shape: Any) -> Any:
    return np.zeros((len(self._parameters.primes), *shape))


def _on_a_grid(prg: Any, primes: Any, bits: int, shape: Any) -> Any:
    """Return multiples of 2^24: the lowest of three parts is omitted."""
    drawn = _dither(prg, primes, bits - 24, shape)
    factor = np.array([2**24 % p for p in primes.values]).reshape(-1, *[1] * len(shape))
    return primes.reduce(drawn * factor)


def _short(prg: Any, primes: Any, bits: int, shape: Any) -> Any:
    return _dither(prg, primes, bits - 24, shape)


def _scale_of_data(self: Any, g: Any, *, bound: float) -> Any:
    return _pieces(self, g, bound=float(np.abs(g).max()) or 1.0)


def _again(self: Any, opened: bytes, mask: Any) -> Any:
    mask.spent = False
    return _unblind(self, opened, mask)


def _any_key(engine: str, shape: Any, magic: bytes, message: bytes, key: bytes) -> Any:
    return shape.unpack_from(message)[2:]


MUTANTS = [
    Mutant(
        "gradient: no encryption of zero",
        "c1 of the reply is c1(g) J, so the holder recovers J by division",
        "engine ckks",
        "fresh",
        patched((KernelGradientEvaluator, "_zero", no_zero)),
    ),
    Mutant(
        "gradient: no mask",
        "the holder opens J^T g itself",
        "engine ckks",
        "uniform",
        patched((KernelGradientEvaluator, "_uniform", _no_mask)),
    ),
    Mutant(
        "gradient: no mask, seen by the simulator",
        "as above",
        "simulator residual ckks",
        "simulator",
        patched((KernelGradientEvaluator, "_uniform", _no_mask)),
    ),
    Mutant(
        "gradient: mask modulo the wrong product",
        "a mask is a multiple of one of the primes",
        "kernel: openings",
        "uniform",
        patched((KernelGradientEvaluator, "_uniform", one_prime_short)),
    ),
    Mutant(
        "gradient: no dither",
        "openings show the noise, which is linear in the key",
        "kernel: openings",
        "size",
        patched((KernelGradientHolder, "_dither", _no_dither)),
    ),
    Mutant(
        "gradient: dither on a grid",
        "the dither is a multiple of 2^24, so that openings reveal more of the noise",
        "kernel: openings",
        "bits",
        patched((gradient, "dither", _on_a_grid)),
    ),
    Mutant(
        "gradient: dither 24 bits short",
        "openings reveal 2^24 times more of the noise than stated",
        "kernel: openings",
        "size",
        patched((gradient, "dither", _short)),
    ),
    Mutant(
        "gradient: masks serve twice",
        "a mask is not spent by an opening",
        "engine ckks",
        "fresh",
        patched((KernelGradientEvaluator, "unblind", _again)),
    ),
    Mutant(
        "gradient: scale in the clear",
        "the header holds max|g| as its bound",
        "engine ckks",
        "shape",
        patched((KernelGradientHolder, "encrypt_pieces", _scale_of_data)),
    ),
    Mutant(
        "gradient: keys not distinguished",
        "a ciphertext of another key is taken",
        "engine ckks",
        "refusal",
        patched((row_products, "read_header", _any_key)),
    ),
]
