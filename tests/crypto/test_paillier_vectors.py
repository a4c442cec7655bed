"""Paillier on published numbers, valid and invalid, and compared with `phe` if it is installed."""

import json
import sys
from pathlib import Path

import pytest

from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.errors import ConfigError, CryptoError, KeyMismatch
from tests.builders import raises_code
from tests.crypto import phe_numbers

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "paillier.json").read_text())


def cases(group):
    return pytest.mark.parametrize("case", VECTORS[group], ids=lambda case: case["comment"])


@pytest.fixture(scope="module")
def key():
    return SecretKey(*(int(VECTORS["key"][part], 16) for part in ("p", "q", "hp", "hq")))


@pytest.fixture(scope="module")
def phe_private(key):
    phe = pytest.importorskip("phe")
    return phe.PaillierPrivateKey(phe_numbers.public_to_phe(key.public), *key.parts_for_workers()[:2])


def test_public_bytes(key):
    data = bytes.fromhex(VECTORS["key"]["public"])
    assert key.public.data == PublicKey.load(data, 2048).data == data
    assert key.public.fingerprint.hex() == VECTORS["key"]["fingerprint"]


@cases("valid")
def test_valid(key, case):
    m, r, c = (int(case[part], 16) for part in ("plaintext", "r", "ciphertext"))
    n = int(key.public.n)
    assert (1 + m * n) * pow(r, n, n * n) % (n * n) == c
    assert key.public.shift(m) * pow(r, n, n * n) % key.public.square == c
    assert key.public.check_units([c]) == [c]
    assert key.decrypt([c]) == [m]


@cases("homomorphic")
def test_homomorphic(key, case):
    assert key.decrypt([int(case["ciphertext"], 16)]) == [int(case["plaintext"], 16)]


@cases("invalid_ciphertexts")
def test_invalid_ciphertexts(key, case):
    good = int(VECTORS["valid"][0]["ciphertext"], 16)
    with pytest.raises(CryptoError):
        key.public.check_units([good, int(case["ciphertext"], 16), good])


@cases("invalid_keys")
def test_invalid_keys(case):
    with pytest.raises(CryptoError):
        PublicKey.load(bytes.fromhex(case["public"]), 2048)


def test_phe_agrees_with_the_vectors(key, phe_private):
    for case in VECTORS["valid"] + VECTORS["homomorphic"]:
        assert phe_private.raw_decrypt(int(case["ciphertext"], 16)) == int(case["plaintext"], 16)


def test_to_phe_and_back(key, phe_private):
    numbers = phe_numbers.to_phe(key.public, key.encrypt([7, -5]))
    assert [phe_private.decrypt(x) for x in numbers] == [7, -5]
    combined = phe_numbers.from_phe(
        key.public, [numbers[0] + numbers[1], numbers[0] * -3, phe_private.public_key.encrypt(9)]
    )
    assert key.decrypt(combined) == [2, int(key.public.n) - 21, 9]


def test_keys_from_phe(key, phe_private):
    again = phe_numbers.secret_from_phe(phe_private)
    assert again.public.n == key.public.n
    assert again.decrypt(key.encrypt([3])) == [3]


def test_phe_is_checked(key):
    phe = pytest.importorskip("phe")
    other, _ = phe.generate_paillier_keypair(n_length=1024)
    with pytest.raises(KeyMismatch):
        phe_numbers.from_phe(key.public, [other.encrypt(1)])
    with pytest.raises(ConfigError):
        phe_numbers.secret_from_phe(phe.generate_paillier_keypair(n_length=1024)[1])
    with pytest.raises(CryptoError):
        phe_numbers.to_phe(key.public, [0])


def test_phe_is_an_extra(key, monkeypatch):
    monkeypatch.setitem(sys.modules, "phe", None)
    with raises_code(ConfigError, "SVFL-EXTRA-MISSING"):
        phe_numbers.public_to_phe(key.public)
