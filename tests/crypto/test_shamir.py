import itertools
import pickle
import random
from fractions import Fraction

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.masking import shamir
from securevfl.crypto.masking.shamir import MAX_HOLDERS, SHARE_BYTES, P, Share, combine, combine_many, split
from securevfl.errors import CryptoError

SECRET = bytes(range(32))


def interpolate_at_zero(points):
    """Lagrange over the rationals, reduced at the end."""
    total = 0
    for x, y in points:
        c = Fraction(1)
        for other, _ in points:
            if other != x:
                c *= Fraction(other, other - x)
        total += y * c.numerator * pow(c.denominator, -1, P)
    return total % P


def test_the_field_is_the_smallest_prime_above_every_secret():
    assert gmpy2.is_prime(P, 50)
    assert gmpy2.next_prime(2**256) == P


@settings(max_examples=40)
@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_shares_give_the_secret(secret, data):
    holders = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, holders))
    shares = [Share.from_bytes(share.to_bytes()) for share in split(secret, threshold=threshold, holders=holders)]
    chosen = data.draw(st.permutations(shares))[: data.draw(st.integers(threshold, holders))]
    assert combine(chosen, threshold=threshold) == secret
    points = [(share.x, int(share._y)) for share in chosen]
    assert interpolate_at_zero(points) == int.from_bytes(secret, "little")


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets(secret):
    for chosen in itertools.combinations(split(secret, threshold=3, holders=5), 3):
        assert combine(chosen, threshold=3) == secret


def test_a_batch_equals_one_at_a_time():
    rng = random.Random(5)
    all_shares = [split(bytes([i]) * 32, threshold=4, holders=9) for i in range(20)]
    batch = [rng.sample(shares, rng.randint(4, 9)) if i % 2 else shares[3:7] for i, shares in enumerate(all_shares)]
    assert combine_many(batch, threshold=4) == [bytes([i]) * 32 for i in range(20)]
    assert combine_many([], threshold=4) == []


def leans_on_the_secret(make):
    """Whether a lone share of threshold 2 tells apart two secrets; the top byte of y is enough to see it."""
    low = [int(make(bytes(32))[0]._y) for _ in range(200)]
    return max(low) < P // 2 or len(set(low)) < 150


def test_fewer_shares_say_nothing_and_a_mutant_without_randomness_is_caught(monkeypatch):
    def make(secret):
        return split(secret, threshold=2, holders=3)

    assert not leans_on_the_secret(make)
    monkeypatch.setattr(shamir.secrets, "randbelow", lambda _: 0)
    assert leans_on_the_secret(make)


@pytest.mark.parametrize("threshold", [2, 3, 4, 7])
def test_the_polynomial_has_full_degree(threshold):
    shares = split(SECRET, threshold=threshold, holders=8)
    for fewer in range(1, threshold):
        for chosen in itertools.combinations(shares, fewer):
            points = [(share.x, int(share._y)) for share in chosen]
            assert interpolate_at_zero(points) != int.from_bytes(SECRET, "little")


def test_fewer_shares_fit_every_secret():
    shares = split(SECRET, threshold=3, holders=3)[:2]
    for guess in (0, 12345):
        points = [(share.x, int(share._y)) for share in shares] + [(0, guess)]
        third = sum(
            y * gmpy2.divm((3 - a) * (3 - b), (x - a) * (x - b), P)
            for (x, y), (a, b) in zip(points, [(2, 0), (1, 0), (1, 2)], strict=True)
        )
        assert int.from_bytes(combine([*shares, Share(3, int(third % P))], threshold=3), "little") == guess


def test_too_few_and_duplicate_shares_are_refused():
    shares = split(SECRET, threshold=3, holders=5)
    with pytest.raises(CryptoError, match="at least 3"):
        combine(shares[:2], threshold=3)
    with pytest.raises(CryptoError, match="one holder"):
        combine([shares[0], shares[0], shares[1]], threshold=3)
    with pytest.raises(CryptoError):
        combine([], threshold=0)
    with pytest.raises(CryptoError, match="do not belong"):
        combine([Share(1, P - 1)], threshold=1)


@pytest.mark.parametrize(("threshold", "holders"), [(0, 3), (4, 3), (-1, 3), (1, 0), (2, MAX_HOLDERS + 1)])
def test_impossible_thresholds_are_refused(threshold, holders):
    with pytest.raises(CryptoError, match="threshold"):
        split(SECRET, threshold=threshold, holders=holders)


def test_malformed_secrets_and_shares_are_refused():
    for secret in (b"", bytes(31), bytes(33)):
        with pytest.raises(CryptoError, match="32 bytes"):
            split(secret, threshold=1, holders=1)
    good = split(SECRET, threshold=1, holders=1)[0].to_bytes()
    assert len(good) == SHARE_BYTES
    outside = (1).to_bytes(2, "little") + P.to_bytes(33, "little")
    for raw in (b"", good[:-1], good + b"\0", bytes(SHARE_BYTES), outside):
        with pytest.raises(CryptoError):
            Share.from_bytes(raw)


def test_a_share_shows_and_pickles_nothing():
    share = split(SECRET, threshold=1, holders=1)[0]
    assert repr(share) == "<Share, secret>"
    with pytest.raises(TypeError):
        pickle.dumps(share)
