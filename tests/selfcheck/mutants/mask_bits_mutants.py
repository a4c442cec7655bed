"""Mutants (deliberate errors) in which some bits of a mask are constant or depend on other bits."""

from __future__ import annotations

import secrets
from typing import Any
from unittest import mock

import numpy as np

from securevfl.crypto.lattice import lattice_gradient
from securevfl.crypto.lattice.lattice_gradient import LatticeEvaluator
from securevfl.crypto.lattice.polynomial_ring import uniform
from securevfl.crypto.paillier import paillier_product
from securevfl.crypto.paillier.packing import choose_packing
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator
from securevfl.crypto.prg import Prg
from securevfl.protocols.sums.tree_sum import TreeSumRole
from selfcheck.mutants.mutant import Mutant, Stand, patched

_CHUNK = 1 << 16


def _a_bit_twice(self: Any, part: Any) -> Any:
    mask = self._masks.array(part.shape, part.dtype.type)
    if part.dtype == np.uint64:
        mask = mask & np.uint64(~(1 << 40) & 2**64 - 1) | (mask >> np.uint64(17) & np.uint64(1)) << np.uint64(40)
    return mask


_fill = Prg.fill


def _one_chunk(self: Any, out: Any, *, number: int | None = None) -> None:
    """Fill outputs longer than 64 KiB by repeating their first 64 KiB."""
    raw = out.reshape(-1).view(np.uint8)
    first = np.empty(min(-(-len(raw) // 8), _CHUNK // 8), np.uint64)
    _fill(self, first, number=number)
    raw[:] = np.resize(first.view(np.uint8), len(raw))


_dither = lattice_gradient.dither


def _coarse_dither(prg: Any, primes: Any, bits: int, shape: Any) -> Any:
    rows = _dither(prg, primes, bits - 24, shape).astype(object)
    return np.stack([np.asarray((row << 24) % p, np.uint64) for row, p in zip(rows, primes, strict=True)])


def _short_dither(prg: Any, primes: Any, bits: int, shape: Any) -> Any:
    return _dither(prg, primes, bits - 24, shape)


def _hollow_mask(self: Any, prg: Any, shape: Any) -> Any:
    primes = self._parameters.ring.primes
    mask = uniform(prg, primes, int(np.prod(shape))) & np.uint64(~0xFFFF0000 & 2**64 - 1)
    return mask.reshape(len(primes), *shape)


def _short_mask(limit: int) -> int:
    return secrets.randbelow(limit) >> 20


_blind = PaillierEvaluator.blind


def _first_slot_bare(self: Any, product: Any) -> Any:
    """Leave slot 0 without a mask; it contains cross terms if two or more samples share a ciphertext."""
    pitch = choose_packing(self._public.bits, product.header.sizes[0]).pitch
    bare = Stand(secrets, randbelow=lambda limit: secrets.randbelow(limit) >> pitch << pitch)
    with mock.patch.object(paillier_product, "secrets", bare):
        return _blind(self, product)


def _mask_of_used_slots(self: Any, product: Any) -> Any:
    n, _, d = product.header.sizes
    slots = choose_packing(self._public.bits, n)
    width = d + PAILLIER_CHECKS
    bits = slots.target(slots.share(width) - 1, width) + slots.width + 8
    short = Stand(secrets, randbelow=lambda limit: secrets.randbelow(limit) & ((1 << bits) - 1))
    with mock.patch.object(paillier_product, "secrets", short):
        return _blind(self, product)


MUTANTS = [
    Mutant(
        "tree: a bit twice",
        "bit 40 of each residue's mask is a copy of bit 17",
        "bits of masks",
        "bits",
        patched((TreeSumRole, "_mask", _a_bit_twice)),
    ),
    Mutant(
        "keystreams: one chunk for ever",
        "a stream repeats its first 64 KiB",
        "streams are known answers",
        "derived",
        patched((Prg, "fill", _one_chunk)),
    ),
    Mutant(
        "lattice: dither on a grid",
        "the dither is a multiple of 2^24, so that openings reveal 2^24 times more of the noise",
        "bits of lattice masks",
        "bits",
        patched((lattice_gradient, "dither", _coarse_dither)),
    ),
    Mutant(
        "lattice: hollow mask",
        "bits 16 to 31 of each residue of a mask are zero",
        "bits of lattice masks",
        "bits",
        patched((LatticeEvaluator, "_uniform", _hollow_mask)),
    ),
    Mutant(
        "lattice: dither 24 bits short",
        "openings reveal 2^24 times more of the noise than stated",
        "bits of lattice masks",
        "size",
        patched((lattice_gradient, "dither", _short_dither)),
    ),
    Mutant(
        "Paillier: mask 20 bits short",
        "the mask stays below n / 2^20",
        "bits of Paillier masks",
        "bits",
        patched((paillier_product, "secrets", Stand(secrets, randbelow=_short_mask))),
    ),
    Mutant(
        "Paillier: a slot of cross terms unmasked",
        "the mask leaves slot 0 open, so the holder reads products of single rows",
        "bits of Paillier masks",
        "bits",
        patched((PaillierEvaluator, "blind", _first_slot_bare)),
    ),
    Mutant(
        "Paillier: mask of the used slots",
        "the mask reaches 8 bits beyond the highest slot in use",
        "bits of Paillier masks",
        "bits",
        patched((PaillierEvaluator, "blind", _mask_of_used_slots)),
    ),
]
