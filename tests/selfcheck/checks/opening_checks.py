"""Openings (decrypted values) of a key holder: check values must detect changes, and never refuse honest openings.

A check value is a random combination of the opened values, with coefficients that the holder does not know. Each
engine's answer is changed in ways that a holder could choose: a value; a value and all checks; a check alone, up or
down; a value by the change that docs/proof.md states as detected; half of the modulus; or multiples of the first
primes of a check's length. The effect of a change within the tolerance is rounded before anyone sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gmpy2
import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.kernel import gradient
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.opening_checks import TEST_DEVIATIONS
from securevfl.crypto.kernel.row_parameters import OPENED_HEADER
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient, LatticeGradientParameters
from securevfl.crypto.paillier.packing import choose_packing
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS as PAILLIER_CHECKS
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.crypto.scheme import LinearScheme, OpeningShape
from securevfl.errors import OpeningMismatch
from securevfl.families.output_rounding import RoundedOutputs

_BITS = 2048
_ROWS, _COLUMNS = 40, 6
_HONEST = 20
_FOUND = 40  # a change of this many times the noise of a check is found by 20 checks

Change = Callable[[bytes], bytes]


def _lattice_changes(levels: float) -> Iterator[tuple[str, Change]]:
    deviation, m = (
        25.0 * levels / LatticeGradientParameters().levels,
        math.sqrt(_COLUMNS / 3),
    )  # levels, roughly those of one check
    least, half = int(_FOUND * TEST_DEVIATIONS * deviation * m), int(levels / 2)

    def changed(opened: bytes, value: int, check: int) -> bytes:
        _, _, count, _ = OPENED_HEADER.unpack_from(opened)
        values = np.frombuffer(opened, "<i4", offset=OPENED_HEADER.size).copy()
        values[0] += value
        values[count:] += check
        return opened[: OPENED_HEADER.size] + values.tobytes()

    for size in (least, 4 * least, half // 3, half):
        yield "a value", partial(changed, value=size, check=0)
        yield "a value, to the other side", partial(changed, value=-size, check=0)
    yield (
        "a value, and the checks by what all columns have alike",
        partial(changed, value=1 << 20, check=round((1 << 20) / m)),
    )
    for sign in (1, -1):
        yield "the checks alone", partial(changed, value=0, check=sign * least)


def _paillier_changes() -> Iterator[tuple[str, Change]]:
    slots = choose_packing(_BITS, _ROWS)
    size, prime = -(-slots.width // 8), int(gmpy2.next_prime(1 << slots.column_bits))

    def changed(opened: bytes, value: int, check: int) -> bytes:
        start = len(opened) - size * (_COLUMNS + PAILLIER_CHECKS)
        windows = [int.from_bytes(opened[at : at + size], "big") for at in range(start, len(opened), size)]
        moved = [value] + [0] * (_COLUMNS - 1) + [check] * PAILLIER_CHECKS
        full = (1 << slots.width) - 1
        shifted = [(window + by) & full for window, by in zip(windows, moved, strict=True)]
        return opened[:start] + b"".join(window.to_bytes(size, "big") for window in shifted)

    for value in (1, -1, 1 << 30, 1 << slots.width - 2, prime, prime * prime):
        yield "a value", partial(changed, value=value, check=0)
    yield "a value, and the checks by as much", partial(changed, value=1 << 30, check=1 << 30)
    for sign in (1, -1):
        yield "the checks alone", partial(changed, value=0, check=sign)


def _openings(scheme: LinearScheme, changes: Callable[[], Iterator[tuple[str, Change]]], honest: int) -> Outcome:
    outcome, generator = Outcome(), np.random.default_rng(0)
    holder = scheme.keygen(columns=_COLUMNS)
    evaluator = scheme.evaluator(holder.public)
    J, g = generator.normal(size=(_ROWS, _COLUMNS)), generator.uniform(-1, 1, (_ROWS, 1))

    def learned(change: Change | None) -> bool:
        """Return whether the evaluator accepts the opened values."""
        product: Any = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
        blinded, mask = evaluator.blind(product)
        opened = holder.open(blinded, OpeningShape(_ROWS, 1, _COLUMNS))
        try:
            evaluator.unblind(opened if change is None else change(opened), mask)
        except OpeningMismatch:
            return False
        return True

    if not all(learned(None) for _ in range(honest)):
        outcome.add("false alarm", "evaluator", "honestly opened values are refused")
    for what, change in changes():
        if learned(change):
            outcome.add("opening", "evaluator", f"{what} of the opened values was changed, and is accepted")
    return outcome


def _rounded() -> Outcome:
    """Check that outputs are sent in whole steps, with one dither for each row and run that differs between runs, and
    as they are in the mean."""
    outcome, n, step = Outcome(), 4000, 0.125
    rows = np.arange(n)
    H = np.linspace(-1, 1, n)[:, None] + 0.03
    one, other = (RoundedOutputs(bytes([key]) * 32, n, 1, step) for key in (1, 2))
    sent, again = one(H, rows), one(H[::-1], rows[::-1])[::-1]
    if not np.array_equal(np.rint(sent / step) * step, sent):
        outcome.add("rounding", "passive", "outputs are sent in full precision, which reveals a change of any size")
    if not np.array_equal(sent, again):
        outcome.add("rounding", "passive", "a row is rounded by another dither each time, so that it is averaged away")
    if np.array_equal(sent, other(H, rows)):
        outcome.add(
            "rounding", "passive", "outputs of two runs are rounded alike, by a dither that is no secret of one"
        )
    if abs((sent - H).mean()) > 6 * step / math.sqrt(6 * n):
        outcome.add("rounding", "passive", "outputs are rounded to one side")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "openings ckks": lambda: _openings(
        LatticeGradient(), partial(_lattice_changes, LatticeGradientParameters().levels), _HONEST
    ),
    "openings on the kernel": lambda: _openings(
        KernelGradient(), partial(_lattice_changes, gradient.GradientParameters().levels), _HONEST
    ),
    "openings paillier": lambda: _openings(PaillierScheme(_BITS), _paillier_changes, 2),
    "rounded outputs": _rounded,
}
