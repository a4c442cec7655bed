"""A key holder that chooses its public values to read J out of a reply: the attack, and why it is refused or fails.

Each attack succeeds against an engine without the one measure that prevents it.
"""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from pathlib import Path

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

import securevfl as vfl
from securevfl.crypto.kernel import gradient
from securevfl.crypto.kernel.gradient import KernelGradient, KernelGradientHolder
from securevfl.crypto.kernel.residue_bytes import packed_size
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, SEALED_HEADER
from securevfl.crypto.kernel.row_products import _fingerprint
from securevfl.crypto.lattice import lattice_sum, residue_encoding
from securevfl.crypto.lattice.lattice_gradient import (
    LatticeEvaluator,
    LatticeGradient,
    LatticeGradientParameters,
    LatticeHolder,
)
from securevfl.crypto.lattice.lattice_sum import LatticeSum, LatticeSumHolder
from securevfl.crypto.paillier import fixed_point_integers
from securevfl.crypto.paillier.packing import choose_packing, pack, unpack
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey, noise
from securevfl.crypto.paillier.paillier_messages import (
    MessageKind,
    PaillierHeader,
    read_message,
    read_numbers,
    write_message,
)
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator, PaillierHolder
from securevfl.errors import CryptoError
from securevfl.protocols.engines import Engine
from securevfl.protocols.residuals.sealed_residual import BlindedProduct
from securevfl.protocols.residuals.sealed_residual import ResidualKey as KeyMessage
from securevfl.protocols.sums.mask_keys import SumPublicKey
from securevfl.protocols.sums.pairwise_sum import MaskedSummand
from securevfl.runtime.observer import Event
from tests.builders import raises_code

PARAMETERS = LatticeGradientParameters()


def trains(engine: Engine) -> list[Event]:
    """Return the events of a training of two parties that must end with a CryptoError."""
    events: list[Event] = []
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        batch_size=64,
        epochs=1,
        protocol=vfl.Protocol(residual=engine),
    )
    with pytest.raises(CryptoError):
        vfl.simulate(job, vfl.datasets.breast_cancer(), workers=1, observe=events.append)
    return events


def left_by_shop(events: list[Event]) -> set[type]:
    assert any(isinstance(event.message, KeyMessage) and event.direction == "recv" for event in events)
    return {type(event.message) for event in events if event.me == "shop" and event.direction == "send"}


def quotient(holder: LatticeHolder, evaluator: LatticeEvaluator, J: np.ndarray) -> np.ndarray:
    """Return c1 of the reply divided by c1 of the request: J up to a factor for each column, if the attack works."""
    ring, p = PARAMETERS.ring, PARAMETERS.ring.primes[0]
    n, d = J.shape
    sealed = holder.encrypt(np.full((n, 1), 0.5), bound=1.0)
    product = evaluator.transpose_product(evaluator.prepare(J), sealed)
    blinded, _ = evaluator.blind(product)
    second = residue_encoding.unpack(memoryview(blinded)[BLINDED_HEADER.size :], ring.primes, DEGREE)
    flat = ring.io.ciphertext(ring.level, np.stack([second, second]), ntt=False)
    ring.evaluator.transform_to_ntt_inplace(flat)
    unsealed = ring.unsealed(
        product.scale.layout, 1, sealed[SEALED_HEADER.size :][: ring.sealed_size(product.scale.layout, 1)]
    )
    over, under = (ring.io.residues(item, ring.shape)[1][0] for item in (flat, unsealed))
    ratio = np.zeros(ring.shape, np.uint64)
    ratio[:, 0] = [int(a) * pow(int(b), -1, p) % p for a, b in zip(over, under, strict=True)]
    cipher = ring.io.ciphertext(ring.level, ratio, ntt=True)
    ring.evaluator.transform_from_ntt_inplace(cipher)
    values = ring.io.residues(cipher, ring.shape)[0][0].astype(np.int64)
    centred = np.where(values > p // 2, values - p, values).astype(float)
    s = product.scale.layout.s
    return np.array([[centred[j * s + s - 1 - i] for j in range(d)] for i in range(n)])


def mean_correlation(columns: np.ndarray, J: np.ndarray) -> float:
    """Return the mean |correlation| of the recovered columns with those of J."""
    return float(np.mean([abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(columns.T, J.T, strict=True)]))


J = np.random.default_rng(0).normal(size=(64, 4))


class SendsBothHalves(LatticeHolder):
    """Sends both halves of a chosen public key, as a format without a seed would allow."""

    def __init__(self, parameters: LatticeGradientParameters, columns: int, openings: int = 1) -> None:
        super().__init__(parameters, columns, openings)
        self.public = b"SLK3" + bytes(2 * parameters.key_size)
        self._fingerprint = _fingerprint(self.public)


class AcceptsBothHalves(LatticeEvaluator):
    """Accepts both halves of a public key."""

    def __init__(self, parameters: LatticeGradientParameters, public: bytes) -> None:
        ring = parameters.ring
        super().__init__(parameters, LatticeHolder(parameters, 1).public)
        body, half = memoryview(public)[4:], parameters.key_size
        b, a = (residue_encoding.unpack(part, ring.key_primes, DEGREE) for part in (body[:half], body[half:]))
        self._encryptor = ring.encryptor(b, a)
        self._fingerprint = _fingerprint(public)


def test_a_chosen_second_half_of_the_key_would_reveal_j() -> None:
    holder = SendsBothHalves(PARAMETERS, 4)
    assert mean_correlation(quotient(holder, AcceptsBothHalves(PARAMETERS, holder.public), J), J) > 0.999999


def test_a_key_that_names_both_halves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = SendsBothHalves(PARAMETERS, 4)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT", kind="SLK3"):
        LatticeEvaluator(PARAMETERS, holder.public)
    monkeypatch.setattr(LatticeGradient, "holders", SendsBothHalves)
    assert BlindedProduct not in left_by_shop(trains(vfl.Ckks(library="seal")))


class SendsBothHalvesOnKernel(KernelGradientHolder):
    """Sends both halves of a chosen public key on the kernel."""

    def __init__(self, parameters: gradient.GradientParameters, columns: int, openings: int = 1) -> None:
        super().__init__(parameters, columns, openings)
        self.public = self.public[:4] + bytes(2 * packed_size(parameters.primes, DEGREE))


def test_a_key_on_the_kernel_that_names_both_halves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = SendsBothHalvesOnKernel(gradient.GradientParameters(), 4)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT", kind="SGK2"):
        KernelGradient().evaluator(holder.public)
    monkeypatch.setattr(KernelGradient, "holders", SendsBothHalvesOnKernel)
    assert BlindedProduct not in left_by_shop(trains(vfl.Ckks()))


class ChoosesB(LatticeHolder):
    """Sends a chosen b with an honest seed."""

    def __init__(self, b: np.ndarray) -> None:
        super().__init__(PARAMETERS, 4)
        self.public = self.public[: -PARAMETERS.key_size] + residue_encoding.pack(b, PARAMETERS.ring.key_primes)
        self._fingerprint = _fingerprint(self.public)


def chosen_b(kind: str) -> np.ndarray:
    primes, degree = PARAMETERS.ring.key_primes, DEGREE
    if kind == "random":
        return np.stack([np.random.default_rng(1).integers(p, size=degree, dtype=np.uint64) for p in primes])
    value = {"zero": 0, "one": 1, "minus one": -1}[kind]
    return np.stack([np.full(degree, value % p, np.uint64) for p in primes])


@pytest.mark.parametrize("kind", ["zero", "one", "minus one", "random"])
def test_a_chosen_first_half_of_the_key_reveals_nothing(kind: str) -> None:
    """c1 of the reply does not depend on b, and the requested coefficients of c0 are masked."""
    holder = ChoosesB(chosen_b(kind))
    evaluator = LatticeEvaluator(PARAMETERS, holder.public)
    results = [quotient(holder, evaluator, J) for _ in range(8)]
    assert np.mean([mean_correlation(one, J) for one in results]) < 0.2  # 0.1 for 64 random numbers
    assert mean_correlation(np.mean(results, axis=0), J) < 0.4
    p = PARAMETERS.ring.primes[0]
    assert all(np.median(np.abs(one)) > p / 16 for one in results)
    assert_reply_is_uniform(holder, evaluator)


def assert_reply_is_uniform(holder: LatticeHolder, evaluator: LatticeEvaluator) -> None:
    """Test c1 and the sent coefficients of c0 by chi-square, over all bytes and by the top bits of residues."""
    ring, columns = PARAMETERS.ring, 2000
    product = evaluator.transpose_product(
        evaluator.prepare(np.ones((1, columns))), holder.encrypt(np.ones((1, 1)), bound=1.0)
    )
    body, width = memoryview(evaluator.blind(product)[0])[BLINDED_HEADER.size :], product.scale.width
    second = residue_encoding.unpack(body, ring.primes, DEGREE)
    first = residue_encoding.unpack(body[residue_encoding.packed_size(ring.primes, DEGREE) :], ring.primes, width)
    for row, p in [*zip(second, ring.primes, strict=True), *zip(first, ring.primes, strict=True)]:
        for bins in (row * 16 // np.uint64(p), row & np.uint64(15)):
            counts = np.bincount(bins.astype(int), minlength=16)
            assert ((counts - len(row) / 16) ** 2 / (len(row) / 16)).sum() < 80  # 15 degrees of freedom: P = 7e-11


@pytest.mark.parametrize("kind", ["zero", "random"])
def test_a_chosen_key_for_sums_reveals_only_the_sum(kind: str) -> None:
    """Under a bad key the holder's view is the same for any two summands with the same sum."""
    scheme = LatticeSum()
    holder = scheme.sum_keygen()
    assert isinstance(holder, LatticeSumHolder)
    ring = scheme._ring
    rows = [
        np.zeros(DEGREE, np.uint64)
        if kind == "zero"
        else np.random.default_rng(2).integers(p, size=DEGREE, dtype=np.uint64)
        for p in ring.key_primes
    ]
    key = residue_encoding.pack(np.stack(rows), ring.key_primes)
    adder = scheme.adder(holder.public[: -len(key)] + key)
    v = np.linspace(-1, 1, 50)
    totals = [adder.add(*(adder.encrypt(x, bound=2.0, terms=2) for x in (v + shift, -shift))) for shift in (0 * v, v)]
    assert totals[0] != totals[1]
    if kind == "zero":  # the totals open without any key and give the same sum
        opened = [lattice_sum._residues(ring, total, 0)[0][:, :50] for total in totals]
        shift = lattice_sum._parse(ring, totals[0], adder._fingerprint).shift
        first, second = (np.rint(values / 2.0**shift) for values in opened)
        assert np.abs(first - second).max() <= 1  # three roundings


BITS = 2048


@lru_cache(maxsize=1)
def smooth_key() -> tuple[SecretKey, dict[int, mpz], PublicKey]:
    """Return a key whose p - 1 and q - 1 have small prime factors, and h of order 3, so that logarithms are easy."""
    small = [r for r in range(5, 1 << 14) if gmpy2.is_prime(r)]
    primes, orders = [], set()
    for pool in (small[::2], small[1::2]):
        p, factors = _smooth_prime(pool, 6 if not primes else 2)
        primes.append(p)
        orders |= factors
    p, q = primes
    key = SecretKey.from_primes(int(p), int(q))
    lead = next(x for b in range(2, 99) if (x := gmpy2.powmod(b, p * ((p - 1) // 3), p * p)) != 1)
    h = int(key._join(lead, mpz(1)))
    assert h != 1
    assert pow(h, 3, int(key.public.square)) == 1
    public = PublicKey(int(p * q), h, _roots(key))
    return key, {r: (p - 1) * (q - 1) // r for r in orders}, public


def _roots(key: SecretKey) -> list[int]:
    data, width = key.public.data, BITS // 8
    return [int.from_bytes(data[i : i + width], "big") for i in range(7 + 3 * width, len(data), width)]


def _smooth_prime(pool: list[int], start: int) -> tuple[mpz, set[int]]:
    while True:
        product, used = mpz(start), set()
        for r in secrets.SystemRandom().sample(pool, len(pool)):
            if product.bit_length() < 1024 - 14:
                product, used = product * r, used | {r}
                continue
            candidate = product * r + 1
            if candidate >> 1022 == 3 and gmpy2.is_prime(candidate):
                return candidate, used | {r}


def logarithm(base: mpz, value: mpz, square: mpz, powers: dict[int, mpz], bits: int) -> int | None:
    """Return x with base^x = value up to elements of order 2 and 3, by the algorithm of Pohlig and Hellman (1978)."""
    x, modulus = mpz(0), mpz(1)
    for r, power in powers.items():
        if modulus.bit_length() > bits + 2:
            break
        b, v = gmpy2.powmod(base, power, square), gmpy2.powmod(value, power, square)
        if b == 1:
            continue
        steps = int(gmpy2.isqrt(r)) + 1
        baby = {gmpy2.powmod(b, i, square): i for i in range(steps)}
        giant, at = gmpy2.powmod(b, -steps, square), v
        digit = None
        for k in range(steps):
            if at in baby:
                digit = k * steps + baby[at]
                break
            at = at * giant % square
        if digit is None:
            return None
        x += modulus * ((digit - x) * gmpy2.invert(modulus, r) % r)
        modulus *= r
    return int(x - modulus if x > modulus // 2 else x)


class ByPowersOfH(PaillierEvaluator):
    """Re-randomises by powers of the holder's base, with long exponents."""

    def _rerandomised(self, ciphertexts: list[int]) -> list[int]:
        public = self._public
        return [int(c * noise(public, public.bits + 40, 6) % public.square) for c in ciphertexts]


def rows_read(evaluator_type: type[PaillierEvaluator]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return J and the holder's reading of one reply: the first rows of J, packed as one exponent."""
    key, powers, public = smooth_key()
    n, square = public.n, public.square
    table = np.random.default_rng(0).normal(size=(12, 2))
    slots = choose_packing(BITS, len(table))
    gamma = gmpy2.powmod(7, n, square)  # only the first ciphertext is randomised
    packed = pack(fixed_point_integers.encode(np.full(12, 0.5), 1.0, slots.residual_bits), slots.samples, slots.pitch)
    sealed = [int(public.shift(m) * (gamma if i == 0 else 1) % square) for i, m in enumerate(packed)]
    evaluator = evaluator_type(PublicKey.load(public.data, BITS))
    prepared = evaluator.prepare(table)
    message = write_message(
        PaillierHeader(MessageKind.SEALED, public.fingerprint, (12, 1, 0), 1.0), sealed, public.size
    )
    blinded, _ = evaluator.blind(evaluator.transpose_product(prepared, message))
    _, body, count = read_message(blinded, MessageKind.BLINDED, public.fingerprint)
    (reply, *_) = read_numbers(body, count, count, public.size)
    randomness = reply * public.shift(-key.decrypt([reply])[0]) % square
    K, share = slots.samples, slots.share(2 + PAILLIER_CHECKS)
    x = logarithm(gamma, mpz(randomness), square, powers, K * share * slots.pitch)
    if x is None:
        return None
    digits = unpack(x, K * share, slots.pitch)
    result = np.array([[digits[K - 1 - k + K * j] for j in range(share)] for k in range(K)])
    return result[:, :2] / prepared.scales[:share], table[:K, :share]


def test_powers_of_the_holders_base_reveal_rows() -> None:
    read_out = rows_read(ByPowersOfH)
    assert read_out is not None
    assert np.abs(read_out[0] - read_out[1]).max() < 1e-4


def test_the_reply_under_a_smooth_key_reveals_nothing() -> None:
    read_out = rows_read(PaillierEvaluator)
    if read_out is not None:
        assert np.abs(read_out[0] - read_out[1]).max() > 1.0
    # of at least 140 classes, 20 replies are in 8 or fewer with P < C(20, 12) (8 / 140)^12 = 2e-10
    assert len(classes_of_replies(PaillierEvaluator)) > 8
    assert len(classes_of_replies(ByPowersOfH)) == 1


def classes_of_replies(evaluator_type: type[PaillierEvaluator]) -> set[tuple[int, ...]]:
    """Return the classes modulo two small factors of p - 1 and q - 1 of the randomness of 20 replies."""
    key, powers, public = smooth_key()
    n, square = public.n, public.square
    evaluator = evaluator_type(PublicKey.load(public.data, BITS))
    message = write_message(
        PaillierHeader(MessageKind.SEALED, public.fingerprint, (1, 1, 0), 1.0), [int(public.shift(5))], public.size
    )
    product = evaluator.transpose_product(evaluator.prepare(np.ones((1, 1))), message)
    result = set()
    for _ in range(20):
        (reply,) = read_numbers(
            read_message(evaluator.blind(product)[0], MessageKind.BLINDED, public.fingerprint)[1], 1, 1, public.size
        )
        by_prime = [int(gmpy2.jacobi(reply % prime, prime)) for prime in (key._p, key._q)]
        randomness = reply * public.shift(-key.decrypt([reply])[0]) % square
        result.add((*by_prime, *(int(gmpy2.powmod(randomness, powers[r], square) % n) for r in sorted(powers)[:2])))
    return result


def test_a_modulus_that_shares_a_factor_with_phi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With n = p (2 k p + 1), powers of x do not cover the n-th residues, so a reply would reveal exponents mod p."""
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "paillier.json").read_text())
    bad = next(case for case in vectors["invalid_keys"] if "shares p with phi" in case["comment"])
    honest = PaillierHolder.__init__

    def with_bad_key(self: PaillierHolder, *remaining: object) -> None:
        honest(self, *remaining)
        self.public = bytes.fromhex(bad["public"])

    monkeypatch.setattr(PaillierHolder, "__init__", with_bad_key)
    assert BlindedProduct not in left_by_shop(trains(vfl.Paillier(bits=BITS)))


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_a_public_key_that_makes_pair_keys_known_is_refused(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point of small order makes the shared secret zero, so everyone would know the masks."""
    from securevfl.runtime.channel import Channel

    send, events = Channel.send, []

    def sends_bad_key(self: Channel, to: str, message: object, subchannel: str = "", *, permit: object = None) -> None:
        if self.me == "shop" and isinstance(message, SumPublicKey):
            message = SumPublicKey(key)
        send(self, to, message, subchannel, permit=permit)

    monkeypatch.setattr(Channel, "send", sends_bad_key)
    protocol = vfl.Protocol(sum="pairwise", residual="open")
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), batch_size=64, epochs=1, protocol=protocol)
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY", peer="shop"):
        vfl.simulate(job, vfl.datasets.breast_cancer(parties=3), observe=events.append)
    sent = {type(event.message) for event in events if event.me == "telco" and event.direction == "send"}
    assert SumPublicKey in sent
    assert MaskedSummand not in sent
