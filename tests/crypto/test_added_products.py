"""Encrypted products that the evaluator adds up before it masks them: one reply about several blocks of rows."""

from __future__ import annotations

import os

import numpy as np
import pytest
from builders import raises_code

from securevfl.crypto.kernel.share_protocol import QUERY_HEADER
from securevfl.crypto.kernel.shares import PART_HEADER, KernelEvaluator, KernelHolder, KernelShares
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import CryptoError, RangeError

BITS, OUTPUTS, COLUMNS = 56, 30, 7
BLOCKS = 9000, 9000, 5300


def endpoints() -> tuple[KernelHolder, KernelEvaluator]:
    scheme, coin = KernelShares(BITS), os.urandom(32)
    holder = scheme.keygen(coin)
    evaluator = scheme.evaluator(holder.public, coin)
    assert isinstance(holder, KernelHolder)
    assert isinstance(evaluator, KernelEvaluator)
    return holder, evaluator


def blocks(holder: KernelHolder, *, seeded: bool) -> list[tuple[np.ndarray, bytes, Words]]:
    """Return W, the query and V of each block; all queries have the layout of the first block."""
    draw, items = np.random.default_rng(0), []
    for rows in BLOCKS:
        W, columns = draw.integers(-2000, 2000, (rows, COLUMNS)), 12 if seeded else 1000
        if seeded:
            query, V = holder.encrypt_uniform(rows, OUTPUTS, columns=columns, rows=BLOCKS[0])
        else:
            V = draw.integers(0, 2**BITS, (rows, OUTPUTS), np.uint64)
            query = holder.encrypt(V, columns=columns, rows=BLOCKS[0])
        items.append((W, query, V))
    assert (items[0][1][:4] == b"SKU1") == seeded
    return items


@pytest.mark.parametrize("seeded", [True, False])
def test_one_reply_is_the_product_of_all_blocks(seeded: bool) -> None:
    holder, evaluator = endpoints()
    total, expected, items = None, np.zeros((COLUMNS, OUTPUTS), np.uint64), blocks(holder, seeded=seeded)
    for W, query, V in items:
        product = evaluator.multiply(evaluator.prepare(W, once=True), query)
        if total is None:
            total = product
        else:
            evaluator.add(total, product)
        expected += W.astype(np.uint64).T @ V
    assert total is not None
    reply, share = evaluator.hide(total)
    single, _ = evaluator.product(evaluator.prepare(items[0][0], once=True), items[0][1])
    assert len(reply) == len(single)
    errors = ShareRing(BITS).signed(ShareRing(BITS).reduce(share + holder.open(reply) - expected))
    assert np.abs(errors).max() <= 1
    # a value is off by one with probability 1e-3 at most, so four of 210 are off in one of a million runs
    assert (errors != 0).sum() <= 3


def test_products_of_other_layouts_or_columns_cannot_be_added() -> None:
    holder, evaluator = endpoints()
    (W, query, _), *_ = blocks(holder, seeded=True)
    total = evaluator.multiply(evaluator.prepare(W, once=True), query)
    few = holder.encrypt(np.zeros((20, OUTPUTS), np.uint64), columns=COLUMNS)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        evaluator.add(total, evaluator.multiply(evaluator.prepare(W[:20], once=True), few))
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        evaluator.add(total, evaluator.multiply(evaluator.prepare(W[:, 1:], once=True), query))


@pytest.mark.parametrize("way", ["add", "add joined"])
def test_noise_of_added_products_adds_up(way: str) -> None:
    """Each of two products is exact enough alone, but their sum is not, whichever process has multiplied them."""
    holder, evaluator = endpoints()
    scheme, query = KernelShares(BITS), holder.encrypt_uniform(9000, OUTPUTS, columns=12)[0]
    unit = evaluator.prepare(np.full((9000, 1), 1 << 24), once=True).deviation(1) / 2**24
    W = np.full((9000, 1), int(0.09 / unit))
    prepared, part = evaluator.prepare(W, once=True), scheme.multiply(W, query)
    here, joined = evaluator.multiply(prepared, query), evaluator.join(query, 1, [part])
    assert joined.deviation == here.deviation > 0.08
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        evaluator.add(joined if way == "add joined" else here, evaluator.multiply(prepared, query))


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_noise_of_joined_rows_is_that_of_one_process(workers: int) -> None:
    """Workers have different rows of a block, so a product that one process may compute is not refused at workers."""
    holder, evaluator = endpoints()
    scheme, query = KernelShares(BITS), holder.encrypt_uniform(9000, OUTPUTS, columns=12)[0]
    unit = evaluator.prepare(np.full((9000, 1), 1 << 24), once=True).deviation(1) / 2**24
    W = np.full((9000, 1), int(0.09 / unit))
    parts = []
    for rows in np.array_split(np.arange(len(W)), workers):
        mine = np.zeros_like(W)
        mine[rows] = W[rows]
        parts.append(scheme.multiply(mine, query))
    here, joined = evaluator.multiply(evaluator.prepare(W, once=True), query), evaluator.join(query, 1, parts)
    assert joined.deviation == here.deviation > 0.08
    for values, others in zip(here.values, joined.values, strict=True):
        np.testing.assert_array_equal(values, others)
    imprecise = PART_HEADER.pack(0.2) + parts[-1][PART_HEADER.size :]
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        evaluator.join(query, 1, [*parts[:-1], imprecise])


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("rows", [0, 700])
def test_a_query_of_another_layout_is_refused(rows: int, seeded: bool) -> None:
    """A holder that chooses the layout would decide how much memory the product needs."""
    holder, _ = endpoints()
    scheme, (n, c, d) = KernelShares(BITS), (300, OUTPUTS, 50)

    def query(columns: int, uses: int, layout_rows: int) -> bytes:
        if seeded:
            return holder.encrypt_uniform(n, c, columns=columns, uses=uses, rows=layout_rows)[0]
        return holder.encrypt(np.zeros((n, c), np.uint64), columns=columns, uses=uses, rows=layout_rows)

    agreed = query(d, 8, rows)
    scheme.check_query(agreed, (n, c), columns=d, uses=8, rows=rows)
    header = QUERY_HEADER.unpack_from(agreed)
    others = [
        sealed
        for columns in (1, 7, 400, 4096)
        for uses in (1, 1000)
        if QUERY_HEADER.unpack_from(sealed := query(columns, uses, rows)) != header
    ]
    assert len(others) > 4
    for sealed in others:
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            scheme.check_query(sealed, (n, c), columns=d, uses=8, rows=rows)
    for shape, code in ((n - 1, c), "SVFL-CRYPTO-SHAPE"), ((n, c + 1), "SVFL-CRYPTO-CIPHERTEXT"):
        with raises_code(CryptoError, code):
            scheme.check_query(agreed, shape, columns=d, uses=8, rows=rows)
