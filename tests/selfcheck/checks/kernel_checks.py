"""The engines of this package's arithmetic (crypto/kernel): random numbers, what replies disclose, and exactness.

Kinds of findings:

fresh     a reply that reveals the evaluator's factor by division
uniform   a mask that is not uniform, also in the bits below a unit of a share
keys      a public polynomial that does not depend on the coin (random bytes of both parties)
bias      a random number with another distribution than documented
size      a larger modulus than the standard allows, or a layout that no party would choose
bits      a bit of a dither (random number added before rounding) that is biased or depends on another bit
exact     arithmetic that differs from that of integers, or bytes that are not those of residues
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import (
    blas_check,
    ciphertexts,
    gradient,
    residue_bytes,
    residue_products,
    ring_keys,
    ring_sampling,
    seeded_vectors,
    share_protocol,
    shares,
)
from securevfl.crypto.kernel.ntt import Transform
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_parameters import FISHER_FACTOR, MAX_RUN_OPENINGS
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.share_scheme import common_coin
from securevfl.errors import CryptoError, RangeError
from selfcheck.bits import bits_of_numbers, bitwise

_BITS = (40, 48, 56)
_ALLOWED = 109  # bits of q at N = 4096
_MANY = 600_000  # number of draws in which a bias is searched
_DITHERS = 4000
_DISTANCE = 40  # bits of statistical distance of a run with this number of openings
_LEVELS = 4  # number of values that 64 openings of one value must have
_DEVIATIONS = 8.0  # standard deviations of a count from its mean; a count of mean 16 deviates more once in 1e11 runs


def answered() -> Outcome:
    """Check that an answer contains what hides the factor in it: an encryption of zero with both its errors, a mask
    modulo q."""
    outcome, scheme = Outcome(), shares.KernelShares(48)
    parameters = shares.ShareParameters(48)
    primes, coins = parameters.primes, [_coin(parameters) for _ in range(2)]
    holder = scheme.keygen(coins[0])
    evaluator: Any = scheme.evaluator(holder.public, coins[0])
    V = ShareRing(48).uniform(Prg.fresh("audit"), (40, 1))
    prepared, sealed = evaluator.prepare(np.eye(40, 8, dtype=np.int64)), holder.encrypt(V, columns=8)
    seconds = [parameters.second(coin) for coin in coins]
    if (seconds[0] == seconds[1]).all():
        outcome.add("keys", "evaluator", "public keys have polynomials that follow no coin")
    one, other = (_second(primes, evaluator.product(prepared, sealed)[0]) for _ in range(2))
    if (one == other).all():
        outcome.add("fresh", "holder", "two answers to one query have a polynomial in common, so it can be divided by")
    elif _ternary_factor(primes, one - other, seconds[0]):
        outcome.add("fresh", "holder", "two answers differ by a small multiple of the key's polynomial, without errors")
    one, other = (_second(primes, _summed(evaluator, prepared, sealed)) for _ in range(2))
    if (one == other).all():
        outcome.add("fresh", "holder", "two sums of products have a polynomial in common, so it can be divided by")
    elif _ternary_factor(primes, one - other, seconds[0]):
        outcome.add("fresh", "holder", "two sums of products differ by a small multiple of the key's polynomial")
    seeds = {evaluator.product(prepared, sealed)[0][-SYMMETRIC_KEY_BYTES:] for _ in range(8)}
    if len(seeds) < 8:
        outcome.add("fresh", "holder", "answers have a seed in common, so their shares are not independent")
    first = [ciphertexts.masked_first(primes, seed, (250,)) for seed in seeds]  # what a key s = 0 would decrypt
    masks = np.concatenate(first, axis=1)
    if not _filled(primes, masks):
        outcome.add("uniform", "holder", "masked coefficients of answers are not uniform modulo each prime")
    integers = [_joined([int(x) for x in column], primes) for column in masks.T]
    below = np.array([x * 2**48 % primes.q / primes.q for x in integers])
    battery = Battery()
    add_uniformity_tests(
        battery, "masked coefficients of answers below a unit", below, (below * 2**16).astype(np.int64).astype(np.uint8)
    )
    outcome.statistics("uniform", "holder", battery)
    return outcome


def _summed(evaluator: Any, prepared: Any, sealed: bytes) -> bytes:
    """Return the reply for a product that is added to itself."""
    total = evaluator.multiply(prepared, sealed)
    evaluator.add(total, evaluator.multiply(prepared, sealed))
    return bytes(evaluator.hide(total)[0])


def _coin(parameters: shares.ShareParameters) -> bytes:
    """Return a coin whose public polynomial can be divided by: one in sixty has a value of zero modulo some prime."""
    steps = Transform(parameters.primes, DEGREE)
    while True:
        coin = common_coin(os.urandom(32), os.urandom(32), 0, "audit")
        if steps.forward(parameters.second(coin)[..., None]).all():
            return coin


def _second(primes: Primes, reply: bytes) -> Floats:
    """Return c1 (P, M) of the first ciphertext of a reply about one output."""
    *_, c, r, s, d = share_protocol.REPLY_HEADER.unpack_from(reply)
    count = RingLayout(s, c, r, s).column_blocks(d)
    return residue_bytes.unpack(primes, memoryview(reply)[share_protocol.REPLY_HEADER.size :], (DEGREE // r, r, count))[
        :, :, 0, 0
    ]


def _ternary_factor(primes: Primes, difference: Floats, second: Floats) -> bool:
    """Return whether `difference` is `second` times a polynomial with coefficients -1, 0 and 1.

    Then a division reveals the evaluator's factor.

    Args:
        primes: the P primes.
        difference: the difference of two polynomials of replies, by its values at N points (P, N) modulo each prime.
        second: the second polynomial of the public key, in the same form.
    """
    steps = Transform(primes, DEGREE)
    below = steps.forward(second[..., None])[..., 0]
    inverse = np.array(
        [[pow(int(x), -1, p) for x in row] for row, p in zip(below, primes.values, strict=True)], np.float64
    )
    quotient = primes.reduce(primes.reduce(difference.copy()) * primes.reduce(inverse))
    return bool(np.abs(steps.back(quotient[..., None])).max() <= 2)


def _joined(column: list[int], primes: Primes) -> int:
    """Reconstruct the integer modulo q from its residues."""
    q = primes.q
    return sum(x * (q // p) * pow(q // p, -1, p) for x, p in zip(column, primes.values, strict=True)) % q


def drawn() -> Outcome:
    """Check that secrets, errors and residues have the distributions on which the security of the engine depends."""
    outcome, prg = Outcome(), Prg.fresh("audit")
    counts = np.bincount(ring_sampling.ternary(prg, (8 * _MANY,)).astype(np.int64) + 1, minlength=3)
    if _far(counts, np.full(3, 1 / 3)):
        outcome.add("bias", "holder", "secrets are -1, 0 and 1 at different rates")
    exact = np.array([math.comb(42, k) / 2.0**42 for k in range(43)])
    error_counts = np.bincount(ring_sampling.errors(prg, (_MANY,)).astype(np.int64) + 21, minlength=43)
    if _far(error_counts[8:35], exact[8:35]):
        outcome.add("bias", "all", "errors are of another distribution than a centred binomial one of 42 bits")
    for bits in _BITS:
        primes = shares.ShareParameters(bits).primes
        polynomials = [ring_keys.second_polynomial(primes, os.urandom(32)) for _ in range(16)]
        if not _filled(primes, np.concatenate(polynomials, axis=1)):
            outcome.add("bias", "all", f"residues of primes of {primes.bits} bits are not uniform")
    return outcome


def _filled(primes: Primes, rows: Floats) -> bool:
    """Return whether residues (P, count) are uniform over 32 intervals of each prime."""
    parts = [np.mod(row, p) * 32 / p for row, p in zip(rows, primes.values, strict=True)]
    return not any(_far(np.bincount(part.astype(np.int64), minlength=32), np.full(32, 1 / 32)) for part in parts)


def _far(counts: Any, rates: Any) -> bool:
    """Return whether a count, or the sum of counts, differs from its rate times `_MANY` by more than chance."""
    total = max(int(counts.sum()), 1) if abs(rates.sum() - 1) < 1e-9 else _MANY
    expected = rates * total
    return bool((np.abs(counts - expected) > _DEVIATIONS * np.sqrt(expected * (1 - rates)) + 1).any())


def sized() -> Outcome:
    """Check that the modulus is not larger than the standard allows, and that invalid layouts of a peer are refused."""
    outcome = Outcome()
    for bits in _BITS:
        parameters = shares.ShareParameters(bits)
        if math.log2(parameters.primes.q) > _ALLOWED:
            outcome.add(
                "size", "all", f"q for L = {bits} has more than {_ALLOWED} bits, which is below 128-bit security"
            )
        for n, c, r, s in ((8, 1, 3, 1), (8, 1, 128, 1), (8, 1, 1, 9), (9000, 1, 1, 5000), (8, 1, 0, 1), (8, 1, 1, 0)):
            try:
                parameters.layout(n, c, r, s)
            except CryptoError:
                continue
            outcome.add("size", "evaluator", f"an impossible layout of {n=}, {c=}, {r=}, {s=} is accepted")
    _short_products(outcome)
    return outcome


def _short_products(outcome: Outcome) -> None:
    """Check that products with short ciphertexts have no more noise than their tolerance."""
    exact, W, tolerance = shares.KernelShares(48), np.full((12, 100), 2048), 2.0**30
    short: Any = exact.within(tolerance, 2048, [(12, 8, 100)])
    coin = os.urandom(32)
    holder = short.keygen(coin)
    evaluator: Any = short.evaluator(holder.public, coin)
    V = ShareRing(48).uniform(Prg.fresh("audit"), (12, 8))
    reply, share = evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=100))
    error = ShareRing(48).signed(ShareRing(48).reduce(share + holder.open(reply) - W.astype(np.uint64).T @ V))
    if short.primes.q >= exact.primes.q or np.abs(error).max() > _DEVIATIONS * tolerance:
        outcome.add("noise", "holder", "products with short ciphertexts have more noise than their tolerance")
    try:
        evaluator.prepare(W << 16)
    except RangeError:
        return
    outcome.add("noise", "evaluator", "a factor whose products have more noise than the tolerance is accepted")


def vectors() -> Outcome:
    """Check that uniform vectors from a seed have a fresh error in each entry and are exactly uniform."""
    outcome, scheme = Outcome(), shares.KernelShares(48)
    holder: Any = scheme.keygen(os.urandom(32))
    (sealed, V), primes = holder.encrypt_uniform(5000, 1, columns=1), scheme.primes
    _, _, n, c, r, s = share_protocol.QUERY_HEADER.unpack_from(sealed)
    start = share_protocol.QUERY_HEADER.size
    seed = sealed[start : start + SYMMETRIC_KEY_BYTES]
    drawn = [holder._expanded(RingLayout(n, c, r, s), seed) for _ in range(2)]
    one, other = (primes.scaled(words, 48) + primes.centred(rho) for words, rho in drawn)
    difference = primes.reduce(one - other)[0]
    if not 0.9 < float(difference.std()) / math.sqrt(2 * 10.5) < 1.1:
        outcome.add("fresh", "evaluator", "uniform vectors from a seed have no error, so the seed determines the key")
    rho = seeded_vectors.unpack_remainders(primes, 48, sealed[start + SYMMETRIC_KEY_BYTES :], V.size)
    battery, unit = Battery(), 2 * seeded_vectors.remainder_limit(primes, 48) + 1
    for what, numbers, size in (
        ("words", V.reshape(-1).astype(np.int64), 2**48),
        ("remainders", rho + unit // 2, unit),
    ):
        add_uniformity_tests(battery, f"{what} from a seed", numbers / size, (numbers & 255).astype(np.uint8))
    outcome.statistics("uniform", "evaluator", battery)
    q, t = 1009, 8
    counts = np.zeros(t, np.int64)
    for z in range(q):
        word = (2 * t * z + q) // (2 * q) % t
        left = (z - (2 * q * word + t) // (2 * t) + q // 2) % q - q // 2
        counts[word] += abs(left) <= seeded_vectors.remainder_limit(cast(Any, _Modulus(q)), 3)
    if len(set(counts.tolist())) > 1:
        outcome.add("uniform", "evaluator", "words from a seed have different numbers of remainders")
    return outcome


class _Modulus:
    """A modulus in place of `Primes`."""

    def __init__(self, q: int) -> None:
        self.q = q


def arithmetic() -> Outcome:
    """Check that sums of extreme residues, transforms and bytes are exact, and that the test of the BLAS at the start
    finds one that rounds."""
    outcome = Outcome()
    for primes in (Primes(24, 3), Primes(20, 4), Primes(23, 4)):
        for what, holds in (("sums", _sums), ("transforms", _transforms), ("bytes", _bytes)):
            if not holds(primes):
                outcome.add("exact", "all", f"{what} of residues of primes of {primes.bits} bits are not exact")
    if not blas_check.find_blas_problem(_rounded):
        outcome.add("exact", "all", "a BLAS that rounds sums to single precision passes the look at the start")
    return outcome


def _sums(primes: Primes) -> bool:
    """Check sums of more terms than floats represent exactly, some of them odd."""
    rng = np.random.default_rng(primes.bits)
    terms = min(2 * primes.terms - 1, 1500)
    size = np.array([p // 2 for p in primes.values]).reshape(-1, 1, 1, 1)
    left, right = (size - rng.integers(0, 9, (len(primes), 1, *shape)) for shape in ((4, terms), (terms, 4)))
    products = residue_products.multiply_residues(primes, left.astype(np.float64), right.astype(np.float64))
    column = np.array(primes.values).reshape(-1, 1, 1, 1)
    return bool(((products.astype(np.int64) - left @ right) % column == 0).all())


def _transforms(primes: Primes) -> bool:
    """Say whether a product of two polynomials modulo y^32 + 1, and y^4096 + 1, by their values, equals the sums over
    all pairs."""
    rng = np.random.default_rng(primes.bits)
    for size in (32, DEGREE):
        steps, (a, b) = Transform(primes, size), (rng.integers(-9, 9, size) for _ in range(2))
        convolution = np.convolve(a, b)
        exact = convolution[:size] - np.append(convolution[size:], 0)
        values = primes.reduce(steps.forward(a[:, None].astype(float)) * steps.forward(b[:, None].astype(float)))
        if not (primes.reduce(steps.back(values)[..., 0] - exact) == 0).all():
            return False
    return True


def _bytes(primes: Primes) -> bool:
    """Check the bytes of residues: in order of primes, little-endian, two of 20 bits in five
    bytes, all below their prime.
    """
    together, width = (2, 5) if primes.bits == 20 else (1, 3)
    low = 4 if width == 5 else 2
    numbers = [p - 2 - k for k, p in enumerate(primes.values)]
    packed = [sum(numbers[at + k] << 20 * k for k in range(together)) for at in range(0, len(primes), together)]
    expected = b"".join(x.to_bytes(width, "little")[:low] for x in packed)
    expected += b"".join(x.to_bytes(width, "little")[low:] for x in packed)
    if residue_bytes.pack(primes, np.array(numbers, np.float64)[:, None]) != expected:
        return False
    try:
        residue_bytes.unpack(primes, b"\xff" * residue_bytes.packed_size(primes, 1), (1,))
    except CryptoError:
        return True
    return False


def _rounded(left: Floats, right: Floats, out: Floats) -> None:
    out[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(np.float64)


def opened() -> Outcome:
    """Check that the values a key holder adds to openings on the kernel have the right width and random bits,
    and that the masks of products are uniform modulo each prime."""
    outcome, battery = Outcome(), Battery()
    parameters = gradient.GradientParameters()
    primes, k = parameters.primes, parameters.profile.k
    holder: Any = gradient.KernelGradient().keygen()
    drawn = holder._dither(Prg.fresh("audit"), (_DITHERS,))
    sums = [(_joined([int(x) for x in column], primes) + 3 * 2 ** (k - 1)) % primes.q for column in drawn.T]
    bitwise(battery, "dithers", bits_of_numbers(sums, k))
    width = min(
        2 * max(1.0, float(np.std([float(number) for number in sums]))), 2.0**k
    )  # the width of each of three uniform summands
    if (far := width / (parameters.profile.noise * math.sqrt(2 * FISHER_FACTOR * MAX_RUN_OPENINGS))) < 2.0**_DISTANCE:
        distance = f"2^-{math.log2(far):.1f} of its openings without noise, 2^-{_DISTANCE} is promised"
        outcome.add("size", "holder", f"dithers bring a run within {distance}")
    evaluator: Any = gradient.KernelGradient().evaluator(holder.public)
    if not _filled(primes, evaluator._uniform(Prg.fresh("audit"), (2000,))):
        outcome.add("uniform", "holder", "masks of products are not uniform modulo each prime")
    w = 12345 * 2.0**parameters.profile.drop
    levels = {float(x) for x in holder._rounded(Prg.fresh("audit"), np.repeat(primes.whole(np.array([w])), 64, axis=1))}
    if len(levels) < _LEVELS:
        outcome.add("size", "holder", "openings of one value are always the same, so they show its noise")
    outcome.statistics("bits", "engine", battery)
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "kernel: answers": answered,
    "kernel: draws": drawn,
    "kernel: vectors": vectors,
    "kernel: openings": opened,
    "kernel: sizes": sized,
    "kernel: arithmetic": arithmetic,
}
