"""What this library is measured against: phe and tenseal, each as its own documentation has its users call it.

phe      one ciphertext a value; a column of J^T g is a sum of EncryptedNumber * float
tenseal  CKKSVector.matmul with Galois keys, N = 8192; a vector longer than N / 2 does not fit

A phe measurement that would take longer than a minute is made on a slice and scaled: encryption grows with n, the
products with n d, decryption with d.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.bench.record import Stopwatch
from securevfl.errors import ConfigError

SECONDS = 60.0
_PROBE = 8


class Unable(Exception):
    """The baseline cannot do this size; the text says why."""


@dataclass(frozen=True)
class Figures:
    """What a baseline took, with steps encrypt, compute and open."""

    watch: Stopwatch
    bytes_up: int
    bytes_down: int
    max_abs_error: float
    repetitions: int = 1
    estimated: bool = False


def require_phe() -> None:
    """ConfigError unless phe is installed."""
    if find_spec("phe") is None:
        raise ConfigError(
            "--against phe: phe is not installed (it is GPL-3.0 and so an extra); pip install 'securevfl[phe]'"
        )


def phe_keys(bits: int) -> tuple[Any, Any]:
    """Make a public and a private key of phe."""
    require_phe()
    from phe import generate_paillier_keypair

    public, private = generate_paillier_keypair(n_length=bits)
    return public, private


def phe_product(J: Floats, g: Floats, bits: int, *, seconds: float = SECONDS) -> Figures:
    """J^T g for J (n x d), g (n,)."""
    public, private = phe_keys(bits)
    n, d = J.shape
    probe, _ = _phe_once(public, private, J[:_PROBE, :1], g[:_PROBE])
    pace = {step: ms / 1e3 for step, ms in probe.steps.items()}
    each_row, each_term = pace["encrypt"] / min(n, _PROBE), pace["compute"] / min(n, _PROBE)
    each_column = pace["open"]
    rows = min(n, max(_PROBE, int(0.4 * seconds / each_row)))
    columns = min(d, max(1, int(0.5 * seconds / (rows * each_term + each_column))))
    expected = rows * each_row + columns * (rows * each_term + each_column)
    count = max(1, min(3, int(seconds / expected)))
    runs = [_phe_once(public, private, J[:rows, :columns], g[:rows]) for _ in range(count)]
    watch, error = sorted(runs, key=lambda run: run[0].total)[count // 2]
    watch.scale(encrypt=n / rows, compute=n * d / (rows * columns), open=d / columns)
    size = 2 * bits // 8
    return Figures(watch, d * size, n * size + 8 * d, error, count, (rows, columns) != (n, d))


def _phe_once(public: Any, private: Any, J: Floats, g: Floats) -> tuple[Stopwatch, float]:
    watch = Stopwatch()
    columns = [column.tolist() for column in J.T]
    sealed = watch("encrypt", lambda: [public.encrypt(value) for value in g.tolist()])
    products = watch("compute", lambda: [sum(c * x for c, x in zip(sealed, column, strict=True)) for column in columns])
    result = watch("open", lambda: [private.decrypt(product) for product in products])
    return watch, float(np.abs(np.array(result) - J.T @ g).max())


def tenseal_product(J: Floats, g: Floats) -> Figures:
    """J^T g for J (n x d), g (n,). Unable where tenseal refuses."""
    import tenseal

    n, d = J.shape
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    if n > 8192 // 2:
        raise Unable(f"a vector of {n} does not fit into N / 2 = {8192 // 2} slots, and matmul takes no more")
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
        if runs[0][0].total < SECONDS / 6 * 1e3:
            runs = [once() for _ in range(3)]
    except (RuntimeError, ValueError) as cause:
        raise Unable(f"tenseal refuses: {cause}") from None
    watch, sealed, product, result = sorted(runs, key=lambda run: run[0].total)[len(runs) // 2]
    error = float(np.abs(np.array(result)[:d] - J.T @ g).max())
    return Figures(watch, len(product.serialize()), len(sealed.serialize()) + 8 * d, error, len(runs))


def phe_sum(parts: Floats, bits: int, *, seconds: float = SECONDS) -> Figures:
    """Time the sum of the rows of `parts` (K x m), one ciphertext a value."""
    public, private = phe_keys(bits)
    probe, _ = _phe_sum_once(public, private, parts[:, :_PROBE])
    m = parts.shape[1]
    each = probe.total / 1e3 / min(m, _PROBE)
    taken = min(m, max(_PROBE, int(0.9 * seconds / each)))
    count = max(1, min(3, int(seconds / (taken * each))))
    runs = [_phe_sum_once(public, private, parts[:, :taken]) for _ in range(count)]
    watch, error = sorted(runs, key=lambda run: run[0].total)[count // 2]
    watch.scale(encrypt=m / taken, compute=m / taken, open=m / taken)
    size = 2 * bits // 8
    return Figures(watch, (len(parts) + 1) * m * size, 0, error, count, taken < m)


def _phe_sum_once(public: Any, private: Any, parts: Floats) -> tuple[Stopwatch, float]:
    watch = Stopwatch()
    sealed = watch("encrypt", lambda: [[public.encrypt(value) for value in part.tolist()] for part in parts])
    totals = watch("compute", lambda: [sum(column) for column in zip(*sealed, strict=True)])
    result = watch("open", lambda: [private.decrypt(total) for total in totals])
    return watch, float(np.abs(np.array(result) - parts.sum(axis=0)).max())
