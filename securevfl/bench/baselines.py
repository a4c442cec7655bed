"""Measurements of the baselines phe and tenseal, which are called as their documentation shows.

The measured product is J^T g for a matrix J (n, d) and an encrypted vector g (n,).

    phe      one ciphertext for each value; an entry of J^T g is a sum of EncryptedNumber * float
    tenseal  CKKSVector.matmul with Galois keys, N = 8192; a vector longer than N / 2 does not fit

A measurement of phe that would take more than a minute uses a part of J and g and is scaled: encryption grows with n,
the products with n * d, decryption with d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench.stopwatch import Stopwatch

MAX_BASELINE_SECONDS = 60.0
"""A measurement that would take more than this number of seconds uses a part of J and g, and its times are scaled."""

_PROBE = 8  # number of values of a first short measurement, from which the time of the complete one is estimated


class BaselineUnavailable(Exception):
    """A baseline that cannot compute a product of the requested size. The text of the error states the reason."""


@dataclass(frozen=True)
class BaselineFigures:
    """The result of a baseline.

    Attributes:
        watch: the time of each step.
        bytes_up: number of bytes sent to the key holder.
        bytes_down: number of bytes sent by the key holder.
        max_abs_error: largest absolute error.
        repetitions: number of repetitions.
        estimated: whether the times are scaled from a measurement with a part of J and g.
    """

    watch: Stopwatch
    bytes_up: int
    bytes_down: int
    max_abs_error: float
    repetitions: int = 1
    estimated: bool = False

    def row(self) -> dict[str, Any]:
        """Return the times and errors as a row of a table, without the numbers of bytes."""
        return self.watch.figures() | {
            "max_abs_error": self.max_abs_error,
            "repetitions": self.repetitions,
            "estimated": self.estimated,
        }


def phe_keys(bits: int) -> tuple[Any, Any]:
    """Return a public and a private key of phe."""
    from phe import generate_paillier_keypair

    public, private = generate_paillier_keypair(n_length=bits)
    return public, private


def _median(
    once: Callable[[], tuple[Stopwatch, float]], expected: float, seconds: float
) -> tuple[Stopwatch, float, int]:
    """Measure up to three times; return times and error of the median repetition, and the number of repetitions."""
    count = max(1, min(3, int(seconds / expected)))
    return *sorted((once() for _ in range(count)), key=lambda run: run[0].total)[count // 2], count


def phe_product(J: Floats, g: Floats, bits: int, *, seconds: float = MAX_BASELINE_SECONDS) -> BaselineFigures:
    """Measure J^T g for J (n, d) and g (n,) with phe, for keys of `bits` bits and at most about `seconds` seconds."""
    public, private = phe_keys(bits)
    n, d = J.shape

    def once(rows: int, columns: int) -> tuple[Stopwatch, float]:
        watch, part = Stopwatch(), J[:rows, :columns]
        sealed = watch("encrypt", lambda: [public.encrypt(value) for value in g[:rows].tolist()])
        products = watch(
            "compute", lambda: [sum(c * x for c, x in zip(sealed, column.tolist(), strict=True)) for column in part.T]
        )
        result = watch("open", lambda: [private.decrypt(product) for product in products])
        return watch, float(np.abs(np.array(result) - part.T @ g[:rows]).max())

    pace = {step: ms / 1e3 for step, ms in once(_PROBE, 1)[0].steps.items()}
    each_row, each_term = pace["encrypt"] / min(n, _PROBE), pace["compute"] / min(n, _PROBE)
    rows = min(n, max(_PROBE, int(0.4 * seconds / each_row)))
    columns = min(d, max(1, int(0.5 * seconds / (rows * each_term + pace["open"]))))
    expected = rows * each_row + columns * (rows * each_term + pace["open"])
    watch, error, count = _median(lambda: once(rows, columns), expected, seconds)
    watch.scale(encrypt=n / rows, compute=n * d / (rows * columns), open=d / columns)
    size = 2 * bits // 8
    return BaselineFigures(watch, d * size, n * size + 8 * d, error, count, (rows, columns) != (n, d))


def phe_sum(parts: Floats, bits: int, *, seconds: float = MAX_BASELINE_SECONDS) -> BaselineFigures:
    """Measure the sum of the rows of `parts` (K, m) with phe, with one ciphertext for each value."""
    public, private = phe_keys(bits)

    def once(count: int) -> tuple[Stopwatch, float]:
        watch, slice_ = Stopwatch(), parts[:, :count]
        sealed = watch("encrypt", lambda: [[public.encrypt(value) for value in part.tolist()] for part in slice_])
        totals = watch("add", lambda: [sum(column) for column in zip(*sealed, strict=True)])
        result = watch("decrypt", lambda: [private.decrypt(total) for total in totals])
        return watch, float(np.abs(np.array(result) - slice_.sum(axis=0)).max())

    m = parts.shape[1]
    seconds_each = once(_PROBE)[0].total / 1e3 / min(m, _PROBE)
    values = min(m, max(_PROBE, int(0.9 * seconds / seconds_each)))
    watch, error, count = _median(lambda: once(values), values * seconds_each, seconds)
    watch.scale(encrypt=m / values, add=m / values, decrypt=m / values)
    return BaselineFigures(watch, (len(parts) + 1) * m * (2 * bits // 8), 0, error, count, values < m)


def tenseal_product(J: Floats, g: Floats) -> BaselineFigures:
    """Measure J^T g with tenseal.

    Args:
        J: the matrix (n, d).
        g: the vector (n,).

    Returns:
        Times, bytes and errors of the product.

    Raises:
        BaselineUnavailable: if tenseal cannot handle the size.
    """
    import tenseal

    n, d = J.shape
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    if n > 8192 // 2:
        raise BaselineUnavailable(f"a vector of {n} values does not fit into the N / 2 = {8192 // 2} slots of matmul")
    context.global_scale = 2.0**40
    context.generate_galois_keys()
    columns = J.tolist()

    def once() -> tuple[Stopwatch, Any, Any, Any]:
        watch = Stopwatch()
        sealed = watch("encrypt", lambda: tenseal.ckks_vector(context, g.tolist()))
        product = watch("compute", lambda: sealed.matmul(columns))
        return watch, sealed, product, watch("open", product.decrypt)

    try:
        runs = [once()]
        if runs[0][0].total < MAX_BASELINE_SECONDS / 6 * 1e3:
            runs = [once() for _ in range(3)]
    except (RuntimeError, ValueError) as cause:
        raise BaselineUnavailable(f"tenseal raised an error: {cause}") from None
    watch, sealed, product, result = sorted(runs, key=lambda run: run[0].total)[len(runs) // 2]
    error = float(np.abs(np.array(result)[:d] - J.T @ g).max())
    return BaselineFigures(watch, len(product.serialize()), len(sealed.serialize()) + 8 * d, error, len(runs))
