"""J^T [[g]] under Paillier: messages, what each party sees, and mutants (weakened versions) that the checks detect."""

import copy
import pickle
import struct
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from securevfl.crypto.paillier import paillier_keys, paillier_product, paillier_workers
from securevfl.crypto.paillier.packing import HEADROOM_BITS, choose_packing
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS, PaillierChecks
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_messages import (
    MessageKind,
    PaillierHeader,
    read_message,
    read_numbers,
    write_message,
)
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator, PaillierHolder, PaillierScheme
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import CryptoError, KeyMismatch, OpeningMismatch, RangeError

BITS = 2048


@pytest.fixture(scope="module")
def key():
    return SecretKey.generate(BITS)


@pytest.fixture(scope="module")
def holder(key):
    return PaillierHolder(key)


@pytest.fixture(scope="module")
def evaluator(key):
    return PaillierEvaluator(PublicKey.load(key.public.data, BITS))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    J = rng.normal(size=(21, 13))
    J[:, 2] = J[:, 2] > 0
    J[:, 3] = 0
    return J, rng.uniform(-1, 1, size=(21, 2))


def ciphertexts(message, kind, public):
    _, body, count = read_message(message, kind, public.fingerprint)
    return read_numbers(body, count, count, public.size)


def test_nothing_secret_shows(key, holder, evaluator, data):
    J, g = data
    _, mask = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0)))
    p, q = key.parts_for_workers()[:2]
    for thing in (key, holder, mask, key._tables[0]):
        assert repr(thing) == str(thing) == f"<{type(thing).__name__}, secret>"
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="secret"):
                attempt(thing)
    assert str(p) not in repr(vars(holder))
    assert str(q) not in repr(vars(holder))


def test_private_data_does_not_show(holder, evaluator, data):
    J, g = data
    prepared = evaluator.prepare(J)
    for thing in (prepared, prepared.blocks[0], evaluator.transpose_product(prepared, holder.encrypt(g, bound=1.0))):
        assert len(repr(thing)) < 100


# --- the returned message


def exchange(holder, evaluator, J, g, bound=1.0):
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=bound))
    blinded, mask = evaluator.blind(product)
    return evaluator.unblind(holder.open(blinded, OpeningShape(*g.shape, J.shape[1])), mask)


@pytest.mark.parametrize(("n", "d", "c"), [(1, 1, 1), (2, 3, 1), (21, 13, 2), (64, 30, 1), (300, 4, 3)])
def test_gradient(holder, evaluator, n, d, c):
    rng = np.random.default_rng(n)
    J, g = rng.normal(size=(n, d)), rng.uniform(-1, 1, size=(n, c))
    result = exchange(holder, evaluator, J, g)
    assert result.shape == (d, c)
    assert np.abs(result - J.T @ g).max() < 1e-3


@pytest.mark.parametrize("constant", [1 / 3, -1 / 3])
def test_worst_case_of_rounding(holder, evaluator, constant):
    """All entries of a column are rounded in the same direction and g is at its bound, so that no errors cancel."""
    n = 128
    J = np.column_stack([np.full(n, constant), np.full(n, constant)])
    J[0, 0] = 1.0
    g = np.ones((n, 1))
    assert np.abs(exchange(holder, evaluator, J, g) - J.T @ g).max() < 6e-4


def test_extremes_do_not_overflow(holder, evaluator):
    for sign in (1, -1):
        J, g = np.full((50, 5), 7.3), np.full((50, 1), sign * 64.0)
        J[:, 1] *= -1
        J[0, :] *= 0.77
        result = exchange(holder, evaluator, J, g, bound=64.0)
        assert np.abs(result - J.T @ g).max() < 1e-3 * 7.3 * 64


def test_flags_are_exact_up_to_g(holder, evaluator, monkeypatch):
    rng = np.random.default_rng(8)
    J = (rng.uniform(size=(90, 6)) < 0.3).astype(float)
    g = rng.integers(-8, 9, size=(90, 1)) / 8
    assert np.array_equal(exchange(holder, evaluator, J, g), J.T @ g)
    monkeypatch.setattr(PaillierChecks, "columns", lambda self, ints: np.zeros((len(ints), PAILLIER_CHECKS), np.int64))
    prepared = evaluator.prepare(J)
    chains = [chain for block in prepared.blocks for chain in block.plus + block.minus]
    assert sum(chain.entries.size for chain in chains) == int(J.sum())


def test_executor_changes_nothing(key, holder, evaluator, data):
    J, g = data
    expected = exchange(holder, evaluator, J, g)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        far = PaillierHolder(key, executor), PaillierEvaluator(key.public, executor)
        assert np.array_equal(exchange(*far, J, g), expected)
        assert np.array_equal(exchange(holder, far[1], J, g), expected)


def test_values_out_of_range(holder, evaluator):
    for g in ([[1.5]], [[np.nan]], [[np.inf]]):
        with pytest.raises(RangeError):
            holder.encrypt(np.array(g), bound=1.0)
    for g in (np.zeros(3), np.zeros((0, 1)), np.zeros((2, 0))):
        with pytest.raises(RangeError):
            holder.encrypt(g, bound=1.0)
    for J in (np.array([[np.inf]]), np.zeros(3), np.zeros((0, 2))):
        with pytest.raises(RangeError):
            evaluator.prepare(J)


# --- the messages that are sent


def test_sizes_tell_nothing_of_the_values(holder, evaluator):
    """Sizes do not depend on values: except for ciphertexts, messages are the same for tiny and for large data."""
    heads = []
    for size in (1e-9, 1.0):
        J, g = np.full((9, 4), size), np.full((9, 1), size)
        sealed = holder.encrypt(g, bound=1.0)
        blinded, _ = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), sealed))
        opened = holder.open(blinded, OpeningShape(9, 1, 4))
        heads.append([(len(m), m[:46]) for m in (sealed, blinded, opened)])
    assert heads[0] == heads[1]


def encrypts_afresh(key, holder):
    g = np.zeros((40, 1))
    first, second = (ciphertexts(holder.encrypt(g, bound=1.0), MessageKind.SEALED, key.public) for _ in range(2))
    return len(set(first + second)) == len(first + second)


def test_two_encryptions_differ(key, holder):
    assert encrypts_afresh(key, holder)


def test_encryption_without_randomness_is_caught(key, holder, monkeypatch):
    monkeypatch.setattr(paillier_keys, "secrets", type("Stuck", (), {"randbelow": staticmethod(lambda n: 12345)}))
    assert not encrypts_afresh(key, holder)


def sees_a_mask(key, evaluator, product):
    """Return whether the holder sees unrelated plaintexts, from all of Z_n, if one product is masked twice."""
    views = [key.decrypt(ciphertexts(evaluator.blind(product)[0], MessageKind.BLINDED, key.public)) for _ in range(2)]
    top = BITS - HEADROOM_BITS
    return all(x != y and x >> top != y >> top for x, y in zip(*views, strict=True))


def sees_fresh_randomness(key, evaluator, product):
    """Return whether the ciphertext has another random factor h^s than before; the holder can remove the plaintext."""
    public = key.public
    blinded = ciphertexts(evaluator.blind(product)[0], MessageKind.BLINDED, public)

    def randomness(c):
        return c * public.shift(-key.decrypt([int(c)])[0]) % public.square

    return all(randomness(a) != randomness(b) and a != b for a, b in zip(product.ciphertexts, blinded, strict=True))


def test_blinding_hides_the_product(key, holder, evaluator, data):
    J, g = data
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    assert sees_a_mask(key, evaluator, product)
    assert sees_fresh_randomness(key, evaluator, product)


def test_a_missing_mask_is_caught(key, holder, evaluator, data, monkeypatch):
    J, g = data
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    for mask in (lambda n: 0, lambda n: paillier_keys.secrets.randbits(1024)):
        monkeypatch.setattr(paillier_product, "secrets", type("Weak", (), {"randbelow": staticmethod(mask)}))
        assert not sees_a_mask(key, evaluator, product)


def test_missing_randomness_is_caught(key, holder, data):
    class Lazy(PaillierEvaluator):
        def _rerandomised(self, ciphertexts):
            return ciphertexts

    J, g = data
    lazy = Lazy(key.public)
    product = lazy.transpose_product(lazy.prepare(J), holder.encrypt(g, bound=1.0))
    assert not sees_fresh_randomness(key, lazy, product)


def test_masks_and_randomness_are_uniform(evaluator, holder, data, monkeypatch):
    """The mask is uniform below n, and ciphertexts are re-randomised with the n-th power
    of a uniform number below n.
    """
    J, g = data
    product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
    limits, drawn = [], []
    for module, target in ((paillier_product, limits), (paillier_workers, drawn)):
        monkeypatch.setattr(
            module, "secrets", type("Spy", (), {"randbelow": staticmethod(lambda n, to=target: to.append(n) or n - 2)})
        )
    blinded = ciphertexts(evaluator.blind(product)[0], MessageKind.BLINDED, evaluator._public)
    n, square = int(evaluator._public.n), int(evaluator._public.square)
    assert limits == drawn == [n] * len(product.ciphertexts)
    offset = choose_packing(BITS, len(J)).offset
    for c, sent in zip(product.ciphertexts, blinded, strict=True):
        assert sent == c * int(evaluator._public.shift(n - 2 + offset)) * pow(n - 2, n, square) % square


def test_only_target_windows_come_back(holder, evaluator):
    """Cross terms of packed rows would be equations about g; the holder's answer contains only windows with results."""
    rng = np.random.default_rng(4)
    n, d = 256, 9
    slots = choose_packing(BITS, n)
    assert slots.samples > 1
    product = evaluator.transpose_product(
        evaluator.prepare(rng.normal(size=(n, d))), holder.encrypt(rng.uniform(-1, 1, size=(n, 1)), bound=1.0)
    )
    opened = holder.open(evaluator.blind(product)[0], OpeningShape(n, 1, d))
    assert len(opened) == 46 + (d + PAILLIER_CHECKS) * -(-slots.width // 8)


def test_masks_do_not_mix(holder, evaluator, data):
    J, g = data
    sealed = holder.encrypt(g, bound=1.0)
    product = evaluator.transpose_product(evaluator.prepare(J), sealed)
    (first, _), (_, other) = evaluator.blind(product), evaluator.blind(product)
    with pytest.raises(OpeningMismatch):
        evaluator.unblind(holder.open(first, OpeningShape(21, 2, 13)), other)
    _, smaller = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J[:, :5]), sealed))
    with pytest.raises(CryptoError):
        evaluator.unblind(holder.open(first, OpeningShape(21, 2, 13)), smaller)


def test_another_key_does_not_open(holder, evaluator, data):
    J, g = data
    stranger = PaillierScheme(BITS).keygen()
    other = PaillierScheme(BITS).evaluator(stranger.public)
    sealed = holder.encrypt(g, bound=1.0)
    with pytest.raises(KeyMismatch):
        other.transpose_product(other.prepare(J), sealed)
    blinded, mask = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), sealed))
    with pytest.raises(KeyMismatch):
        stranger.open(blinded, OpeningShape(21, 2, 13))
    relabelled = blinded[:6] + stranger._key.public.fingerprint + blinded[22:]
    try:
        answer = stranger.open(relabelled, OpeningShape(21, 2, 13))
    except CryptoError:
        return  # a ciphertext is too large for the smaller modulus
    back = answer[:6] + evaluator._public.fingerprint + answer[22:]
    with pytest.raises(OpeningMismatch):
        evaluator.unblind(back, mask)


@pytest.mark.parametrize("element", ["zero", "n", "multiple of p", "square", "all ones"])
def test_bad_elements(key, holder, evaluator, data, element):
    J, g = data
    public = key.public
    n, p = int(public.n), key.parts_for_workers()[0]
    bad = {"zero": 0, "n": n, "multiple of p": 12345 * p, "square": n * n, "all ones": (1 << 2 * BITS) - 1}[element]
    sealed = holder.encrypt(g, bound=1.0)
    blinded, _ = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), sealed))
    for message, use in (
        (sealed, lambda m: evaluator.transpose_product(evaluator.prepare(J), m)),
        (blinded, lambda m: holder.open(m, OpeningShape(21, 2, 13))),
    ):
        for place in (46, len(message) - public.size):
            altered = message[:place] + bad.to_bytes(public.size, "big") + message[place + public.size :]
            with pytest.raises(CryptoError):
                use(altered)


def test_malformed_messages(key, holder, evaluator, data):
    J, g = data
    prepared = evaluator.prepare(J)
    sealed = holder.encrypt(g, bound=1.0)
    blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, sealed))
    opened = holder.open(blinded, OpeningShape(21, 2, 13))
    uses = (
        (sealed, lambda m: evaluator.transpose_product(prepared, m)),
        (blinded, lambda m: holder.open(m, OpeningShape(21, 2, 13))),
        (opened, lambda m: evaluator.unblind(m, mask)),
    )
    for message, use in uses:
        bad = [b"", message[:20], message[:46], message[:-1], message + b"\0", b"XXXX" + message[4:]]
        bad += [message[:4] + b"\x07" + message[5:], message[:5] + b"\x09" + message[6:]]
        bad += [message[:at] + b"\xff\xff\xff\xff" + message[at + 4 :] for at in (22, 26, 42)]
        bad += [message[:34] + struct.pack(">d", bound) + message[42:] for bound in (np.nan, np.inf, 0.0, -1.0)]
        for altered in bad:
            with pytest.raises(CryptoError):
                use(altered)
    for wrong in (opened, blinded):
        with pytest.raises(CryptoError):
            evaluator.transpose_product(prepared, wrong)
    with pytest.raises(CryptoError):
        evaluator.transpose_product(evaluator.prepare(J[:5]), sealed)
    none = write_message(
        PaillierHeader(MessageKind.BLINDED, key.public.fingerprint, (21, 2, 0), 1.0), [], key.public.size
    )
    for shape in (OpeningShape(21, 2, 13), OpeningShape(21, 2, 0)):
        with pytest.raises(CryptoError):
            holder.open(none, shape)


def test_errors_show_no_values(holder):
    with pytest.raises(RangeError) as caught:
        holder.encrypt(np.array([[0.25], [123.456]]), bound=1.0)
    assert "123" not in str(caught.value)
