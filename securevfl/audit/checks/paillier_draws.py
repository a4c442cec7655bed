"""What hides under Paillier, recomputed from the numbers that were drawn: exponents, masks, and what re-randomises.

derived     a ciphertext is not what its plaintext and the numbers drawn for it make it
bits        a bit of a mask is biased, or follows from another of the same draw or of the next
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from unittest import mock

import gmpy2
import numpy as np
from scipy import stats

from securevfl.audit.checks import reference
from securevfl.audit.checks.statistics import Battery, bits_of_numbers, bitwise
from securevfl.audit.checks.transcripts import Outcome
from securevfl.audit.recording.entropy import recorded
from securevfl.crypto.packing import HEADROOM, layout
from securevfl.crypto.paillier import PaillierEvaluator, PaillierHolder, Product
from securevfl.crypto.paillier_bytes import Kind, numbers, read
from securevfl.crypto.paillier_keys import SecretKey
from securevfl.crypto.paillier_sum import PaillierAdder

_BITS = 2048
_ROWS, _COLUMNS, _REPLIES = 40, 24, 60


@lru_cache(maxsize=1)
def _key() -> SecretKey:
    return SecretKey.generate(_BITS)


def _sent(data: bytes, kind: Kind) -> list[int]:
    public = _key().public
    _, body, count = read(data, kind, public.fingerprint)
    return numbers(body, count, count, public.size)


def _product_of_zero() -> Product:
    """What is blinded is then the mask alone."""
    holder, evaluator = PaillierHolder(_key()), PaillierEvaluator(_key().public)
    prepared = evaluator.prepare(np.zeros((_ROWS, _COLUMNS)))
    return evaluator.transpose_product(prepared, holder.encrypt(np.zeros((_ROWS, 1)), bound=1.0))


def masks() -> Outcome:
    """The plaintexts that the holder finds in replies: masks over the whole of Z_n, whatever slots are in use.

    Ciphertexts 1 + v n are looked at before they are re-randomised, which takes long and is recomputed below.
    """
    outcome, battery = Outcome(), Battery()
    n, product = int(_key().public.n), _product_of_zero()
    evaluator, offset = PaillierEvaluator(_key().public), layout(_BITS, _ROWS).offset
    plain: list[int] = []
    with mock.patch.object(evaluator, "_rerandomised", lambda ciphertexts: ciphertexts):
        for _ in range(_REPLIES):
            blinded, _ = evaluator.blind(product)
            plain += [(c // n - offset) % n for c in _sent(blinded, Kind.BLINDED)]
    fractions = [float(gmpy2.mpq(v, n)) for v in plain]
    battery.add("masks: KS over n", float(stats.kstest(fractions, "uniform").pvalue))
    bitwise(battery, "masks", bits_of_numbers(plain, _BITS - HEADROOM))
    outcome.statistics("bits", "evaluator", battery)
    return outcome


def recomputed() -> Outcome:
    """Ciphertexts of the holder, of an adder and of an evaluator, each from what was drawn for it."""
    outcome = Outcome()
    for who, work in (("holder", _by_holder), ("adder", _by_adder), ("evaluator", _by_evaluator)):
        if not work():
            outcome.add("derived", who, "a ciphertext is not what its plaintext and the numbers drawn for it make it")
    return outcome


def _by_holder() -> bool:
    """[[m]] = (1 + n)^m r, r = h_p^a modulo p^2 and h_q^b modulo q^2, a and b below the orders."""
    key = _key()
    plaintexts = [3, int(key.public.n) - 5, 0, 1]
    with recorded() as drawn:
        sealed = key.encrypt(plaintexts)
    draws = iter(drawn.here())
    for c, m in zip(sealed, plaintexts, strict=True):
        for base, order, square in ((key._hp, key._a, key._p2), (key._hq, key._b, key._q2)):
            exponent = reference.below(draws, int(order))
            if exponent < 0 or (c - gmpy2.powmod(base, exponent, square) * key.public.shift(m)) % square:
                return False
    return True


def _by_adder() -> bool:
    """[[v]] and [[0]] that an adder multiplies on: h^s, s of half as many bits as n."""
    public = _key().public
    adder = PaillierAdder(public)
    v = np.zeros(90)
    with recorded() as drawn:
        parts = [adder.encrypt(v, bound=1.0, terms=2) for _ in range(2)]
        total = adder.add(*parts)
    draws = iter(drawn.here())
    one, other, both = (_sent(data, Kind.SUM) for data in (*parts, total))
    expected = [_noise(draws) for _ in range(3 * len(one))]
    fresh = [c * gmpy2.invert(a * b, public.square) for a, b, c in zip(one, other, both, strict=True)]
    return all((c - r) % public.square == 0 for c, r in zip([*one, *other, *fresh], expected, strict=True))


def _noise(draws: Iterator[bytes]) -> int:
    draw = next(draws, b"")
    s = int.from_bytes(draw, "big") if 8 * len(draw) == _BITS // 2 else 0
    return int(gmpy2.powmod(_key().public.h, s, _key().public.square))


def _by_evaluator() -> bool:
    """[[m + r]] of a reply: [[m]] (1 + n)^(r + offset) x^n, r below n, x a unit modulo n."""
    public, product = _key().public, _product_of_zero()
    n, square = int(public.n), public.square
    with recorded() as drawn:
        blinded, _ = PaillierEvaluator(public).blind(product)
    draws = iter(drawn.here())
    masks = [reference.below(draws, n) for _ in product.ciphertexts]
    offset = layout(_BITS, _ROWS).offset
    for c, m, r in zip(_sent(blinded, Kind.BLINDED), product.ciphertexts, masks, strict=True):
        x = reference.below(draws, n)
        if min(r, x) < 0 or (c - m * public.shift(r + offset) * gmpy2.powmod(x, n, square)) % square:
            return False
    return True


CHECKS: dict[str, Callable[[], Outcome]] = {"bits of Paillier masks": masks, "Paillier recomputed": recomputed}
