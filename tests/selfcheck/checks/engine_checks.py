"""What an engine (encryption scheme) must guarantee in any protocol: checks of `LinearScheme` and `AdditiveScheme`.

encrypt     two encryptions of one g share no randomness; the header contains only public numbers
blind       two maskings of one product share no randomness, and are decrypted to different, uniform plaintexts
open        two replies to one ciphertext differ if the engine adds dithers (random numbers before rounding)
unblind     returns J^T g; a mask is single-use
add         a sum of the same vectors twice differs; the holder reads the sum
refusal     ciphertexts of another key, altered and invalid ones are refused, with the same error for all plaintexts;
            so are wider products
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np

from securevfl.audit.message_bytes import Body, public_moduli
from securevfl.audit.message_bytes import bodies as take_apart
from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.paillier.paillier_product import PaillierHolder, PaillierScheme
from securevfl.crypto.scheme import AdditiveScheme, KeyHolder, LinearScheme, OpeningShape, SumHolder
from securevfl.errors import CryptoError, KeyMismatch, OpeningMismatch, ShapeMismatch
from securevfl.runtime.codec import Message

_ROWS, _COLUMNS = 48, 6
_SHAPE = OpeningShape(_ROWS, 1, _COLUMNS)


class _Bytes(Message, frozen=True):
    data: bytes


def body(data: bytes, holder: KeyHolder | SumHolder) -> Body:
    """Split bytes that are encrypted under this holder's key into their parts."""
    return take_apart(_Bytes(data), public_moduli([_Bytes(holder.public)]))[0]


def linear(
    scheme: LinearScheme,
    executor: Executor | None = None,
    *,
    holders: Callable[[], KeyHolder] | None = None,
    blinds: int = 12,
) -> Outcome:
    """Check all of the above for J^T [[g]]. An executor, if there is one, runs the long calls.

    holders: makes key holders; the scheme's own keygen if None.
    """
    outcome, make = Outcome(), holders or partial(scheme.keygen, executor)
    holder = make()
    generator = np.random.default_rng(7)
    g, J = generator.uniform(-1, 1, (_ROWS, 1)), generator.normal(size=(_ROWS, _COLUMNS))
    evaluator = scheme.evaluator(holder.public, executor)
    sealed = [holder.encrypt(value, bound=1.0) for value in (g, g, np.zeros_like(g), 0.001 * g)]
    parts = [body(data, holder) for data in sealed]
    if any(part.bare for part in parts):
        outcome.add("bare", "evaluator", "encrypt makes ciphertexts 1 + mN, open to anyone")
    _distinct(outcome, "encrypt", [piece for part in parts for piece in part.fresh])
    if len({part.header for part in parts}) > 1:
        outcome.add("shape", "evaluator", "encrypt writes a header that follows the values")
    battery = Battery()
    add_uniformity_tests(battery, "encrypt", *_joined(parts))

    prepared = evaluator.prepare(J)
    product = evaluator.transpose_product(prepared, sealed[0])
    zero = evaluator.transpose_product(evaluator.prepare(np.zeros_like(J)), sealed[2])
    sent = []
    for number in range(blinds):
        blinded, mask = evaluator.blind(product if number % 2 else zero)
        opened = holder.open(blinded, _SHAPE)
        exact = J.T @ g if number % 2 else np.zeros((_COLUMNS, 1))
        try:
            if np.abs(evaluator.unblind(opened, mask) - exact).max() > 1e-2:
                outcome.add("output", "evaluator", "unblind gives another vector than J^T g")
        except OpeningMismatch:
            outcome.add("output", "evaluator", "unblind refuses its valid product")
        sent.append((blinded, body(blinded, holder), body(opened, holder)))
    _distinct(outcome, "blind", [piece for _, part, _ in sent for piece in part.fresh])
    _distinct(outcome, "open", [piece for *_, part in sent for piece in part.fresh])
    add_uniformity_tests(battery, "blind", *_joined([part for _, part, _ in sent]))
    add_uniformity_tests(battery, "open", *_joined([part for *_, part in sent]))
    outcome.statistics("uniform", "engine", battery)
    if isinstance(scheme, LatticeGradient | KernelGradient):
        _dither(outcome, holder, [blinded for blinded, *_ in sent])
        _mask_serves_once(outcome, evaluator, product, holder)
    refusals(outcome, scheme, holder, make(), g, J)
    return outcome


def _joined(parts: list[Body]) -> tuple[Floats, Any]:
    return np.concatenate([part.fractions for part in parts]), np.concatenate([part.low for part in parts])


def _distinct(outcome: Outcome, what: str, pieces: list[bytes]) -> None:
    if len(set(pieces)) < len(pieces):
        outcome.add("fresh", "engine", f"{what} uses one randomness twice")


def _dither(outcome: Outcome, holder: KeyHolder, sent: list[bytes]) -> None:
    """Check that openings are dithered: without a dither an opening is a function of the noise, which is linear in the
    secret key."""
    if all(holder.open(blinded, _SHAPE) == holder.open(blinded, _SHAPE) for blinded in sent):
        outcome.add("fresh", "evaluator", "open gives the same values twice: they are not dithered")


def _mask_serves_once(outcome: Outcome, evaluator: Any, product: Any, holder: KeyHolder) -> None:
    blinded, mask = evaluator.blind(product)
    opened = holder.open(blinded, _SHAPE)
    evaluator.unblind(opened, mask)
    try:
        evaluator.unblind(opened, mask)
    except CryptoError:
        return
    outcome.add("fresh", "evaluator", "a mask can be used for two openings")


def refusals(outcome: Outcome, scheme: LinearScheme, holder: KeyHolder, other: KeyHolder, g: Floats, J: Floats) -> None:
    """Check that ciphertexts of another key, truncated and invalid ones are refused, with
    one text for all plaintexts.
    """
    evaluator = scheme.evaluator(holder.public)
    prepared = evaluator.prepare(J)
    foreign = other.encrypt(g, bound=1.0)
    _refused(
        outcome, "a ciphertext of another key", KeyMismatch, lambda: evaluator.transpose_product(prepared, foreign)
    )
    sealed = holder.encrypt(g, bound=1.0)
    _refused(outcome, "a cut ciphertext", CryptoError, lambda: evaluator.transpose_product(prepared, sealed[:-9]))
    blinded, _ = evaluator.blind(evaluator.transpose_product(prepared, sealed))
    _refused(outcome, "a blinded product of another key", KeyMismatch, lambda: other.open(blinded, _SHAPE))
    narrow = OpeningShape(_ROWS, 1, _COLUMNS - 1)
    _refused(outcome, "a product wider than agreed", ShapeMismatch, lambda: holder.open(blinded, narrow))
    if isinstance(scheme, PaillierScheme):
        _refuse_elements(outcome, holder, blinded)


def _refuse_elements(outcome: Outcome, holder: KeyHolder, blinded: bytes) -> None:
    """Check that numbers outside (0, n^2) or with a common factor with n are all refused with the same text."""
    assert isinstance(holder, PaillierHolder)
    public, key = holder._key.public, holder._key
    size = public.size
    invalid = [0, int(key._p), int(key._q) * 3, int(public.n), int(public.n) * 5, int(public.square)]
    texts = set()
    for element in invalid:
        data = blinded[:-size] + element.to_bytes(size, "big")
        text = _refused(outcome, "an element that is no unit", CryptoError, partial(holder.open, data, _SHAPE))
        texts.add((text or "").split(";")[0])
    inside = {text for text in texts if "shares a factor" in text}
    if len(inside) > 1 or len(texts) > 2:
        outcome.add("refusal", "holder", "refusals distinguish invalid ciphertexts")


def _refused(outcome: Outcome, what: str, error: type[CryptoError], work: Callable[[], Any]) -> str | None:
    try:
        work()
    except error as cause:
        return str(cause)
    except Exception as cause:
        outcome.add("refusal", "engine", f"{what} raises {type(cause).__name__} instead of {error.__name__}")
        return None
    outcome.add("refusal", "engine", f"{what} is accepted")
    return None


def additive(scheme: AdditiveScheme, executor: Executor | None = None) -> Outcome:
    """Check all of the above for encrypted sums."""
    outcome, make = Outcome(), partial(scheme.sum_keygen, executor)
    holder = make()
    adder = scheme.adder(holder.public, executor)
    generator = np.random.default_rng(8)
    v = generator.uniform(-1, 1, 300)
    vectors = [adder.encrypt(value, bound=2.0, terms=4) for value in (v, v, np.zeros_like(v), 0.001 * v)]
    totals = [adder.add(vectors[0], vectors[1]) for _ in range(3)]
    parts = [body(data, holder) for data in [*vectors, *totals]]
    if any(part.bare for part in parts):
        outcome.add("bare", "adder", "encrypt makes ciphertexts 1 + mN, open to anyone")
    if any(part.form != "ciphertext" for part in parts):
        outcome.add("bare", "adder", "encrypt returns bytes of no ciphertext")
        return outcome
    _distinct(outcome, "encrypt or add", [piece for part in parts for piece in part.fresh])
    if len({part.header for part in parts[:4]}) > 1:
        outcome.add("shape", "adder", "encrypt writes a header that follows the values")
    battery = Battery()
    add_uniformity_tests(battery, "sums", *_joined(parts))
    outcome.statistics("uniform", "engine", battery)
    if np.abs(holder.decrypt(totals[0]) - 2 * v).max() > 1e-3:
        outcome.add("output", "holder", "decrypt gives another vector than the sum")
    other = make()
    foreign = scheme.adder(other.public).encrypt(v, bound=2.0, terms=4)
    _refused(outcome, "a vector under another key", KeyMismatch, lambda: adder.add(vectors[0], foreign))
    return outcome
