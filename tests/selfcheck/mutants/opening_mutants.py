"""Mutants (deliberate errors) of the check values that are opened together with results."""

from __future__ import annotations

from typing import Any

import gmpy2
import numpy as np

from securevfl.crypto.kernel import row_products
from securevfl.crypto.kernel.opening_checks import check_tolerance
from securevfl.crypto.paillier import paillier_checks
from securevfl.crypto.paillier.paillier_checks import PaillierChecks
from securevfl.families.output_rounding import RoundedOutputs
from selfcheck.mutants.mutant import Mutant, edited, patched


def _taken(*arguments: Any) -> bool:
    return True


def _alike(d: int, checks: int) -> Any:
    return np.full((d, checks), 1 / max(1.0, (d / 3) ** 0.5))


def _wide(*arguments: Any) -> Any:
    return 2.0**10 * check_tolerance(*arguments)


_init = PaillierChecks.__init__


def _ones(self: Any, d: int, column_bits: int) -> None:
    _init(self, d, column_bits)
    self._weights = [np.ones_like(weights) for weights in self._weights]


def _first_prime(bits: int) -> int:
    return int(gmpy2.next_prime(1 << bits - 1))


MUTANTS = [
    Mutant(
        "opening: checks skipped, ckks",
        "opened values are accepted whatever their checks",
        "openings ckks",
        "opening",
        patched((row_products, "passes_checks", _taken)),
    ),
    Mutant(
        "opening: checks skipped, paillier",
        "opened values are accepted whatever their checks",
        "openings paillier",
        "opening",
        patched((PaillierChecks, "fits", _taken)),
    ),
    Mutant(
        "opening: known coefficients, ckks",
        "all columns have the same share in each check",
        "openings ckks",
        "opening",
        patched((row_products, "draw_check_weights", _alike)),
    ),
    Mutant(
        "opening: known coefficients, paillier",
        "all weights of a check are 1",
        "openings paillier",
        "opening",
        patched((PaillierChecks, "__init__", _ones)),
    ),
    Mutant(
        "opening: known primes",
        "both checks are modulo the first prime of their length",
        "openings paillier",
        "opening",
        patched((paillier_checks, "_prime", _first_prime)),
    ),
    Mutant(
        "opening: wide tolerance",
        "a check may be a thousand times as far off as its noise makes it",
        "openings ckks",
        "opening",
        patched((row_products, "check_tolerance", _wide)),
    ),
    Mutant(
        "opening: one side",
        "a check is compared without taking its size, so that it may be as far below as it likes",
        "openings ckks",
        "opening",
        patched(edited(row_products, "passes_checks", ("np.abs(deviation) <=", "deviation <="))),
    ),
    Mutant(
        "opening: no noise allowed for",
        "a check is expected to a level, so that the dither trips it",
        "openings ckks",
        "false alarm",
        patched((row_products, "check_tolerance", lambda *arguments: 0 * check_tolerance(*arguments) + 1.0)),
    ),
    Mutant(
        "outputs: in full precision",
        "H is sent without rounding, so that a change within the tolerance of a check is a raw column",
        "rounded outputs",
        "rounding",
        patched((RoundedOutputs, "__call__", lambda self, H, rows: H)),
    ),
    Mutant(
        "outputs: a fresh dither each time",
        "H is rounded freshly in each iteration, so that a hundred of them average the dither away",
        "rounded outputs",
        "rounding",
        patched(edited(RoundedOutputs, "__call__", ("dither = (", "dither = np.random.permutation("))),
    ),
    Mutant(
        "outputs: rounded down",
        "H is rounded without a dither, which is known to all",
        "rounded outputs",
        "rounding",
        patched(edited(RoundedOutputs, "__call__", (" + dither", ""))),
    ),
]
