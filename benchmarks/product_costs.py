"""Products with secret-shared vectors on both engines: the offline cost of an iteration at one party.

An engine is an encryption scheme with its library; both are measured alternately in one process. An iteration of n rows
and d columns has two products at each party: of W^T with a vector of n numbers, and of X with a vector of d numbers.
Times include the party that holds the key and the party that computes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import ShareScheme, common_coin
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES

PRODUCT_VALUE_BITS = 48  # L, the bits of a product, for batches of some thousand rows
PRODUCT_STEPS = "encrypt", "prepare", "product", "open"


def products(n: int, d: int, iterations: int, *, pairs: int = 3) -> dict[str, Any]:
    """Return milliseconds of processor time an iteration of n rows x d columns, medians, for each engine.

    `ratio` is the slowest engine's time divided by the first's, `bytes` the inverse.
    """
    rng, ring = np.random.default_rng([n, d]), ShareRing(PRODUCT_VALUE_BITS)
    factors = [rng.integers(-128, 128, shape) for shape in ((n, d), (d, n))]
    vectors = [ring.uniform(Prg.fresh("bench"), (len(W), iterations)) for W in factors]
    ends = [_Ends(engine(PRODUCT_VALUE_BITS)) for engine in SHARE_SCHEMES.values()]
    for turn in range(pairs + 1):  # the first one only loads modules
        for end in ends:
            end.sent = 0
            for W, V in zip(factors, vectors, strict=True):
                end.exchange(W, V)
            if not turn:
                end.spent = {part: [] for part in PRODUCT_STEPS}
    row: dict[str, Any] = {"what": f"products {n}x{d}, {iterations} iterations", "parties": 1, "mode": "shares"}
    for end in ends:
        item = {
            part: 1e3 * median(np.reshape(end.spent[part], (pairs, 2)).sum(axis=1)) / iterations
            for part in PRODUCT_STEPS
        }
        row |= {f"{end.name}_{part}_ms": ms for part, ms in item.items()}
        row[f"{end.name}_ms"] = sum(item.values())
    first, last = ends[0], ends[-1]
    return row | {"ratio": row[f"{last.name}_ms"] / row[f"{first.name}_ms"], "bytes": first.sent / last.sent}


class _Ends:
    """A holder and an evaluator on one engine, and their processor seconds."""

    def __init__(self, scheme: ShareScheme) -> None:
        coin = common_coin(os.urandom(32), os.urandom(32), 0, "bench")
        self.name, self._holder = scheme.name, scheme.keygen(coin)
        self._evaluator = scheme.evaluator(self._holder.public, coin)
        self.spent: dict[str, list[float]] = {part: [] for part in PRODUCT_STEPS}
        self.sent = 0

    def exchange(self, W: Integers, V: Words) -> None:
        """Run one product; the time of plaintexts, which are computed within it, is subtracted."""
        holder, evaluator = self._holder, self._evaluator
        encrypting, sealed = _timed(lambda: holder.encrypt(V, columns=W.shape[1]))
        prepared = evaluator.prepare(W)
        first, _ = _timed(lambda: evaluator.product(prepared, sealed))
        again, (reply, _) = _timed(lambda: evaluator.product(prepared, sealed))
        opening, _ = _timed(lambda: holder.open(reply))
        for part, seconds in zip(PRODUCT_STEPS, (encrypting, max(0.0, first - again), again, opening), strict=True):
            self.spent[part].append(seconds)
        self.sent += len(sealed) + len(reply)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def all_products(sizes: Sequence[tuple[int, int]], iterations: Sequence[int] = (16, 1)) -> list[dict[str, Any]]:
    """Return a row for each size and number of iterations in a chunk."""
    return [products(n, d, count) for n, d in sizes for count in iterations]
