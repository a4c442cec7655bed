"""The random numbers of Paillier (exponents, masks, re-randomisation), from which messages are recomputed.

derived     a ciphertext differs from the one computed from its plaintext and the random numbers drawn for it
bits        a bit of a mask is biased, or depends on another bit of the same or of the next random number
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import lru_cache
from unittest import mock

import gmpy2
import numpy as np
from scipy import stats

from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.paillier.packing import HEADROOM_BITS, choose_packing
from securevfl.crypto.paillier.paillier_keys import SecretKey
from securevfl.crypto.paillier.paillier_messages import MessageKind, read_message, read_numbers
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator, PaillierHolder, PaillierProduct
from securevfl.crypto.paillier.paillier_sum import PaillierAdder
from selfcheck.bits import bits_of_numbers, bitwise
from selfcheck.checks import slow_reference
from selfcheck.checks.two_runs import WAYS
from selfcheck.entropy import recorded

_BITS = 2048
_ROWS, _COLUMNS, _REPLIES = 40, 24, 60


@lru_cache(maxsize=1)
def _key() -> SecretKey:
    return SecretKey.generate(_BITS)


def _sent(data: bytes, kind: MessageKind) -> list[int]:
    public = _key().public
    _, body, count = read_message(data, kind, public.fingerprint)
    return read_numbers(body, count, count, public.size)


def _product_of_zero() -> PaillierProduct:
    """Compute the product with a table of zeros, so that the blinded value is the mask."""
    holder, evaluator = PaillierHolder(_key()), PaillierEvaluator(_key().public)
    prepared = evaluator.prepare(np.zeros((_ROWS, _COLUMNS)))
    return evaluator.transpose_product(prepared, holder.encrypt(np.zeros((_ROWS, 1)), bound=1.0))


def masks() -> Outcome:
    """Check the plaintexts that the holder finds in replies: they are masks over the whole of Z_n, whatever slots are
    in use.

    Ciphertexts 1 + v n are looked at before they are re-randomised, which takes long and is recomputed below.
    """
    outcome, battery = Outcome(), Battery()
    n, product = int(_key().public.n), _product_of_zero()
    evaluator, offset = PaillierEvaluator(_key().public), choose_packing(_BITS, _ROWS).offset
    plain: list[int] = []
    with mock.patch.object(evaluator, "_rerandomised", lambda ciphertexts: ciphertexts):
        for _ in range(_REPLIES):
            blinded, _ = evaluator.blind(product)
            plain += [(c // n - offset) % n for c in _sent(blinded, MessageKind.BLINDED)]
    fractions = [float(gmpy2.mpq(v, n)) for v in plain]
    battery.add("masks: KS over n", float(stats.kstest(fractions, "uniform").pvalue))
    bitwise(battery, "masks", bits_of_numbers(plain, _BITS - HEADROOM_BITS))
    outcome.statistics("bits", "evaluator", battery)
    return outcome


def recomputed() -> Outcome:
    """Check ciphertexts of the holder, an adder and an evaluator against their draws, in this process and in others."""
    outcome = Outcome()
    for who, work in (("holder", _by_holder), ("adder", _by_adder), ("evaluator", _by_evaluator)):
        for executor in WAYS:
            if not work(executor):
                place = "" if executor is None else ", on an executor"
                what = f"a ciphertext is not what its plaintext and the numbers drawn for it make it{place}"
                outcome.add("derived", who, what)
    return outcome


def _by_holder(executor: Executor | None) -> bool:
    """Check [[m]] = (1 + n)^m r, with r = h_p^a modulo p^2 and h_q^b modulo q^2, for a and b below the orders."""
    key = _key()
    holder, g = PaillierHolder(key, executor), np.linspace(-1, 1, 3 * _ROWS)[:, None]
    with recorded() as drawn:
        sealed = _sent(holder.encrypt(g, bound=1.0), MessageKind.SEALED)
    draws = iter(drawn.here())
    for c, m in zip(sealed, key.decrypt(sealed), strict=True):
        for base, order, square in ((key._hp, key._a, key._p2), (key._hq, key._b, key._q2)):
            exponent = slow_reference.below(draws, int(order))
            if exponent < 0 or (c - gmpy2.powmod(base, exponent, square) * key.public.shift(m)) % square:
                return False
    return True


def _by_adder(executor: Executor | None) -> bool:
    """Check [[v]] and [[0]] of a party that adds: h^s, where s has half the bits of n."""
    public = _key().public
    adder = PaillierAdder(public, executor)
    v = np.zeros(90)
    with recorded() as drawn:
        parts = [adder.encrypt(v, bound=1.0, terms=2) for _ in range(2)]
        total = adder.add(*parts)
    draws = iter(drawn.here())
    one, other, both = (_sent(data, MessageKind.SUM) for data in (*parts, total))
    expected = [_noise(draws) for _ in range(3 * len(one))]
    fresh = [c * gmpy2.invert(a * b, public.square) for a, b, c in zip(one, other, both, strict=True)]
    return all((c - r) % public.square == 0 for c, r in zip([*one, *other, *fresh], expected, strict=True))


def _noise(draws: Iterator[bytes]) -> int:
    """Return h^s for the next drawn number s of this length. Return 0, which no ciphertext has, if there is none."""
    draw = next(draws, b"")
    s = int.from_bytes(draw, "big")
    return int(gmpy2.powmod(_key().public.h, s, _key().public.square)) if 8 * len(draw) == _BITS // 2 else 0


def _by_evaluator(executor: Executor | None) -> bool:
    """Check [[m + r]] of a reply: [[m]] (1 + n)^(r + offset) x^n, for r below n and a unit x modulo n."""
    public, product = _key().public, _product_of_zero()
    n, square = int(public.n), public.square
    with recorded() as drawn:
        blinded, _ = PaillierEvaluator(public, executor).blind(product)
    draws = iter(drawn.here())
    masks = [slow_reference.below(draws, n) for _ in product.ciphertexts]
    offset = choose_packing(_BITS, _ROWS).offset
    for c, m, r in zip(_sent(blinded, MessageKind.BLINDED), product.ciphertexts, masks, strict=True):
        x = slow_reference.below(draws, n)
        if min(r, x) < 0 or (c - m * public.shift(r + offset) * gmpy2.powmod(x, n, square)) % square:
            return False
    return True


CHECKS: dict[str, Callable[[], Outcome]] = {"bits of Paillier masks": masks, "Paillier recomputed": recomputed}
