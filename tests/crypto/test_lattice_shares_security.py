"""Attacks on shared products W^T V: each fails here and succeeds against a weakened engine (mutant).

The attacker is the key holder, with all it legitimately has: its secret key, its queries, their noise. A mutant removes
one defence. Polynomials are multiplied by Kronecker substitution: one product of two very large integers. W is the
evaluator's matrix, V the holder's.
"""

from __future__ import annotations

import math
import os

import gmpy2
import numpy as np
import pytest

from securevfl.crypto.kernel import share_protocol
from securevfl.crypto.kernel.ring_sampling import NOISE_STD
from securevfl.crypto.kernel.share_protocol import QUERY_HEADER, REPLY_HEADER
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_shares import (
    BfvParameters,
    LatticeShareEvaluator,
    LatticeShareHolder,
)
from securevfl.crypto.share_scheme import common_coin

PARAMETERS = BfvParameters(56)
BFV, N = PARAMETERS.bfv, 4096
P0, P1 = BFV.primes
Q, T = P0 * P1, 2**56
POLYNOMIAL = residue_encoding.packed_size(BFV.primes, N)


def coin():
    return common_coin(os.urandom(32), os.urandom(32), 0, "attack")


def pair(evaluator=LatticeShareEvaluator, holder=LatticeShareHolder):
    mine = coin()
    h = holder(PARAMETERS, mine)
    return h, evaluator(PARAMETERS, h.public, mine)


def words(*shape):
    return np.frombuffer(os.urandom(8 * math.prod(shape)), np.uint64).reshape(shape) & PARAMETERS.ring.mask


def crt(residues):
    return [(int(a) * P1 * pow(P1, -1, P0) + int(b) * P0 * pow(P0, -1, P1)) % Q for a, b in residues.T]


def centred(x, q=Q):
    return x - q if x > q // 2 else x


def negacyclic(a, b):
    """Return the product of two lists of N integers modulo Q, as polynomials modulo x^N + 1."""
    slot = 8 * 26  # 2 * 92 + 12 bits fit

    def packed(c):
        return gmpy2.mpz(int.from_bytes(b"".join(int(x).to_bytes(26, "little") for x in c), "little"))

    product = int(packed(a) * packed(b)).to_bytes(2 * N * slot // 8, "little")
    c = [int.from_bytes(product[26 * i : 26 * i + 26], "little") for i in range(2 * N)]
    return [(c[i] - c[N + i]) % Q for i in range(N)]


def from_ntt(rows):
    """Return the coefficients modulo Q of a polynomial given by its NTT values modulo both primes."""
    cipher = BFV.io.ciphertext(BFV.level, np.stack([rows, rows]), ntt=True)
    BFV.evaluator.transform_from_ntt_inplace(cipher)
    return crt(BFV.io.residues(cipher, (2, 2, N))[0])


def to_ntt(residues):
    cipher = BFV.io.ciphertext(BFV.level, np.stack([residues, residues]), ntt=False)
    BFV.evaluator.transform_to_ntt_inplace(cipher)
    return BFV.io.residues(cipher, (2, 2, N))[0]


class KnowingHolder(LatticeShareHolder):
    """A holder that stores its secret key as coefficients, which SEAL does not show."""

    def __init__(self, parameters, mine):
        super().__init__(parameters, mine)
        self.secret = from_ntt(self._secret_key.residues[:2])


def layout_of(sealed):
    return PARAMETERS.layout(*QUERY_HEADER.unpack_from(sealed)[2:])


def query(sealed):
    """Return the first ciphertext of a query as coefficients, residues (2, primes, N)."""
    layout = layout_of(sealed)
    up = BFV.unsealed(layout, layout.c, sealed[QUERY_HEADER.size :][: BFV.sealed_size(layout, layout.c)])
    BFV.evaluator.transform_from_ntt_inplace(up)
    return BFV.io.residues(up, (2, 2, N))


def answer(reply, count):
    """Return c1 (primes, N) and the wanted coefficients of c0 (primes, wanted) of the only ciphertext of a reply."""
    view = memoryview(reply)[REPLY_HEADER.size :]
    return residue_encoding.unpack(view, BFV.primes, N), residue_encoding.unpack(view[POLYNOMIAL:], BFV.primes, count)


def test_secret_and_noise_are_what_they_should_be():
    """All tests below rely on this: the key is ternary, and b + a s and the noise of a query are small."""
    mine = coin()
    holder = KnowingHolder(PARAMETERS, mine)
    assert {centred(x) for x in holder.secret} == {-1, 0, 1}
    first = residue_encoding.unpack(memoryview(holder.public)[5:], BFV.key_primes, N)[:2]
    b, a = from_ntt(first), from_ntt(PARAMETERS.second(mine)[:2])
    error = np.array([centred((x + y) % Q) for x, y in zip(b, negacyclic(a, holder.secret), strict=True)])
    assert np.abs(error).max() <= 21
    assert 0.9 * NOISE_STD < error.std() < 1.1 * NOISE_STD
    noise = np.array(noise_of(holder, holder.encrypt(V := words(5, 1), columns=3), V))
    assert np.abs(noise).max() <= 22
    assert 0.9 * NOISE_STD < noise.std() < 1.15 * NOISE_STD


def noise_of(holder, sealed, V):
    """Return the noise e of the only ciphertext of a query, which its holder can compute."""
    c0, c1 = (crt(number) for number in query(sealed))
    layout = layout_of(sealed)
    message = np.zeros((layout.points, layout.r), np.uint64)
    message[:, : layout.c] = layout.messages(V[None], slice(0, 1))[0, ..., 0]
    product = negacyclic(c1, holder.secret)
    return [
        centred((x + y - (2 * Q * m + T) // (2 * T)) % Q)
        for x, y, m in zip(c0, product, message.ravel().tolist(), strict=True)
    ]


# --- a reply without an encryption of zero


class NoZero(LatticeShareEvaluator):
    """Mutant: sends the product without an encryption of zero."""

    def _zero(self):
        residues = np.zeros((2, 2, N), np.uint64)
        residues[1, :, 0] = 1  # SEAL refuses c1 = 0
        return BFV.io.ciphertext(BFV.level, residues, ntt=False)


class GivenSecond(LatticeShareEvaluator):
    """Mutant: uses the second polynomial of the key that the holder sends, which is zero."""

    def __init__(self, parameters, public, mine):
        original = parameters.second
        parameters.second = lambda _: np.zeros_like(original(mine))
        try:
            super().__init__(parameters, public, mine)
        finally:
            del parameters.second


class ZeroKey(LatticeShareHolder):
    """Publishes b = 0."""

    def __init__(self, parameters, mine):
        super().__init__(parameters, mine)
        self.public = self.public[:5] + bytes(len(self.public) - 5)
        self._key = share_protocol._fingerprint(mine, self.public)


def quotient(evaluator_type, holder_type=LatticeShareHolder):
    """Return the share of W's entries that the holder finds when it divides c1 of the reply by c1 of its query."""
    holder, evaluator = pair(evaluator_type, holder_type)
    W = np.random.default_rng(0).integers(-300, 300, (64, 60))
    sealed = holder.encrypt(words(64, 1), columns=60)
    reply, _ = evaluator.product(evaluator.prepare(W), sealed)
    c1 = answer(reply, 60)[0].copy()
    if evaluator_type is NoZero:
        c1[:, 0] = (c1[:, 0] + np.array(BFV.primes, np.uint64) - np.uint64(1)) % np.array(BFV.primes, np.uint64)
    over, under = to_ntt(c1), to_ntt(query(sealed)[1])
    rows = [
        [int(x) * pow(int(y), -1, p) % p for x, y in zip(a, b, strict=True)]
        for a, b, p in zip(over, under, BFV.primes, strict=True)
    ]
    result = np.array([centred(x) for x in from_ntt(np.array(rows, np.uint64))], object)
    truth = layout_of(sealed).plaintexts(W, slice(0, 1))[:, 0, 0]
    return float((result[: len(truth)] == truth).mean())


def test_only_the_encryption_of_zero_hides_w():
    assert quotient(NoZero) == 1.0
    assert quotient(LatticeShareEvaluator) < 0.02


def test_only_the_coin_protects_w_from_chosen_keys():
    """With a key (b, a) = (0, 0) the encryption of zero hides nothing; with only b = 0, it hides W."""
    assert quotient(GivenSecond, ZeroKey) == 1.0
    assert quotient(LatticeShareEvaluator, ZeroKey) < 0.02


def test_no_two_replies_share_a_polynomial():
    holder, evaluator = pair()
    sealed, prepared = holder.encrypt(words(8, 1), columns=8), evaluator.prepare(np.eye(8, dtype=int))
    first, second = (answer(evaluator.product(prepared, sealed)[0], 8) for _ in range(2))
    assert all((a != b).mean() > 0.99 for a, b in zip(first, second, strict=True))


# --- a mask modulo t


class MaskModuloT(LatticeShareEvaluator):
    """Mutant: masks with round(q/t m), m uniform modulo t, which hides the value but not the noise."""

    def _uniform(self, prg, shape):
        x = [(2 * Q * int(number) + T) // (2 * T) % Q for number in words(*shape).ravel()]
        return np.array([[number % p for number in x] for p in BFV.primes], np.uint64).reshape(-1, *shape)


def by_noise(evaluator_type, visits=60):
    """Return the share of W's entries that a regression of the noise of replies on that of queries finds.

    W has 2 rows and 16 columns; the noise at a wanted coefficient is a sum of e over all coefficients of W.
    """
    holder, evaluator = pair(evaluator_type, KnowingHolder)
    W = np.random.default_rng(1).integers(-100, 100, (2, 16))
    prepared = evaluator.prepare(W)
    equations, values = [], []
    for _ in range(visits):
        V = words(2, 1)
        sealed = holder.encrypt(V, columns=16)
        layout = layout_of(sealed)
        e = np.array(noise_of(holder, sealed, V), float)
        where = layout.wanted[:16]
        c1, c0 = answer(evaluator.product(prepared, sealed)[0], len(where))
        product = negacyclic(crt(c1), holder.secret)
        for at, first in zip(where, crt(c0), strict=True):
            w = (first + product[at]) % Q
            values.append(float(centred((w - (2 * Q * ((2 * T * w + Q) // (2 * Q)) + T) // (2 * T)) % Q)))
            equations.append([e[at - k] if at >= k else -e[N + at - k] for k in range(layout.s * 16)])
    result = np.rint(np.linalg.lstsq(np.array(equations), np.array(values), rcond=None)[0])
    truth = layout.plaintexts(W, slice(0, 1))[: layout.s * 16, 0, 0]
    return float((result == truth).mean())


@pytest.mark.slow
def test_only_a_mask_modulo_q_hides_the_noise():
    assert by_noise(MaskModuloT) > 0.8
    assert by_noise(LatticeShareEvaluator) < 0.1


def test_what_the_holder_decrypts_is_uniform_modulo_q():
    """For constant W and V, decrypted values and the fractions that SEAL rounds away are uniform."""
    holder, evaluator = pair(holder=KnowingHolder)
    sealed = holder.encrypt(np.full((1, 1), 3, np.uint64), columns=3000)
    reply, _ = evaluator.product(evaluator.prepare(np.ones((1, 3000), int)), sealed)
    c1, c0 = answer(reply, 3000)
    where = range(3000)
    product = negacyclic(crt(c1), holder.secret)
    seen = [(first + product[at]) % Q for at, first in zip(where, crt(c0), strict=True)]
    for part in ([x * 16 // Q for x in seen], [x * T % Q * 16 // Q for x in seen]):
        counts = np.bincount(part, minlength=16)
        assert ((counts - 187.5) ** 2 / 187.5).sum() < 80  # 15 degrees of freedom: exceeded once in 1e10


# zeros


def test_the_product_of_an_empty_block_is_discarded(monkeypatch):
    W = np.zeros((5000, 1), int)
    V = words(5000, 1)

    def largest():
        holder, evaluator = pair()
        reply, evaluator_share = evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=1))
        return np.abs(PARAMETERS.ring.signed(evaluator_share + holder.open(reply))).max()

    assert largest() <= 1
    inner = BFV.inner
    monkeypatch.setattr(BFV, "inner", lambda ups, plains: inner(ups, [(plain, True) for plain, _ in plains]))
    assert largest() > 2**40


class Counting:
    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __getattr__(self, name):
        self.calls.append(name)
        return getattr(self.inner, name)


def test_zeros_in_w_change_no_step_but_a_sum(monkeypatch):
    holder, evaluator = pair()
    sealed = holder.encrypt(words(5000, 1), columns=6)
    dense = np.random.default_rng(5).integers(1, 9, (5000, 6))
    half = dense.copy()
    half[:2500] = 0
    steps = []
    for W in (dense, half, np.zeros_like(dense)):
        prepared = evaluator.prepare(W)
        counting = Counting(BFV.evaluator)
        with monkeypatch.context() as patch:
            patch.setattr(BFV, "evaluator", counting)
            reply, _ = evaluator.product(prepared, sealed)
        heavy = [name for name in counting.calls if name != "add_inplace"]
        steps.append((len([n for n in heavy if n == "multiply_plain"]), len(reply)))
    assert steps[0] == steps[1] == steps[2]


# the contents of a reply, and a crafted reply


def test_cross_terms_never_leave():
    holder, evaluator = pair()
    reply, _ = evaluator.product(evaluator.prepare(np.ones((9, 5), int)), holder.encrypt(words(9, 1), columns=5))
    assert len(reply) == REPLY_HEADER.size + residue_encoding.packed_size(BFV.primes, N + 5)


def test_a_crafted_reply_reveals_nothing_to_its_sender():
    """With c1 = q/8, the holder's share depends on its key. The holder does not send it, whatever the reply is."""
    holder, evaluator = pair()
    sealed = holder.encrypt(words(4, 1), columns=4)
    reply, _ = evaluator.product(evaluator.prepare(np.ones((4, 4), int)), sealed)
    head, size = REPLY_HEADER.size, POLYNOMIAL
    for value in (0, Q // 8):
        residues = np.full((2, N), 0, np.uint64)
        residues[:, 0] = [value % p for p in BFV.primes]
        crafted = reply[:head] + residue_encoding.pack(residues, BFV.primes) + bytes(len(reply) - head - size)
        assert holder.open(crafted).shape == (4, 1)


def test_purposes_and_chunks_have_keys_of_their_own():
    nonces = os.urandom(32), os.urandom(32)
    seconds = [
        PARAMETERS.second(common_coin(*nonces, chunk, purpose)) for chunk in (0, 1) for purpose in ("steps", "sums")
    ]
    for i, first in enumerate(seconds):
        for second in seconds[i + 1 :]:
            assert (first != second).mean() > 0.999
