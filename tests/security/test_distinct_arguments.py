"""Each coin, key stream and subchannel of a session has arguments of its own, recorded where they are used.

A function that is right by itself can be called with a constant for one of its arguments. So the arguments are recorded
at the primitives, over a session with training in several chunks, several measurements and several scorings.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.key_agreement import KeyPair
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.share_products import Products
from tests.builders import random_blocks, random_parties

EXTRA: dict[str, dict[str, Any]] = {
    "logistic": {"model": "logistic"},
    "classes": {"model": "one_vs_rest"},
    "trees": {"model": {"name": "trees", "trees": 2, "depth": 2, "boosted_score": False}},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", EXTRA)
def test_no_coin_and_no_agreed_key_has_the_arguments_of_another(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coins = Counter[Any]()
    keys: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    results: defaultdict[bytes, set[Any]] = defaultdict(set)
    lanes: set[tuple[str, str]] = set()
    lock = threading.Lock()
    coin, agree, begin = share_products.common_coin, KeyPair.agree, Products.__init__

    def recorded(holder: bytes, evaluator: bytes, chunk: int, purpose: str) -> bytes:
        result = coin(holder, evaluator, chunk, purpose)
        with lock:
            coins[holder, evaluator, chunk, purpose] += 1
            results[result].add((holder, evaluator, chunk, purpose))
        return result

    def agreeing(pair: KeyPair, public: bytes, **context: str) -> bytes:
        with lock:
            keys[context["party"]][tuple(sorted(context.items()))] += 1
        return agree(pair, public, **context)

    def beginning(products: Products, *arguments: Any, **options: Any) -> None:
        begin(products, *arguments, **options)
        with lock:
            lanes.add((products.context.me, products.context.subchannel))

    monkeypatch.setattr(share_products, "common_coin", recorded)
    monkeypatch.setattr(KeyPair, "agree", agreeing)
    monkeypatch.setattr(Products, "__init__", beginning)
    parties = random_parties(3, 240, labels=3 if kind == "classes" else 2, ids=True)
    job = vfl.Job(
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=2)), batch_size="all", epochs=10, evaluate_every=2,
        test_fraction=0.4, accepts=["small_metrics"], **EXTRA[kind],
    )  # fmt: skip
    run = vfl.simulate(job, parties)
    new = dict(zip(("bank", "shop", "telco"), random_blocks(3, 6, seed=4), strict=True))
    for _ in range(2):
        run.decision(new)
    assert max(coins.values()) <= len(parties)  # each party derives a coin once
    by_purpose: defaultdict[str, set[int]] = defaultdict(set)
    for _, _, chunk, purpose in coins:
        by_purpose[purpose].add(chunk)
    assert len(by_purpose) > 2
    assert max(len(chunks) for chunks in by_purpose.values()) > 2  # chunks are numbered
    assert all(len(arguments) == 1 for arguments in results.values())
    assert all(max(counted.values()) == 1 for counted in keys.values())
    assert len({subchannel for _, subchannel in lanes}) > 1
    assert np.isfinite(run.metrics["loss"])
