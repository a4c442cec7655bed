"""What every engine for shared products must do: the shares of holder and evaluator add up to W^T V modulo 2^L.

A new engine is a row in SHARES. Results are compared with integer arithmetic in plain Python.
"""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest

from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.share_scheme import COIN_BYTES, common_coin
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeError
from tests.builders import raises_code

SHARES = {  # engine, and the largest share of values that may be off by one
    "lattice-56": (lambda: LatticeShares(), 1e-3),
    "lattice-41": (lambda: LatticeShares(41), 1e-3),
    "lattice-16": (lambda: LatticeShares(16), 1e-2),
    "kernel-56": (lambda: KernelShares(), 1e-3),
    "kernel-41": (lambda: KernelShares(41), 1e-3),
    "kernel-40": (lambda: KernelShares(40), 1e-3),
    "kernel-16": (lambda: KernelShares(16), 1e-3),
}


def coin(chunk: int = 0, purpose: str = "test") -> bytes:
    return common_coin(os.urandom(32), os.urandom(32), chunk, purpose)


def words(ring: ShareRing, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64).reshape(shape) & ring.mask


def oracle(W: np.ndarray, V: np.ndarray, bits: int) -> list[list[int]]:
    """Return W^T V modulo 2^bits, with Python's integers."""
    columns, outputs = W.T.tolist(), V.T.tolist()
    return [[sum(w * v for w, v in zip(a, b, strict=True)) % 2**bits for b in outputs] for a in columns]


class Engine:
    """One engine with a key, and the exchange."""

    def __init__(self, scheme, rate):
        self.scheme, self.rate, self.ring = scheme, rate, ShareRing(scheme.bits)
        self.coin = coin()
        self.holder = scheme.keygen(self.coin)
        self.evaluator = scheme.evaluator(self.holder.public, self.coin)

    def shares(self, W, V):
        sealed = self.holder.encrypt(V, columns=W.shape[1])
        reply, evaluator_share = self.evaluator.product(self.evaluator.prepare(W), sealed)
        return evaluator_share, self.holder.open(reply)

    def errors(self, W, V):
        evaluator_share, theirs = self.shares(W, V)
        assert evaluator_share.shape == theirs.shape == (W.shape[1], V.shape[1])
        assert (evaluator_share <= self.ring.mask).all()
        assert (theirs <= self.ring.mask).all()
        return self.ring.signed(evaluator_share + theirs - np.array(oracle(W, V, self.scheme.bits), np.uint64))


@pytest.fixture(scope="module", params=SHARES)
def engine(request):
    make, rate = SHARES[request.param]
    return Engine(make(), rate)


@pytest.mark.parametrize(
    ("n", "c", "d"),
    [(1, 1, 1), (2, 1, 3), (33, 2, 7), (256, 16, 15), (15, 16, 256), (5000, 2, 3), (40, 300, 2), (64, 12, 9)],
)
def test_the_two_shares_sum_to_the_product(engine, n, c, d):
    rng = np.random.default_rng(n)
    W, V = rng.integers(-500, 500, (n, d)), words(engine.ring, (n, c))
    errors = engine.errors(W, V)
    assert np.abs(errors).max() <= 1
    # at the stated rates, at most .003 errors are expected among few values, and three occur once in 1e8
    assert (errors != 0).sum() <= max(2 if errors.size > 100 else 1, engine.rate * errors.size)


def test_errors_are_as_rare_as_stated(engine):
    W, V = np.random.default_rng(7).integers(-255, 256, (16, 200)), words(engine.ring, (16, 200))
    errors = engine.errors(W, V)
    assert np.abs(errors).max() <= 1
    stated = engine.scheme.error_rate(16, 200, 200, 255)
    assert (errors != 0).sum() <= 5 + 2 * stated * errors.size


@pytest.mark.parametrize("word", [lambda L: 0, lambda L: 1, lambda L: 2 ** (L - 1), lambda L: 2**L - 1])
def test_extremes_wrap_as_the_ring_does(engine, word):
    value = word(engine.scheme.bits)
    W = np.stack([np.full(64, 2000), np.full(64, -2000), np.arange(64)], axis=1)
    assert np.abs(engine.errors(W, np.full((64, 3), value, np.uint64))).max() <= 1


def test_the_largest_entry_counts_whatever_its_sign_and_place(engine):
    def made(entry, place):
        W = np.zeros((64, 1), int)
        W[place] = entry
        return W

    def refused(entry, place):
        try:
            engine.evaluator.prepare(made(entry, place))
        except RangeError:
            return True
        return False

    signed = [(sign, place) for sign in (1, -1) for place in (0, 40, 63)]
    least = [next(k for k in range(63) if refused(sign * 2**k, place)) for sign, place in signed]
    assert len(set(least)) == 1, "the entry that is refused is the same"
    for sign, place in signed:
        errors = engine.errors(made(sign * 2 ** (least[0] - 1), place), words(engine.ring, (64, 2)))
        assert np.abs(errors).max() <= 1


ZEROS = [np.zeros((300, 3), int), np.eye(300, dtype=int)[:, :3], np.tri(300, 40, -150, dtype=int)]


@pytest.mark.parametrize("W", ZEROS, ids=["all", "most", "half"])
def test_zeros_give_exact_shares_of_zero(engine, W):
    """A block of zeros must not add a unit of V, which is uniform and would ruin the result."""
    assert np.abs(engine.errors(W, words(engine.ring, (300, 4)))).max() <= 1


def test_each_share_alone_is_uniform(engine):
    """V and W are constant; the shares of either party in one run are uniform in the ring."""
    evaluator_share, theirs = engine.shares(np.full((1, 4000), 3), np.full((1, 1), 5, np.uint64))
    for share in (evaluator_share, theirs):
        counts = np.bincount((share.ravel() >> np.uint64(engine.scheme.bits - 4)).astype(int), minlength=16)
        assert ((counts - 250) ** 2 / 250).sum() < 80  # 15 degrees of freedom: exceeded once in 1e10
        low = np.bincount((share.ravel() & np.uint64(15)).astype(int), minlength=16)
        assert ((low - 250) ** 2 / 250).sum() < 80


def test_prepared_outlives_keys_and_serves_other_layouts(engine):
    rng = np.random.default_rng(2)
    W = rng.integers(-9, 9, (30, 4))
    prepared = engine.evaluator.prepare(W)
    for outputs in (1, 20, 1):
        mine = coin()
        holder = engine.scheme.keygen(mine)
        V = words(engine.ring, (30, outputs))
        reply, evaluator_share = engine.scheme.evaluator(holder.public, mine).product(
            prepared, holder.encrypt(V, columns=4)
        )
        wrong = engine.ring.signed(
            evaluator_share + holder.open(reply) - np.array(oracle(W, V, engine.scheme.bits), np.uint64)
        )
        assert np.abs(wrong).max() <= 1
    assert prepared.nbytes > W.nbytes


def test_everything_is_fresh(engine):
    V, prepared = words(engine.ring, (8, 2)), engine.evaluator.prepare(np.ones((8, 40), int))
    first, second = (engine.holder.encrypt(V, columns=40) for _ in range(2))
    assert first != second
    (reply, evaluator_share), (again, other) = (engine.evaluator.product(prepared, first) for _ in range(2))
    assert reply != again
    assert (evaluator_share != other).mean() > 0.9  # two words of 16 bits are equal once in 65,536
    assert engine.scheme.keygen(engine.coin).public != engine.holder.public


def test_values_beyond_the_ring_and_odd_shapes_are_refused(engine):
    for V in (np.full((2, 2), 2**engine.scheme.bits, np.uint64), np.zeros((0, 2), np.uint64), np.zeros((3, 2))):
        with pytest.raises(RangeError):
            engine.holder.encrypt(V, columns=2)
    for W in (np.zeros((0, 2), int), np.zeros((3, 2)), np.full((3, 2), 2**50)):
        with pytest.raises(RangeError):
            engine.evaluator.prepare(W)


def test_another_key_is_recognised(engine):
    V, W = words(engine.ring, (8, 2)), np.ones((8, 2), int)
    sealed = engine.holder.encrypt(V, columns=2)
    other = coin()
    stranger = engine.scheme.keygen(other)
    evaluator = engine.scheme.evaluator(stranger.public, other)
    with pytest.raises(KeyMismatch):
        evaluator.product(evaluator.prepare(W), sealed)
    reply, _ = engine.evaluator.product(engine.evaluator.prepare(W), sealed)
    with pytest.raises(KeyMismatch):
        stranger.open(reply)
    same_key_other_coin = engine.scheme.evaluator(engine.holder.public, other)
    with pytest.raises(KeyMismatch):
        same_key_other_coin.product(evaluator.prepare(W), sealed)


def test_other_rows_are_refused(engine):
    with raises_code(CryptoError, "SVFL-CRYPTO-SHAPE"):
        engine.evaluator.product(
            engine.evaluator.prepare(np.ones((9, 2), int)), engine.holder.encrypt(words(engine.ring, (8, 1)), columns=2)
        )


def test_malformed_messages_raise_and_nothing_else(engine):
    prepared = engine.evaluator.prepare(np.ones((8, 2), int))
    sealed = engine.holder.encrypt(words(engine.ring, (8, 1)), columns=2)
    reply, _ = engine.evaluator.product(prepared, sealed)
    residue = b"\xff" * 6  # not below its prime
    in_reply = -6 if engine.scheme.name == "lattice" else -38  # a seed is at the end of the kernel's replies
    for message, header, bad, use in (
        (engine.holder.public, 4, -6, lambda m: engine.scheme.evaluator(m, engine.coin)),
        (sealed, 36, -70, lambda m: engine.evaluator.product(prepared, m)),
        (reply, 36, in_reply, engine.holder.open),
    ):
        altered = [b"", message[:10], message[: len(message) // 2], message[:-1], message + b"\0", bytes(len(message))]
        altered += [message[:at] + b"\xff\xff\xff\xff" + message[at + 4 :] for at in range(0, header, 4)]
        altered.append(message[:bad] + residue + message[len(message) + bad + 6 :])
        for item in altered:
            with pytest.raises(CryptoError):
                use(item)


def test_coins_bind_both_parties_the_chunk_and_the_purpose():
    a, b = os.urandom(32), os.urandom(32)
    orders, uses = ((a, b), (b, a), (a, a)), [(chunk, purpose) for chunk in (0, 1) for purpose in ("x", "y")]
    coins = {common_coin(*nonces, *use) for nonces in orders for use in uses}
    assert len(coins) == 12
    assert all(len(item) == COIN_BYTES for item in coins)
    for nonces in ((a[:-1], b), (a, b + b"\0"), (b"", b)):
        with pytest.raises(CryptoError):
            common_coin(*nonces, 0, "x")


def test_a_coin_of_another_length_is_refused(engine):
    with pytest.raises(CryptoError):
        engine.scheme.keygen(b"short")
    with pytest.raises(CryptoError):
        engine.scheme.evaluator(engine.holder.public, b"")


@pytest.mark.parametrize("scheme", [LatticeShares, KernelShares])
def test_parameters_below_the_standard_are_refused(scheme):
    for bits in (7, 57, 64):
        with pytest.raises(ConfigError):
            scheme(bits)


@pytest.mark.parametrize(("n", "c", "d"), [(256, 16, 15), (4096, 12, 100), (300, 1, 40), (300, 5, 40), (2000, 20, 23)])
@pytest.mark.parametrize("bits", [40, 48, 56])
def test_engines_send_about_as_many_bytes(n, c, d, bits):
    """With the kernel (this package's arithmetic), a query and its answer are at most a
    twentieth longer than with SEAL.
    """
    sizes = []
    for scheme in (LatticeShares(bits), KernelShares(bits)):
        item = Engine(scheme, 1)
        sealed = item.holder.encrypt(words(item.ring, (n, c)), columns=d)
        reply, _ = item.evaluator.product(item.evaluator.prepare(np.ones((n, d), int)), sealed)
        sizes.append(len(sealed) + len(reply))
    assert sizes[1] <= 1.05 * sizes[0]


def test_secrets_stay(engine):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(engine.holder)
    assert "secret" in repr(engine.holder)
    assert "secret" in repr(engine.evaluator.prepare(np.full((2, 2), 77)))
    assert "77" not in repr(engine.evaluator.prepare(np.full((2, 2), 77)))


def test_describes_itself(engine):
    assert engine.scheme.name
    assert engine.scheme.strength
    assert "\n" not in engine.scheme.strength
